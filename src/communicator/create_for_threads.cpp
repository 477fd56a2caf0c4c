// Communicators of threads: for tests, for the thread sanitizer, and for programs that have their ranks so.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "communicator/communicator_parts.h"
#include "transport/shm/cores.h"

namespace collective_ops {

Result<std::vector<std::unique_ptr<Communicator>>> Communicator::create_for_threads(
    int world_size, const ConnectOptions& options, std::span<const int> hosts) {
  if (world_size < 1 || world_size > shm::kMaxRanks) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("a group of {} threads: from 1 to {} are possible",
                                                           world_size, shm::kMaxRanks));
  }
  if (!hosts.empty() && hosts.size() != static_cast<size_t>(world_size)) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("{} hosts for {} threads: give one for each, or none", hosts.size(), world_size));
  }
  auto settings = settings_of(options);
  if (!settings.ok()) return settings.status();
  const int cores = shm::usable_cores(world_size);
  const Members whole = Members::world(world_size);
  std::vector<int> host_of(hosts.begin(), hosts.end());
  host_of.resize(static_cast<size_t>(world_size), 0);
  std::map<int, std::vector<int>> ranks_of;
  for (int rank = 0; rank < world_size; ++rank) ranks_of[host_of[static_cast<size_t>(rank)]].push_back(rank);
  std::vector<std::shared_ptr<HostConnector>> connectors;
  if (ranks_of.size() > 1) connectors = make_thread_connectors(world_size);

  std::vector<std::unique_ptr<Communicator>> communicators(static_cast<size_t>(world_size));
  for (const auto& [host, ranks] : ranks_of) {
    const int size = static_cast<int>(ranks.size());
    auto bytes = thread_memory(shm::GroupMemory::bytes_needed(size));
    if (!bytes.ok()) return bytes.status();
    const shm::GroupMemory memory(bytes->get(), size);
    const std::vector<std::shared_ptr<Host>> ends = make_thread_hosts(size, std::move(*bytes));
    for (int place = 0; place < size; ++place) {
      const int rank = ranks[static_cast<size_t>(place)];
      settings->rank = place;
      settings->members = whole;
      settings->host = ends[static_cast<size_t>(place)];
      settings->host->set_cores(cores);
      if (!connectors.empty()) {
        auto job =
            std::make_unique<JobHosts>(JobHosts::of(host_of, rank, connectors[static_cast<size_t>(rank)]));
        settings->members = members_here(*job, whole);
        settings->host->set_job_hosts(std::move(job));
      }
      auto parts = std::make_unique<Parts>();
      parts->host = settings->host;
      parts->queue = std::make_shared<CallQueue>(make_group_end(
          memory, parts->host->peers_of(settings->members), *settings, rank, options.interrupted));
      parts->host->enter();
      communicators[static_cast<size_t>(rank)].reset(new Communicator(std::move(parts)));
    }
  }
  return communicators;
}

}  // namespace collective_ops
