#include "communicator/job_hosts.h"

#include <algorithm>
#include <map>
#include <utility>

namespace collective_ops {

JobHosts JobHosts::of(std::vector<int> host_of, int rank, std::shared_ptr<HostConnector> connector) {
  JobHosts job;
  std::map<int, int> seen;
  job.host = host_of[static_cast<size_t>(rank)];
  for (size_t other = 0; other < host_of.size(); ++other) {
    job.place_of.push_back(seen[host_of[other]]++);
    if (host_of[other] == job.host) job.world_of.push_back(static_cast<int>(other));
  }
  job.host_of = std::move(host_of);
  job.connector = std::move(connector);
  return job;
}

GroupHosts::GroupHosts(const JobHosts& job, std::span<const int> world_ranks, int rank) {
  std::map<int, int> numbers;  // of hosts in the group, by number in the job
  for (size_t i = 0; i < world_ranks.size(); ++i) {
    const int host = job.host_of[static_cast<size_t>(world_ranks[i])];
    const auto [found, is_new] = numbers.emplace(host, static_cast<int>(ranks.size()));
    if (is_new) ranks.emplace_back();
    std::vector<int>& there = ranks[static_cast<size_t>(found->second)];
    host_of.push_back(found->second);
    index_of.push_back(static_cast<int>(there.size()));
    there.push_back(static_cast<int>(i));
  }
  own = host_of[static_cast<size_t>(rank)];
  columns = static_cast<int>(ranks[0].size());
  for (const auto& there : ranks) columns = std::min(columns, static_cast<int>(there.size()));
  single = ranks.size() == host_of.size();
  in_order = std::is_sorted(host_of.begin(), host_of.end());
}

Members members_here(const JobHosts& job, const Members& whole) {
  Members here = whole;
  here.ranks.clear();
  auto places = std::make_shared<MemberPlaces>();
  places->world = job.world_of;
  places->all = whole.ranks;
  for (const int rank : whole.ranks) {
    if (job.host_of[static_cast<size_t>(rank)] == job.host)
      here.ranks.push_back(job.place_of[static_cast<size_t>(rank)]);
  }
  here.places = std::move(places);
  return here;
}

}  // namespace collective_ops
