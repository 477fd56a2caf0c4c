// Collectives between hosts: one rank of each takes part, by a plan of messages that the executor runs over
// TCP. Results are equal on all hosts, bit by bit; of a sum each rank's part is one term.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <tuple>
#include <vector>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

#include "communicator/executor.h"
#include "communicator/host_links.h"
#include "communicator/message_port.h"
#include "communicator/scratch.h"
#include "plan/program.h"

namespace collective_ops {

struct AcrossCall {
  Collective collective = Collective::kAllReduce;  // all_reduce, broadcast or reduce
  const void* send = nullptr;
  void* recv = nullptr;
  std::string_view plan;  // of messages; as long as the process lives
  size_t count = 0;       // elements of the vector
  DataType type = DataType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;                // a host
  std::span<const int> ranks;  // of the group, one of each host, by host
};

class Across final : private CallHost, private MessagePort, private shm::WaitObserver {
 public:
  // `memory` is that of the ranks on this host, of which plans of messages use nothing.
  Across(HostLinks& links, const shm::GroupMemory& memory, int rank, int own_host);

  // Of a call that links have begun. A failure is that of the links where they have one.
  Status run(const AcrossCall& call);

 private:
  struct Prepared {
    Program program;
    CallKernel kernel;
  };
  using Key = std::tuple<Collective, std::string_view, DataType, ReduceOp, int, size_t>;

  Result<Prepared*> prepare(const AcrossCall& call);

  void arrive() override {}
  bool await(int) override { return true; }
  bool read_peer(int, const std::byte*, std::byte*, size_t) override { return false; }
  Status check_peers(int) override { return {}; }
  Status timed_out(int) override { return {}; }

  int group_rank(int host) const { return ranks_[static_cast<size_t>(host)]; }
  bool send(int peer, const std::byte* data, size_t bytes) override {
    return links_.send(group_rank(peer), data, bytes);
  }
  bool receive(int peer, std::byte* data, size_t bytes) override {
    return links_.receive(group_rank(peer), data, bytes);
  }
  void keep(const std::byte* data, size_t bytes) override { links_.keep(data, bytes); }
  bool flush() override { return links_.flush(); }
  void drop() override {}  // the links end with the group

  HostLinks& links_;
  const int host_;
  shm::Waiter waiter_;  // of flags, which plans of messages have none of
  Executor executor_;
  std::span<const int> ranks_;
  std::map<Key, Prepared> prepared_;
  CallMemory addresses_;
  std::vector<std::byte*> scratch_;
  Scratch scratch_memory_;
};

}  // namespace collective_ops
