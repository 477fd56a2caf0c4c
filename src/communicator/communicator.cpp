#include <collective_ops/communicator.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>

#include <unistd.h>

#include <fmt/format.h>

#include "base/environment.h"
#include "bootstrap/rendezvous.h"
#include "communicator/call_queue.h"
#include "communicator/group.h"
#include "memory/shared_heap.h"
#include "trace/merge.h"
#include "trace/recorder.h"
#include "transport/shm/cores.h"

namespace collective_ops {
namespace {

Result<GroupSettings> settings_of(const ConnectOptions& options) {
  GroupSettings settings;
  settings.rank = options.rank;
  settings.cores = shm::usable_cores();
  if (options.exec_timeout) {
    settings.exec_timeout = *options.exec_timeout;
  } else {
    auto seconds = environment_seconds("HCCL_EXEC_TIMEOUT", 0, 2147483647);
    if (!seconds.ok()) return seconds.status();
    settings.exec_timeout = *seconds;
  }
  auto forced = forced_by_environment();
  if (!forced.ok()) return forced.status();
  settings.forced = std::move(*forced);
  return settings;
}

// The recorder of this rank where COLLECTIVE_OPS_TRACE asks for one. A recorder that cannot be opened is
// an error at the start, not a trace that is missing in the end.
Result<std::shared_ptr<Recorder>> open_recorder(const HostGroup& host) {
  auto wanted = environment_flag("COLLECTIVE_OPS_TRACE");
  if (!wanted.ok()) return wanted.status();
  if (!*wanted) return std::shared_ptr<Recorder>();
  RecorderIdentity identity;
  identity.job_id = host.job;
  identity.rank = host.rank;
  identity.world_size = host.world_size;
  // Rank 0's process tells one start of a job from the next.
  identity.run =
      static_cast<uint64_t>(host.peers[0].start_time) << 24 ^ static_cast<uint64_t>(host.peers[0].pid);
  identity.algorithms = algorithm_names();
  auto recorder = Recorder::open(trace_directory(), identity);
  if (!recorder.ok()) return recorder.status();
  return std::shared_ptr<Recorder>(std::move(*recorder));
}

// The last rank to leave makes comm_trace.json. Where that fails the ranks' files stay, and can still be
// merged by hand.
void merge_trace_of(const std::string& job, const std::filesystem::path& directory) {
  const auto merged = merge_traces({{directory}}, {.output = directory / "comm_trace.json", .job = job});
  if (!merged.ok()) {
    fmt::print(stderr, "collective-ops: the trace was not merged: {}\n", merged.status().message());
  } else if (!merged->complete()) {
    fmt::print(stderr, "collective-ops: {}\n", merged->text());
  }
}

}  // namespace

struct Communicator::Parts {
  std::unique_ptr<HostGroup> host;       // of processes
  std::shared_ptr<std::byte> own_bytes;  // of threads
  std::shared_ptr<Recorder> recorder;
  std::shared_ptr<CallQueue> queue;
};

Communicator::Communicator(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<Communicator>> Communicator::connect(const ConnectOptions& options) {
  auto settings = settings_of(options);
  if (!settings.ok()) return settings.status();
  settings->probe_reading = true;
  auto host = join(options, [](int world_size) { return shm::GroupMemory::bytes_needed(world_size); },
                   {.interrupted = options.interrupted});
  if (!host.ok()) return host.status();
  auto parts = std::make_unique<Parts>();
  parts->host = std::make_unique<HostGroup>(std::move(*host));
  const shm::GroupMemory memory(parts->host->control.data(), options.world_size);
  auto recorder = open_recorder(*parts->host);
  if (!recorder.ok()) {
    (void)memory.break_with(recorder.status());  // the others have joined already, and must not wait
    return recorder.status();
  }
  parts->recorder = *recorder;
  memory.introduce(options.rank, ::getpid(), parts->host->job);
  auto group = std::make_unique<Group>(memory, make_process_peers(*parts->host), *settings);
  group->set_interrupt_check(options.interrupted);
  if (parts->recorder) group->trace().start(parts->recorder, options.rank, 0);
  parts->queue = std::make_shared<CallQueue>(std::move(group));
  return std::unique_ptr<Communicator>(new Communicator(std::move(parts)));
}

Result<std::vector<std::unique_ptr<Communicator>>> Communicator::create_for_threads(
    int world_size, const ConnectOptions& options) {
  if (world_size < 1 || world_size > shm::kMaxRanks) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("a group of {} threads: from 1 to {} are possible",
                                                           world_size, shm::kMaxRanks));
  }
  auto settings = settings_of(options);
  if (!settings.ok()) return settings.status();
  const size_t bytes = shm::GroupMemory::bytes_needed(world_size);
  void* raw = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (raw == nullptr) {
    return Status(ErrorCode::kOutOfMemory,
                  fmt::format("no room for the {} bytes that {} threads share", bytes, world_size));
  }
  std::memset(raw, 0, bytes);
  const std::shared_ptr<std::byte> shared(static_cast<std::byte*>(raw), [](std::byte* p) { std::free(p); });
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < world_size; ++rank) {
    settings->rank = rank;
    auto parts = std::make_unique<Parts>();
    parts->own_bytes = shared;
    const shm::GroupMemory memory(shared.get(), world_size);
    auto group = std::make_unique<Group>(memory, make_thread_peers(), *settings);
    group->set_interrupt_check(options.interrupted);
    parts->queue = std::make_shared<CallQueue>(std::move(group));
    communicators.push_back(std::unique_ptr<Communicator>(new Communicator(std::move(parts))));
  }
  return communicators;
}

Result<std::shared_ptr<SharedBuffer>> Communicator::allocate(size_t bytes) {
  return SharedHeap::instance().allocate(bytes);
}

Communicator::~Communicator() {
  if (parts_->queue->forked()) {
    // A child shares everything with its parent and may neither leave the group nor wait for a thread that
    // exists only there: even destroying the queue would wait. So the child lets go of it for good.
    (void)new std::shared_ptr<CallQueue>(parts_->queue);
    return;
  }
  parts_->queue->finish();
  Group& group = parts_->queue->group();
  const auto recorded = parts_->recorder ? parts_->recorder->path().parent_path() : std::filesystem::path();
  parts_->recorder.reset();
  group.trace().start(nullptr, 0, 0);  // closes this rank's file
  const Group::Leaving leaving = group.leave();
  if (!leaving.mismatch.ok()) fmt::print(stderr, "collective-ops: {}\n", leaving.mismatch.message());
  if (leaving.last && !recorded.empty()) merge_trace_of(parts_->host->job, recorded);
}

int Communicator::rank() const { return parts_->queue->group().rank(); }
int Communicator::world_size() const { return parts_->queue->group().world_size(); }
Status Communicator::run(const Call& call) { return parts_->queue->run(call); }
std::shared_ptr<Work> Communicator::start(const Call& call) { return parts_->queue->start(call); }
void Communicator::refuse_call() { parts_->queue->refuse(); }
Counters Communicator::counters() const { return parts_->queue->group().counters(); }

}  // namespace collective_ops
