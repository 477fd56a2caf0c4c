// The first bytes of every connection between hosts: each side proves that it knows the job's secret, and
// nothing else is read before. Both sides are steps that never block.
//
//   accepting side   Challenge: its nonce
//   asking side      Answer: its nonce, what it wants, HMAC("client", both nonces, what it wants)
//   accepting side   Decision: HMAC("server", both nonces, what was wanted, verdict); no proof with a refusal
//
// Who listens on the way can read what follows, and change it: proofs keep strangers out, they hide nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bootstrap/secret.h"

namespace collective_ops::handshake {

struct Claim {
  int32_t rank = 0;      // who asks
  int32_t peer = 0;      // whom it means
  uint32_t purpose = 0;  // Purpose of cluster.h
  uint32_t reserved = 0;
  uint64_t channel = 0;
};

enum class Verdict : uint32_t {
  kAccepted = 1,
  kRefused,    // the proof is not one of this job's
  kWrongRank,  // this process is another rank
  kOver,       // this job has formed already
};

enum class Progress {
  kWaiting,  // for the other side
  kDone,
  kRefused,  // asking side: it does not accept our proof. accepting side: we do not accept its
  kWrongRank,
  kOver,
  kStranger,  // the other side does not speak this, or cannot prove that it knows the secret
  kClosed,
};

struct Challenge {
  uint64_t magic = 0;
  uint32_t version = 0;
  uint32_t reserved = 0;
  Nonce nonce{};
};
struct Answer {
  Nonce nonce{};
  Claim claim;
  Digest proof{};
};
struct Decision {
  uint32_t verdict = 0;
  uint32_t reserved = 0;
  Digest proof{};
};

class Asking {
 public:
  Asking(const Digest& key, const Claim& claim) : key_(key), claim_(claim) {}
  // Reads the challenge alone: kDone once it is there, and ours.
  Progress listen(int fd);
  Progress step(int fd);

 private:
  Progress answer(int fd);
  Progress judge() const;

  Digest key_;
  Claim claim_;
  Nonce nonce_{};
  Challenge challenge_;
  Decision decision_;
  size_t got_ = 0;  // bytes of the one that is awaited
  bool answered_ = false;
};

class Answering {
 public:
  explicit Answering(const Digest& key) : key_(key) {}
  bool challenge(int fd);  // false: the connection is gone
  // kDone once the proof is right: claim() may be looked at, and decide() comes next.
  Progress step(int fd);
  const Claim& claim() const { return answer_.claim; }
  bool decide(int fd, Verdict verdict) const;

 private:
  Digest key_;
  Challenge challenge_;
  Answer answer_;
  size_t got_ = 0;
};

}  // namespace collective_ops::handshake
