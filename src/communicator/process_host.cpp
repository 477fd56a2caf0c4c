// Ranks that are processes. The first rank of a new group makes its memory and mails the descriptor to the
// other members; each of them knows by name, ranks and number which creation a mail belongs to.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "communicator/host.h"
#include "communicator/process_peers.h"
#include "communicator/trace_at_end.h"
#include "trace/recording.h"

namespace collective_ops {
namespace {

constexpr uint32_t kGroupMail = 0x50554f52;  // "ROUP": other users of the mailbox have other tags

constexpr std::string_view kGaveUp = " gave up: ";

enum class MailKind : uint32_t { kMemory = 1, kGivenUp = 2 };

// Followed by the ranks, the name, and of kGivenUp the reason.
struct GroupMail {
  uint32_t tag = kGroupMail;
  MailKind kind = MailKind::kMemory;
  uint32_t number = 0;
  uint32_t parent = 0;
  uint32_t ranks = 0;
  uint32_t name_bytes = 0;
  uint32_t code = 0;  // ErrorCode
};
static_assert(sizeof(GroupMail) + shm::kMaxRanks * sizeof(int32_t) + shm::kNameBytes < kMaxMailHeader);

std::vector<std::byte> write(const Meeting& meeting, MailKind kind, const Status& reason = {}) {
  const Members& members = meeting.members;
  GroupMail mail;
  mail.kind = kind;
  mail.number = meeting.number;
  mail.parent = members.parent;
  mail.ranks = static_cast<uint32_t>(members.ranks.size());
  mail.name_bytes = static_cast<uint32_t>(members.name.size());
  mail.code = static_cast<uint32_t>(reason.code());
  std::string text(reinterpret_cast<const char*>(&mail), sizeof(mail));
  text.append(reinterpret_cast<const char*>(members.ranks.data()), members.ranks.size() * sizeof(int));
  text += members.name;
  text += reason.message().substr(0, kMaxMailHeader - text.size());
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Whether a mail is about a creation by this name of this list in this parent; its front and the reason in
// it.
struct Parsed {
  GroupMail mail;
  std::string reason;
};
std::optional<Parsed> parse(const Message& message, const Members& members) {
  Parsed parsed;
  const std::vector<std::byte>& header = message.header;
  if (header.size() < sizeof(GroupMail)) return std::nullopt;
  std::memcpy(&parsed.mail, header.data(), sizeof(GroupMail));
  const GroupMail& mail = parsed.mail;
  if (mail.tag != kGroupMail || mail.parent != members.parent || mail.ranks != members.ranks.size() ||
      mail.name_bytes != members.name.size())
    return std::nullopt;
  const size_t list = mail.ranks * sizeof(int), behind = sizeof(mail) + list + mail.name_bytes;
  if (header.size() < behind || mail.code >= static_cast<uint32_t>(kErrorCodeCount)) return std::nullopt;
  const std::byte* at = header.data() + sizeof(mail);
  if (std::memcmp(at, members.ranks.data(), list) != 0 ||
      std::memcmp(at + list, members.name.data(), mail.name_bytes) != 0)
    return std::nullopt;
  parsed.reason.assign(reinterpret_cast<const char*>(header.data()) + behind, header.size() - behind);
  return parsed;
}

class ProcessHost final : public Host {
 public:
  ProcessHost(std::shared_ptr<SharedPeers> shared, std::shared_ptr<Recording> recording)
      : Host(shm::GroupMemory(shared->joined.control.data(), shared->joined.world_size), shared->joined.rank),
        shared_(std::move(shared)),
        recording_(std::move(recording)) {}

  std::string job() const override { return shared_->joined.job; }
  int32_t pid() const override { return ::getpid(); }
  std::shared_ptr<Recording> recording() const override { return recording_; }
  std::unique_ptr<Peers> peers_of(const Members& members) override {
    return make_process_peers(shared_, members);
  }

  Result<std::shared_ptr<std::byte>> memory_for(const Meeting& meeting) override {
    forget_older(meeting);
    auto memory = meeting.rank == 0 ? make_memory(meeting) : take_memory(meeting);
    if (!memory.ok()) tell(meeting, memory.status());
    return memory;
  }

  Status given_up(const Meeting& meeting) override {
    if (shared_->joined.mailbox == nullptr) return {};
    auto message = shared_->joined.mailbox->receive(
        [&](const Message& candidate) { return concerns(candidate, meeting, MailKind::kGivenUp); }, 0);
    if (!message.ok()) {
      return message.status().code() == ErrorCode::kTimeout ? Status() : message.status();
    }
    return reason_in(*message, *parse(*message, meeting.members));
  }

 private:
  void left() override {
    const std::filesystem::path folder = recording_->end();
    const uint32_t before = world_.header().ranks_out.fetch_add(1);
    if (before + 1 != static_cast<uint32_t>(world_.world_size()) || folder.empty()) return;
    merge_trace_at_end(job(), folder, recording_->identity().world_size > world_.world_size());
  }

  Result<std::shared_ptr<std::byte>> take_memory(const Meeting& meeting) {
    const Members& members = meeting.members;
    auto message = shared_->joined.mailbox->receive(
        [&](const Message& candidate) { return concerns(candidate, meeting, std::nullopt); },
        meeting.deadline_ns, meeting.check);
    if (message.status().code() == ErrorCode::kTimeout) {
      return Status(ErrorCode::kRendezvous, fmt::format("rank {} did not come", members.world_rank(0)));
    }
    if (!message.ok()) return message.status();
    const Parsed parsed = *parse(*message, members);
    if (parsed.mail.kind == MailKind::kGivenUp) return reason_in(*message, parsed);
    auto segment = SharedSegment::map(message->fd.release());
    if (!segment.ok()) return segment.status();
    if (segment->size() < shm::GroupMemory::bytes_needed(static_cast<int>(members.ranks.size()))) {
      return Status(ErrorCode::kInternal,
                    fmt::format("rank {} sent {} bytes of memory for a group of {}", members.world_rank(0),
                                segment->size(), members.ranks.size()));
    }
    return keep(std::move(*segment));
  }

  // Why this rank gave up; those that told it know.
  void tell(const Meeting& meeting, const Status& reason) const {
    if (reason.message().find(kGaveUp) != std::string::npos) return;
    const std::vector<std::byte> mail = write(meeting, MailKind::kGivenUp, reason);
    for (const int rank : meeting.members.ranks) {
      if (rank != world_rank_) (void)shared_->joined.mailbox->send(rank, mail, -1);
    }
  }

  static bool concerns(const Message& message, const Meeting& meeting, std::optional<MailKind> kind) {
    const auto parsed = parse(message, meeting.members);
    return parsed && parsed->mail.number == meeting.number && (!kind || parsed->mail.kind == *kind);
  }

  static Status reason_in(const Message& message, const Parsed& parsed) {
    return {static_cast<ErrorCode>(std::max(parsed.mail.code, uint32_t{1})),
            fmt::format("rank {}{}{}", message.rank, kGaveUp, parsed.reason)};
  }

  // Mail of creations that failed before it was taken.
  void forget_older(const Meeting& meeting) {
    if (shared_->joined.mailbox == nullptr) return;
    const auto is_older = [&](const Message& candidate) {
      const auto parsed = parse(candidate, meeting.members);
      return parsed && parsed->mail.number < meeting.number;
    };
    while (shared_->joined.mailbox->receive(is_older, 0).ok()) {
    }
  }

  Result<std::shared_ptr<std::byte>> make_memory(const Meeting& meeting) {
    // Members that do not wait any more would be left with a descriptor.
    if (Status status = given_up(meeting); !status.ok()) return status;
    const Members& members = meeting.members;
    const int size = static_cast<int>(members.ranks.size());
    auto segment = SharedSegment::create(shm::GroupMemory::bytes_needed(size), "the memory of a group",
                                         kControlSegmentName);
    if (!segment.ok()) return segment.status();
    shm::GroupMemory(segment->data(), size).name_group(members.id, members.name, members.ranks);
    const std::vector<std::byte> mail = write(meeting, MailKind::kMemory);
    for (const int rank : members.ranks) {
      if (rank == world_rank_) continue;
      if (Status status = shared_->joined.mailbox->send(rank, mail, segment->fd()); !status.ok()) {
        return status;
      }
    }
    return keep(std::move(*segment));
  }

  // The descriptor stays open: `collective-ops status` finds the group by it.
  static std::shared_ptr<std::byte> keep(SharedSegment segment) {
    // What every group touches are a few pages at its front; a huge page would make an idle one 2 MiB large.
    ::madvise(segment.data(), size_t{64} << 10, MADV_NOHUGEPAGE);
    auto owner = std::make_shared<SharedSegment>(std::move(segment));
    return {owner, owner->data()};
  }

  std::shared_ptr<SharedPeers> shared_;
  std::shared_ptr<Recording> recording_;
};

}  // namespace

std::shared_ptr<Host> make_process_host(HostGroup joined, std::shared_ptr<Recording> recording) {
  return std::make_shared<ProcessHost>(std::make_shared<SharedPeers>(std::move(joined)),
                                       std::move(recording));
}

}  // namespace collective_ops
