// Messages between two ranks of a group, one rank's end: matching, moving, waiting. Independent of the
// group's collectives, except that a failure of either breaks the group for both.
//
// Small messages are written into the pair's ring at once. Of large ones the ring gets an announcement; the
// receiver copies from the sender's memory where it can reach it, and asks for parts through the ring where
// it cannot (transport/shm/message_ring.h). Nothing is pushed on by the system: whoever waits here moves
// everything that this rank has open (message_progress.cpp). For started transfers nobody waits for a thread
// does it, asleep until a peer rings.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include <collective_ops/communicator.h>

#include "communicator/members.h"
#include "communicator/peers.h"
#include "communicator/read_probe.h"
#include "communicator/remote_messages.h"
#include "trace/record.h"
#include "transport/shm/group_memory.h"
#include "transport/shm/message_ring.h"

namespace collective_ops {

struct MessageSettings {
  int rank = 0;
  Members members;
  bool oversubscribed = false;                // more ranks than cores
  bool staged = false;                        // copy through the rings alone
  std::chrono::milliseconds exec_timeout{0};  // 0: for ever
  ReadProbe* read_probe = nullptr;            // the group's
  // Of a group on several hosts. Peers of items are ids then, as there; of transfers, ranks of the group.
  std::shared_ptr<RemoteMessages> remote = nullptr;
};

// A transfer that has ended, for the trace. Ranks are of the world.
struct MessageTrace {
  bool sends = false;
  int peer = -1;
  int tag = 0;
  DataType type = DataType::kUInt8;
  uint64_t count = 0;
  uint64_t bytes = 0;
  TracePath path = TracePath::kNone;
  ErrorCode status = ErrorCode::kOk;
  int64_t issued_ns = 0;
  int64_t ended_ns = 0;
  int64_t moved_ns = 0;
};

// What the engine asks of its group. Called from any thread, never with a lock of the engine that another
// call could want.
class MessageHost {
 public:
  virtual ~MessageHost() = default;
  // Breaks the group unless it is; the reason that stands. Wakes all that sleep in it.
  virtual Status break_group(const Status& reason) = 0;
  virtual Status check_interrupt() const = 0;
  // What this rank waits for at length, for errors of others and for observers; "" ends it.
  virtual void note_message(const std::string& text) = 0;
  // What a rank of the world does elsewhere: "; meanwhile it waits in ...", or "".
  virtual std::string elsewhere(int world_rank) const = 0;
  virtual bool traces() const = 0;
  virtual void record(const MessageTrace& trace) = 0;
};

// As a communicator sees messages.
class MessageEnd {
 public:
  virtual ~MessageEnd() = default;
  // Blocks until all are done; the first failure. `received`: empty, or of each transfer.
  virtual Status run(std::span<const Transfer> transfers, std::span<Received> received) = 0;
  virtual std::vector<std::shared_ptr<Work>> start(std::span<const Transfer> transfers) = 0;
  // Waits for sends that were started, gives up receives that nothing came for, and ends the thread. Not ok
  // where a send found no taker. Then this rank must leave the group. Not for a forked child.
  virtual Status finish() = 0;
};

class Messages final : public MessageEnd, public std::enable_shared_from_this<Messages> {
 public:
  // `peers`: for this engine alone. `host` must live until finish() has returned.
  Messages(const shm::GroupMemory& memory, std::unique_ptr<Peers> peers, MessageSettings settings,
           MessageHost& host);
  ~Messages() override;
  Messages(const Messages&) = delete;
  Messages& operator=(const Messages&) = delete;

  Status run(std::span<const Transfer> transfers, std::span<Received> received) override;
  std::vector<std::shared_ptr<Work>> start(std::span<const Transfer> transfers) override;
  Status finish() override;

  Counters counters() const;  // of messages alone

  // Wakes all ranks' threads that sleep in messages of this group: it has broken.
  static void wake_all(const shm::GroupMemory& memory);

 private:
  enum class Stage : uint8_t {
    kPosted,     // a receive that nothing has come for
    kQueued,     // a send for which the ring, or the slots, have had no room
    kAnnounced,  // a large send that waits for its receiver
    kStreaming,  // parts go through the ring
    kCopying,    // a receive that some thread copies, or is about to
  };
  // An open transfer. On the stack of a blocking call; kept by `keep` where it was started.
  struct Item {
    Transfer transfer;
    size_t bytes = 0;
    Stage stage = Stage::kPosted;
    TracePath path = TracePath::kNone;
    bool started = false;
    bool listed = false;    // in open_
    shm::MemoryRef shared;  // of a large send
    uint32_t slot = 0;      // of a large message
    size_t moved = 0;       // bytes, while streaming
    int64_t issued_ns = 0;
    int64_t deadline_ns = 0;  // 0: not computed yet
    int64_t moved_ns = 0;
    Received received;
    Status status;
    std::list<Item*>::iterator place;  // in open_
    std::shared_ptr<Work> keep;
    std::atomic<bool> done{false};
  };
  class StartedWork;

  // A message that came before it was asked for.
  struct Arrival {
    int source = 0;
    int tag = 0;
    DataType type = DataType::kUInt8;
    bool large = false;
    uint64_t bytes = 0;
    uint32_t slot = 0;
    uint64_t address = 0;
    shm::MemoryRef shared;
    std::vector<std::byte> payload;
  };
  // Parts of a large message that come through the ring.
  struct Stream {
    int source;
    uint32_t slot;
    uint64_t bytes;
    Item* item;
  };
  // A large message to be copied, by whichever thread comes first.
  struct Job {
    Item* item;
    Arrival from;
  };

  // How long a thread has waited, and how it goes on: it polls, then yields, then sleeps.
  struct Pace {
    int64_t turns = 0;
    int64_t yields_until_ns = 0;  // 0: does not yield yet
    int64_t nap_ns = 0;
    bool noted = false;
  };

  // messages.cpp: calls, waiting, the thread.
  Status check(const Transfer& transfer) const;
  Status prepare(Item& item, const Transfer& transfer);
  Status open_remote(const Item& item);
  Status run(std::span<const Transfer> transfers, std::span<Item> items);
  void post(Item& item);
  void note(const Item& item, Pace& pace);
  Status wait(Item& item, std::optional<std::chrono::milliseconds> limit);
  void rest(std::unique_lock<std::mutex>& lock, const std::atomic<bool>* done, Pace& pace, int64_t until_ns);
  void sleep(std::unique_lock<std::mutex>& lock, const std::atomic<bool>* done, uint32_t who, int64_t ns);
  void join_waiters();
  void leave_waiters();
  void update_sleepers();
  // Of messages to other hosts, whose senders are done: what the sockets had no room for.
  bool holds_bytes() const { return settings_.remote && !settings_.remote->flushed(); }
  void hand_over_jobs();
  bool start_thread();
  void serve();
  bool forked() const;

  // message_progress.cpp: everything with the lock held, except copies.
  void progress();
  void run_jobs(std::unique_lock<std::mutex>& lock);
  void pull(int source);
  void take(int source, const shm::Envelope& envelope);
  void take_part(int source, const shm::Envelope& envelope);
  void take_remote(int source, const tcp::Frame& frame, const std::byte* payload);
  void arrive(Arrival arrival, const std::function<void(void*)>& copy_to);
  void take_bytes(int source, uint32_t slot, const std::function<void(std::byte*)>& copy_to, size_t at,
                  size_t bytes);
  bool match_arrival(Item& item);
  Item* match_posted(int source, int tag);
  bool accepts(Item& item, int source, DataType type, uint64_t bytes);
  void receive_large(Item& item, const Arrival& arrival);
  Status copy(const Job& job, bool& unreadable);
  void finish_job(const Job& job, const Status& status, bool unreadable);
  void stream_from(Item& item, const Arrival& arrival);
  bool push(Item& item);
  bool push_small(Item& item, shm::RingWriter& ring);
  bool push_large(Item& item, shm::RingWriter& ring);
  bool push_remote(Item& item);
  bool push_part(Item& item);
  uint32_t new_slot();
  void push_queued();
  void push_parts();
  void check_announced();
  void introduce(int peer);
  void complete(Item& item, Status status);
  void trace(const Item& item);

  // message_failure.cpp: what ends transfers before their time.
  void look_for_failure(std::unique_lock<std::mutex>& lock);
  Status find_failure(int64_t now);
  Status gone(const Item& item) const;
  std::string find_lost();
  std::string find_lost_locked();
  Status ended() const;
  bool takes_no_more(int rank) const;
  void break_group(const Status& reason);
  void fail_all(const Status& reason);
  void fail_sends_without_takers();
  bool withdraw(Item& item, int64_t now);
  int64_t deadline(Item& item, int64_t now) const;
  std::string describe(const Item& item) const;
  std::string describe_arrivals(const Item& item) const;
  Status in_item(const Item& item, ErrorCode code, const std::string& what) const;
  Status timed_out(const Item& item, int64_t now) const;
  Status mismatch(const Item& item, int source, DataType type, uint64_t bytes) const;

  bool is_remote(int id) const { return id >= memory_.world_size(); }
  int ids() const { return settings_.remote ? settings_.remote->ids() : memory_.world_size(); }
  int rank_of(int id) const { return settings_.remote && id >= 0 ? settings_.remote->rank_of(id) : id; }
  int world_rank(int id) const {
    return settings_.remote ? settings_.remote->world_rank(id) : settings_.members.world_rank(id);
  }
  std::string describe_peer(int id) const {
    return is_remote(id) ? settings_.remote->describe(id) : peers_->describe(id);
  }
  bool failed() const { return give_up_ns_ != 0; }  // fail_all() has run
  shm::MessageBox& box() const { return rings_.box(rank_); }
  shm::RingWriter& writer(int peer) { return writers_[static_cast<size_t>(peer)]; }

  const shm::GroupMemory memory_;
  const shm::MessageMemory rings_;
  const MessageSettings settings_;
  const int rank_;
  const size_t eager_bytes_;  // larger ones are announced
  const int polls_;
  const uint32_t fork_generation_;
  MessageHost& host_;

  std::mutex peers_mutex_;  // of sharing, mapping, and looking for the dead; never taken with mutex_ held
  std::unique_ptr<Peers> peers_;

  mutable std::mutex mutex_;  // of all that follows
  std::list<Item*> open_;
  std::list<Item*> posted_;               // receives, in order
  std::list<Arrival> arrived_;            // in order
  std::vector<std::list<Item*>> queued_;  // sends, by peer
  size_t queued_count_ = 0;
  std::list<Item*> announced_;
  std::list<Item*> streaming_;   // sends
  std::vector<Stream> streams_;  // receives
  std::deque<Job> jobs_;
  bool more_ = false;  // progress() has stopped before all was done, so that others get the lock
  std::vector<uint32_t> free_slots_;
  uint32_t next_slot_ = 0;
  std::vector<shm::RingWriter> writers_;
  std::vector<shm::RingReader> readers_;
  std::vector<bool> introduced_;  // whether the peer knows that this rank writes to it
  Counters counters_;

  size_t started_ = 0;         // open items that were started
  int waiters_ = 0;            // threads inside wait()
  int noted_ = 0;              // of them, those that others see
  int sleeping_ = 0;           // of them, on the bell
  int64_t give_up_ns_ = 0;     // of a broken group: when claimed sends are let go
  std::vector<uint8_t> left_;  // by rank: had left before this rank looked at its ring last
  bool finishing_ = false;
  bool closed_ = false;
  Status unsent_;
  std::condition_variable parked_;  // the thread, while nothing is open
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace collective_ops
