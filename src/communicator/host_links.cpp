#include "communicator/host_links.h"

#include <utility>

#include <fmt/format.h>

#include "base/clock.h"
#include "communicator/failure_text.h"

namespace collective_ops {
namespace {

// A rank that waits for its first message answers at once; others hear of the failure at their next call.
constexpr int64_t kTellingNs = 300'000'000;

// Of a signature, what is equal for all ranks and parts of a call.
uint64_t called(const shm::Signature& call) { return call.head >> 32; }

shm::Signature call_in(const tcp::Header& header) {
  return {header.head << 32 | header.call, header.shape, header.call};
}

}  // namespace

HostLinks::HostLinks(HostLinksSettings settings, shm::HostsPace& pace, int connections)
    : settings_(std::move(settings)),
      links_(*this, pace,
             {.world_size = static_cast<int>(settings_.members.all().size()),
              .connections = connections,
              .oversubscribed = settings_.oversubscribed}),
      received_bytes_(settings_.members.all().size()),
      refused_(settings_.members.all().size()) {}

void HostLinks::begin(const shm::Signature& call, uint32_t history, int64_t begun_ns, int64_t deadline_ns) {
  call_ = call;
  history_ = history;
  begun_ns_ = begun_ns;
  status_ = Status();
  links_.begin(deadline_ns);
}

tcp::Header HostLinks::header(size_t bytes) const {
  return {.call = call_.sequence(),
          .history = history_,
          .head = called(call_),
          .shape = call_.shape,
          .bytes = bytes};
}

bool HostLinks::note(Status status) {
  if (status.ok()) return true;
  status_ = std::move(status);
  return false;
}

bool HostLinks::send(int rank, const void* data, size_t bytes) {
  return note(links_.send(rank, header(bytes), static_cast<const std::byte*>(data)));
}

void HostLinks::forget_traffic() {
  std::fill(links_.waited_ns().begin(), links_.waited_ns().end(), 0);
  std::fill(received_bytes_.begin(), received_bytes_.end(), 0);
}

bool HostLinks::receive(int rank, void* data, size_t bytes) {
  received_bytes_[static_cast<size_t>(rank)] += bytes;
  return note(links_.receive(rank, header(bytes), static_cast<std::byte*>(data)));
}

bool HostLinks::flush() { return note(links_.flush()); }

void HostLinks::tell_failed(const Status& reason, std::span<const int> waiting) {
  failed_ = true;
  links_.begin(monotonic_ns() + kTellingNs);
  for (const int rank : waiting) {
    if (rank != settings_.rank) (void)links_.reach(rank);
  }
  links_.tell({tcp::NoticeKind::kFailed, reason.code(), call_.sequence(), reason.message()});
  links_.drop();
}

void HostLinks::tell_refused(uint32_t call) {
  links_.tell({tcp::NoticeKind::kRefused, ErrorCode::kOk, call, ""});
}

void HostLinks::tell_left() {
  links_.tell({tcp::NoticeKind::kLeft, ErrorCode::kOk, call_.sequence(), ""});
  links_.drop();
}

Result<PrivateDescriptor> HostLinks::connect(int peer, uint32_t number, int64_t deadline_ns) {
  const uint64_t channel = uint64_t{settings_.members.id} << 8 | number;
  auto socket = settings_.connector->connect(world_rank(peer), channel, deadline_ns,
                                             failed_ ? std::function<Status()>() : settings_.healthy);
  if (socket.ok() || socket.status().code() != ErrorCode::kTimeout) return socket;
  return check(peer, true);
}

Status HostLinks::check(int peer, bool late) {
  if (failed_) return late ? Status(ErrorCode::kTimeout, "too late to tell") : Status();
  if (Status status = settings_.healthy(); !status.ok()) return status;
  if (refused_[static_cast<size_t>(peer)] == call_.sequence()) {
    return mismatch_between(settings_.members, world_rank(settings_.rank), call_, world_rank(peer),
                            shm::Signature::of_failed(call_.sequence()));
  }
  if (!late) return {};
  return {
      ErrorCode::kTimeout,
      fmt::format("rank {} waited {:.3f} s in {} for {}, which has not sent its part. Check why that rank is "
                  "late (a longer step, data loading, a debugger, another branch); raise "
                  "HCCL_EXEC_TIMEOUT or the call's timeout where the wait is meant",
                  world_rank(settings_.rank), static_cast<double>(monotonic_ns() - begun_ns_) * 1e-9,
                  place_of(call_, settings_.members), describe(peer))};
}

Status HostLinks::differs(int peer, const tcp::Header& theirs, const tcp::Header& ours) {
  const int us = world_rank(settings_.rank), them = world_rank(peer);
  if (theirs.head != ours.head || theirs.shape != ours.shape || theirs.call != ours.call)
    return mismatch_between(settings_.members, us, call_, them, call_in(theirs));
  if (theirs.history != ours.history) return differed_earlier(settings_.members, us, them, call_.sequence());
  if (theirs.bytes != ours.bytes) {
    return {ErrorCode::kMismatch,
            fmt::format("{}: rank {} sends {} bytes to rank {}, which expects {} bytes. What a rank sends to "
                        "another must be what that one expects from it; compare the ranks' lists of counts",
                        place_of(call_, settings_.members), them, theirs.bytes, us, ours.bytes)};
  }
  return {ErrorCode::kInternal,
          fmt::format("{}: message {} of rank {} came to rank {} as its message {}",
                      place_of(call_, settings_.members), theirs.message, them, us, ours.message)};
}

Status HostLinks::noticed(int peer, const tcp::Notice& notice) {
  if (notice.kind == tcp::NoticeKind::kFailed) return {notice.code, notice.text};
  refused_[static_cast<size_t>(peer)] = notice.call;
  return {};
}

Status HostLinks::lost(int peer, const std::string& how) {
  return peer_lost(settings_.members, settings_.index, call_,
                   fmt::format("{} was lost: {}", describe(peer), how));
}

}  // namespace collective_ops
