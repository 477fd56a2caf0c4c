// One rank's end of a group: runs calls one after the other, in the thread that calls run().
//
// The way of a call: its programs are prepared (program_cache.h); it is announced in this rank's line;
// the peers' lines are waited for and compared with it; the program runs (executor.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <collective_ops/communicator.h>

#include "communicator/call_trace.h"
#include "communicator/channel_port.h"
#include "communicator/executor.h"
#include "communicator/group_end.h"
#include "communicator/host.h"
#include "communicator/members.h"
#include "communicator/messages.h"
#include "communicator/peers.h"
#include "communicator/program_cache.h"
#include "communicator/read_probe.h"
#include "transport/shm/group_memory.h"
#include "transport/shm/waiter.h"

namespace collective_ops {

struct GroupSettings {
  int rank = 0;
  std::chrono::milliseconds exec_timeout{0};  // 0: for ever
  Forced forced;
  int divisor = 0;  // of averages: the ranks of the group on all hosts; 0: those of this one
  std::shared_ptr<RemoteMessages> remote;  // where it is a part of a group on several hosts
  int connections = 1;                     // that two ranks of different hosts have for data
  Members members;
  std::shared_ptr<Host> host;

  // Whether ranks of this host, also those of other groups, outnumber its cores.
  bool oversubscribed() const { return host->world_size() > host->cores(); }
};

// Of the parts of a call on one host.
struct PartTotals {
  std::vector<PeerRecord> peers;  // by rank of this host's part of the group
};

class Group final : public GroupEnd, private CallHost, private shm::WaitObserver, private MessageHost {
 public:
  Group(shm::GroupMemory memory, std::unique_ptr<Peers> peers, const GroupSettings& settings);

  Status run(const Call& call, int64_t issued_ns = 0) override {
    return run_as(call, issued_ns, nullptr, nullptr);
  }
  // A part of the call `whole`, which ranks of several hosts make: that is what peers compare, and texts
  // name. What it waited and moved is added to `totals`, unless that is nullptr.
  Status run_part(const Call& part, const shm::Signature& whole, PartTotals* totals);

  void abort(const Status& reason) override { (void)break_group(reason); }
  // Why the group is broken; ok while it is not.
  Status failure() const { return memory_.broken() ? memory_.failure() : Status(); }
  // As Peers::find_lost, but for ranks that have left the group. In the thread that is in a call.
  std::string find_lost();
  Status leave() override;

  Status check_interrupt() const override { return interrupt_check_ ? interrupt_check_() : Status(); }
  const std::function<Status()>& interrupt_check() const override { return interrupt_check_; }
  void set_interrupt_check(std::function<Status()> check) override { interrupt_check_ = std::move(check); }

  int rank() const override { return rank_; }
  int world_size() const override { return memory_.world_size(); }
  const Members& members() const override { return settings_.members; }
  std::chrono::milliseconds exec_timeout() const override { return settings_.exec_timeout; }
  Counters counters() const override;
  void record_into(std::shared_ptr<Recording> recording) override {
    trace_.start(std::move(recording), members());
  }
  MessageEnd& messages() override { return *messages_; }
  const shm::GroupMemory& memory() const { return memory_; }
  const Forced& forced() const { return settings_.forced; }
  bool oversubscribed() const { return settings_.oversubscribed(); }
  shm::HostsPace& pace() { return pace_; }

 private:
  void arrive() override;
  bool await(int peer) override;
  bool read_peer(int peer, const std::byte* from, std::byte* to, size_t bytes) override;
  Status check_peers(int peer) override;
  Status timed_out(int peer) override;
  Status break_group(const Status& reason) override;
  void note_message(const std::string& text) override;
  std::string elsewhere(int world_rank) const override;
  bool traces() const override { return trace_.on(); }
  void record(const MessageTrace& trace) override { trace_.record(trace); }

  void note_waiting();
  void wake_all();
  Status run_as(const Call& call, int64_t issued_ns, const shm::Signature* whole, PartTotals* totals);
  void add_to(std::vector<PeerRecord>& peers, const PreparedProgram* used);
  void begin(const Call& call, const shm::Signature* whole);
  void announce_failed();
  void take_buffers(const Call& call);
  std::byte* const* slots_of(const Program& program) const;  // by rank
  bool run_eager(const PreparedCall& prepared, const Call& call, std::byte* const* slots);
  const PreparedProgram* run_rooted(const PreparedCall& prepared, const Call& call);
  bool refer_to(int peer);
  bool run_announced(const PreparedCall*& prepared, const Call& call, const PreparedProgram*& used);
  bool divide(const PreparedProgram& used, const PreparedCall& prepared, const Call& call);
  bool find_memory(const PreparedCall& prepared, const Call& call);
  bool goes_direct(const PreparedCall& prepared, int root) const;
  void announce_memory(const Call& call);
  const PreparedCall* bind_counts(const Call& call);
  void gather_factors();
  const PreparedProgram* pick_path(const PreparedCall& prepared, int root);
  bool all_readable();
  bool all_reachable(const PreparedCall& prepared, const Program& program, int root) const;
  bool reach_peers(const PreparedCall& prepared, const Program& program, int root);
  bool reach(int peer, bool input, size_t bytes);
  bool await_slot(uint64_t depth = shm::kLineDepth);
  bool await_all();
  bool fail(Status status);
  Status finish(bool done);
  void count(const PreparedCall& prepared, const PreparedProgram& used);

  shm::GroupMemory memory_;
  int rank_;
  std::unique_ptr<Peers> peers_;
  GroupSettings settings_;
  shm::HostsPace pace_;  // of a part of a group on several hosts
  shm::Waiter waiter_;
  ChannelPort port_;
  Executor executor_;
  std::function<Status()> interrupt_check_;
  ProgramCache cache_;
  ReadProbe read_probe_;
  CallTrace trace_;
  Counters counters_;
  std::shared_ptr<Messages> messages_;

  CallMemory addresses_;
  std::vector<std::byte*> staging_;  // scratch of announced calls, by rank
  // Scratch of eager calls, by what it fits: of each slot, by rank.
  std::vector<std::byte*> line_slots_, small_slots_, eager_slots_;

  std::vector<double> factors_;  // of the ranks, in a call that has them
  uint64_t sequence_ = 0;        // of the call that runs
  uint64_t all_arrived_ = 0;     // the last call that every rank is known to have announced
  shm::Signature own_;
  uint32_t history_ = 0;  // of the calls before this one
  bool announced_ = false;
  shm::MemoryRef input_memory_, output_memory_;  // of the call that runs
  bool eager_or_direct_ = false;                 // while it is run eagerly, but could be direct
  const PreparedCall* rooted_ = nullptr;         // while it is run by run_rooted()
  std::vector<std::byte*> sources_;              // then: slots of peers, or their memory
  bool refers_ = false;                          // to some peer's memory
  bool peers_go_direct_ = false;
  bool noted_ = false;  // this call, where other groups see it
  TracePath path_ = TracePath::kNone;
};

}  // namespace collective_ops
