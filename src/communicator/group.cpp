#include "communicator/group.h"

#include <utility>

#include <fmt/format.h>
#include <sched.h>

#include "base/clock.h"
#include "communicator/failure_text.h"
#include "communicator/overlap.h"

namespace collective_ops {

namespace {

constexpr int64_t kDeathNs = 100'000'000;
// So long a wait is worth a word to other groups.
constexpr int64_t kNoteNs = 20'000'000;

bool fits_line(const Program& program) { return program.scratch_bytes <= shm::kInlineBytes; }

// Which spaces of `peer` a program looks at, of those that have bytes.
bool reads_input(const Program& program, const CallBytes& bytes, int peer, int root) {
  return program.reads_peer_input && bytes.input > 0 && (!program.reads_only_root_input || peer == root);
}
bool writes_output(const Program& program, const CallBytes& bytes, int peer, int root) {
  return program.writes_peer_output && bytes.output > 0 && (!program.writes_only_root_output || peer == root);
}

}  // namespace

// What the proof of the plans assumes, and what is there.
static_assert(shm::kEagerDepth == kEagerDepth && shm::kLineDepth == kSmallEagerDepth &&
              shm::kSmallBytes == kSmallEagerBytes);

Group::Group(shm::GroupMemory memory, std::unique_ptr<Peers> peers, const GroupSettings& settings)
    : memory_(memory),
      rank_(settings.rank),
      peers_(std::move(peers)),
      settings_(settings),
      waiter_(memory, settings.rank, settings.oversubscribed(), *this),
      port_(memory, settings.rank, waiter_),
      executor_(memory, settings.rank, waiter_, *this, port_),
      cache_(settings.rank, memory.world_size(), settings.divisor, settings.forced),
      read_probe_(memory, settings.rank),
      addresses_(static_cast<size_t>(memory.world_size())),
      own_{static_cast<uint64_t>(settings.forced.path) << 32,
           std::hash<std::string>()(settings.forced.text())} {
  if (settings_.remote) waiter_.follow(&pace_);
  for (int rank = 0; rank < world_size(); ++rank) staging_.push_back(memory_.scratch(rank));
  for (size_t slot = 0; slot < shm::kLineDepth; ++slot) {
    for (int rank = 0; rank < world_size(); ++rank) {
      line_slots_.push_back(memory_.line(rank, slot).payload);
      small_slots_.push_back(memory_.small(rank, slot));
      if (slot < shm::kEagerDepth) eager_slots_.push_back(memory_.eager(rank, slot));
    }
  }
  messages_ =
      std::make_shared<Messages>(memory_, settings_.host->peers_of(members()),
                                 MessageSettings{rank_, members(), settings_.oversubscribed(),
                                                 settings_.forced.path == PathChoice::kStaged,
                                                 settings_.exec_timeout, &read_probe_, settings_.remote},
                                 static_cast<MessageHost&>(*this));
}

Status Group::run_part(const Call& part, const shm::Signature& whole, PartTotals* totals) {
  return run_as(part, 0, &whole, totals);
}

Status Group::run_as(const Call& call, int64_t issued_ns, const shm::Signature* whole, PartTotals* totals) {
  if (memory_.broken()) {
    const Status reason = memory_.failure();
    return {ErrorCode::kGroupBroken,
            fmt::format("{}: {} was broken by an earlier failure ({}): {}", name_of(call.collective),
                        members().text(), name_of(reason.code()), reason.message())};
  }
  begin(call, whole);
  auto found = cache_.prepare(call);
  Status refused = found.status();
  if (refused.ok() && call.send != call.recv)
    refused = check_overlap(call, bytes_of(call, rank_, world_size()), rank_);
  if (!refused.ok()) {
    announce_failed();
    if (members().is_world() || refused.code() != ErrorCode::kInvalidArgument) return refused;
    return {refused.code(), fmt::format("{} (in {}, whose ranks count from 0 in this order)",
                                        refused.message(), members().text())};
  }
  const PreparedCall* prepared = *found;
  history_ ^= prepared->choice;
  const bool traced = whole == nullptr && trace_.on();
  if (traced) trace_.begin(issued_ns);
  waiter_.record_waits(traced || totals != nullptr);
  executor_.record_steps(traced ? trace_.steps() : nullptr);
  const PreparedProgram* used = nullptr;
  bool done = find_memory(*prepared, call);
  bool announces = done;
  if (done && prepared->eager && prepared->direct && has_root(call.collective)) {
    used = run_rooted(*prepared, call);
    done = waiter_.status().ok();
    announces = false;
  } else if (done && prepared->eager && !goes_direct(*prepared, call.root)) {
    used = &*prepared->eager;
    done = run_eager(*prepared, call, slots_of(used->program));
    announces = peers_go_direct_;
  }
  if (announces) done = run_announced(prepared, call, used);
  if (used != nullptr) count(*prepared, *used);
  Status status = finish(done);
  const uint8_t algorithm = used != nullptr ? used->algorithm : uint8_t{0};
  if (traced) {
    add_to(trace_.peers(), used);
    trace_.end({call, prepared->payload_bytes, algorithm, path_, sequence_, status.code()});
  } else if (totals != nullptr) {
    add_to(totals->peers, used);
  }
  return status;
}

// What the call waited for each rank, and moved to and from it.
void Group::add_to(std::vector<PeerRecord>& peers, const PreparedProgram* used) {
  for (size_t peer = 0; peer < peers.size(); ++peer) {
    peers[peer].waited_ns += static_cast<uint64_t>(waiter_.waited_ns()[peer]);
    if (used == nullptr) continue;
    peers[peer].read_bytes += used->read_bytes[peer];
    peers[peer].written_bytes += used->written_bytes[peer];
  }
}

void Group::begin(const Call& call, const shm::Signature* whole) {
  history_ = own_.after(history_);
  ++sequence_;
  announced_ = false;
  peers_go_direct_ = false;
  path_ = TracePath::kNone;
  const auto sequence = static_cast<uint32_t>(sequence_);
  if (whole == nullptr) {
    own_ = shm::Signature::of(sequence, call.collective, call.type, call.op, announced_count(call), call.root,
                              call.for_device);
  } else {
    own_ = whole->as_part(sequence);
    memory_.state(rank_).number.store(own_.number, std::memory_order_relaxed);
  }
  const auto timeout = call.timeout.value_or(settings_.exec_timeout);
  waiter_.begin_call(std::chrono::nanoseconds(timeout).count());
  memory_.state(rank_).issued.store(sequence_, std::memory_order_relaxed);
}

// A refused call still counts: ranks that refuse it alike go on together, and a rank that is in it
// learns that this one never will be.
void Group::announce_failed() {
  own_ = shm::Signature::of_failed(static_cast<uint32_t>(sequence_));
  if (await_slot()) {
    arrive();
    memory_.state(rank_).finished.store(sequence_, std::memory_order_relaxed);
  } else {
    (void)finish(false);
  }
}

void Group::take_buffers(const Call& call) {
  addresses_.input[static_cast<size_t>(rank_)] = static_cast<std::byte*>(const_cast<void*>(call.send));
  addresses_.output[static_cast<size_t>(rank_)] = static_cast<std::byte*>(call.recv);
}

// Where all ranks' payloads of this call lie, which is small.
std::byte* const* Group::slots_of(const Program& program) const {
  const auto slot = [this](const std::vector<std::byte*>& slots, uint64_t depth) {
    return slots.data() + sequence_ % depth * static_cast<uint64_t>(world_size());
  };
  if (fits_line(program)) return slot(line_slots_, shm::kLineDepth);
  if (program.scratch_bytes <= shm::kSmallBytes) return slot(small_slots_, shm::kLineDepth);
  return slot(eager_slots_, shm::kEagerDepth);
}

// Small calls: the payload goes into this call's slot, and the announcement is the only synchronisation.
// Where peers, having other memory, have announced theirs instead of copying, it stops before anything was
// written (peers_go_direct_): the call is then run as they do.
bool Group::run_eager(const PreparedCall& prepared, const Call& call, std::byte* const* slots) {
  const Program& program = prepared.eager->program;
  if (!await_slot(static_cast<uint64_t>(eager_depth(program.scratch_bytes)))) return false;
  memory_.line(rank_, sequence_).input_segment = 0;
  eager_or_direct_ = rooted_ == nullptr && prepared.direct.has_value();
  path_ = fits_line(program) ? TracePath::kInline : TracePath::kStaged;
  addresses_.scratch = slots;
  take_buffers(call);
  if (!executor_.run(program, addresses_, prepared.eager->kernel, sequence_)) return false;
  if (prepared.eager->awaits_all) all_arrived_ = sequence_;
  return true;
}

// Small calls with a root. A rank whose contribution lies where peers can reach it announces that place
// instead of copying into its slot, and stays until it has been read, as in the direct plan. Those who read
// take each contribution from where its rank has it: slot and memory have the same layout.
const PreparedProgram* Group::run_rooted(const PreparedCall& prepared, const Call& call) {
  if (!await_slot()) return nullptr;
  const bool from_root = call.collective == Collective::kBroadcast || call.collective == Collective::kScatter;
  if ((rank_ == call.root) == from_root && input_memory_.segment != 0) {
    path_ = TracePath::kDirect;
    take_buffers(call);
    announce_memory(call);
    // It stays until they have read, so it has to know that they are in this call.
    if (from_root ? await_all() : await(call.root)) {
      executor_.run(prepared.direct->program, addresses_, prepared.direct->kernel, sequence_);
    }
    return &*prepared.direct;
  }
  std::byte* const* slots = slots_of(prepared.eager->program);
  sources_.assign(slots, slots + world_size());
  rooted_ = &prepared;
  refers_ = false;
  const bool done = run_eager(prepared, call, sources_.data());
  rooted_ = nullptr;
  if (!done || !refers_) return &*prepared.eager;
  path_ = TracePath::kDirect;
  executor_.finish(sequence_);
  return &*prepared.direct;
}

// Of a peer that has announced a call of run_rooted().
bool Group::refer_to(int peer) {
  const auto at = static_cast<size_t>(peer);
  if (memory_.line(peer, sequence_).input_segment == 0) return true;
  refers_ = true;
  if (!reach(peer, true, rooted_->bytes[at].input)) return false;
  sources_[at] = addresses_.input[at];
  return true;
}

// Larger calls: all ranks announce where their buffers lie, and with that agree on the data path.
bool Group::run_announced(const PreparedCall*& prepared, const Call& call, const PreparedProgram*& used) {
  eager_or_direct_ = false;
  if (!await_slot(kEagerDepth)) return false;  // an annex lies in a large slot
  announce_memory(call);
  if (!await_all()) return false;
  if (prepared->needs_counts) {
    const PreparedCall* bound = bind_counts(call);
    if (bound == nullptr) return false;
    prepared = bound;
  }
  used = pick_path(*prepared, call.root);
  if (!waiter_.status().ok()) return false;
  if (used == nullptr) {
    return fail(
        {ErrorCode::kInvalidArgument,
         "COLLECTIVE_OPS_PATH: not every rank's buffer can be reached that way; for direct, take buffers "
         "from "
         "collective_ops.empty(); for read, the kernel must allow process_vm_readv between the ranks"});
  }
  addresses_.scratch = staging_.data();
  take_buffers(call);
  if (path_ != TracePath::kStaged && !reach_peers(*prepared, used->program, call.root)) return false;
  CallKernel kernel = used->kernel;
  if (reduces(call.collective) && call.op == ReduceOp::kPreMulSum) {
    gather_factors();
    kernel.factors = factors_.data();
  }
  return executor_.run(used->program, addresses_, kernel, sequence_) && divide(*used, *prepared, call);
}

// Once all have arrived. nullptr: failed.
const PreparedCall* Group::bind_counts(const Call& call) {
  auto counts = read_counts(memory_, members(), sequence_, call);
  if (!counts.ok()) {
    fail(counts.status());
    return nullptr;
  }
  auto bound = cache_.bind(call, std::move(*counts));
  if (bound.ok()) return *bound;
  fail(bound.status());
  return nullptr;
}

void Group::gather_factors() {
  factors_.clear();
  for (int rank = 0; rank < world_size(); ++rank) factors_.push_back(read_factor(memory_, rank, sequence_));
}

// Every rank evaluates this on the same lines and states, so all come to the same answer.
const PreparedProgram* Group::pick_path(const PreparedCall& prepared, int root) {
  path_ = TracePath::kDirect;
  for (const auto* direct : {&prepared.push, &prepared.direct}) {
    if (*direct && all_reachable(prepared, (*direct)->program, root)) return &**direct;
  }
  path_ = TracePath::kRead;
  if (prepared.read && all_readable()) return &*prepared.read;
  path_ = TracePath::kStaged;
  const PathChoice forced = settings_.forced.path;
  return forced == PathChoice::kDirect || forced == PathChoice::kRead ? nullptr : &*prepared.staged;
}

// Plans that reduce partial results again cannot divide on the way.
bool Group::divide(const PreparedProgram& used, const PreparedCall& prepared, const Call& call) {
  const size_t elements = prepared.bytes[static_cast<size_t>(rank_)].output / used.kernel.element_size;
  if (used.final_division == nullptr || elements == 0) return true;
  void* const destination = call.recv;
  const void* const source = call.recv;
  used.final_division({.destinations = {&destination, 1},
                       .sources = {&source, 1},
                       .count = elements,
                       .divisor = used.kernel.divisor});
  return true;
}

// Where this rank's buffers lie, as its peers can reach them.
bool Group::find_memory(const PreparedCall& prepared, const Call& call) {
  shm::MemoryRef &input = input_memory_, &output = output_memory_;
  input = output = {};
  if (prepared.push || prepared.direct || prepared.read || prepared.needs_counts) {
    const CallBytes bytes = bytes_of(call, rank_, world_size());
    if (bytes.input > 0) {
      auto shared = peers_->share(call.send, bytes.input);
      if (!shared.ok()) return fail(shared.status());
      input = output = *shared;
    }
    if (bytes.output > 0 && (call.recv != call.send || bytes.output > bytes.input)) {
      auto shared = peers_->share(call.recv, bytes.output);
      if (!shared.ok()) return fail(shared.status());
      output = *shared;
    }
  }
  return true;
}

// Of a call that may be eager: whether this rank's memory would let it be direct.
bool Group::goes_direct(const PreparedCall& prepared, int root) const {
  if (!prepared.direct || input_memory_.segment == 0) return false;
  const Program& program = prepared.direct->program;
  return output_memory_.segment != 0 ||
         !writes_output(program, prepared.bytes[static_cast<size_t>(rank_)], rank_, root);
}

void Group::announce_memory(const Call& call) {
  if (announced_) return;
  if (needs_annex(call)) write_annex(memory_, rank_, sequence_, call);
  shm::Line& line = memory_.line(rank_, sequence_);
  line.input_segment = input_memory_.segment;
  line.memory.output_segment = output_memory_.segment;
  line.memory.input_offset = input_memory_.offset;
  line.memory.output_offset = output_memory_.offset;
  line.memory.input_address = reinterpret_cast<uint64_t>(call.send);
  line.memory.output_address = reinterpret_cast<uint64_t>(call.recv);
  arrive();
}

bool Group::all_reachable(const PreparedCall& prepared, const Program& program, int root) const {
  for (int peer = 0; peer < world_size(); ++peer) {
    const shm::Line& line = memory_.line(peer, sequence_);
    // A rank that has run such a call eagerly says so here, and has not written where its output lies.
    if (prepared.eager && line.input_segment == 0) return false;
    const CallBytes& bytes = prepared.bytes[static_cast<size_t>(peer)];
    if (reads_input(program, bytes, peer, root) && line.input_segment == 0) return false;
    if (writes_output(program, bytes, peer, root) && line.memory.output_segment == 0) return false;
  }
  return true;
}

// The same answer on all ranks. Not ok where waiter_ has failed.
bool Group::all_readable() {
  bool all = read_probe_.reads_all(*peers_);
  for (int peer = 0; peer < world_size(); ++peer) {
    waiter_.begin_pauses();
    while (read_probe_.verdict_of(peer) == shm::kReadsUnknown) {
      if (!waiter_.pause_once(peer)) return false;
    }
    all = all && read_probe_.verdict_of(peer) == shm::kReads;
  }
  return all;
}

bool Group::reach_peers(const PreparedCall& prepared, const Program& program, int root) {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_) continue;
    addresses_.remote[static_cast<size_t>(peer)] = path_ == TracePath::kRead;
    const CallBytes& bytes = prepared.bytes[static_cast<size_t>(peer)];
    const bool output = program.reads_peer_output || writes_output(program, bytes, peer, root);
    if (reads_input(program, bytes, peer, root) && !reach(peer, true, bytes.input)) return false;
    if (output && !reach(peer, false, bytes.output)) return false;
  }
  return true;
}

bool Group::reach(int peer, bool input, size_t bytes) {
  const shm::Line& line = memory_.line(peer, sequence_);
  std::byte*& place = (input ? addresses_.input : addresses_.output)[static_cast<size_t>(peer)];
  if (path_ == TracePath::kRead) {
    place = reinterpret_cast<std::byte*>(input ? line.memory.input_address : line.memory.output_address);
    return true;
  }
  const auto unless_broken = [&] { return memory_.broken() ? memory_.failure() : check_peers(peer); };
  const shm::MemoryRef shared = input ? shm::MemoryRef{line.input_segment, line.memory.input_offset}
                                      : shm::MemoryRef{line.memory.output_segment, line.memory.output_offset};
  auto address = peers_->reach(peer, shared, bytes, waiter_.deadline_ns(), unless_broken);
  if (!address.ok()) return fail(address.status());
  place = *address;
  return true;
}

bool Group::read_peer(int peer, const std::byte* from, std::byte* to, size_t bytes) {
  Status status = peers_->read(peer, from, to, bytes);
  if (status.ok()) return true;
  // Mostly the peer has died, which shows a moment later.
  const int64_t stop = monotonic_ns() + kDeathNs;
  do {
    if (Status lost = check_peers(peer); !lost.ok()) return fail(std::move(lost));
    sched_yield();
  } while (monotonic_ns() < stop);
  return fail(std::move(status));
}

// The line or slot of call s, one of `depth`, was last used by call s - depth; a rank that has announced a
// later call has finished reading them. A rank that is ahead waits for more than it needs, so that it looks
// at its peers once for many calls.
bool Group::await_slot(uint64_t depth) {
  if (sequence_ <= all_arrived_ + depth - 1) return true;
  const uint64_t needed = sequence_ - depth / 2;
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer != rank_ && !waiter_.until_arrival(peer, needed)) return false;
  }
  all_arrived_ = needed;
  return true;
}

bool Group::await_all() {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank_) continue;
    if (!await(peer)) return false;
    executor_.note_wait(peer);
  }
  all_arrived_ = sequence_;
  return true;
}

void Group::arrive() {
  if (announced_) return;
  announced_ = true;
  shm::Line& line = memory_.line(rank_, sequence_);
  line.shape = own_.shape;
  line.history = history_;
  waiter_.raise(line.head, own_.head);
}

bool Group::await(int peer) {
  if (!waiter_.until_arrival(peer, sequence_)) return false;
  const shm::Line& line = memory_.line(peer, sequence_);
  if (line.head.load(std::memory_order_relaxed) == own_.head && line.shape == own_.shape &&
      line.history == history_) {
    if (rooted_ != nullptr) return refer_to(peer);
    peers_go_direct_ = eager_or_direct_ && line.input_segment != 0;
    return !peers_go_direct_;
  }
  if (line.history != history_)
    return fail(earlier_mismatch(memory_, members(), rank_, peer, own_.sequence()));
  return fail(mismatch(memory_, members(), rank_, own_));
}

bool Group::fail(Status status) {
  waiter_.fail(std::move(status));
  return false;
}

std::string Group::find_lost() {
  return peers_->find_lost(
      [this](int rank) { return memory_.state(rank).left.load(std::memory_order_acquire) != 0; });
}

Status Group::check_peers(int peer) {
  if (Status status = check_interrupt(); !status.ok()) {
    if (status.code() == ErrorCode::kPeerLost) return peer_lost(members(), rank_, own_, status.message());
    return {status.code(), fmt::format("rank {} was interrupted in {}: {}", members().world_rank(rank_),
                                       place_of(own_, members()), status.message())};
  }
  const auto has_left = [this](int rank) {
    return memory_.state(rank).left.load(std::memory_order_acquire) != 0;
  };
  if (has_left(peer)) {
    const uint64_t finished = memory_.state(peer).finished.load(std::memory_order_relaxed);
    return peer_lost(
        members(), rank_, own_,
        fmt::format("{} left the group {}", peers_->describe(peer),
                    finished == 0 ? "before its first call" : fmt::format("after call #{}", finished)));
  }
  const std::string lost = find_lost();
  if (!lost.empty()) return peer_lost(members(), rank_, own_, lost);
  if (!noted_) note_waiting();
  return {};
}

// Ranks that call on several groups in orders that do not fit wait for each other for ever, each in another
// group: at the deadline each can say where the other one is.
void Group::note_waiting() {
  const int64_t begun = memory_.state(rank_).begun_ns.load(std::memory_order_relaxed);
  if (members().is_world() || monotonic_ns() - begun < kNoteNs) return;
  noted_ = true;
  settings_.host->note(this, "waits in " + place_of(own_, members()));
}

Status Group::timed_out(int peer) {
  const int64_t begun = memory_.state(rank_).begun_ns.load(std::memory_order_relaxed);
  std::string elsewhere = settings_.host->elsewhere(members().ranks[static_cast<size_t>(peer)], members());
  return collective_ops::timed_out(memory_, members(), *peers_,
                                   {rank_, peer, own_, monotonic_ns() - begun, std::move(elsewhere)});
}

Status Group::finish(bool done) {
  if (std::exchange(noted_, false))
    settings_.host->note(this, done ? "" : "has failed in " + place_of(own_, members()));
  if (done) {
    memory_.state(rank_).finished.store(sequence_, std::memory_order_relaxed);
    return {};
  }
  // An argument that all ranks refuse alike leaves the group whole; anything else breaks it for all.
  if (waiter_.status().code() == ErrorCode::kInvalidArgument) {
    memory_.state(rank_).finished.store(sequence_, std::memory_order_relaxed);
    return waiter_.status();
  }
  return break_group(waiter_.status());
}

Status Group::break_group(const Status& reason) {
  Status first = memory_.break_with(reason);
  wake_all();
  return first;
}

void Group::note_message(const std::string& text) {
  const bool named = !text.empty() && !members().is_world();
  settings_.host->note(&messages_, named ? fmt::format("{} (in {})", text, members().text()) : text);
}

std::string Group::elsewhere(int world_rank) const {
  const bool meets = world_rank != members().ranks[static_cast<size_t>(rank_)];
  return meets ? settings_.host->elsewhere(world_rank, members()) : "";
}

void Group::wake_all() {
  waiter_.wake_all();
  Messages::wake_all(memory_);
}

Counters Group::counters() const {
  Counters all = messages_->counters();  // which count no calls
  const uint64_t messages[] = {all.sends, all.receives, all.sent_bytes, all.received_bytes};
  all = counters_;
  all.sends = messages[0];
  all.receives = messages[1];
  all.sent_bytes = messages[2];
  all.received_bytes = messages[3];
  return all;
}

void Group::count(const PreparedCall& prepared, const PreparedProgram& used) {
  ++counters_.calls;
  counters_.bytes += prepared.payload_bytes;
  counters_.copied_bytes += used.copied_bytes;
  ++(path_ == TracePath::kInline   ? counters_.inline_calls
     : path_ == TracePath::kDirect ? counters_.direct_calls
     : path_ == TracePath::kRead   ? counters_.read_calls
                                   : counters_.staged_calls);
}

Status Group::leave() {
  settings_.host->note(this, "");
  shm::RankState& mine = memory_.state(rank_);
  const uint64_t summary = sequence_ << 32 | own_.after(history_);
  mine.left_with.store(summary, std::memory_order_relaxed);
  mine.left.store(1, std::memory_order_release);
  wake_all();
  // Roots that waited for nobody are compared here at the latest.
  for (int peer = 0; peer < world_size() && !memory_.broken(); ++peer) {
    if (peer == rank_ || memory_.state(peer).left.load(std::memory_order_acquire) == 0) continue;
    const uint64_t theirs = memory_.state(peer).left_with.load(std::memory_order_relaxed);
    if (theirs >> 32 != sequence_ || theirs == summary) continue;
    return earlier_mismatch(memory_, members(), rank_, peer, static_cast<uint32_t>(sequence_) + 1);
  }
  return {};
}

}  // namespace collective_ops
