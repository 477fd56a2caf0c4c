#include "communicator/messages.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <sched.h>

#include "base/clock.h"
#include "base/fork.h"
#include "communicator/own_thread.h"
#include "transport/shm/pause.h"

namespace collective_ops {
namespace {

// Some microseconds where every rank has a core. Between the naps that follow (transport/shm/pause.h) the
// peers' lives and the deadlines are looked at.
constexpr int kPolls = 200;
using shm::kFirstNapNs;
using shm::kLongestNapNs;
using shm::kPollsOversubscribed;
using shm::kYieldNs;
constexpr int64_t kNotedNapNs = 16'000'000;  // reached once the naps before make up as much

constexpr size_t kMostEagerBytes = 16 * 1024;

constexpr int64_t kRemoteNapNs = 2'000'000;
// What was sent must have gone to the system before this rank leaves; a peer that reads nothing more is not
// waited for.
constexpr int64_t kLeavingNs = 2'000'000'000;

Status after_leaving() {
  return {ErrorCode::kNotInitialized, "this rank has left the group, or is about to; call init_hccl again"};
}

}  // namespace

class Messages::StartedWork final : public Work {
 public:
  explicit StartedWork(std::shared_ptr<Messages> engine) : engine_(std::move(engine)) {}

  bool done() const override { return item_.done.load(std::memory_order_acquire); }
  Status wait(std::optional<std::chrono::milliseconds> timeout) override {
    if (!done() && engine_->forked()) return after_fork();
    return engine_->wait(item_, timeout);
  }
  std::optional<Received> received() const override {
    if (!done() || !item_.status.ok() || item_.transfer.kind != Transfer::kReceive) return std::nullopt;
    return item_.received;
  }

  Item& item() { return item_; }
  void refuse(Status status) {
    item_.status = std::move(status);
    item_.done.store(true, std::memory_order_release);
  }

 private:
  std::shared_ptr<Messages> engine_;
  Item item_;
};

Messages::Messages(const shm::GroupMemory& memory, std::unique_ptr<Peers> peers, MessageSettings settings,
                   MessageHost& host)
    : memory_(memory),
      rings_(memory.messages()),
      settings_(std::move(settings)),
      rank_(settings_.rank),
      eager_bytes_(std::min(kMostEagerBytes, shm::MessageMemory::ring_bytes(memory.world_size()) / 8)),
      polls_(settings_.oversubscribed ? kPollsOversubscribed : kPolls),
      fork_generation_(fork_generation()),
      host_(host),
      peers_(std::move(peers)),
      queued_(static_cast<size_t>(ids())),
      introduced_(static_cast<size_t>(memory.world_size())),
      left_(static_cast<size_t>(ids())) {
  const size_t bytes = shm::MessageMemory::ring_bytes(memory.world_size());
  for (int peer = 0; peer < memory.world_size(); ++peer) {
    writers_.emplace_back(rings_.ring(rank_, peer), bytes);
    readers_.emplace_back(rings_.ring(peer, rank_), bytes);
  }
}

Messages::~Messages() {
  if (!forked()) (void)finish();
}

bool Messages::forked() const { return fork_generation_ != fork_generation(); }

Status Messages::check(const Transfer& transfer) const {
  const bool sends = transfer.kind == Transfer::kSend;
  const char* what = sends ? "send" : "recv";
  const auto refuse = [&](const std::string& why) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("{}: {}", what, why));
  };
  const int ranks = ids();
  const bool any = !sends && transfer.peer == kAnySource;
  if (!any && (transfer.peer < 0 || transfer.peer >= ranks)) {
    return refuse(fmt::format("there is no rank {} in {}, which has ranks 0 to {}", transfer.peer,
                              settings_.members.text(), ranks - 1));
  }
  if (transfer.tag < 0) return refuse(fmt::format("tag {}: tags are whole numbers from 0", transfer.tag));
  if (static_cast<int>(transfer.type) >= kDataTypeCount) return refuse("the element type is unknown");
  if (transfer.count > SIZE_MAX / 2 / size_of(transfer.type))
    return refuse(fmt::format("{} elements are more than memory holds", transfer.count));
  if (transfer.buffer == nullptr && transfer.count > 0)
    return refuse(fmt::format("the buffer of {} {} is null", transfer.count, name_of(transfer.type)));
  return {};
}

// Before any traffic: the status of a transfer that never begins.
Status Messages::prepare(Item& item, const Transfer& transfer) {
  if (Status status = check(transfer); !status.ok()) return status;
  if (memory_.broken()) {
    const Status reason = memory_.failure();
    return {ErrorCode::kGroupBroken,
            fmt::format("{}: {} was broken by an earlier failure ({}): {}",
                        transfer.kind == Transfer::kSend ? "send" : "recv", settings_.members.text(),
                        name_of(reason.code()), reason.message())};
  }
  item.transfer = transfer;
  item.bytes = transfer.count * size_of(transfer.type);
  if (settings_.remote && transfer.peer != kAnySource)
    item.transfer.peer = settings_.remote->id_of(transfer.peer);
  if (transfer.kind == Transfer::kSend && takes_no_more(item.transfer.peer)) {
    return host_.break_group(
        in_item(item, ErrorCode::kPeerLost, "has no taker: that rank has left the group, or is about to"));
  }
  if (transfer.kind == Transfer::kSend && is_remote(item.transfer.peer)) return open_remote(item);
  if (item.transfer.kind == Transfer::kReceive || item.bytes <= eager_bytes_ || settings_.staged) return {};
  const std::lock_guard lock(peers_mutex_);
  auto shared = peers_->share(transfer.buffer, item.bytes);
  if (!shared.ok()) return shared.status();
  item.shared = *shared;
  return {};
}

// The first message to a rank of another host waits until that one answers.
Status Messages::open_remote(const Item& item) {
  RemoteMessages& remote = *settings_.remote;
  const int id = item.transfer.peer;
  {
    const std::lock_guard lock(mutex_);
    if (remote.can_send(id)) return {};
  }
  const std::lock_guard one_at_a_time(peers_mutex_);
  {
    const std::lock_guard lock(mutex_);
    if (remote.can_send(id)) return {};
  }
  const int64_t timeout =
      std::chrono::nanoseconds(item.transfer.timeout.value_or(settings_.exec_timeout)).count();
  auto socket = remote.dial(id, timeout > 0 ? monotonic_ns() + timeout : kNoDeadline, [this] {
    return memory_.broken() ? memory_.failure() : host_.check_interrupt();
  });
  if (!socket.ok())
    return host_.break_group(in_item(item, socket.status().code(), "failed: " + socket.status().message()));
  const std::lock_guard lock(mutex_);
  remote.attach(id, std::move(*socket));
  return {};
}

Status Messages::run(std::span<const Transfer> transfers, std::span<Received> received) {
  if (forked()) return after_fork();
  if (transfers.size() == 1) {
    Item item;
    Status status = run(transfers, std::span(&item, 1));
    if (!received.empty()) received[0] = item.received;
    return status;
  }
  const auto items = std::make_unique<Item[]>(transfers.size());
  Status status = run(transfers, std::span(items.get(), transfers.size()));
  for (size_t i = 0; i < received.size(); ++i) received[i] = items[i].received;
  return status;
}

Status Messages::run(std::span<const Transfer> transfers, std::span<Item> items) {
  for (size_t i = 0; i < transfers.size(); ++i) {
    if (Status status = prepare(items[i], transfers[i]); !status.ok()) return status;
  }
  const int64_t now = host_.traces() ? monotonic_ns() : 0;
  {
    const std::lock_guard lock(mutex_);
    if (finishing_) return after_leaving();
    for (size_t i = 0; i < transfers.size(); ++i) {
      items[i].issued_ns = now;
      post(items[i]);
    }
  }
  Status first;
  for (size_t i = 0; i < transfers.size(); ++i) {
    Status status = wait(items[i], std::nullopt);
    if (first.ok()) first = std::move(status);
  }
  if (settings_.remote) {
    // Nobody may come here again before the peer needs what the socket had no room for.
    const std::lock_guard lock(mutex_);
    if (holds_bytes() && start_thread()) parked_.notify_one();
  }
  return first;
}

std::vector<std::shared_ptr<Work>> Messages::start(std::span<const Transfer> transfers) {
  std::vector<std::shared_ptr<StartedWork>> works;
  const int64_t now = monotonic_ns();
  Status refused;
  for (const Transfer& transfer : transfers) {
    const auto& work = works.emplace_back(std::make_shared<StartedWork>(shared_from_this()));
    Status status = forked() ? after_fork() : prepare(work->item(), transfer);
    if (refused.ok()) refused = std::move(status);
  }
  if (!refused.ok()) {
    for (const auto& work : works) work->refuse(refused);
  } else {
    const std::lock_guard lock(mutex_);
    for (const auto& work : works) {
      if (finishing_) {
        work->refuse(after_leaving());
        continue;
      }
      work->item().issued_ns = now;
      work->item().started = true;
      work->item().keep = work;
      ++started_;
      post(work->item());
    }
    if (started_ > 0 && start_thread()) parked_.notify_one();
    update_sleepers();
    std::atomic_thread_fence(std::memory_order_seq_cst);
    progress();
    hand_over_jobs();
  }
  return {works.begin(), works.end()};
}

void Messages::post(Item& item) {
  const auto list = [&] {
    item.place = open_.insert(open_.end(), &item);
    item.listed = true;
  };
  if (item.transfer.kind == Transfer::kReceive) {
    item.stage = Stage::kPosted;
    list();
    if (!match_arrival(item)) posted_.push_back(&item);
    return;
  }
  const auto peer = static_cast<size_t>(item.transfer.peer);
  item.stage = Stage::kQueued;
  if (item.bytes > eager_bytes_) list();
  if (queued_[peer].empty() && push(item)) return;
  if (!item.listed) list();
  queued_[peer].push_back(&item);
  ++queued_count_;
}

Status Messages::wait(Item& item, std::optional<std::chrono::milliseconds> limit) {
  if (item.done.load(std::memory_order_acquire)) return item.status;
  const std::chrono::milliseconds longest = std::chrono::hours(24 * 365);  // longer is for ever
  const auto most = limit ? std::min(*limit, longest) : longest;
  const int64_t until =
      most < longest ? monotonic_ns() + std::chrono::nanoseconds(most).count() : kNoDeadline;
  std::unique_lock lock(mutex_);
  join_waiters();
  Pace pace;
  for (;;) {
    progress();
    run_jobs(lock);
    if (item.done.load(std::memory_order_relaxed) || (until != kNoDeadline && monotonic_ns() >= until)) break;
    note(item, pace);
    rest(lock, &item.done, pace, until);
  }
  if (pace.noted && --noted_ == 0) host_.note_message("");
  leave_waiters();
  if (item.done.load(std::memory_order_relaxed)) return item.status;
  return {ErrorCode::kTimeout,
          fmt::format("waited {} ms for a started {}; it goes on", most.count(), describe(item))};
}

// At the deadline of a peer that waits for this rank elsewhere it can say what this one does meanwhile.
void Messages::note(const Item& item, Pace& pace) {
  if (pace.noted || pace.nap_ns < kNotedNapNs) return;
  pace.noted = true;
  ++noted_;
  host_.note_message("waits in " + describe(item));
}

// One step of a wait. The lock is given up meanwhile.
void Messages::rest(std::unique_lock<std::mutex>& lock, const std::atomic<bool>* done, Pace& pace,
                    int64_t until_ns) {
  if (++pace.turns <= polls_) {
    lock.unlock();
    shm::cpu_relax();
    lock.lock();
    return;
  }
  const int64_t now = monotonic_ns();
  if (pace.yields_until_ns == 0) pace = {pace.turns, std::min(now + kYieldNs, until_ns), kFirstNapNs};
  if (now < pace.yields_until_ns && !memory_.broken()) {
    lock.unlock();
    sched_yield();
    lock.lock();
    return;
  }
  look_for_failure(lock);
  if (done != nullptr && done->load(std::memory_order_relaxed)) return;
  int64_t nap = pace.nap_ns;
  for (Item* item : open_) nap = std::min(nap, deadline(*item, now) - now);
  if (until_ns != kNoDeadline) nap = std::min(nap, until_ns - now);
  sleep(lock, done, shm::kCallers, std::max<int64_t>(nap, 1000));
  pace.nap_ns = std::min(pace.nap_ns * 2, kLongestNapNs);
}

void Messages::sleep(std::unique_lock<std::mutex>& lock, const std::atomic<bool>* done, uint32_t who,
                     int64_t ns) {
  if (who == shm::kCallers) ++sleeping_;
  update_sleepers();
  // The bit is set, the bell remembered, and everything looked at once more: whatever comes later rings.
  const uint32_t seen = box().bell.load(std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  progress();
  const bool needed = !jobs_.empty() || more_ || (memory_.broken() && !failed()) || stop_ ||
                      (done != nullptr && done->load(std::memory_order_relaxed));
  std::vector<pollfd> sockets;
  if (!needed && settings_.remote) sockets = settings_.remote->pollable();
  lock.unlock();
  if (!needed && !sockets.empty()) {
    // Peers of this host ring a bell that this does not hear, so the nap is short.
    const timespec nap{0, std::min(ns, kRemoteNapNs)};
    (void)::ppoll(sockets.data(), sockets.size(), &nap, nullptr);
  } else if (!needed) {
    rings_.sleep(rank_, seen, who, settings_.remote ? std::min(ns, kRemoteNapNs) : ns);
  }
  lock.lock();
  if (who == shm::kCallers) --sleeping_;
  update_sleepers();
}

void Messages::update_sleepers() {
  const bool server = started_ > 0 && waiters_ == 0 && thread_.joinable();
  const uint32_t who = (sleeping_ > 0 ? shm::kCallers : 0) | (server ? shm::kServer : 0);
  if (box().sleepers.load(std::memory_order_relaxed) != who)
    box().sleepers.store(who, std::memory_order_relaxed);
}

void Messages::join_waiters() {
  ++waiters_;
  update_sleepers();
}

// What is still open goes over to the thread, which sleeps: nothing may have come unseen.
void Messages::leave_waiters() {
  --waiters_;
  update_sleepers();
  if (waiters_ > 0 || started_ == 0) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  progress();
  hand_over_jobs();
}

void Messages::hand_over_jobs() {
  if (jobs_.empty() && !more_) return;
  if (waiters_ == 0) {
    rings_.wake(rank_, shm::kServer);
  } else if (sleeping_ > 0) {
    rings_.wake(rank_, shm::kCallers);
  }
}

// False where the limits of the process allow no thread: transfers then go on while somebody waits.
bool Messages::start_thread() {
  if (thread_.joinable()) return true;
  return start_own_thread(thread_, [this] { serve(); });
}

void Messages::serve() {
  std::unique_lock lock(mutex_);
  int64_t nap = kFirstNapNs;
  while (!stop_) {
    if (started_ == 0 && !holds_bytes()) {
      update_sleepers();  // nobody needs to ring
      parked_.wait(lock, [this] { return stop_ || started_ > 0 || holds_bytes(); });
      nap = kFirstNapNs;
      continue;
    }
    progress();
    run_jobs(lock);
    if (waiters_ == 0 || (memory_.broken() && !failed())) look_for_failure(lock);
    if (stop_ || (started_ == 0 && !holds_bytes())) continue;
    sleep(lock, nullptr, shm::kServer, nap);
    nap = std::min(nap * 2, kLongestNapNs);
  }
}

Status Messages::finish() {
  std::unique_lock lock(mutex_);
  if (std::exchange(finishing_, true)) return {};
  while (!posted_.empty()) {
    Item* item = posted_.front();
    posted_.pop_front();
    complete(*item, after_leaving());
  }
  box().closing.store(1, std::memory_order_seq_cst);
  for (int peer = 0; peer < memory_.world_size(); ++peer) rings_.notify(peer);
  if (settings_.remote) settings_.remote->close_all();
  join_waiters();
  Pace pace;
  for (;;) {
    progress();
    run_jobs(lock);
    fail_sends_without_takers();
    if (open_.empty()) break;
    rest(lock, nullptr, pace, kNoDeadline);
  }
  const int64_t leaving_until = monotonic_ns() + kLeavingNs;
  while (settings_.remote && !settings_.remote->flushed() && monotonic_ns() < leaving_until) {
    progress();
    rest(lock, nullptr, pace, leaving_until);
  }
  stop_ = true;
  leave_waiters();
  parked_.notify_all();
  rings_.wake(rank_, shm::kServer);
  // Threads that were inside a call have their results now; they still touch the group's memory.
  while (waiters_ > 0) {
    lock.unlock();
    sched_yield();
    lock.lock();
  }
  lock.unlock();
  if (thread_.joinable()) thread_.join();
  peers_.reset();  // a Work that somebody still has must not hold what the processes share
  return unsent_;
}

Counters Messages::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

void Messages::wake_all(const shm::GroupMemory& memory) {
  const shm::MessageMemory rings = memory.messages();
  for (int rank = 0; rank < memory.world_size(); ++rank) rings.notify(rank);
}

}  // namespace collective_ops
