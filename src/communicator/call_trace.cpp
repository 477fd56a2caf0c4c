#include "communicator/call_trace.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace collective_ops {

void CallTrace::start(std::shared_ptr<Recording> recording, const Members& members) {
  recording_ = std::move(recording);
  members_ = members;
}

// Each recorder learns of the group before its first call.
std::shared_ptr<Recorder> CallTrace::open() {
  Recording::Open open = recording_->open();
  if (!open.recorder || members_.is_world()) return std::move(open.recorder);
  const std::lock_guard lock(mutex_);
  if (std::exchange(named_in_, open.number) != open.number)
    open.recorder->define_group(members_.id, members_.name, members_.all());
  return std::move(open.recorder);
}

void CallTrace::begin(int64_t issued_ns) {
  recorder_ = open();
  const size_t ranks = members_.all().size();
  peers_.assign(ranks, {});
  begun_ns_ = monotonic_ns();
  issued_ns_ = issued_ns > 0 ? issued_ns : begun_ns_;
  detailed_ = recording_->steps();
  if (detailed_) steps_.begin(begun_ns_, ranks);
}

void CallTrace::end(const TracedCall& traced) {
  const std::vector<int>& world = members_.all();
  CallRecord record;
  record.ended_ns = monotonic_ns();
  record.issued_ns = issued_ns_;
  record.begun_ns = begun_ns_;
  record.sequence = traced.sequence;
  record.group = members_.id;
  record.root = has_root(traced.call.collective) ? world[static_cast<size_t>(traced.call.root)] : -1;
  record.collective = traced.call.collective;
  record.type = traced.call.type;
  record.op = traced.call.op;
  record.path = traced.path;
  record.algorithm = traced.algorithm;
  record.status = traced.status;
  record.count = traced.call.count;
  record.bytes = traced.payload_bytes;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    PeerRecord& peer = peers_[rank];
    peer.peer = static_cast<uint64_t>(world[rank]);
    peer.waited_ns = std::min<uint64_t>(peer.waited_ns, kMaxWaitNs);
    if (detailed_) peer.moved_ns = static_cast<uint64_t>(steps_.moved_ns()[rank]);
    record.waited_ns += static_cast<int64_t>(peer.waited_ns);
  }
  std::erase_if(peers_, [](const PeerRecord& peer) {
    return peer.waited_ns == 0 && peer.read_bytes == 0 && peer.written_bytes == 0 && peer.moved_ns == 0;
  });
  // Between begin and end a rank waits or moves bytes; what little else it does counts as moving.
  record.moved_ns = std::max<int64_t>(record.ended_ns - record.begun_ns - record.waited_ns, 0);
  RecordedSteps steps;
  if (detailed_) {
    for (StepRecord& step : steps_.list())
      if (step.peer != kNoPeer) step.peer = static_cast<uint64_t>(world[step.peer]);
    steps = {steps_.list(), steps_.left_out()};
  }
  if (recorder_) recorder_->record(record, peers_, steps);
  recorder_.reset();
  detailed_ = false;
}

void CallTrace::record(const MessageTrace& message) {
  if (message.issued_ns == 0) return;  // posted before recording was on
  const std::shared_ptr<Recorder> recorder = open();
  if (!recorder) return;
  CallRecord record;
  record.sequence = messages_.fetch_add(1, std::memory_order_relaxed) + 1;
  record.group = members_.id;
  record.root = message.tag;
  record.collective = message.sends ? Collective::kSend : Collective::kRecv;
  record.type = message.type;
  record.path = message.path;
  record.status = message.status;
  record.count = message.count;
  record.bytes = message.bytes;
  record.issued_ns = record.begun_ns = message.issued_ns;
  record.ended_ns = message.ended_ns;
  record.moved_ns = message.moved_ns;
  record.waited_ns = std::max<int64_t>(record.ended_ns - record.begun_ns - record.moved_ns, 0);
  PeerRecord peer;
  if (message.peer >= 0) peer.peer = static_cast<uint64_t>(message.peer);
  peer.waited_ns = std::min<uint64_t>(static_cast<uint64_t>(record.waited_ns), kMaxWaitNs);
  // The receiver takes the bytes out of the sender's memory, or of the ring; so it alone counts them.
  if (!message.sends && message.status == ErrorCode::kOk) peer.read_bytes = message.bytes;
  recorder->record(record, {&peer, message.peer >= 0 ? size_t{1} : size_t{0}});
}

}  // namespace collective_ops
