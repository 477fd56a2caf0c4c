#include "communicator/call_trace.h"

#include <algorithm>

#include "base/clock.h"

namespace collective_ops {

void CallTrace::start(std::shared_ptr<Recorder> recorder, const Members& members) {
  recorder_ = std::move(recorder);
  members_ = members;
  if (!members.is_world()) recorder_->define_group(members.id, members.name, members.all());
}

void CallTrace::begin(int64_t issued_ns, shm::Waiter& waiter) {
  begun_ns_ = monotonic_ns();
  issued_ns_ = issued_ns > 0 ? issued_ns : begun_ns_;
  waiter.record_waits(true);
}

void CallTrace::end(const TracedCall& traced, shm::Waiter& waiter) {
  CallRecord record;
  record.ended_ns = monotonic_ns();
  record.issued_ns = issued_ns_;
  record.begun_ns = begun_ns_;
  record.sequence = traced.sequence;
  record.group = members_.id;
  record.root = has_root(traced.call.collective) ? members_.world_rank(traced.call.root) : -1;
  record.collective = traced.call.collective;
  record.type = traced.call.type;
  record.op = traced.call.op;
  record.path = traced.path;
  record.algorithm = traced.used != nullptr ? traced.used->algorithm : 0;
  record.status = traced.status;
  record.count = traced.call.count;
  record.bytes = traced.prepared.payload_bytes;

  peers_.clear();
  const auto& waits = waiter.waited_ns();
  for (size_t peer = 0; peer < waits.size(); ++peer) {
    record.waited_ns += waits[peer];
    PeerRecord entry;
    entry.peer = static_cast<uint64_t>(members_.world_rank(static_cast<int>(peer)));
    entry.waited_ns = std::min<uint64_t>(static_cast<uint64_t>(waits[peer]), kMaxWaitNs);
    if (traced.used != nullptr) {
      entry.read_bytes = traced.used->read_bytes[peer];
      entry.written_bytes = traced.used->written_bytes[peer];
    }
    if (entry.waited_ns != 0 || entry.read_bytes != 0 || entry.written_bytes != 0) peers_.push_back(entry);
  }
  // Between begin and end a rank waits or moves bytes; what little else it does counts as moving.
  record.moved_ns = std::max<int64_t>(record.ended_ns - record.begun_ns - record.waited_ns, 0);
  recorder_->record(record, peers_);
}

void CallTrace::record(const MessageTrace& message) {
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
  recorder_->record(record, {&peer, message.peer >= 0 ? size_t{1} : size_t{0}});
}

}  // namespace collective_ops
