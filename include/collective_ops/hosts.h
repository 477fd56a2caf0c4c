// How ranks on several hosts find each other, where launchers' variables do not say it: a store that they
// share, or a text that rank 0 makes and the others are given. Either goes into ConnectOptions.
#pragma once

#include <chrono>
#include <string>

#include <collective_ops/status.h>

namespace collective_ops {

// What a caller's key-value store must be able to do; keys are this library's own, below "collective_ops/".
// Called by one thread at a time, during connect() alone.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  // The value, once somebody has set it; kTimeout where nobody did so within `timeout`.
  virtual Result<std::string> get(const std::string& key, std::chrono::milliseconds timeout) = 0;
};

// For rank 0: the text that all ranks give to connect(), itself included, as HCCL's root info. Printable,
// at most 4,000 characters. It holds the job's secret: hand it over where nobody else can read it. This
// process listens from now on, and must be the one that connects as rank 0. Each text serves one group.
Result<std::string> create_root_info();

}  // namespace collective_ops
