// Windows: each rank's part is mapped by all others through Peers, as buffers of collectives are, and the
// signals in them are waited for as everything else is.
#include <collective_ops/window.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <ctime>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "communicator/communicator_parts.h"
#include "memory/shared_heap.h"
#include "transport/shm/pause.h"

namespace collective_ops {
namespace {

constexpr uint32_t kDown = 0, kUp = 1;
constexpr int64_t kMapNs =
    10'000'000'000;  // for mail that was sent before; only a stopped kernel takes so long

// What a rank tells the others of its part, and what came of it.
struct Offer {
  shm::MemoryRef memory;
  uint64_t bytes = 0;
  uint64_t signal_bytes = 0;
  const std::shared_ptr<SharedBuffer>* buffer = nullptr;  // threads alone can use it
  int32_t pid = 0;
  uint32_t code = 0;  // ErrorCode
};

// Words of memory that processes share.
using Word = std::atomic<uint32_t>;

void wake(Word& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}
void sleep(Word& word, uint32_t seen, int64_t ns) {
  const timespec limit = {ns / 1'000'000'000, ns % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &limit, nullptr, 0);
}

class GroupWindow final : public Window {
 public:
  struct Part {
    std::byte* data = nullptr;
    size_t size = 0;
    std::shared_ptr<SharedBuffer> kept;  // this rank's own; of threads all
  };

  // `memory`: what keeps the group's; the world's is the host's.
  GroupWindow(const Group& group, std::shared_ptr<Host> host, std::shared_ptr<std::byte> memory,
              std::unique_ptr<Peers> peers, std::vector<Part> parts, size_t signal_bytes)
      : host_(std::move(host)),
        keeper_(std::move(memory)),
        memory_(group.memory()),
        interrupted_(group.interrupt_check()),
        members_(group.members()),
        rank_(group.rank()),
        default_timeout_(group.exec_timeout()),
        polls_(group.oversubscribed() ? shm::kPollsOversubscribed : shm::kPolls),
        peers_(std::move(peers)),
        parts_(std::move(parts)),
        signal_bytes_(signal_bytes) {}

  std::byte* data(int rank) const override { return parts_[static_cast<size_t>(rank)].data; }
  size_t size(int rank) const override { return parts_[static_cast<size_t>(rank)].size; }

  Status signal(int to, int channel, Timeout timeout) override {
    if (Status status = check(to, channel, "signal"); !status.ok()) return status;
    return turn(*word(to, rank_, channel), kDown, kUp, to, deadline(timeout),
                "to take this rank's last signal", [to](int rank) { return rank != to; });
  }

  Status await(int from, int channel, Timeout timeout) override {
    if (Status status = check(from, channel, "await"); !status.ok()) return status;
    return turn(*word(rank_, from, channel), kUp, kDown, from, deadline(timeout), "to signal",
                [from](int rank) { return rank != from; });
  }

  Status barrier(int channel, Timeout timeout) override {
    const int64_t until = deadline(timeout);
    std::vector<bool> came(parts_.size(), false);
    // A rank that has come needs nothing of this one, and may be gone already.
    const auto excused = [&](int rank) {
      return came[static_cast<size_t>(rank)] || word(rank_, rank, channel)->load() == kUp;
    };
    for (int step = 1; step < ranks(); ++step) {
      const int to = (rank_ + step) % ranks();
      if (Status status = check(to, channel, "barrier"); !status.ok()) return status;
      if (Status status =
              turn(*word(to, rank_, channel), kDown, kUp, to, until, "to leave the last barrier", excused);
          !status.ok())
        return status;
    }
    for (int step = 1; step < ranks(); ++step) {
      const int from = (rank_ + step) % ranks();
      if (Status status =
              turn(*word(rank_, from, channel), kUp, kDown, from, until, "to come to a barrier", excused);
          !status.ok())
        return status;
      came[static_cast<size_t>(from)] = true;
    }
    return {};
  }

 private:
  int ranks() const { return static_cast<int>(parts_.size()); }

  // Of `owner`'s part, the one that `sender` raises.
  Word* word(int owner, int sender, int channel) const {
    const Part& part = parts_[static_cast<size_t>(owner)];
    auto* words = reinterpret_cast<Word*>(part.data + part.size - signal_bytes_);
    return words + static_cast<size_t>(channel) * parts_.size() + static_cast<size_t>(sender);
  }

  Status check(int rank, int channel, const char* what) const {
    const auto channels = static_cast<int>(signal_bytes_ / signal_bytes(ranks(), 1));
    if (rank < 0 || rank >= ranks() || rank == rank_)
      return {ErrorCode::kInvalidArgument,
              fmt::format("{} of a window: rank {}; expected 0 to {}, and not this one", what, rank,
                          ranks() - 1)};
    if (channel < 0 || channel >= channels)
      return {ErrorCode::kInvalidArgument,
              fmt::format("{} of a window: channel {}; its {} bytes of signals have {} channels of {} ranks",
                          what, channel, signal_bytes_, channels, ranks())};
    if (data(rank) == nullptr || data(rank_) == nullptr)
      return {ErrorCode::kInvalidArgument,
              fmt::format("{} of a window: rank {} or this one has given no memory to it", what, rank)};
    return {};
  }

  int64_t deadline(Timeout timeout) const {
    const auto limit = timeout.value_or(default_timeout_);
    return limit.count() > 0 ? monotonic_ns() + limit.count() * 1'000'000 : kNoDeadline;
  }

  // Once `word` is `from` makes it `to`.
  template <typename Excused>
  Status turn(Word& word, uint32_t from, uint32_t to, int peer, int64_t deadline_ns, const char* waits_for,
              const Excused& excused) {
    const auto turned = [&] {
      uint32_t expected = from;
      if (!word.compare_exchange_strong(expected, to, std::memory_order_acq_rel)) return false;
      wake(word);
      return true;
    };
    for (int i = 0; i < polls_; ++i) {
      if (turned()) return {};
      shm::cpu_relax();
    }
    const int64_t begun = monotonic_ns();
    while (monotonic_ns() < begun + shm::kYieldNs) {
      if (turned()) return {};
      sched_yield();
    }
    for (int64_t nap = shm::kFirstNapNs;; nap = std::min(2 * nap, shm::kLongestNapNs)) {
      if (turned()) return {};
      if (Status status = look(peer, begun, deadline_ns, waits_for, excused); !status.ok()) {
        return turned() ? Status() : status;  // what the peer did in the last moment still counts
      }
      const uint32_t seen = word.load(std::memory_order_acquire);
      if (seen == from) continue;
      sleep(word, seen,
            deadline_ns == kNoDeadline ? nap : std::clamp<int64_t>(deadline_ns - monotonic_ns(), 1000, nap));
    }
  }

  template <typename Excused>
  Status look(int peer, int64_t begun_ns, int64_t deadline_ns, const char* waits_for,
              const Excused& excused) {
    if (memory_.broken()) return memory_.failure();
    if (interrupted_) {
      if (Status status = interrupted_(); !status.ok()) return status;
    }
    const std::lock_guard lock(mutex_);
    const auto waiting = [&] {
      return fmt::format("a window of {}: rank {} waits for {} {}", members_.text(),
                         members_.world_rank(rank_), peers_->describe(peer), waits_for);
    };
    if (const std::string lost = peers_->find_lost(excused); !lost.empty())
      return {ErrorCode::kPeerLost, fmt::format("{}; {}", waiting(), lost)};
    const int64_t now = monotonic_ns();
    if (now < deadline_ns) return {};
    return {ErrorCode::kTimeout,
            fmt::format("{}, which has not happened in {:.3f} s; its timeout sets how long", waiting(),
                        static_cast<double>(now - begun_ns) * 1e-9)};
  }

  const std::shared_ptr<Host> host_;
  const std::shared_ptr<std::byte> keeper_;  // of memory_
  const shm::GroupMemory memory_;
  const std::function<Status()> interrupted_;
  const Members members_;
  const int rank_;
  const std::chrono::milliseconds default_timeout_;
  const int polls_;
  std::mutex mutex_;                    // of peers_
  const std::unique_ptr<Peers> peers_;  // keeps the mappings
  const std::vector<Part> parts_;
  const size_t signal_bytes_;
};

Status offer_part(Offer& offer, Peers& peers, const std::shared_ptr<SharedBuffer>& part,
                  size_t signal_bytes) {
  offer.pid = ::getpid();
  offer.signal_bytes = signal_bytes;
  if (!part) return {};
  const size_t bytes = part->size();
  if (signal_bytes > bytes || signal_bytes % alignof(Word) != 0 || bytes % alignof(Word) != 0) {
    return {
        ErrorCode::kInvalidArgument,
        fmt::format("opening a window: a part of {} bytes, of which {} are signals: both must be multiples "
                    "of {}, and the signals no more than the part",
                    bytes, signal_bytes, alignof(Word))};
  }
  const auto* data = static_cast<const std::byte*>(part->data());
  if (!SharedHeap::instance().find(data, bytes)) {
    return {ErrorCode::kInvalidArgument, "opening a window: the part is no memory of allocate_part()"};
  }
  auto memory = peers.share(data, bytes);
  if (!memory.ok()) return memory.status();
  offer.memory = *memory;
  offer.bytes = bytes;
  offer.buffer = &part;
  return {};
}

Status reach_parts(const std::vector<Offer>& offers, int rank, Peers& peers,
                   const std::shared_ptr<SharedBuffer>& own, const std::function<Status()>& interrupted,
                   std::vector<GroupWindow::Part>& parts) {
  for (size_t i = 0; i < offers.size(); ++i) {
    const Offer& offer = offers[i];
    if (offer.signal_bytes != offers[static_cast<size_t>(rank)].signal_bytes) {
      return {ErrorCode::kInvalidArgument,
              fmt::format("opening a window: {} gives {} bytes of signals, and rank {} gives {}",
                          peers.describe(static_cast<int>(i)), offer.signal_bytes, rank,
                          offers[static_cast<size_t>(rank)].signal_bytes)};
    }
    GroupWindow::Part& part = parts[i];
    part.size = offer.bytes;
    if (static_cast<int>(i) == rank) {
      part.kept = own;
      part.data = own ? static_cast<std::byte*>(own->data()) : nullptr;
    } else if (offer.buffer != nullptr && offer.pid == ::getpid()) {
      part.kept = *offer.buffer;
      part.data = static_cast<std::byte*>(part.kept->data());
    } else if (offer.buffer != nullptr) {
      auto data =
          peers.reach(static_cast<int>(i), offer.memory, offer.bytes, monotonic_ns() + kMapNs, interrupted);
      if (!data.ok()) return data.status();
      part.data = *data;
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<Window>> Communicator::open_window(std::shared_ptr<SharedBuffer> part,
                                                          size_t signal_bytes) {
  auto* const on_host = dynamic_cast<Group*>(&parts_->queue->group());
  if (on_host == nullptr) {
    return Status(
        ErrorCode::kInvalidArgument,
        "opening a window: the ranks of this group are on several hosts, and memory is shared on one; "
        "make a group of those of a host");
  }
  const Group& group = *on_host;
  std::unique_ptr<Peers> peers = parts_->host->peers_of(group.members());
  std::vector<Offer> offers(static_cast<size_t>(world_size()));
  // Two rounds: what is offered, and whether all could map it; only then may an owner free its part again.
  const auto exchange = [&](Offer& mine, Status status) -> Status {
    mine.code = static_cast<uint32_t>(status.code());
    if (Status sent = all_gather(&mine, offers.data(), sizeof(Offer), DataType::kUInt8); !sent.ok())
      return sent;
    if (!status.ok()) return status;
    for (size_t i = 0; i < offers.size(); ++i) {
      if (offers[i].code != 0) {
        return {static_cast<ErrorCode>(offers[i].code),
                fmt::format("opening a window: {} could not; its own error says why",
                            peers->describe(static_cast<int>(i)))};
      }
    }
    return {};
  };
  Offer mine;
  Status status = offer_part(mine, *peers, part, signal_bytes);
  if (status = exchange(mine, std::move(status)); !status.ok()) return status;
  std::vector<GroupWindow::Part> parts(offers.size());
  status = reach_parts(offers, rank(), *peers, part, group.interrupt_check(), parts);
  if (status = exchange(mine, std::move(status)); !status.ok()) return status;
  return std::unique_ptr<Window>(std::make_unique<GroupWindow>(
      group, parts_->host, parts_->memory, std::move(peers), std::move(parts), signal_bytes));
}

}  // namespace collective_ops
