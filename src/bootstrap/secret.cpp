#include "bootstrap/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <vector>

#include <fmt/format.h>

#include "base/environment.h"
#include "memory/descriptor.h"

namespace collective_ops {
namespace {

constexpr size_t kShortest = 16;   // characters
constexpr size_t kLongest = 4096;  // of a file that is a secret

std::string trimmed(const std::string& text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

Status unusable(const std::string& origin, const std::string& why) {
  return Status(ErrorCode::kInvalidArgument, fmt::format("{}: {}", origin, why));
}

Result<JobSecret> checked(const std::string& text, const std::string& origin) {
  if (text.size() < kShortest) {
    return unusable(origin, fmt::format("a secret of {} characters can be guessed; use at least {}, such as "
                                        "`openssl rand -hex 32` prints",
                                        text.size(), kShortest));
  }
  return JobSecret{JobSecret::Kind::kShared, text, origin};
}

// Rights are those of the file that was opened, whatever has its name meanwhile.
Result<JobSecret> read_file(const std::string& path) {
  const std::string origin = fmt::format("the secret file {}", path);
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid()) return unusable(origin, fmt::format("it cannot be read: {}", std::strerror(errno)));
  struct stat state {};
  if (::fstat(file.get(), &state) != 0 || !S_ISREG(state.st_mode)) {
    return unusable(origin, "it is not a regular file");
  }
  if (state.st_uid != ::geteuid() && state.st_uid != 0) {
    return unusable(origin, fmt::format("it belongs to user {}, who could change it; `chown` it to yourself",
                                        state.st_uid));
  }
  if ((state.st_mode & 077) != 0) {
    return unusable(origin, fmt::format("others may read or write it (mode {:o}); `chmod 600 {}`",
                                        state.st_mode & 0777, path));
  }
  std::string text(kLongest, '\0');
  const ssize_t count = ::read(file.get(), text.data(), text.size());
  text.resize(count > 0 ? static_cast<size_t>(count) : 0);
  return checked(trimmed(text), origin);
}

std::string default_file() {
  const std::string home = environment_text("HOME");
  return home.empty() ? "" : home + "/.config/collective-ops/secret";
}

}  // namespace

const char* const kHowToGiveSecret =
    "Give all ranks the same secret: export COLLECTIVE_OPS_SECRET=$(openssl rand -hex 32) to all of them, or "
    "put it into a file that only you can read (COLLECTIVE_OPS_SECRET_FILE, default "
    "~/.config/collective-ops/secret). On a network that nobody else can reach COLLECTIVE_OPS_INSECURE=1 "
    "does "
    "without";

Result<JobSecret> find_secret() {
  if (const std::string text = trimmed(environment_text("COLLECTIVE_OPS_SECRET")); !text.empty()) {
    return checked(text, "COLLECTIVE_OPS_SECRET");
  }
  if (const std::string path = environment_text("COLLECTIVE_OPS_SECRET_FILE"); !path.empty()) {
    return read_file(path);
  }
  if (const std::string path = default_file(); !path.empty() && ::access(path.c_str(), F_OK) == 0) {
    return read_file(path);
  }
  auto insecure = environment_flag("COLLECTIVE_OPS_INSECURE");
  if (!insecure.ok()) return insecure.status();
  if (*insecure) return JobSecret{JobSecret::Kind::kInsecure, "insecure", "COLLECTIVE_OPS_INSECURE=1"};
  return JobSecret{JobSecret::Kind::kThisHost, host_identity(), "no secret"};
}

std::string new_secret() { return hex(random_nonce()); }

Digest job_key(const JobSecret& secret, const std::string& job) {
  const std::string text = fmt::format("collective-ops job key 1/{}/{}", static_cast<int>(secret.kind), job);
  Digest key{};
  unsigned length = 0;
  ::HMAC(::EVP_sha256(), secret.bytes.data(), static_cast<int>(secret.bytes.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(key.data()), &length);
  return key;
}

Digest hmac(const Digest& key, std::span<const std::byte> data) {
  Digest digest{};
  unsigned length = 0;
  ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(data.data()), data.size(),
         reinterpret_cast<unsigned char*>(digest.data()), &length);
  return digest;
}

bool equal(const Digest& one, const Digest& other) {
  return ::CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

Nonce random_nonce() {
  Nonce nonce{};
  size_t filled = 0;
  while (filled < nonce.size()) {
    const ssize_t count = ::getrandom(nonce.data() + filled, nonce.size() - filled, 0);
    if (count > 0) filled += static_cast<size_t>(count);
    if (count < 0 && errno != EINTR) std::abort();  // a kernel without getrandom: nothing here can be trusted
  }
  return nonce;
}

std::string hex(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

std::string host_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) != 0) network.st_ino = 0;
  return fmt::format("{}/{}", boot, network.st_ino);
}

std::string host_tag() {
  const std::string host = host_identity();
  const Digest digest = hmac(Digest{}, std::as_bytes(std::span(host)));
  return hex(std::span(digest).first(8));
}

}  // namespace collective_ops
