// How messages move. All of it runs with the engine's lock held, in whichever thread waits; large copies
// alone are made without it.
#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "base/clock.h"
#include "communicator/messages.h"

namespace collective_ops {

using shm::Envelope;
using shm::EnvelopeKind;
using shm::SlotState;

namespace {

// Of one ring at a time: a peer that keeps up would hold the lock here as long as it goes on.
constexpr int kMostRecords = 64;

}  // namespace

void Messages::progress() {
  more_ = false;
  try {
    for (size_t word = 0; word * 64 < static_cast<size_t>(memory_.world_size()); ++word) {
      uint64_t writers = box().writers[word].load(std::memory_order_acquire);
      for (; writers != 0; writers &= writers - 1)
        pull(static_cast<int>(word) * 64 + std::countr_zero(writers));
    }
    if (settings_.remote) {
      settings_.remote->progress([this](int id, const tcp::Frame& frame, const std::byte* payload) {
        take_remote(id, frame, payload);
      });
    }
    if (!announced_.empty()) check_announced();
    if (queued_count_ > 0) push_queued();
    if (!streaming_.empty()) push_parts();
  } catch (const std::bad_alloc&) {
    break_group({ErrorCode::kOutOfMemory,
                 "a message: no memory to keep what came before it was asked for; raise the limit of this "
                 "process, or receive earlier"});
  }
}

// --- Receiving -------------------------------------------------------------------------------------

void Messages::pull(int source) {
  shm::RingReader& ring = readers_[static_cast<size_t>(source)];
  int records = 0;
  while (const Envelope* envelope = ring.front()) {
    if (++records > kMostRecords) {
      more_ = true;
      return;
    }
    if (envelope->kind == EnvelopeKind::kPart) {
      take_part(source, *envelope);
    } else {
      take(source, *envelope);
    }
    if (ring.pop()) rings_.notify(source);
  }
}

void Messages::take(int source, const Envelope& envelope) {
  const shm::RingReader& ring = readers_[static_cast<size_t>(source)];
  const bool large = envelope.kind == EnvelopeKind::kLarge;
  const auto copy_to = [&](void* to) {
    if (envelope.bytes == 0) return;
    if (envelope.bytes <= shm::kTinyBytes) {
      std::memcpy(to, envelope.tiny, envelope.bytes);
    } else {
      ring.copy_payload(static_cast<std::byte*>(to), envelope.bytes);
    }
  };
  Arrival arrival{source, envelope.tag, envelope.type, large, envelope.bytes, envelope.slot, 0, {}, {}};
  if (large) {
    arrival.address = envelope.place.address;
    arrival.shared = envelope.place.shared;
  }
  arrive(std::move(arrival), copy_to);
}

// A message, or the announcement of a large one; `copy_to` yields the bytes of another.
void Messages::arrive(Arrival arrival, const std::function<void(void*)>& copy_to) {
  Item* item = match_posted(arrival.source, arrival.tag);
  if (item != nullptr && arrival.large) {
    receive_large(*item, arrival);
  } else if (item != nullptr) {
    if (!accepts(*item, arrival.source, arrival.type, arrival.bytes)) return;
    copy_to(item->transfer.buffer);
    item->path = arrival.bytes <= shm::kTinyBytes ? TracePath::kInline : TracePath::kStaged;
    complete(*item, {});
  } else {
    if (!arrival.large) {
      arrival.payload.resize(arrival.bytes);
      copy_to(arrival.payload.data());
    }
    arrived_.push_back(std::move(arrival));
  }
}

void Messages::take_part(int source, const Envelope& envelope) {
  take_bytes(
      source, envelope.slot,
      [&](std::byte* to) { readers_[static_cast<size_t>(source)].copy_payload(to, envelope.bytes); },
      envelope.at, envelope.bytes);
}

void Messages::take_remote(int source, const tcp::Frame& frame, const std::byte* payload) {
  const auto copy_to = [&](void* to) {
    if (frame.payload > 0) std::memcpy(to, payload, frame.payload);
  };
  switch (frame.kind) {
    case tcp::FrameKind::kWhole:
    case tcp::FrameKind::kLarge: {
      const bool large = frame.kind == tcp::FrameKind::kLarge;
      if (frame.type >= kDataTypeCount || (!large && frame.payload != frame.bytes)) return;
      arrive(
          {source, frame.tag, static_cast<DataType>(frame.type), large, frame.bytes, frame.slot, 0, {}, {}},
          copy_to);
      return;
    }
    case tcp::FrameKind::kPart:
      take_bytes(source, frame.slot, copy_to, frame.at, frame.payload);
      return;
    case tcp::FrameKind::kWanted: {
      SlotState announced = SlotState::kAnnounced;
      if (frame.slot < next_slot_)
        rings_.slot(rank_, frame.slot).compare_exchange_strong(announced, SlotState::kWanted);
      return;
    }
    case tcp::FrameKind::kClosing:
      return;
  }
}

void Messages::take_bytes(int source, uint32_t slot, const std::function<void(std::byte*)>& copy_to,
                          size_t at, size_t bytes) {
  const auto stream = std::find_if(streams_.begin(), streams_.end(), [&](const Stream& candidate) {
    return candidate.source == source && candidate.slot == slot;
  });
  if (stream == streams_.end()) return;  // of a receive that has failed
  Item& item = *stream->item;
  if (at + bytes > stream->bytes) return;  // no sender of this library does that
  copy_to(static_cast<std::byte*>(item.transfer.buffer) + at);
  item.moved += bytes;
  if (item.moved < stream->bytes) return;
  streams_.erase(stream);
  complete(item, {});
}

Messages::Item* Messages::match_posted(int source, int tag) {
  for (auto place = posted_.begin(); place != posted_.end(); ++place) {
    Item* item = *place;
    const int wanted = item->transfer.peer;
    if (item->transfer.tag != tag || (wanted != source && wanted != kAnySource)) continue;
    posted_.erase(place);
    return item;
  }
  return nullptr;
}

bool Messages::match_arrival(Item& item) {
  for (auto place = arrived_.begin(); place != arrived_.end(); ++place) {
    const int wanted = item.transfer.peer;
    if (place->tag != item.transfer.tag || (wanted != place->source && wanted != kAnySource)) continue;
    const Arrival arrival = std::move(*place);
    arrived_.erase(place);
    if (arrival.large) {
      receive_large(item, arrival);
    } else if (accepts(item, arrival.source, arrival.type, arrival.bytes)) {
      if (arrival.bytes > 0) std::memcpy(item.transfer.buffer, arrival.payload.data(), arrival.bytes);
      item.path = arrival.bytes <= shm::kTinyBytes ? TracePath::kInline : TracePath::kStaged;
      complete(item, {});
    }
    return true;
  }
  return false;
}

bool Messages::accepts(Item& item, int source, DataType type, uint64_t bytes) {
  const Transfer& wanted = item.transfer;
  if (type == wanted.type && (bytes == item.bytes || (bytes < item.bytes && wanted.allow_shorter))) {
    item.received = {rank_of(source), wanted.tag, bytes / size_of(type)};
    return true;
  }
  break_group(mismatch(item, source, type, bytes));  // which ends this item too
  return false;
}

void Messages::receive_large(Item& item, const Arrival& arrival) {
  const bool remote = is_remote(arrival.source);
  if (!accepts(item, arrival.source, arrival.type, arrival.bytes)) {
    if (remote) return;
    rings_.slot(arrival.source, arrival.slot).store(SlotState::kWithdrawn, std::memory_order_release);
    return;
  }
  if (remote) {
    stream_from(item, arrival);
    settings_.remote->ask(arrival.source, arrival.slot);
    return;
  }
  const bool reachable = arrival.shared.segment != 0 ||
                         (arrival.address != 0 && settings_.read_probe->reads(arrival.source, *peers_));
  SlotState announced = SlotState::kAnnounced;
  if (!rings_.slot(arrival.source, arrival.slot)
           .compare_exchange_strong(announced, reachable ? SlotState::kClaimed : SlotState::kWanted,
                                    std::memory_order_acq_rel)) {
    complete(item, ended());  // withdrawn: the sender has seen the group break
    return;
  }
  if (!reachable) {
    stream_from(item, arrival);
    return;
  }
  item.stage = Stage::kCopying;
  item.path = arrival.shared.segment != 0 || arrival.source == rank_ ? TracePath::kDirect : TracePath::kRead;
  jobs_.push_back({&item, arrival});
}

// The slot says kWanted already.
void Messages::stream_from(Item& item, const Arrival& arrival) {
  item.stage = Stage::kStreaming;
  item.path = TracePath::kStaged;
  item.moved = 0;
  streams_.push_back({arrival.source, arrival.slot, arrival.bytes, &item});
  if (!is_remote(arrival.source)) rings_.notify(arrival.source);
}

void Messages::run_jobs(std::unique_lock<std::mutex>& lock) {
  while (!jobs_.empty()) {
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    bool unreadable = false;
    Status status = copy(job, unreadable);
    if (!status.ok()) (void)host_.break_group(status);
    if (!unreadable) {
      // The sender's buffer is free, whatever became of it.
      rings_.slot(job.from.source, job.from.slot)
          .store(status.ok() ? SlotState::kDone : SlotState::kWithdrawn, std::memory_order_release);
      rings_.notify(job.from.source);
    }
    lock.lock();
    finish_job(job, status, unreadable);
  }
}

Status Messages::copy(const Job& job, bool& unreadable) {
  const Arrival& from = job.from;
  const int64_t begun = host_.traces() ? monotonic_ns() : 0;
  const auto* source = reinterpret_cast<const std::byte*>(from.address);
  auto* to = static_cast<std::byte*>(job.item->transfer.buffer);
  if (from.shared.segment == 0 && from.source != rank_) {
    unreadable = !peers_->read(from.source, source, to, from.bytes).ok();
  } else {
    if (from.source != rank_) {
      const std::lock_guard lock(peers_mutex_);
      const auto give_up = [&] {
        if (memory_.broken()) return memory_.failure();
        if (Status status = host_.check_interrupt(); !status.ok()) return status;
        const std::string lost = find_lost_locked();
        return lost.empty() ? Status() : Status(ErrorCode::kPeerLost, lost);
      };
      auto address = peers_->reach(from.source, from.shared, from.bytes, kNoDeadline, give_up);
      if (!address.ok()) return address.status();
      source = *address;
    }
    std::memcpy(to, source, from.bytes);
  }
  if (begun != 0) job.item->moved_ns = monotonic_ns() - begun;
  return memory_.broken() ? memory_.failure() : Status();
}

// A status that is not ok has broken the group.
void Messages::finish_job(const Job& job, const Status& status, bool unreadable) {
  Item& item = *job.item;
  if (memory_.broken()) {
    if (unreadable)
      rings_.slot(job.from.source, job.from.slot).store(SlotState::kWithdrawn, std::memory_order_release);
    complete(item, memory_.failure());
  } else if (unreadable) {
    // Memory that the kernel does not let us read, or a sender that has just died, which shows while we wait.
    rings_.slot(job.from.source, job.from.slot).store(SlotState::kWanted, std::memory_order_release);
    stream_from(item, job.from);
  } else {
    complete(item, status);
  }
}

// --- Sending ---------------------------------------------------------------------------------------

// False where there is no room now.
bool Messages::push(Item& item) {
  if (is_remote(item.transfer.peer)) return push_remote(item);
  shm::RingWriter& ring = writer(item.transfer.peer);
  return item.bytes <= eager_bytes_ ? push_small(item, ring) : push_large(item, ring);
}

bool Messages::push_small(Item& item, shm::RingWriter& ring) {
  const bool tiny = item.bytes <= shm::kTinyBytes;
  Envelope* envelope = ring.begin(tiny ? 0 : item.bytes);
  if (envelope == nullptr) return false;
  envelope->kind = EnvelopeKind::kWhole;
  envelope->type = item.transfer.type;
  envelope->tag = item.transfer.tag;
  envelope->bytes = item.bytes;
  if (tiny && item.bytes > 0) std::memcpy(envelope->tiny, item.transfer.buffer, item.bytes);
  ring.commit(*envelope, static_cast<const std::byte*>(item.transfer.buffer), tiny ? 0 : item.bytes);
  introduce(item.transfer.peer);
  item.path = tiny ? TracePath::kInline : TracePath::kStaged;
  complete(item, {});
  return true;
}

bool Messages::push_large(Item& item, shm::RingWriter& ring) {
  if (free_slots_.empty() && next_slot_ == shm::kMessageSlots) return false;
  Envelope* envelope = ring.begin(0);
  if (envelope == nullptr) return false;
  item.slot = new_slot();
  envelope->kind = EnvelopeKind::kLarge;
  envelope->type = item.transfer.type;
  envelope->tag = item.transfer.tag;
  envelope->slot = item.slot;
  envelope->bytes = item.bytes;
  envelope->place.address = settings_.staged ? 0 : reinterpret_cast<uint64_t>(item.transfer.buffer);
  envelope->place.shared = item.shared;
  ring.commit(*envelope, nullptr, 0);
  item.stage = Stage::kAnnounced;
  announced_.push_back(&item);
  introduce(item.transfer.peer);
  return true;
}

uint32_t Messages::new_slot() {
  uint32_t slot = next_slot_;
  if (free_slots_.empty()) {
    ++next_slot_;
  } else {
    slot = free_slots_.back();
    free_slots_.pop_back();
  }
  rings_.slot(rank_, slot).store(SlotState::kAnnounced, std::memory_order_relaxed);
  return slot;
}

bool Messages::push_remote(Item& item) {
  RemoteMessages& remote = *settings_.remote;
  if (!remote.has_room(item.transfer.peer)) return false;
  tcp::Frame frame{
      .type = static_cast<uint8_t>(item.transfer.type), .tag = item.transfer.tag, .bytes = item.bytes};
  item.path = TracePath::kStaged;
  if (item.bytes <= eager_bytes_) {
    frame.payload = static_cast<uint32_t>(item.bytes);
    remote.send(item.transfer.peer, frame, static_cast<const std::byte*>(item.transfer.buffer));
    complete(item, {});
    return true;
  }
  if (free_slots_.empty() && next_slot_ == shm::kMessageSlots) return false;
  item.slot = new_slot();
  frame.kind = tcp::FrameKind::kLarge;
  frame.slot = item.slot;
  remote.send(item.transfer.peer, frame, nullptr);
  item.stage = Stage::kAnnounced;
  announced_.push_back(&item);
  return true;
}

// Tells the peer that there is something, the first time also that it must look at this ring at all.
void Messages::introduce(int peer) {
  if (!introduced_[static_cast<size_t>(peer)]) {
    introduced_[static_cast<size_t>(peer)] = true;
    const auto rank = static_cast<size_t>(rank_);
    rings_.box(peer).writers[rank / 64].fetch_or(uint64_t{1} << rank % 64, std::memory_order_acq_rel);
  }
  rings_.notify(peer);
}

void Messages::push_queued() {
  for (auto& queue : queued_) {
    while (!queue.empty() && push(*queue.front())) {
      queue.pop_front();
      --queued_count_;
    }
  }
}

void Messages::check_announced() {
  for (auto place = announced_.begin(); place != announced_.end();) {
    Item& item = **place;
    std::atomic<SlotState>& slot = rings_.slot(rank_, item.slot);
    const SlotState state = slot.load(std::memory_order_acquire);
    if (state == SlotState::kAnnounced || state == SlotState::kClaimed) {
      ++place;
      continue;
    }
    place = announced_.erase(place);
    if (state == SlotState::kWanted) {
      item.stage = Stage::kStreaming;
      item.path = TracePath::kStaged;
      streaming_.push_back(&item);
    } else if (state == SlotState::kDone) {
      slot.store(SlotState::kFree, std::memory_order_relaxed);
      free_slots_.push_back(item.slot);
      item.path =
          item.shared.segment != 0 || item.transfer.peer == rank_ ? TracePath::kDirect : TracePath::kRead;
      complete(item, {});
    } else {
      complete(item, ended());
    }
  }
}

// False where there is no room now.
bool Messages::push_part(Item& item) {
  const int peer = item.transfer.peer;
  const std::byte* from = static_cast<const std::byte*>(item.transfer.buffer) + item.moved;
  const size_t left = item.bytes - item.moved;
  if (is_remote(peer)) {
    if (!settings_.remote->has_room(peer)) return false;
    const size_t bytes = std::min(left, tcp::kMostFramePayload);
    settings_.remote->send(peer,
                           {.kind = tcp::FrameKind::kPart,
                            .slot = item.slot,
                            .payload = static_cast<uint32_t>(bytes),
                            .bytes = item.bytes,
                            .at = item.moved},
                           from);
    item.moved += bytes;
    return true;
  }
  shm::RingWriter& ring = writer(peer);
  const size_t bytes = std::min(left, ring.most_payload());
  Envelope* envelope = ring.begin(bytes);
  if (envelope == nullptr) return false;
  envelope->kind = EnvelopeKind::kPart;
  envelope->slot = item.slot;
  envelope->bytes = bytes;
  envelope->at = item.moved;
  ring.commit(*envelope, from, bytes);
  item.moved += bytes;
  rings_.notify(peer);
  return true;
}

void Messages::push_parts() {
  for (auto place = streaming_.begin(); place != streaming_.end();) {
    Item& item = **place;
    int records = 0;
    while (item.moved < item.bytes) {
      if (++records > kMostRecords) {
        more_ = true;
        break;
      }
      if (!push_part(item)) break;
    }
    if (item.moved < item.bytes) {
      ++place;
      continue;
    }
    place = streaming_.erase(place);
    rings_.slot(rank_, item.slot).store(SlotState::kFree, std::memory_order_relaxed);
    free_slots_.push_back(item.slot);
    complete(item, {});
  }
}

// --- The end ---------------------------------------------------------------------------------------

// The item is not touched again: where it lies on a stack, its caller goes on.
void Messages::complete(Item& item, Status status) {
  item.status = std::move(status);
  if (item.listed) open_.erase(item.place);
  if (item.started) --started_;
  const bool sends = item.transfer.kind == Transfer::kSend;
  if (item.status.ok()) {
    const uint64_t bytes = sends ? item.bytes : item.received.count * size_of(item.transfer.type);
    ++(sends ? counters_.sends : counters_.receives);
    (sends ? counters_.sent_bytes : counters_.received_bytes) += bytes;
  }
  if (host_.traces()) trace(item);
  const std::shared_ptr<Work> keep = std::move(item.keep);
  item.done.store(true, std::memory_order_release);
  if (sleeping_ > 0) rings_.wake(rank_, shm::kCallers);
}

void Messages::trace(const Item& item) {
  const Transfer& transfer = item.transfer;
  const bool sends = transfer.kind == Transfer::kSend;
  const int source = item.received.source;  // a rank of the group
  const int peer = sends || source < 0 ? transfer.peer
                   : settings_.remote  ? settings_.remote->id_of(source)
                                       : source;
  MessageTrace entry;
  entry.sends = sends;
  entry.peer = peer < 0 ? -1 : world_rank(peer);
  entry.tag = transfer.tag;
  entry.type = transfer.type;
  entry.count = sends || !item.status.ok() ? transfer.count : item.received.count;
  entry.bytes = entry.count * size_of(transfer.type);
  entry.path = item.path;
  entry.status = item.status.code();
  entry.issued_ns = item.issued_ns;
  entry.ended_ns = monotonic_ns();
  entry.moved_ns = item.moved_ns;
  host_.record(entry);
}

}  // namespace collective_ops
