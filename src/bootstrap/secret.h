// What the processes of a job know and nobody else does, and proofs of knowing it (HMAC-SHA256).
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include <collective_ops/status.h>

namespace collective_ops {

using Digest = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;

struct JobSecret {
  enum class Kind {
    kShared,    // given by the user, the launcher or a root info
    kThisHost,  // none given: what only processes of this host can read serves, so others cannot join
    kInsecure,  // COLLECTIVE_OPS_INSECURE=1: anybody who can reach a port can join
  };
  Kind kind = Kind::kThisHost;
  std::string bytes;
  std::string origin;  // for texts: "COLLECTIVE_OPS_SECRET", "the file /home/a/secret"
};

// The first of: COLLECTIVE_OPS_SECRET; the file COLLECTIVE_OPS_SECRET_FILE; ~/.config/collective-ops/secret
// where it exists; with COLLECTIVE_OPS_INSECURE=1 none, with anybody let in; none, for this host alone.
// kInvalidArgument where a secret is shorter than 16 characters, or others may read its file.
Result<JobSecret> find_secret();

// What to do where several hosts have no secret.
extern const char* const kHowToGiveSecret;

// A fresh one: 64 hexadecimal digits.
std::string new_secret();

// Of this job alone, so that jobs with one secret do not mix.
Digest job_key(const JobSecret& secret, const std::string& job);

Digest hmac(const Digest& key, std::span<const std::byte> data);
bool equal(const Digest& one, const Digest& other);  // in constant time
Nonce random_nonce();
std::string hex(std::span<const std::byte> bytes);

// Boot id and network namespace: equal for processes that reach each other's abstract sockets. The boot id is
// random, and only processes of the host can read it.
std::string host_identity();
// Tells whether two processes share a host, and does not say the boot id.
std::string host_tag();

}  // namespace collective_ops
