#include "communicator/job_cluster.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/environment.h"
#include "bootstrap/meeting_place.h"

namespace collective_ops {
namespace {

// The lower rank asks, the higher one lets it in.
class ClusterConnector final : public HostConnector {
 public:
  explicit ClusterConnector(std::shared_ptr<Cluster> cluster) : cluster_(std::move(cluster)) {}

  Result<PrivateDescriptor> connect(int rank, uint64_t channel, int64_t deadline_ns,
                                    const std::function<Status()>& interrupted) override {
    if (cluster_->rank() > rank)
      return cluster_->accept(rank, Purpose::kData, channel, deadline_ns, interrupted);
    auto socket = cluster_->connect(rank, Purpose::kData, channel, deadline_ns, interrupted);
    // The other one would wait for ever, and neither will do without the other.
    if (socket.status().code() == ErrorCode::kRendezvous) cluster_->announce(socket.status());
    return socket;
  }
  Result<PrivateDescriptor> dial(int rank, uint64_t channel, int64_t deadline_ns,
                                 const std::function<Status()>& interrupted) override {
    return cluster_->connect(rank, Purpose::kData, channel, deadline_ns, interrupted);
  }
  std::optional<PrivateDescriptor> take(int rank, uint64_t channel) override {
    return cluster_->take(rank, Purpose::kData, channel);
  }
  int pollable() const override { return cluster_->pollable(); }
  Status look() override { return cluster_->serve(); }
  std::string describe(int rank) const override { return cluster_->describe(rank); }

 private:
  std::shared_ptr<Cluster> cluster_;
};

Result<int64_t> deadline_of(const ConnectOptions& options) {
  if (options.connect_timeout) {
    const int64_t milliseconds = options.connect_timeout->count();
    if (milliseconds > 0 && milliseconds <= 86'400'000) return monotonic_ns() + milliseconds * 1'000'000;
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("connect_timeout of {} ms: expected 1 ms to one day", milliseconds));
  }
  auto seconds = environment_seconds("HCCL_CONNECT_TIMEOUT", 1, 7200);
  if (!seconds.ok()) return seconds.status();
  return monotonic_ns() + seconds->count() * 1'000'000'000;
}

}  // namespace

Result<std::shared_ptr<Cluster>> join_cluster(ConnectOptions& options) {
  auto place = find_meeting_place(options);
  if (!place.ok()) return place.status();
  if (!*place) return std::shared_ptr<Cluster>();
  auto deadline = deadline_of(options);
  if (!deadline.ok()) return deadline.status();
  auto joined = Cluster::join(
      **place, {options.rank, options.world_size, (*place)->job, *deadline, options.interrupted});
  if (!joined.ok()) return joined.status();
  std::shared_ptr<Cluster> cluster = std::move(*joined);
  if (cluster->hosts().size() > 1) return cluster;
  options.job_id = cluster->local_job();
  return std::shared_ptr<Cluster>();
}

JobHosts hosts_of(const std::shared_ptr<Cluster>& cluster) {
  std::vector<int> host_of;
  for (const ClusterMember& member : cluster->members()) host_of.push_back(member.host);
  return JobHosts::of(std::move(host_of), cluster->rank(), std::make_shared<ClusterConnector>(cluster));
}

ConnectOptions local_options(const Cluster& cluster, const ConnectOptions& options) {
  ConnectOptions local = options;
  local.rank = cluster.self().local_rank;
  local.world_size = cluster.local_size();
  local.job_id = cluster.local_job();
  return local;
}

}  // namespace collective_ops
