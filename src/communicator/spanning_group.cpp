#include "communicator/spanning_group.h"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "algorithms/algorithms.h"
#include "base/clock.h"
#include "communicator/call_counts.h"
#include "communicator/failure_text.h"
#include "communicator/overlap.h"
#include "communicator/program_cache.h"
#include "tuner/choose.h"

namespace collective_ops {
namespace {

// Who waits for a rank that itself waits for the one that is late gives that one so much longer to say so.
constexpr int64_t kLeastGraceNs = 100'000'000;
constexpr int64_t kMostGraceNs = 2'000'000'000;
constexpr int64_t kReasonNs = 100'000'000;

}  // namespace

SpanningGroup::SpanningGroup(std::unique_ptr<Group> local, const SpanningSettings& settings)
    : local_(std::move(local)),
      rank_(settings.rank),
      hosts_(*settings.job, settings.ranks, settings.rank),
      connector_(settings.job->connector),
      links_({.rank = settings.rank,
              .index = hosts_.index_of[static_cast<size_t>(settings.rank)],
              .members = local_->members(),
              .connector = connector_,
              .oversubscribed = settings.oversubscribed,
              .healthy = [this] { return healthy(); }},
             local_->pace(), settings.connections),
      across_(links_, local_->memory(), local_->rank(), hosts_.own),
      own_{static_cast<uint64_t>(local_->forced().path) << 32,
           std::hash<std::string>()(local_->forced().text())} {
  // Whoever waits for a rank of this host also answers those of others, and hears of their death.
  local_->set_interrupt_check([this]() -> Status {
    // What this rank has begun to send goes on: ranks of its host may wait for those that wait for it.
    if (caller_.load(std::memory_order_relaxed) == std::this_thread::get_id()) links_.push();
    if (Status status = look_at_job(); !status.ok()) return status;
    return check_interrupt();
  });
}

Status SpanningGroup::run(const Call& call, int64_t issued_ns) {
  if (const Status reason = local_->failure(); !reason.ok()) {
    (void)fail(reason);
    return {ErrorCode::kGroupBroken,
            fmt::format("{}: {} was broken by an earlier failure ({}): {}", name_of(call.collective),
                        members().text(), name_of(reason.code()), reason.message())};
  }
  begin(call);
  Status refused = check_call(call, rank_, world_size());
  if (refused.ok() && call.send != call.recv)
    refused = check_overlap(call, bytes_of(call, rank_, world_size()), rank_);
  if (!refused.ok()) return refuse(call, refused);
  const CallBytes bytes = bytes_of(call, rank_, world_size());
  traced_ = trace_.on();
  if (traced_) begin_trace(issued_ns);
  Status status = make(call);
  if (status.ok() && !links_.flush()) status = links_.status();
  if (traced_) end_trace(call, std::max(bytes.input, bytes.output), status.code());
  if (!status.ok()) return fail(status);
  ++counters_.calls;
  counters_.bytes += std::max(bytes.input, bytes.output);
  return {};
}

// Calls are this group's own; messages are those of the part on this host, which has their engine.
void SpanningGroup::record_into(std::shared_ptr<Recording> recording) {
  local_->record_into(recording);
  trace_.start(std::move(recording), members());
}

void SpanningGroup::begin_trace(int64_t issued_ns) {
  trace_.begin(issued_ns);
  totals_ = {.peers = std::vector<PeerRecord>(hosts_.here().size())};
  links_.forget_traffic();
}

void SpanningGroup::end_trace(const Call& call, uint64_t payload_bytes, ErrorCode status) {
  std::vector<PeerRecord>& peers = trace_.peers();
  for (size_t index = 0; index < totals_.peers.size(); ++index)
    peers[static_cast<size_t>(hosts_.here()[index])] = totals_.peers[index];
  for (size_t rank = 0; rank < peers.size(); ++rank) {
    if (hosts_.host_of[rank] == hosts_.own) continue;
    peers[rank].waited_ns = static_cast<uint64_t>(links_.waited_ns(static_cast<int>(rank)));
    peers[rank].read_bytes = links_.received_bytes(static_cast<int>(rank));
  }
  trace_.end({call, payload_bytes, algorithm_number(way_), TracePath::kMessages, number_, status});
}

void SpanningGroup::begin(const Call& call) {
  history_ = own_.after(history_);
  ++number_;
  own_ = shm::Signature::of(number_, call.collective, call.type, call.op, announced_count(call), call.root,
                            call.for_device);
  met_ = false;
  way_ = way_of(call);
  caller_.store(std::this_thread::get_id(), std::memory_order_relaxed);
  begun_ns_ = monotonic_ns();
  timeout_ns_ = std::chrono::nanoseconds(call.timeout.value_or(exec_timeout())).count();
  links_.begin(own_, history_, begun_ns_, limit_ns(1));
}

// When a part of the call ends at the latest. The first within the host ends at the deadline; between hosts a
// rank may wait for one in its first part, and in a later part for one that waits between hosts.
int64_t SpanningGroup::limit_ns(int graces) const {
  if (timeout_ns_ == 0) return kNoDeadline;
  return begun_ns_ + timeout_ns_ + graces * std::clamp(timeout_ns_ / 10, kLeastGraceNs, kMostGraceNs);
}

std::string_view SpanningGroup::way_of(const Call& call) const {
  const Collective collective = without_counts(call.collective);
  if (reduces(collective) && is_ordered(call)) return "pairwise";
  return way_between_hosts(collective, call.count * size_of(call.type), hosts_.size(), local_->forced());
}

Status SpanningGroup::make(const Call& call) {
  switch (call.collective) {
    case Collective::kBarrier:
      return barrier();
    case Collective::kAllReduce:
      return is_ordered(call) ? all_reduce_ordered(call) : all_reduce(call);
    case Collective::kReduce:
      return is_ordered(call) ? reduce_ordered(call) : reduce(call);
    case Collective::kReduceScatter:
    case Collective::kReduceScatterV:
      return is_ordered(call) ? reduce_scatter_ordered(call) : reduce_scatter(call);
    case Collective::kBroadcast:
      return broadcast(call);
    case Collective::kAllGather:
    case Collective::kAllGatherV:
      return all_gather(call);
    case Collective::kGather:
    case Collective::kGatherV:
      return gather(call);
    case Collective::kScatter:
    case Collective::kScatterV:
      return scatter(call);
    case Collective::kAllToAll:
    case Collective::kAllToAllV:
      return all_to_all(call);
    default:
      return {ErrorCode::kInternal, fmt::format("{} is no call of a group", name_of(call.collective))};
  }
}

// Ranks that refuse a call alike stay in step, so nothing breaks here; who is in it hears of it.
Status SpanningGroup::refuse(const Call& call, const Status& refused) {
  own_ = shm::Signature::of_failed(number_);
  Call impossible{
      .collective = Collective::kAllReduce, .type = DataType::kFloat8E4M3, .timeout = call.timeout};
  (void)local_->run_part(impossible, own_, nullptr);
  links_.tell_refused(number_);
  if (members().is_world() || refused.code() != ErrorCode::kInvalidArgument) return refused;
  return {refused.code(), fmt::format("{} (in {}, whose ranks count from 0 in this order)", refused.message(),
                                      members().text())};
}

// Everywhere with the same text: that of the first failure on this host.
Status SpanningGroup::fail(const Status& reason) {
  local_->abort(reason);
  const Status first = local_->failure();
  if (!std::exchange(told_, true))
    links_.tell_failed(first, index() < hosts_.columns ? column(index()) : std::vector<int>());
  return first;
}

// A rank that ends because another one has failed says so before it ends, but over another connection: that
// text names the first cause, so it gets a moment to come.
Status SpanningGroup::look_at_job() {
  Status status = connector_->look();
  if (status.ok()) return status;
  const int64_t now = monotonic_ns();
  int64_t heard = 0;
  if (heard_ns_.compare_exchange_strong(heard, now)) heard = now;
  return now - heard < kReasonNs ? Status() : status;
}

Status SpanningGroup::healthy() {
  if (Status broken = local_->failure(); !broken.ok()) return broken;
  if (Status status = check_interrupt(); !status.ok()) {
    return {status.code(), fmt::format("rank {} was interrupted in {}: {}", members().world_rank(index()),
                                       place_of(own_, members()), status.message())};
  }
  std::string lost;
  if (Status status = look_at_job(); !status.ok()) lost = status.message();
  if (lost.empty()) lost = local_->find_lost();
  return lost.empty() ? Status() : peer_lost(members(), index(), own_, lost);
}

// A call of this host's ranks that is part of the one that runs.
Status SpanningGroup::local(Call part) {
  if (timeout_ns_ == 0) {
    part.timeout = std::chrono::milliseconds(0);
  } else {
    const int64_t left = limit_ns(std::exchange(met_, true) ? 2 : 0) - monotonic_ns();
    part.timeout = std::chrono::milliseconds(std::max<int64_t>(left / 1'000'000, 1));
  }
  return local_->run_part(part, own_, traced_ ? &totals_ : nullptr);
}

// Of one rank of each host, which are `ranks`, by host. `root` is a host.
Status SpanningGroup::across(const Call& call, Collective collective, const void* send, void* recv,
                             size_t count, std::span<const int> ranks, int root) {
  const bool sums = call.op == ReduceOp::kAvg || call.op == ReduceOp::kPreMulSum;
  return across_.run({.collective = collective,
                      .send = send,
                      .recv = recv,
                      .plan = way_,
                      .count = count,
                      .type = call.type,
                      .op = sums ? ReduceOp::kSum : call.op,
                      .root = root,
                      .ranks = ranks});
}

Status SpanningGroup::barrier() {
  if (!alone()) {
    if (Status status = local({}); !status.ok()) return status;
  }
  if (index() == 0) {
    uint8_t flag = 0;
    const Call flags{.type = DataType::kUInt8, .op = ReduceOp::kMax};
    Status status = across(flags, Collective::kAllReduce, &flag, &flag, 1, column(0));
    if (!status.ok()) return status;
  }
  return alone() ? Status() : local({});
}

Status SpanningGroup::meet(int64_t deadline_ns) {
  const int64_t left = std::max<int64_t>(deadline_ns - monotonic_ns(), 1'000'000);
  begin({.collective = Collective::kBarrier, .timeout = std::chrono::milliseconds(left / 1'000'000 + 1)});
  const Status status = barrier();
  // Calls are numbered from 1 by their callers, and begin alike on all.
  number_ = 0;
  return status.ok() ? status : fail(status);
}

std::vector<int> SpanningGroup::column(int index) const {
  std::vector<int> ranks;
  for (const auto& there : hosts_.ranks) ranks.push_back(there[static_cast<size_t>(index)]);
  return ranks;
}

// Of each host the rank that speaks for it where `root` is the root: on the root's host the root itself.
std::vector<int> SpanningGroup::drivers_for(int root) const {
  std::vector<int> ranks;
  const auto place = static_cast<size_t>(hosts_.index_of[static_cast<size_t>(root)]);
  for (const auto& there : hosts_.ranks) ranks.push_back(there[place % there.size()]);
  return ranks;
}

Counters SpanningGroup::counters() const {
  Counters all = local_->counters();
  all.calls = counters_.calls;
  all.bytes = counters_.bytes;
  return all;
}

Status SpanningGroup::leave() {
  Status status = local_->leave();
  links_.tell_left();
  return status;
}

}  // namespace collective_ops
