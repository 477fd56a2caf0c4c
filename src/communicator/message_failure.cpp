// What ends messages before their time: a broken group, a lost peer, a deadline, an interrupt, ranks that do
// not agree. Each is told with who, what, and what to do next.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "communicator/failure_text.h"
#include "communicator/messages.h"

namespace collective_ops {
namespace {

using shm::SlotState;

// After a failure a peer may still copy from a buffer here; it gets so long to end that.
constexpr int64_t kClaimNs = 1'000'000'000;
constexpr size_t kMostListed = 4;

std::string describe_payload(DataType type, uint64_t bytes) {
  return fmt::format("{} {} ({} bytes)", bytes / size_of(type), name_of(type), bytes);
}

}  // namespace

// Called every few milliseconds by whoever waits.
void Messages::look_for_failure(std::unique_lock<std::mutex>& lock) {
  if (!memory_.broken()) {
    lock.unlock();
    Status reason = host_.check_interrupt();  // may run code of the user's, which may send
    const std::string lost = reason.ok()                             ? find_lost()
                             : reason.code() == ErrorCode::kPeerLost ? reason.message()
                                                                     : "";
    lock.lock();
    for (int rank = 0; rank < memory_.world_size(); ++rank)
      left_[static_cast<size_t>(rank)] = memory_.state(rank).left.load(std::memory_order_acquire) != 0;
    for (int id = memory_.world_size(); id < ids(); ++id)
      left_[static_cast<size_t>(id)] = settings_.remote->closed(id);
    // What a rank did before it died, left, or in the last moment, still counts.
    progress();
    const auto open = std::find_if(open_.begin(), open_.end(),
                                   [](const Item* item) { return item->stage != Stage::kCopying; });
    if (open == open_.end()) return;
    if (!reason.ok() && reason.code() != ErrorCode::kPeerLost) {
      reason = in_item(**open, reason.code(), "was interrupted: " + reason.message());
    } else if (!lost.empty()) {
      reason =
          in_item(**open, ErrorCode::kPeerLost,
                  fmt::format("found that {}. Look at that rank's own log for its first error; the group "
                              "cannot go on, start the job again",
                              lost));
    } else {
      reason = find_failure(monotonic_ns());
    }
    if (!reason.ok()) break_group(reason);
  }
  if (memory_.broken()) fail_all(memory_.failure());
}

// Of the open items, one whose deadline has passed or whose peer has gone in order.
Status Messages::find_failure(int64_t now) {
  for (Item* item : open_) {
    if (item->stage == Stage::kCopying) continue;
    if (Status status = gone(*item); !status.ok()) return status;
    if (now >= deadline(*item, now)) return timed_out(*item, now);
  }
  return {};
}

Status Messages::gone(const Item& item) const {
  const Transfer& transfer = item.transfer;
  if (transfer.kind == Transfer::kSend) {
    if (finishing_ || !takes_no_more(transfer.peer)) return {};  // see fail_sends_without_takers()
    if (item.stage == Stage::kStreaming) return {};
    if (item.stage == Stage::kAnnounced &&
        rings_.slot(rank_, item.slot).load(std::memory_order_acquire) != SlotState::kAnnounced) {
      return {};
    }
    return in_item(item, ErrorCode::kPeerLost,
                   "has no taker: that rank leaves the group and takes no more messages");
  }
  if (item.stage != Stage::kPosted) return {};
  const auto has_left = [this](int rank) { return rank != rank_ && left_[static_cast<size_t>(rank)] != 0; };
  if (transfer.peer != kAnySource) {
    if (!has_left(transfer.peer)) return {};
    return in_item(
        item, ErrorCode::kPeerLost,
        "waits in vain: that rank has left the group without sending it" + describe_arrivals(item));
  }
  for (int id = 0; id < ids(); ++id) {
    if (id != rank_ && !has_left(id)) return {};
  }
  if (ids() == 1) return {};
  return in_item(item, ErrorCode::kPeerLost,
                 "waits in vain: all other ranks have left the group" + describe_arrivals(item));
}

bool Messages::takes_no_more(int rank) const {
  if (is_remote(rank)) return settings_.remote->closed(rank);
  return rank != rank_ && rings_.box(rank).closing.load(std::memory_order_acquire) != 0;
}

std::string Messages::find_lost() {
  const std::lock_guard lock(peers_mutex_);
  return find_lost_locked();
}

std::string Messages::find_lost_locked() {
  return peers_->find_lost(
      [this](int rank) { return memory_.state(rank).left.load(std::memory_order_acquire) != 0; });
}

int64_t Messages::deadline(Item& item, int64_t now) const {
  if (item.deadline_ns == 0) {
    const int64_t timeout =
        std::chrono::nanoseconds(item.transfer.timeout.value_or(settings_.exec_timeout)).count();
    item.deadline_ns = timeout > 0 ? (item.issued_ns > 0 ? item.issued_ns : now) + timeout : kNoDeadline;
    if (item.issued_ns == 0) item.issued_ns = now;
  }
  return item.deadline_ns;
}

// Of a message that its other side has withdrawn.
Status Messages::ended() const {
  Status reason = memory_.failure();
  return reason.ok() ? Status(ErrorCode::kPeerLost, "the other side of this message has left the group")
                     : reason;
}

void Messages::break_group(const Status& reason) { fail_all(host_.break_group(reason)); }

// Ends every open item but those that some thread copies, and those from which a peer copies.
void Messages::fail_all(const Status& reason) {
  const int64_t now = monotonic_ns();
  if (give_up_ns_ == 0) give_up_ns_ = now + kClaimNs;
  posted_.clear();
  arrived_.clear();
  for (auto& queue : queued_) queue.clear();
  queued_count_ = 0;
  streaming_.clear();
  streams_.clear();
  for (const Job& job : jobs_) {
    job.item->stage = Stage::kPosted;
    rings_.slot(job.from.source, job.from.slot).store(SlotState::kWithdrawn, std::memory_order_release);
    rings_.notify(job.from.source);
  }
  jobs_.clear();
  std::erase_if(announced_, [&](Item* item) {
    if (!withdraw(*item, now)) return false;
    item->stage = Stage::kQueued;
    return true;
  });
  for (auto place = open_.begin(); place != open_.end();) {
    Item& item = **place++;
    if (item.stage == Stage::kCopying || item.stage == Stage::kAnnounced) continue;
    if (finishing_ && unsent_.ok() && item.transfer.kind == Transfer::kSend) unsent_ = reason;
    complete(item, reason);
  }
}

// Whether no peer copies from the item's buffer, nor will.
bool Messages::withdraw(Item& item, int64_t now) {
  SlotState state = SlotState::kAnnounced;
  if (rings_.slot(rank_, item.slot)
          .compare_exchange_strong(state, SlotState::kWithdrawn, std::memory_order_acq_rel)) {
    return true;
  }
  if (state == SlotState::kClaimed) return give_up_ns_ != 0 && now >= give_up_ns_;
  return state != SlotState::kDone;  // those complete in order
}

// While this rank leaves, which is not the group's failure.
void Messages::fail_sends_without_takers() {
  const int64_t now = monotonic_ns();
  for (auto place = open_.begin(); place != open_.end();) {
    Item& item = **place++;
    const int peer = item.transfer.peer;
    if (item.transfer.kind != Transfer::kSend || (peer != rank_ && !takes_no_more(peer))) continue;
    if (item.stage == Stage::kAnnounced && withdraw(item, now)) {
      std::erase(announced_, &item);
    } else if (item.stage == Stage::kQueued) {
      queued_count_ -= std::erase(queued_[static_cast<size_t>(peer)], &item);
    } else {
      continue;
    }
    Status status = in_item(item, ErrorCode::kPeerLost,
                            peer == rank_ ? "was never received, and this rank leaves the group"
                                          : "was never received: that rank leaves the group too");
    if (unsent_.ok()) unsent_ = status;
    complete(item, std::move(status));
  }
}

// --- Texts -----------------------------------------------------------------------------------------

// "send of 10 float32 (40 bytes), tag 3, to rank 1 (pid 4711)"
std::string Messages::describe(const Item& item) const {
  const Transfer& transfer = item.transfer;
  const bool sends = transfer.kind == Transfer::kSend;
  return fmt::format("{} of {}, tag {}, {} {}", sends ? "send" : "recv",
                     describe_payload(transfer.type, item.bytes), transfer.tag, sends ? "to" : "from",
                     transfer.peer == kAnySource ? "any rank" : describe_peer(transfer.peer));
}

Status Messages::in_item(const Item& item, ErrorCode code, const std::string& what) const {
  const std::string where =
      settings_.members.is_world() ? "" : fmt::format(" (in {})", settings_.members.text());
  return {code, fmt::format("rank {} in {}{} {}", settings_.members.world_rank(rank_), describe(item), where,
                            what)};
}

// "; rank 1 (pid 4711) has sent 10 float32 (40 bytes) with tag 3, which nobody has asked for"
std::string Messages::describe_arrivals(const Item& item) const {
  std::string text;
  size_t count = 0;
  for (const Arrival& arrival : arrived_) {
    if (item.transfer.peer != kAnySource && item.transfer.peer != arrival.source) continue;
    if (++count > kMostListed) continue;
    text +=
        fmt::format("; {} has sent {} with tag {}, which nobody has asked for", describe_peer(arrival.source),
                    describe_payload(arrival.type, arrival.bytes), arrival.tag);
  }
  if (count > kMostListed) text += fmt::format(", and {} more", count - kMostListed);
  return text;
}

Status Messages::timed_out(const Item& item, int64_t now) const {
  const Transfer& transfer = item.transfer;
  std::string found;
  if (transfer.kind == Transfer::kReceive) {
    found = item.stage == Stage::kPosted
                ? fmt::format("no message with that tag has come{}", describe_arrivals(item))
                : "the message has begun to come, but not all of it";
  } else if (item.stage == Stage::kQueued) {
    found = "that rank has not looked at what was sent to it before";
  } else if (item.stage == Stage::kAnnounced) {
    found = "that rank has not asked for it";
  } else {
    found = "that rank has taken a part of it";
  }
  if (transfer.peer != kAnySource && transfer.peer != rank_ && !is_remote(transfer.peer)) {
    const shm::RankState& peer = memory_.state(transfer.peer);
    if (peer.issued.load(std::memory_order_relaxed) != peer.finished.load(std::memory_order_relaxed))
      found += "; that rank " + describe_last_call(memory_, settings_.members, transfer.peer);
    found += host_.elsewhere(settings_.members.ranks[static_cast<size_t>(transfer.peer)]);
  }
  return in_item(
      item, ErrorCode::kTimeout,
      fmt::format("waited {:.3f} s: {}. Check rank, tag and order of sends and receives on both sides, and "
                  "whether the other rank is late; raise HCCL_EXEC_TIMEOUT or the call's timeout where "
                  "the wait is meant",
                  static_cast<double>(now - item.issued_ns) / 1e9, found));
}

Status Messages::mismatch(const Item& item, int source, DataType type, uint64_t bytes) const {
  const Transfer& wanted = item.transfer;
  const char* difference = type != wanted.type  ? "type"
                           : bytes > item.bytes ? "size: the buffer is too short"
                                                : "size: the buffer is longer than the message";
  return {ErrorCode::kMismatch,
          fmt::format(
              "{} sent {} with tag {}, but rank {} receives {} there. They differ in {}. Sender and receiver "
              "must agree on tag, type and size; look at the order of messages of one tag",
              describe_peer(source), describe_payload(type, bytes), wanted.tag,
              settings_.members.world_rank(rank_), describe_payload(wanted.type, item.bytes), difference)};
}

}  // namespace collective_ops
