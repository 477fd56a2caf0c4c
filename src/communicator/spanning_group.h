// One rank's end of a group whose ranks are on several hosts. It is made of the group of those on this host
// (group.h), and of links to ranks of other hosts (host_links.h).
//
// A call is made in parts: within the hosts, between them, within the hosts again. For long vectors every
// rank of a host drives its slice of what goes between, so that all have part in it; of short ones a single
// rank of each host does, since every message costs as much as many bytes. Which it is follows from the call
// alone, so all ranks agree. The parts within a host are calls of the local group that are compared, and
// named in errors, as the call that they are part of; every message between hosts says what it is part of.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "communicator/across.h"
#include "communicator/group.h"
#include "communicator/group_end.h"
#include "communicator/host_links.h"
#include "communicator/job_hosts.h"
#include "communicator/scratch.h"

namespace collective_ops {

struct SpanningSettings {
  int rank = 0;            // of the group
  std::vector<int> ranks;  // of the world, by rank of the group
  const JobHosts* job = nullptr;
  int connections = 1;
  bool oversubscribed = false;
};

class SpanningGroup final : public GroupEnd {
 public:
  // `local`: of this host's members, in the order of their ranks.
  SpanningGroup(std::unique_ptr<Group> local, const SpanningSettings& settings);

  Status meet(int64_t deadline_ns) override;
  Status run(const Call& call, int64_t issued_ns = 0) override;
  void abort(const Status& reason) override { local_->abort(reason); }
  Status leave() override;

  Status check_interrupt() const override { return interrupt_check_ ? interrupt_check_() : Status(); }
  const std::function<Status()>& interrupt_check() const override { return interrupt_check_; }
  void set_interrupt_check(std::function<Status()> check) override { interrupt_check_ = std::move(check); }

  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(hosts_.host_of.size()); }
  const Members& members() const override { return local_->members(); }
  std::chrono::milliseconds exec_timeout() const override { return local_->exec_timeout(); }
  Counters counters() const override;
  void record_into(std::shared_ptr<Recording> recording) override;
  MessageEnd& messages() override { return local_->messages(); }

 private:
  // One vector of which each rank has a part, those of a host's ranks side by side.
  struct Regions {
    std::vector<size_t> counts;   // elements of each rank
    std::vector<size_t> offsets;  // where they begin
    std::vector<size_t> host_begin, host_count;
    size_t total = 0;
  };
  // Elements of a buffer.
  struct Block {
    size_t begin = 0;
    size_t count = 0;
  };
  // Who sends a block to whom.
  enum class Way : uint8_t { kAllToAll, kToRoot, kFromRoot };
  // A part of a vector, of which each rank has summed up its block.
  struct OrderedPiece {
    size_t at;
    std::span<const size_t> counts;
    const std::byte* sum;
  };

  // A part of a long vector, which hosts sum up while another one travels (spanning_all_reduce.cpp).
  struct Piece {
    size_t begin = 0;            // element of the vector
    size_t slice = 0;            // where the slice begins that this rank drives
    std::vector<size_t> counts;  // of the slices of this host's ranks
    std::vector<Block> parts;    // of the slice, by the host that adds them up
  };

  // spanning_group.cpp: a call's beginning and end, and what it is made of.
  void begin(const Call& call);
  std::string_view way_of(const Call& call) const;
  Status make(const Call& call);
  void begin_trace(int64_t issued_ns);
  void end_trace(const Call& call, uint64_t payload_bytes, ErrorCode status);
  Status refuse(const Call& call, const Status& refused);
  Status fail(const Status& reason);
  Status healthy();
  Status look_at_job();
  int64_t limit_ns(int graces) const;
  Status local(Call part);
  Status across(const Call& call, Collective collective, const void* send, void* recv, size_t count,
                std::span<const int> ranks, int root = 0);
  Status barrier();
  std::vector<int> column(int index) const;
  std::vector<int> drivers_for(int root) const;

  // spanning_reductions.cpp
  Status all_reduce(const Call& call);
  Status all_reduce_in_slices(const Call& call);
  Status reduce(const Call& call);
  Status reduce_scatter(const Call& call);
  Status reduce_scatter_short(const Call& call, const Regions& regions, const std::byte* from);
  Status reduce_scatter_in_columns(const Call& call, const Regions& regions, const std::byte* from);
  Status sum_of_hosts(const Call& call, std::span<const Block> parts, const std::byte* partial, int driven,
                      std::byte* to);
  Status send_parts(const Call& call, std::span<const Block> parts, const std::byte* partial,
                    std::span<const int> ranks);
  Status add_parts(const Call& call, std::span<const Block> parts, const std::byte* partial,
                   std::span<const int> ranks, std::byte* to);
  static bool divides_first(const Call& call);
  static ReduceOp op_here(const Call& call);
  bool sums_here(const Call& call) const;
  void divide(const Call& call, void* data, size_t count) const;

  // spanning_all_reduce.cpp
  Status all_reduce_in_pieces(const Call& call);
  Piece piece_of(const Call& call, size_t begin, size_t count) const;
  Status sum_piece_here(const Call& call, const Piece& piece);
  Status share_piece_here(const Call& call, const Piece& piece);

  // spanning_ordered.cpp
  bool is_ordered(const Call& call) const;
  Status gather_factors(const Call& call);
  Status sum_ordered(const Call& call, std::span<const Block> blocks, const std::byte* from, std::byte* to);
  Status in_ordered_pieces(const Call& call, const std::function<Status(const OrderedPiece&)>& then);
  Status all_reduce_ordered(const Call& call);
  Status reduce_ordered(const Call& call);
  Status reduce_scatter_ordered(const Call& call);

  // spanning_moves.cpp
  Status broadcast(const Call& call);
  Status all_gather(const Call& call);
  Status gather_short(const Call& call, const Regions& regions, std::byte* base);
  Status gather_in_columns(const Call& call, const Regions& regions, std::byte* base);
  Status hand_round(const Call& call, std::span<const Block> blocks, std::byte* base, int driven);
  Status send_round(const Call& call, std::span<const Block> blocks, const std::byte* base,
                    std::span<const int> ranks);
  Status receive_round(const Call& call, std::span<const Block> blocks, std::byte* base,
                       std::span<const int> ranks);
  Status gather(const Call& call);
  Status scatter(const Call& call);
  Status all_to_all(const Call& call);
  Status exchange(const Call& call, Way way, const std::byte* send, std::span<const Block> to,
                  std::byte* recv, std::span<const Block> from);
  Status exchange_here(const Call& call, Way way, const std::byte* send, std::span<const Block> to,
                       std::byte* recv, std::span<const Block> from);
  static std::vector<Block> blocks_of(const std::vector<size_t>& counts);
  Regions regions_of(std::span<const size_t> counts) const;
  std::vector<size_t> counts_of(const Call& call, std::span<const size_t> given) const;
  std::vector<size_t> here(std::span<const size_t> of_ranks) const;
  Block slice_of(const Regions& regions, size_t host, int index) const;
  std::vector<size_t> slices_here(const Regions& regions, size_t host) const;

  bool alone() const { return hosts_.here().size() == 1; }
  int index() const { return hosts_.index_of[static_cast<size_t>(rank_)]; }

  const std::unique_ptr<Group> local_;
  const int rank_;
  const GroupHosts hosts_;
  const std::shared_ptr<HostConnector> connector_;
  std::function<Status()> interrupt_check_;
  HostLinks links_;
  Across across_;

  std::atomic<std::thread::id> caller_;  // of the call that runs, or has run last
  std::atomic<int64_t> heard_ns_{0};     // when a failure of the job was first heard of
  uint32_t number_ = 0;                  // of the call that runs
  shm::Signature own_;
  uint32_t history_ = 0;
  int64_t begun_ns_ = 0;
  int64_t timeout_ns_ = 0;  // 0: for ever
  bool met_ = false;        // the ranks of this host, in the call that runs
  bool told_ = false;       // peers know that the group is broken
  Scratch partial_, received_, ordered_, gathered_, packed_;
  std::vector<double> factors_;
  Counters counters_;
  CallTrace trace_;
  std::string_view way_;  // of the call that runs, between hosts
  bool traced_ = false;   // the call that runs
  PartTotals totals_;     // of its parts on this host
};

}  // namespace collective_ops
