#include <collective_ops/communicator.h>

#include <unistd.h>

#include <fmt/format.h>

#include "base/environment.h"
#include "bootstrap/rendezvous.h"
#include "communicator/communicator_parts.h"
#include "communicator/job_cluster.h"
#include "memory/shared_heap.h"
#include "trace/recording.h"
#include "transport/shm/cores.h"

namespace collective_ops {

namespace {

constexpr int64_t kMostConnections = 16;  // that two ranks have for data

}  // namespace

Result<GroupSettings> settings_of(const ConnectOptions& options) {
  GroupSettings settings;
  settings.rank = options.rank;
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
  auto connections = environment_number("COLLECTIVE_OPS_CONNECTIONS", 1, kMostConnections);
  if (!connections.ok()) return connections.status();
  settings.connections = static_cast<int>(*connections);
  return settings;
}

namespace {

// Of this rank's calls; begun where COLLECTIVE_OPS_TRACE asks for it. A recorder that cannot be opened is
// an error at the start, not a trace that is missing in the end.
Result<std::shared_ptr<Recording>> make_recording(const HostGroup& host, const Cluster* cluster) {
  auto wanted = environment_flag("COLLECTIVE_OPS_TRACE");
  if (!wanted.ok()) return wanted.status();
  RecorderIdentity identity;
  identity.job_id = host.job;
  identity.rank = cluster != nullptr ? cluster->rank() : host.rank;
  identity.world_size = cluster != nullptr ? cluster->world_size() : host.world_size;
  // Rank 0's process tells one start of a job from the next.
  const int64_t start = cluster != nullptr ? cluster->members()[0].start_time : host.peers[0].start_time;
  const pid_t pid = cluster != nullptr ? cluster->members()[0].pid : host.peers[0].pid;
  identity.run = static_cast<uint64_t>(start) << 24 ^ static_cast<uint64_t>(pid);
  identity.algorithms = algorithm_names();
  auto recording = Recording::create(std::move(identity));
  if (!recording.ok() || !*wanted) return recording;
  if (Status status = (*recording)->start_for_job(trace_directory()); !status.ok()) return status;
  return recording;
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

Result<std::unique_ptr<Communicator>> Communicator::connect(const ConnectOptions& given) {
  ConnectOptions options = given;
  auto joined = join_cluster(options);
  if (!joined.ok()) return joined.status();
  const std::shared_ptr<Cluster> cluster = *joined;  // none where all ranks are on this host
  const ConnectOptions here = cluster ? local_options(*cluster, options) : options;
  auto result = connect_here(here, options, cluster);
  if (!result.ok() && cluster)
    cluster->announce(result.status());  // other hosts have joined, and must not wait
  return result;
}

// `here`: as a rank among those of this host.
Result<std::unique_ptr<Communicator>> Communicator::connect_here(const ConnectOptions& here,
                                                                 const ConnectOptions& options,
                                                                 const std::shared_ptr<Cluster>& cluster) {
  auto settings = settings_of(here);
  if (!settings.ok()) return settings.status();
  auto host = join(here, [](int world_size) { return shm::GroupMemory::bytes_needed(world_size); },
                   {.interrupted = options.interrupted});
  if (!host.ok()) return host.status();
  const shm::GroupMemory memory(host->control.data(), here.world_size);
  auto recording = make_recording(*host, cluster.get());
  if (!recording.ok()) {
    (void)memory.break_with(recording.status());  // the others have joined already, and must not wait
    return recording.status();
  }
  memory.introduce(here.rank, ::getpid(), host->job);
  settings->members = Members::world(options.world_size);
  std::vector<pid_t> pids;
  for (const PeerProcess& peer : host->peers) pids.push_back(peer.pid);
  settings->host = make_process_host(std::move(*host), std::move(*recording));
  settings->host->set_cores(shm::usable_cores(here.world_size, pids));
  if (cluster) {
    auto job = std::make_unique<JobHosts>(hosts_of(cluster));
    settings->members = members_here(*job, settings->members);
    settings->host->set_job_hosts(std::move(job));
  }
  auto parts = std::make_unique<Parts>();
  parts->host = settings->host;
  parts->queue = std::make_shared<CallQueue>(make_group_end(memory, parts->host->peers_of(settings->members),
                                                            *settings, options.rank, options.interrupted));
  parts->host->enter();
  return std::unique_ptr<Communicator>(new Communicator(std::move(parts)));
}

Result<std::shared_ptr<SharedBuffer>> Communicator::allocate(size_t bytes) {
  return SharedHeap::instance().allocate(bytes);
}

Result<std::shared_ptr<SharedBuffer>> Communicator::allocate_part(size_t bytes) {
  return SharedHeap::instance().allocate_alone(bytes);
}

Communicator::~Communicator() {
  if (parts_->queue->forked()) {
    // A child shares everything with its parent and may neither leave the group nor wait for a thread that
    // exists only there: even destroying the queue would wait. So the child lets go of it for good.
    (void)new std::shared_ptr<CallQueue>(parts_->queue);
    return;
  }
  parts_->queue->finish();
  GroupEnd& group = parts_->queue->group();
  const Status unsent = group.messages().finish();
  if (!unsent.ok()) fmt::print(stderr, "collective-ops: {}\n", unsent.message());
  group.record_into(nullptr);
  const Status mismatch = group.leave();
  if (!mismatch.ok()) fmt::print(stderr, "collective-ops: {}\n", mismatch.message());
  parts_->host->leave();
}

int Communicator::rank() const { return parts_->queue->group().rank(); }
std::span<const int> Communicator::ranks() const { return parts_->queue->group().members().all(); }
const std::string& Communicator::name() const { return parts_->queue->group().members().name; }
int Communicator::world_size() const { return parts_->queue->group().world_size(); }
Status Communicator::run(const Call& call) { return parts_->queue->run(call); }
std::shared_ptr<Work> Communicator::start(const Call& call, std::shared_ptr<CallListener> listener) {
  return parts_->queue->start(call, std::move(listener));
}
void Communicator::abort(const std::string& reason) {
  parts_->queue->abort({ErrorCode::kGroupBroken, reason});
}
Status Communicator::recv(void* data, size_t count, DataType type, int from, int tag, Received* received) {
  Transfer transfer = Transfer::receive(data, count, type, from, tag);
  transfer.allow_shorter = received != nullptr;
  return exchange({&transfer, 1}, {received, received != nullptr ? size_t{1} : size_t{0}});
}
Status Communicator::exchange(std::span<const Transfer> transfers, std::span<Received> received) {
  return parts_->queue->group().messages().run(transfers, received);
}
std::vector<std::shared_ptr<Work>> Communicator::start(std::span<const Transfer> transfers) {
  return parts_->queue->group().messages().start(transfers);
}

void Communicator::refuse_call() { parts_->queue->refuse(); }
Counters Communicator::counters() const { return parts_->queue->group().counters(); }

}  // namespace collective_ops
