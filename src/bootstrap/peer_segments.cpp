#include "bootstrap/peer_segments.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/clock.h"

namespace collective_ops {
namespace {

constexpr uint32_t kSegmentMail = 0x474d4553;  // "SEGM": other users of the mailbox have other tags
constexpr size_t kMaxListed = (kMaxMailHeader - 64) / sizeof(uint32_t);
constexpr int64_t kSliceNs = 5'000'000;  // between two looks at what other threads took from the mailbox

// Followed by `live_count` ids, ascending: all segments that the owner holds.
struct SegmentMail {
  uint32_t tag = kSegmentMail;
  uint32_t segment_id = 0;
  uint64_t number = 0;  // of the publication: threads may send and take them in another order
  uint32_t live_count = 0;
  uint32_t complete = 0;  // 0: too many to list, so nothing may be dropped
};

std::optional<SegmentMail> parse(const Message& message) {
  SegmentMail mail;
  if (message.header.size() < sizeof(mail)) return std::nullopt;
  std::memcpy(&mail, message.header.data(), sizeof(mail));
  if (mail.tag != kSegmentMail || mail.live_count > kMaxListed || !message.fd.valid() ||
      message.header.size() != sizeof(mail) + mail.live_count * sizeof(uint32_t)) {
    return std::nullopt;
  }
  return mail;
}

std::vector<std::byte> write(uint32_t segment_id, uint64_t number, const std::vector<uint32_t>& live) {
  SegmentMail mail;
  mail.segment_id = segment_id;
  mail.number = number;
  mail.complete = live.size() <= kMaxListed ? 1 : 0;
  mail.live_count = mail.complete ? static_cast<uint32_t>(live.size()) : 0;
  std::vector<std::byte> header(sizeof(mail) + mail.live_count * sizeof(uint32_t));
  std::memcpy(header.data(), &mail, sizeof(mail));
  if (mail.live_count > 0)
    std::memcpy(header.data() + sizeof(mail), live.data(), mail.live_count * sizeof(uint32_t));
  return header;
}

bool is_segment_mail(const Message& candidate) { return parse(candidate).has_value(); }

bool contains(const std::vector<uint32_t>& ids, uint32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

PeerSegments::PeerSegments(Mailbox* mailbox, int rank, int world_size, SharedHeap& heap)
    : mailbox_(mailbox),
      rank_(rank),
      world_size_(world_size),
      heap_(heap),
      peers_(static_cast<size_t>(world_size)) {}

PeerSegments::Mapping PeerSegments::known(int rank, uint32_t segment_id) const {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : peers_[static_cast<size_t>(rank)].segments) {
    if (entry.id == segment_id) return entry.segment;
  }
  return nullptr;
}

Result<PeerSegments::Mapping> PeerSegments::map(int rank, uint32_t segment_id, int64_t deadline_ns,
                                                const std::function<Status()>& interrupted) {
  if (rank < 0 || rank >= world_size_ || rank == rank_ || segment_id == 0) {
    return Status(ErrorCode::kInternal,
                  fmt::format("segment {} of rank {}: there is none", segment_id, rank));
  }
  for (;;) {
    if (Mapping mapping = known(rank, segment_id)) return mapping;
    const int64_t now = monotonic_ns();
    const int64_t until = now < deadline_ns ? std::min(deadline_ns, now + kSliceNs) : deadline_ns;
    auto message = mailbox_->receive(is_segment_mail, until, interrupted);
    Status status = message.ok() ? take(std::move(*message)) : message.status();
    if (status.ok()) continue;
    // Another thread may have taken it.
    if (status.code() == ErrorCode::kTimeout && (monotonic_ns() < deadline_ns || known(rank, segment_id)))
      continue;
    return Status(status.code(), fmt::format("mapping memory of rank {} (segment {}): {}", rank, segment_id,
                                             status.message()));
  }
}

Status PeerSegments::take(Message message) {
  const auto mail = parse(message);
  const std::lock_guard lock(mutex_);
  Peer& peer = peers_[static_cast<size_t>(message.rank)];
  if (mail->number > peer.newest) {
    peer.newest = mail->number;
    peer.complete = mail->complete != 0;
    peer.live.resize(mail->live_count);
    if (mail->live_count > 0) {
      std::memcpy(peer.live.data(), message.header.data() + sizeof(SegmentMail),
                  mail->live_count * sizeof(uint32_t));
    }
    const auto released = [&](const Entry& entry) { return !contains(peer.live, entry.id); };
    if (peer.complete && std::erase_if(peer.segments, released) > 0) drops_.fetch_add(1);
  }
  if (peer.complete && !contains(peer.live, mail->segment_id)) return Status();  // released meanwhile
  for (const Entry& entry : peer.segments) {
    if (entry.id == mail->segment_id) return Status();
  }
  auto segment = SharedSegment::map(message.fd.release());
  if (!segment.ok()) {
    return Status(segment.status().code(),
                  fmt::format("mapping memory of rank {} (segment {}): {}", message.rank, mail->segment_id,
                              segment.status().message()));
  }
  segment->close_fd();  // the mapping is enough
  peer.segments.insert(peer.segments.begin(),
                       {mail->segment_id, std::make_shared<const SharedSegment>(std::move(*segment))});
  return Status();
}

std::vector<int> PeerSegments::unaware(uint32_t segment_id, std::span<const int> ranks) const {
  std::vector<int> found;
  for (const int rank : ranks) {
    if (rank != rank_ && !contains(peers_[static_cast<size_t>(rank)].published, segment_id))
      found.push_back(rank);
  }
  return found;
}

Status PeerSegments::publish(uint32_t segment_id, std::span<const int> ranks) {
  std::vector<int> receivers;
  std::vector<std::byte> header;
  Descriptor fd;
  {
    const std::lock_guard lock(mutex_);
    receivers = unaware(segment_id, ranks);
    if (receivers.empty()) return Status();
    auto found = heap_.segment_fd(segment_id);
    if (!found.ok()) return found.status();
    fd = std::move(*found);
    const std::vector<uint32_t> live = heap_.live_segments();
    header = write(segment_id, ++publications_, live);
    for (const int rank : receivers) {
      auto& published = peers_[static_cast<size_t>(rank)].published;
      std::erase_if(published, [&](uint32_t id) { return !contains(live, id); });
      published.push_back(segment_id);
    }
  }
  for (size_t i = 0; i < receivers.size(); ++i) {
    Status status = mailbox_->send(receivers[i], header, fd.get());
    if (status.ok()) continue;
    const std::lock_guard lock(mutex_);
    for (; i < receivers.size(); ++i)
      std::erase(peers_[static_cast<size_t>(receivers[i])].published, segment_id);
    return status;
  }
  return collect();
}

// What peers sent that this rank never needed must not wait in the socket for ever.
Status PeerSegments::collect() {
  for (;;) {
    if (mailbox_ == nullptr) return Status();
    auto message = mailbox_->receive(is_segment_mail, 0);
    if (!message.ok()) return message.status().code() == ErrorCode::kTimeout ? Status() : message.status();
    if (Status status = take(std::move(*message)); !status.ok()) return status;
  }
}

}  // namespace collective_ops
