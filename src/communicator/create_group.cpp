// A new group: its members find each other by name and list, take the same memory, and wait until all have
// it. So either all get a group, or each gets an error that names who is missing.
#include <algorithm>
#include <ctime>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sched.h>

#include "base/clock.h"
#include "base/environment.h"
#include "communicator/communicator_parts.h"

namespace collective_ops {
namespace {

constexpr int64_t kYieldNs = 200'000;
constexpr long kFirstNapNs = 50'000;
constexpr long kLongestNapNs = 2'000'000;

std::string shown(std::span<const int> ranks) { return fmt::format("[{}]", fmt::join(ranks, ", ")); }

Status invalid(std::span<const int> ranks, const std::string& what) {
  return {ErrorCode::kInvalidArgument, fmt::format("creating a group of ranks {}: {}", shown(ranks), what)};
}

Status check_ranks(std::span<const int> ranks, int own_rank, int size, const std::string& of) {
  if (ranks.empty()) return invalid(ranks, "the list is empty; name at least this rank");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size)
      return invalid(ranks, fmt::format("{} is no rank of {}, which has 0 to {}", ranks[i], of, size - 1));
    if (std::find(ranks.begin(), ranks.begin() + static_cast<ptrdiff_t>(i), ranks[i]) !=
        ranks.begin() + static_cast<ptrdiff_t>(i))
      return invalid(ranks, fmt::format("{} stands there twice", ranks[i]));
  }
  if (std::find(ranks.begin(), ranks.end(), own_rank) == ranks.end()) {
    return invalid(ranks,
                   fmt::format("this is rank {}, which is not in it; members alone create a group, and "
                               "other ranks go on without",
                               own_rank));
  }
  return {};
}

Result<int64_t> timeout_ns(const GroupOptions& options) {
  if (options.connect_timeout) {
    const int64_t milliseconds = options.connect_timeout->count();
    if (milliseconds > 0 && milliseconds <= 86'400'000) return milliseconds * 1'000'000;
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("connect_timeout of {} ms: expected 1 ms to one day", milliseconds));
  }
  auto seconds = environment_seconds("HCCL_CONNECT_TIMEOUT", 1, 7200);
  if (!seconds.ok()) return seconds.status();
  return seconds->count() * 1'000'000'000;
}

// Equal on all members, and unlike that of any other group, as far as 31 bits can be.
uint32_t id_of(const Members& members, uint32_t number) {
  uint64_t hash = 14695981039346656037ull;
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211ull; };
  for (const int rank : members.ranks) mix(static_cast<uint64_t>(rank) + 1);
  for (const char letter : members.name) mix(static_cast<unsigned char>(letter));
  mix(members.parent);
  mix(number);
  hash ^= hash >> 32;
  return static_cast<uint32_t>(hash & 0x7fffffff) | 1;
}

// Ranks in the group that have not come.
std::vector<int> missing(const shm::GroupMemory& memory) {
  std::vector<int> ranks;
  for (int rank = 0; rank < memory.world_size(); ++rank) {
    if (memory.note(rank).joined.load(std::memory_order_acquire) == 0) ranks.push_back(rank);
  }
  return ranks;
}

Status await_members(const shm::GroupMemory& memory, const Meeting& meeting, Host& host) {
  if (memory.broken()) return memory.failure();  // members that came earlier have given up
  memory.introduce(meeting.rank, host.pid(), meeting.job);
  memory.note(meeting.rank).joined.store(1, std::memory_order_release);
  const int64_t yield_until = monotonic_ns() + kYieldNs;
  long nap = kFirstNapNs;
  for (;;) {
    // Before anything else: once all have come, what breaks the group is a matter of its calls.
    const std::vector<int> absent = missing(memory);
    if (absent.empty()) return {};
    if (memory.broken()) return memory.failure();
    const int64_t now = monotonic_ns();
    if (now < yield_until) {
      sched_yield();
      continue;
    }
    if (Status status = host.given_up(meeting); !status.ok()) return status;
    if (Status status = meeting.check(); !status.ok()) return status;
    if (now >= meeting.deadline_ns) {
      return {ErrorCode::kRendezvous, meeting.members.list(absent) + " did not come"};
    }
    const timespec wait{0, nap};
    nanosleep(&wait, nullptr);
    nap = std::min(2 * nap, kLongestNapNs);
  }
}

// What members that fail to meet are told.
Status described(const Status& reason, const Meeting& meeting, int64_t begun_ns) {
  const double waited = static_cast<double>(monotonic_ns() - begun_ns) * 1e-9;
  const std::string_view advice = reason.code() == ErrorCode::kRendezvous
                                      ? ". All members, and they alone, call this with the same list in the "
                                        "same order and the same name; "
                                        "connect_timeout or HCCL_CONNECT_TIMEOUT sets how long they wait"
                                      : "";
  return {reason.code(),
          fmt::format("creating {}: {} (rank {} waited {:.3f} s){}", meeting.members.text(), reason.message(),
                      meeting.members.world_rank(meeting.rank), waited, advice)};
}

}  // namespace

Result<std::unique_ptr<Communicator>> Communicator::create_group(std::span<const int> ranks,
                                                                 const GroupOptions& options) {
  GroupEnd& parent = parts_->queue->group();
  if (parts_->queue->forked()) {
    return Status(ErrorCode::kNotInitialized,
                  "this process is a fork of a rank: only the process that called "
                  "init_hccl may create groups");
  }
  if (Status status = check_ranks(ranks, rank(), world_size(), parent.members().text()); !status.ok())
    return status;
  if (options.name.size() >= shm::kNameBytes || options.name.find('\0') != std::string::npos) {
    return invalid(ranks, fmt::format("its name has {} characters; up to {} are possible, none of them zero",
                                      options.name.size(), shm::kNameBytes - 1));
  }
  auto timeout = timeout_ns(options);
  if (!timeout.ok()) return timeout.status();
  auto settings = settings_of({.exec_timeout = options.exec_timeout.value_or(parent.exec_timeout())});
  if (!settings.ok()) return settings.status();

  const std::shared_ptr<Host> host = parts_->host;
  const int64_t begun_ns = monotonic_ns();
  Meeting meeting;
  meeting.members.name = options.name;
  meeting.members.parent = parent.members().id;
  for (const int member : ranks)
    meeting.members.ranks.push_back(parent.members().all()[static_cast<size_t>(member)]);
  const auto own = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  meeting.number = host->next_number(meeting.members);
  meeting.members.id = id_of(meeting.members, meeting.number);
  if (host->job_hosts() != nullptr) meeting.members = members_here(*host->job_hosts(), meeting.members);
  const std::vector<int>& here = meeting.members.ranks;
  meeting.rank = static_cast<int>(std::find(here.begin(), here.end(), host->world_rank()) - here.begin());
  meeting.job = host->job();
  meeting.deadline_ns = begun_ns + *timeout;
  std::unique_ptr<Peers> peers = host->peers_of(meeting.members);
  meeting.check = [&] {
    if (Status status = parent.check_interrupt(); !status.ok()) return status;
    if (host->job_hosts() != nullptr) {
      if (Status status = host->job_hosts()->connector->look(); !status.ok()) return status;
    }
    const std::string lost = peers->find_lost([](int) { return false; });
    return lost.empty() ? Status() : Status(ErrorCode::kPeerLost, lost);
  };

  auto bytes = host->memory_for(meeting);
  if (!bytes.ok()) return described(bytes.status(), meeting, begun_ns);
  const shm::GroupMemory memory(bytes->get(), static_cast<int>(here.size()));
  if (Status status = await_members(memory, meeting, *host); !status.ok()) {
    // Members that have the memory read why there; those that come later, too.
    if (!memory.broken()) (void)memory.break_with(described(status, meeting, begun_ns));
    return memory.failure();
  }
  settings->rank = meeting.rank;
  settings->members = meeting.members;
  settings->host = host;
  auto parts = std::make_unique<Parts>();
  parts->host = host;
  parts->memory = std::move(*bytes);
  auto end = make_group_end(memory, std::move(peers), *settings, own, parent.interrupt_check());
  if (Status status = end->meet(meeting.deadline_ns); !status.ok())
    return described(status, meeting, begun_ns);
  parts->queue = std::make_shared<CallQueue>(std::move(end));
  host->enter();
  return std::unique_ptr<Communicator>(new Communicator(std::move(parts)));
}

}  // namespace collective_ops
