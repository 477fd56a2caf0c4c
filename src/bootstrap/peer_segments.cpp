#include "bootstrap/peer_segments.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/clock.h"

namespace collective_ops {
namespace {

constexpr uint32_t kSegmentMail = 0x474d4553;  // "SEGM": other users of the mailbox have other tags
constexpr size_t kMaxListed = (kMaxMailHeader - 16) / sizeof(uint32_t);

// Followed by `live_count` ids, ascending: all segments that the owner holds.
struct SegmentMail {
  uint32_t tag = kSegmentMail;
  uint32_t segment_id = 0;
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

std::vector<std::byte> write(uint32_t segment_id, const std::vector<uint32_t>& live) {
  SegmentMail mail;
  mail.segment_id = segment_id;
  mail.complete = live.size() <= kMaxListed ? 1 : 0;
  mail.live_count = mail.complete ? static_cast<uint32_t>(live.size()) : 0;
  std::vector<std::byte> header(sizeof(mail) + mail.live_count * sizeof(uint32_t));
  std::memcpy(header.data(), &mail, sizeof(mail));
  if (mail.live_count > 0)
    std::memcpy(header.data() + sizeof(mail), live.data(), mail.live_count * sizeof(uint32_t));
  return header;
}

}  // namespace

PeerSegments::PeerSegments(Mailbox* mailbox, int rank, int world_size, SharedHeap& heap)
    : mailbox_(mailbox),
      rank_(rank),
      world_size_(world_size),
      heap_(heap),
      peers_(static_cast<size_t>(world_size)) {}

Result<std::byte*> PeerSegments::address(int rank, uint32_t segment_id, int64_t deadline_ns,
                                         const std::function<Status()>& interrupted) {
  if (rank < 0 || rank >= world_size_ || segment_id == 0) {
    return Status(ErrorCode::kInternal,
                  fmt::format("segment {} of rank {}: there is none", segment_id, rank));
  }
  if (std::byte* data = known(rank, segment_id)) return data;
  if (rank == rank_) {
    std::byte* data = heap_.segment_data(segment_id);
    if (data == nullptr) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("shared memory segment {} was freed", segment_id));
    }
    return data;  // not remembered: it may be freed, and the heap answers fast enough
  }
  while (known(rank, segment_id) == nullptr) {
    auto message = mailbox_->receive([](const Message& candidate) { return parse(candidate).has_value(); },
                                     deadline_ns, interrupted);
    if (!message.ok()) {
      return Status(message.status().code(), fmt::format("mapping memory of rank {} (segment {}): {}", rank,
                                                         segment_id, message.status().message()));
    }
    if (Status status = take(std::move(*message)); !status.ok()) return status;
  }
  return known(rank, segment_id);
}

// The mail comes in the order in which it was sent, so a list never names what was released before it.
Status PeerSegments::take(Message message) {
  const auto mail = parse(message);
  auto& segments = peers_[static_cast<size_t>(message.rank)];
  if (mail->complete) {
    std::vector<uint32_t> live(mail->live_count);
    if (!live.empty()) {
      std::memcpy(live.data(), message.header.data() + sizeof(SegmentMail), live.size() * sizeof(uint32_t));
    }
    std::erase_if(segments, [&](const Entry& entry) {
      return std::find(live.begin(), live.end(), entry.id) == live.end();
    });
  }
  if (known(message.rank, mail->segment_id) != nullptr) return Status();
  auto segment = SharedSegment::map(message.fd.release());
  if (!segment.ok()) {
    return Status(segment.status().code(),
                  fmt::format("mapping memory of rank {} (segment {}): {}", message.rank, mail->segment_id,
                              segment.status().message()));
  }
  segment->close_fd();  // the mapping is enough
  std::byte* data = segment->data();
  segments.insert(segments.begin(), Entry{mail->segment_id, data, std::move(*segment)});
  return Status();
}

size_t PeerSegments::size_of(int rank, uint32_t segment_id) const {
  for (const auto& entry : peers_[static_cast<size_t>(rank)]) {
    if (entry.id == segment_id) return entry.segment.size();
  }
  return 0;
}

Status PeerSegments::publish(uint32_t segment_id) {
  if (std::find(published_.begin(), published_.end(), segment_id) != published_.end()) return Status();
  auto fd = heap_.segment_fd(segment_id);
  if (!fd.ok()) return fd.status();
  const std::vector<uint32_t> live = heap_.live_segments();
  const std::vector<std::byte> header = write(segment_id, live);
  for (int rank = 0; rank < world_size_; ++rank) {
    if (rank == rank_) continue;
    if (Status status = mailbox_->send(rank, header, fd->get()); !status.ok()) return status;
  }
  std::erase_if(published_, [&](uint32_t id) { return !std::binary_search(live.begin(), live.end(), id); });
  published_.push_back(segment_id);
  return collect();
}

// What peers sent that this rank never needed must not wait in the socket for ever.
Status PeerSegments::collect() {
  for (;;) {
    if (mailbox_ == nullptr) return Status();
    auto message =
        mailbox_->receive([](const Message& candidate) { return parse(candidate).has_value(); }, 0);
    if (!message.ok()) return message.status().code() == ErrorCode::kTimeout ? Status() : message.status();
    if (Status status = take(std::move(*message)); !status.ok()) return status;
  }
}

void PeerSegments::forget(int rank, uint32_t segment_id) {
  std::erase_if(peers_[static_cast<size_t>(rank)],
                [&](const Entry& entry) { return entry.id == segment_id; });
}

}  // namespace collective_ops
