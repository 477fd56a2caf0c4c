#include "communicator/failure_text.h"

#include <algorithm>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <sched.h>

#include "base/clock.h"
#include "communicator/call_counts.h"
#include "transport/shm/waiter.h"

namespace collective_ops {
namespace {

constexpr int64_t kGraceNs = 20'000'000;

shm::Signature announced(const shm::Line& line) {
  return {line.head.load(std::memory_order_acquire), line.shape};
}

void note_difference(std::vector<std::string>& fields, const char* name, bool differs) {
  if (differs && std::find(fields.begin(), fields.end(), name) == fields.end()) fields.push_back(name);
}

void compare(const shm::Signature& a, const shm::Signature& b, std::vector<std::string>& fields) {
  note_difference(fields, "collective", a.collective() != b.collective());
  note_difference(fields, "memory (the host's or a device's)", a.for_device() != b.for_device());
  if (a.collective() != b.collective() || a.for_device() != b.for_device() || a.failed()) return;
  note_difference(fields, "type", a.type() != b.type());
  note_difference(fields, "op", a.op() != b.op());
  note_difference(fields, "root", a.root() != b.root());
  const bool lists =
      a.collective() == Collective::kAllGatherV || a.collective() == Collective::kReduceScatterV;
  note_difference(fields, lists ? "counts" : "count", a.count() != b.count());
}

std::string difference_in(const std::vector<std::string>& fields) {
  std::string text = ". They differ in ";
  for (size_t i = 0; i < fields.size(); ++i) text += (i == 0 ? "" : ", ") + fields[i];
  return text +
         ". Every rank must make the same calls in the same order; look for a branch that depends on the "
         "rank, or "
         "for shapes that differ between ranks";
}

std::string seconds(int64_t ns) { return fmt::format("{:.3f} s", static_cast<double>(ns) / 1e9); }

}  // namespace

std::string describe(const shm::Signature& signature) {
  if (signature.failed()) return "a call that was refused before it began (see that rank's own error)";
  const Collective collective = signature.collective();
  std::string text(name_of(collective));
  if (signature.for_device()) return "a call with tensors of a device (cuda, npu)";
  if (collective == Collective::kBarrier) return text;
  // Of v variants a fingerprint of the counts stands in place of the count, or nothing.
  if (collective == Collective::kAllGatherV || collective == Collective::kReduceScatterV) {
    text += fmt::format(" of {}, counts with fingerprint {:x}", name_of(signature.type()), signature.count());
  } else if (exchanges_counts(collective)) {
    text += fmt::format(" of {}", name_of(signature.type()));
  } else {
    text += fmt::format(" of {} {}", signature.count(), name_of(signature.type()));
  }
  if (reduces(collective)) text += fmt::format(", op {}", name_of(signature.op()));
  if (has_root(collective)) text += fmt::format(", root {}", signature.root());
  return text;
}

std::string describe(const shm::Signature& signature, const Members& members) {
  std::string text = describe(signature);
  const bool rooted = !signature.failed() && !signature.for_device() && has_root(signature.collective());
  if (members.is_world() || !rooted || signature.root() >= static_cast<int>(members.all().size()))
    return text;
  return text + fmt::format(" (rank {})", members.all()[static_cast<size_t>(signature.root())]);
}

std::string place_of(const shm::Signature& own, const Members& members) {
  return fmt::format("call #{} ({}){}", own.shown(), describe(own, members),
                     members.is_world() ? "" : " of " + members.text());
}

std::string describe_last_call(const shm::GroupMemory& memory, const Members& members, int rank) {
  const shm::RankState& state = memory.state(rank);
  const uint64_t issued = state.issued.load(std::memory_order_relaxed);
  const uint64_t finished = state.finished.load(std::memory_order_relaxed);
  if (issued == 0) return "has made no call yet";
  const shm::Line& line = memory.line(rank, issued);
  if (static_cast<uint32_t>(line.head.load()) != static_cast<uint32_t>(issued)) {
    return fmt::format("has finished call #{}", finished);
  }
  const uint32_t number = state.number.load(std::memory_order_relaxed);
  return fmt::format("{} call #{} ({})", finished >= issued ? "has finished" : "is in",
                     number != 0 ? number : issued, describe(announced(line), members));
}

Status mismatch(const shm::GroupMemory& memory, const Members& members, int rank, const shm::Signature& own) {
  const int64_t stop = monotonic_ns() + kGraceNs;
  const uint32_t sequence = own.sequence();
  const auto all_arrived = [&] {
    for (int peer = 0; peer < memory.world_size(); ++peer) {
      if (peer != rank && !shm::Waiter::arrived(memory.line(peer, sequence).head.load(), sequence))
        return false;
    }
    return true;
  };
  while (!all_arrived() && monotonic_ns() < stop) sched_yield();

  std::map<std::string, std::vector<int>> callers;  // by what they called
  std::vector<std::string> order;
  std::vector<std::string> fields;
  std::vector<int> absent;
  for (int peer = 0; peer < memory.world_size(); ++peer) {
    const shm::Line& line = memory.line(peer, sequence);
    if (peer != rank && !shm::Waiter::arrived(line.head.load(), sequence)) {
      absent.push_back(peer);
      continue;
    }
    const shm::Signature theirs = peer == rank ? own : announced(line);
    compare(own, theirs, fields);
    const std::string text = describe(theirs, members);
    if (callers[text].empty()) order.push_back(text);
    callers[text].push_back(peer);
  }
  std::string text =
      fmt::format("ranks made different calls as call #{} of {}: ", own.shown(), members.text());
  for (size_t i = 0; i < order.size(); ++i) {
    text += fmt::format("{}{}: {}", i == 0 ? "" : "; ", members.list(callers[order[i]]), order[i]);
  }
  if (!absent.empty()) text += fmt::format("; {}: not there yet", members.list(absent));
  return {ErrorCode::kMismatch, text + difference_in(fields)};
}

// The lines of the last calls still stand, of both ranks: the call that differed is usually among them.
Status earlier_mismatch(const shm::GroupMemory& memory, const Members& members, int rank, int peer,
                        uint32_t sequence) {
  const int us = members.world_rank(rank), them = members.world_rank(peer);
  for (uint32_t back = 1; back < shm::kLineDepth && back < sequence; ++back) {
    const shm::Signature own = announced(memory.line(rank, sequence - back));
    const shm::Signature theirs = announced(memory.line(peer, sequence - back));
    if (own.sequence() != sequence - back || theirs.sequence() != own.sequence()) continue;
    if (own.head == theirs.head && own.shape == theirs.shape) continue;
    std::vector<std::string> fields;
    compare(own, theirs, fields);
    return {ErrorCode::kMismatch,
            fmt::format("ranks made different calls as call #{} of {}: rank {}: {}; rank {}: {}{}",
                        own.sequence(), members.text(), us, describe(own, members), them,
                        describe(theirs, members), difference_in(fields))};
  }
  return differed_earlier(members, us, them, sequence);
}

Status differed_earlier(const Members& members, int us, int them, uint32_t number) {
  if (number == 1) {
    return {ErrorCode::kMismatch,
            fmt::format("ranks {} and {} were started with different COLLECTIVE_OPS_PATH, "
                        "COLLECTIVE_OPS_ALGORITHM, COLLECTIVE_OPS_TUNING_TABLE, COLLECTIVE_OPS_TUNER_PLUGIN, "
                        "HCCL_ALGO, NCCL_ALGO or HCCL_DETERMINISTIC; set them alike on all ranks, or "
                        "nowhere. (A plug-in has to choose alike on all of them.)",
                        us, them)};
  }
  return {ErrorCode::kMismatch,
          fmt::format("ranks {} and {} made different calls some time before call #{} of {}. "
                      "Every rank must make the same calls in the same order, and a tuner of one's own "
                      "(COLLECTIVE_OPS_TUNER_PLUGIN) choose alike on all ranks",
                      us, them, number, members.text())};
}

Status mismatch_between(const Members& members, int us, const shm::Signature& own, int them,
                        const shm::Signature& theirs) {
  if (own.shown() != theirs.shown() && !theirs.failed()) {
    return {ErrorCode::kMismatch,
            fmt::format("rank {} is in {}, while rank {} is in call #{} ({}): one has made a call that the "
                        "other has not. Every rank must make the same calls in the same order",
                        us, place_of(own, members), them, theirs.shown(), describe(theirs, members))};
  }
  std::vector<std::string> fields;
  compare(own, theirs, fields);
  const bool first = us < them;
  return {ErrorCode::kMismatch,
          fmt::format("ranks made different calls as call #{} of {}: rank {}: {}; rank {}: {}{}", own.shown(),
                      members.text(), first ? us : them, describe(first ? own : theirs, members),
                      first ? them : us, describe(first ? theirs : own, members), difference_in(fields))};
}

Status timed_out(const shm::GroupMemory& memory, const Members& members, const Peers& peers,
                 const LateCall& late) {
  const std::string advice =
      late.elsewhere.empty()
          ? "Check why that rank is late (a longer step, data loading, a debugger, another branch)"
          : "All ranks must call on their groups in an order that fits: one that waits in one group cannot "
            "come to another, unless a second thread does";
  return {ErrorCode::kTimeout,
          fmt::format("rank {} waited {} in {} for {}, which {}{}. {}; raise HCCL_EXEC_TIMEOUT or the call's "
                      "timeout where the wait is meant",
                      members.world_rank(late.rank), seconds(late.waited_ns), place_of(late.own, members),
                      peers.describe(late.peer), describe_last_call(memory, members, late.peer),
                      late.elsewhere, advice)};
}

Status peer_lost(const Members& members, int rank, const shm::Signature& own, const std::string& what) {
  return {
      ErrorCode::kPeerLost,
      fmt::format("{}, while rank {} was in {}. Look at that rank's own log for its first error; the group "
                  "cannot go on, start the job again",
                  what, members.world_rank(rank), place_of(own, members))};
}

}  // namespace collective_ops
