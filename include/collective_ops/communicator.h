// A reader starts here. A Communicator is one rank's end of a group of ranks: processes of one
// host, or threads of one process. Every rank of the group makes the same calls in the same order.
//
//   auto comm = Communicator::connect({.rank = 0, .world_size = 8});
//   if (!comm.ok()) ...
//   Status status = (*comm)->all_reduce(gradient, gradient, count, DataType::kFloat32, ReduceOp::kAvg);
//
// Counts are in elements. `send` and `recv` may be the same pointer (in place); otherwise they must
// not overlap. Memory from allocate() is shared by the ranks of the host, so collectives on it
// copy nothing; any other memory works too.
//
// Results of reductions are bitwise equal on all ranks, and do not depend on size, chunking or path:
// rank 0 + 1 + ..., accumulated in float32 or wider, rounded once.
//
// Failure: a rank that made a different call (kMismatch), died (kPeerLost) or did not come in time
// (kTimeout) is named in the status on every waiting rank; afterwards the group is broken, and every
// call on it returns kGroupBroken with the first reason. Nothing hangs and no process is killed.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <collective_ops/hosts.h>
#include <collective_ops/status.h>
#include <collective_ops/transfer.h>
#include <collective_ops/types.h>
#include <collective_ops/window.h>

namespace collective_ops {

class Cluster;

struct ConnectOptions {
  int rank = 0;
  int world_size = 1;
  std::string job_id;  // empty: found as docs/architecture.md says ("How ranks find each other")
  std::optional<std::chrono::milliseconds> connect_timeout;  // default HCCL_CONNECT_TIMEOUT
  std::optional<std::chrono::milliseconds> exec_timeout;     // default HCCL_EXEC_TIMEOUT
  // Called every few milliseconds by whoever waits at length, while joining or inside a call; a failure of
  // it ends the wait, and breaks the group if in a call (kInterrupted: Ctrl-C, say).
  std::function<Status()> interrupted;
  // How ranks on several hosts meet: the first that is set, else as launchers' variables say (docs/hosts.md).
  std::string root_info = "";                      // hosts.h
  std::shared_ptr<KeyValueStore> store = nullptr;  // hosts.h
  std::string rank_table = "";                     // path of a rank table file
  bool one_host = false;                           // all ranks are on this host, whatever launchers say
};

struct GroupOptions {
  std::string name;                                          // for texts and traces; up to 127 characters
  std::optional<std::chrono::milliseconds> connect_timeout;  // for all members to come; as in ConnectOptions
  std::optional<std::chrono::milliseconds> exec_timeout;     // default: that of the communicator asked
};

// One call. Which fields count depends on the collective; counts are in elements.
struct Call {
  Collective collective = Collective::kBarrier;
  const void* send = nullptr;
  void* recv = nullptr;
  // Of the vector; of all_gather, reduce_scatter, gather, scatter and all_to_all of one rank's part; of
  // gather_v and scatter_v of this rank's part; not looked at in the other v variants.
  size_t count = 0;
  DataType type = DataType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::optional<std::chrono::milliseconds> timeout =
      std::nullopt;     // zero: wait for ever; default exec_timeout
  double factor = 1.0;  // of kPreMulSum: what this rank's elements are multiplied by; ranks may differ
  // Of v variants: elements to and from rank 0, 1, ... n-1; parts lie one behind the other. Which of them a
  // call needs say the methods below. start() copies them.
  std::span<const size_t> send_counts = {};
  std::span<const size_t> recv_counts = {};
  // Of an all_gather by which ranks agree on a call that their devices' own library then makes: texts of
  // errors name it so, and a rank that calls with the host's memory meanwhile is a kMismatch.
  bool for_device = false;
};

// Memory that the ranks of this host share; freed with the last reference.
class SharedBuffer {
 public:
  virtual ~SharedBuffer() = default;
  virtual void* data() const = 0;
  virtual size_t size() const = 0;  // bytes, as asked for
};

// An asynchronous call. Dropping it does not cancel the call; its buffers must live until it is done.
class Work {
 public:
  virtual ~Work() = default;
  virtual bool done() const = 0;
  // Runs the queue itself where the call has not begun. The status of the call, or kTimeout if this
  // wait's own deadline passed first (the call then goes on).
  virtual Status wait(std::optional<std::chrono::milliseconds> timeout = std::nullopt) = 0;
  // Of a receive that is done and went well.
  virtual std::optional<Received> received() const { return std::nullopt; }
};

// Told about an asynchronous call by the thread that runs it, whichever that is. Throws nothing.
class CallListener {
 public:
  virtual ~CallListener() = default;
  virtual void before() {}
  // The call has ended, but no wait has returned yet: results may be moved on.
  virtual void after(const Status& /*status*/) {}
  // Waits return now, and the next call may run already. May make calls of its own.
  virtual void done() {}
};

// What a rank has done since it connected, for reports and tests.
struct Counters {
  uint64_t calls = 0;
  uint64_t bytes = 0;  // payload of this rank's calls
  uint64_t inline_calls = 0;
  uint64_t staged_calls = 0;
  uint64_t direct_calls = 0;
  uint64_t read_calls = 0;
  uint64_t copied_bytes = 0;  // by this rank, into or out of staging memory
  uint64_t sends = 0;         // messages, which the above leave out
  uint64_t receives = 0;
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
};

// visit(name, value) for each.
template <typename Visit>
void for_each(const Counters& counters, const Visit& visit) {
  visit("calls", counters.calls);
  visit("bytes", counters.bytes);
  visit("inline_calls", counters.inline_calls);
  visit("staged_calls", counters.staged_calls);
  visit("direct_calls", counters.direct_calls);
  visit("read_calls", counters.read_calls);
  visit("copied_bytes", counters.copied_bytes);
  visit("sends", counters.sends);
  visit("receives", counters.receives);
  visit("sent_bytes", counters.sent_bytes);
  visit("received_bytes", counters.received_bytes);
}

class Communicator {
 public:
  // Joins the ranks that share a job, on this host or on several. Blocks until all are there.
  static Result<std::unique_ptr<Communicator>> connect(const ConnectOptions& options);
  // One communicator per rank, for threads of this process. `hosts`: for tests of what goes between hosts,
  // the host that each rank pretends to be on; those of different ones share no memory and talk over TCP.
  static Result<std::vector<std::unique_ptr<Communicator>>> create_for_threads(
      int world_size, const ConnectOptions& options = {}, std::span<const int> hosts = {});
  // A group of some of these ranks, whose calls go on beside all others'. `ranks` are ranks of this
  // communicator, this one among them; their order is that of the ranks in the group. Members alone call it,
  // all with the same list and name; it blocks until all have. Ranks need not agree on an order of all
  // groups, as long as they do not wait for each other in a circle, and several threads may make groups at
  // once: by the list, the name, and how often a rank has asked for these before, members know which group is
  // meant. Threads that make groups of the same list at once give them names. Communicators may go in any
  // order; all have gone before the process connects again.
  //   kInvalidArgument  the list is empty, names a rank twice, or one that is none, or not this one
  //   kRendezvous       members that did not come in time are named; kPeerLost: one died
  Result<std::unique_ptr<Communicator>> create_group(std::span<const int> ranks,
                                                     const GroupOptions& options = {});
  // Shared memory of this process, for buffers of any communicator.
  static Result<std::shared_ptr<SharedBuffer>> allocate(size_t bytes);
  // The same with pages of its own, zeroed and page-aligned: a part of a window.
  static Result<std::shared_ptr<SharedBuffer>> allocate_part(size_t bytes);

  // Finishes what was started, then leaves the group: peers that still wait for this rank get kPeerLost.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const;
  int world_size() const;
  // Of the world, by rank of this communicator.
  std::span<const int> ranks() const;
  const std::string& name() const;  // "" where it has none

  // Blocking calls, in the caller's thread. Several threads may call; calls run one at a time.
  Status all_reduce(const void* send, void* recv, size_t count, DataType type, ReduceOp op) {
    return run({Collective::kAllReduce, send, recv, count, type, op});
  }
  // recv holds world_size * count elements, rank by rank.
  Status all_gather(const void* send, void* recv, size_t count, DataType type) {
    return run({Collective::kAllGather, send, recv, count, type});
  }
  // send holds world_size * count elements; rank r receives the reduction of the r-th part.
  Status reduce_scatter(const void* send, void* recv, size_t count, DataType type, ReduceOp op) {
    return run({Collective::kReduceScatter, send, recv, count, type, op});
  }
  Status broadcast(void* buffer, size_t count, DataType type, int root) {
    return run({Collective::kBroadcast, buffer, buffer, count, type, ReduceOp::kSum, root});
  }
  Status barrier() { return run({Collective::kBarrier}); }

  // recv is looked at on the root alone, where it may be send.
  Status reduce(const void* send, void* recv, size_t count, DataType type, ReduceOp op, int root) {
    return run({Collective::kReduce, send, recv, count, type, op, root});
  }
  // recv is looked at on the root alone: world_size * count elements, rank by rank.
  Status gather(const void* send, void* recv, size_t count, DataType type, int root) {
    return run({Collective::kGather, send, recv, count, type, ReduceOp::kSum, root});
  }
  // send is looked at on the root alone: world_size * count elements; rank r receives the r-th part.
  Status scatter(const void* send, void* recv, size_t count, DataType type, int root) {
    return run({Collective::kScatter, send, recv, count, type, ReduceOp::kSum, root});
  }
  // Both hold world_size * count elements: part r of send goes to rank r, part r of recv comes from there.
  // Never in place.
  Status all_to_all(const void* send, void* recv, size_t count, DataType type) {
    return run({Collective::kAllToAll, send, recv, count, type});
  }

  // The v variants: parts of any sizes, none included. `counts` of these two are equal on all ranks (else
  // kMismatch): of each rank's part.
  Status all_gather_v(const void* send, void* recv, std::span<const size_t> counts, DataType type) {
    return run({.collective = Collective::kAllGatherV,
                .send = send,
                .recv = recv,
                .type = type,
                .recv_counts = counts});
  }
  Status reduce_scatter_v(const void* send, void* recv, std::span<const size_t> counts, DataType type,
                          ReduceOp op) {
    return run({.collective = Collective::kReduceScatterV,
                .send = send,
                .recv = recv,
                .type = type,
                .op = op,
                .send_counts = counts});
  }
  // The root alone gives counts; each must be that rank's own `count`. Where two ranks disagree, here and in
  // all_to_all_v, all get kMismatch, which names them and their bytes.
  Status gather_v(const void* send, size_t count, void* recv, std::span<const size_t> recv_counts,
                  DataType type, int root) {
    return run({.collective = Collective::kGatherV,
                .send = send,
                .recv = recv,
                .count = count,
                .type = type,
                .root = root,
                .recv_counts = recv_counts});
  }
  Status scatter_v(const void* send, std::span<const size_t> send_counts, void* recv, size_t count,
                   DataType type, int root) {
    return run({.collective = Collective::kScatterV,
                .send = send,
                .recv = recv,
                .count = count,
                .type = type,
                .root = root,
                .send_counts = send_counts});
  }
  Status all_to_all_v(const void* send, std::span<const size_t> send_counts, void* recv,
                      std::span<const size_t> recv_counts, DataType type) {
    return run({.collective = Collective::kAllToAllV,
                .send = send,
                .recv = recv,
                .type = type,
                .send_counts = send_counts,
                .recv_counts = recv_counts});
  }

  Status run(const Call& call);
  // The same, without waiting; calls run in the order they were made, blocking ones included.
  std::shared_ptr<Work> start(const Call& call, std::shared_ptr<CallListener> listener = nullptr);

  // Lays `part`, of allocate_part(), open to the other ranks; nullptr for none. A collective call: every rank
  // makes it, in the order of its calls; parts may differ in size, `signal_bytes`, at their end, may not.
  // Where it fails on one rank it fails on all, and the group goes on.
  Result<std::unique_ptr<Window>> open_window(std::shared_ptr<SharedBuffer> part, size_t signal_bytes);

  // From any thread: ends the call that runs, here and on all ranks, with kGroupBroken and this text. The
  // group cannot be used afterwards.
  void abort(const std::string& reason);

  // Messages (transfer.h), from any thread; they are no calls, and wait for none. A failure breaks the group,
  // but for kInvalidArgument, which is found before anything is sent. A send returns once `data` may be
  // changed.
  Status send(const void* data, size_t count, DataType type, int to, int tag = 0) {
    const Transfer transfer = Transfer::send(data, count, type, to, tag);
    return exchange({&transfer, 1});
  }
  // With `received` the message may be shorter than `count`; without, its size must be equal.
  Status recv(void* data, size_t count, DataType type, int from = kAnySource, int tag = 0,
              Received* received = nullptr);
  // All at once, posted in this order, and done when it returns: no order of sends and receives among the
  // ranks can block it. `received`: empty, or one for each transfer.
  Status exchange(std::span<const Transfer> transfers, std::span<Received> received = {});
  // The same, without waiting: one Work for each, which go on by themselves; where one is refused, none
  // begins, and each Work says so. Before this rank leaves, its started sends are taken by their receivers,
  // or it says which were not; receives that nothing has come for are given up.
  std::vector<std::shared_ptr<Work>> start(std::span<const Transfer> transfers);

  // For callers that check arguments themselves: counts as a call that this rank refused, so that peers that
  // made it are told at once, and ranks that refuse alike stay in step.
  void refuse_call();

  Counters counters() const;

 private:
  struct Parts;
  explicit Communicator(std::unique_ptr<Parts> parts);
  static Result<std::unique_ptr<Communicator>> connect_here(const ConnectOptions& here,
                                                            const ConnectOptions& options,
                                                            const std::shared_ptr<Cluster>& cluster);
  std::unique_ptr<Parts> parts_;
};

}  // namespace collective_ops
