#include "bootstrap/handshake.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <type_traits>

namespace collective_ops::handshake {
namespace {

constexpr uint64_t kMagic = 0x31'54'45'4e'4c'4c'4f'43;  // "COLLNET1"
constexpr uint32_t kVersion = 1;

// Few bytes into a connection that has sent nothing yet: they fit, or it is gone.
template <typename T>
bool send_all(int fd, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  ssize_t sent = 0;
  do {
    sent = ::send(fd, &value, sizeof(T), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof(T));
}

// Never more than belongs to `value`: what follows is somebody else's.
template <typename T>
Progress read_into(int fd, T& value, size_t& got) {
  while (got < sizeof(T)) {
    const ssize_t count = ::recv(fd, reinterpret_cast<char*>(&value) + got, sizeof(T) - got, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Progress::kWaiting;
    if (count <= 0) return Progress::kClosed;
    got += static_cast<size_t>(count);
  }
  return Progress::kDone;
}

struct Proved {
  char label[8] = {};
  Nonce server{};
  Nonce client{};
  Claim claim;
  uint32_t verdict = 0;
  uint32_t reserved = 0;
};

Digest prove(const Digest& key, std::string_view label, const Nonce& server, const Nonce& client,
             const Claim& claim, Verdict verdict = Verdict{}) {
  Proved proved;
  std::memcpy(proved.label, label.data(), label.size());
  proved.server = server;
  proved.client = client;
  proved.claim = claim;
  proved.verdict = static_cast<uint32_t>(verdict);
  static_assert(std::has_unique_object_representations_v<Proved>);
  return hmac(key, std::as_bytes(std::span(&proved, 1)));
}

}  // namespace

Progress Asking::listen(int fd) {
  const Progress read = read_into(fd, challenge_, got_);
  // A stranger that says less than a challenge is known by its first bytes.
  if (got_ >= sizeof(challenge_.magic) && challenge_.magic != kMagic) return Progress::kStranger;
  if (read == Progress::kDone && challenge_.version != kVersion) return Progress::kStranger;
  return read;
}

Progress Asking::step(int fd) {
  if (!answered_) {
    const Progress heard = listen(fd);
    return heard == Progress::kDone ? answer(fd) : heard;
  }
  const Progress read = read_into(fd, decision_, got_);
  return read == Progress::kDone ? judge() : read;
}

Progress Asking::answer(int fd) {
  nonce_ = random_nonce();
  Answer answer;
  answer.nonce = nonce_;
  answer.claim = claim_;
  answer.proof = prove(key_, "client 1", challenge_.nonce, nonce_, claim_);
  if (!send_all(fd, answer)) return Progress::kClosed;
  answered_ = true;
  got_ = 0;
  return Progress::kWaiting;
}

Progress Asking::judge() const {
  const auto verdict = static_cast<Verdict>(decision_.verdict);
  if (verdict == Verdict::kRefused) return Progress::kRefused;
  const Digest proof = prove(key_, "server 1", challenge_.nonce, nonce_, claim_, verdict);
  if (!equal(proof, decision_.proof)) return Progress::kStranger;
  if (verdict == Verdict::kAccepted) return Progress::kDone;
  return verdict == Verdict::kOver ? Progress::kOver : Progress::kWrongRank;
}

bool Answering::challenge(int fd) {
  challenge_.magic = kMagic;
  challenge_.version = kVersion;
  challenge_.nonce = random_nonce();
  return send_all(fd, challenge_);
}

Progress Answering::step(int fd) {
  const Progress read = read_into(fd, answer_, got_);
  if (read != Progress::kDone) return read;
  const Digest proof = prove(key_, "client 1", challenge_.nonce, answer_.nonce, answer_.claim);
  if (equal(proof, answer_.proof)) return Progress::kDone;
  Decision refusal;
  refusal.verdict = static_cast<uint32_t>(Verdict::kRefused);
  send_all(fd, refusal);
  return Progress::kRefused;
}

bool Answering::decide(int fd, Verdict verdict) const {
  Decision decision;
  decision.verdict = static_cast<uint32_t>(verdict);
  decision.proof = prove(key_, "server 1", challenge_.nonce, answer_.nonce, answer_.claim, verdict);
  return send_all(fd, decision);
}

}  // namespace collective_ops::handshake
