// The processes of a job on several hosts, as groups see them.
#pragma once

#include <memory>

#include <collective_ops/communicator.h>

#include "bootstrap/cluster.h"
#include "communicator/job_hosts.h"

namespace collective_ops {

// Of `options`; nullptr where the ranks join on this host alone, as launchers' variables say, or as they turn
// out to be. Then `options` name the job by which they do. Errors of find_meeting_place() and
// Cluster::join().
Result<std::shared_ptr<Cluster>> join_cluster(ConnectOptions& options);

// What groups need of it. The connector keeps the cluster.
JobHosts hosts_of(const std::shared_ptr<Cluster>& cluster);

// For the ranks of this host to join each other.
ConnectOptions local_options(const Cluster& cluster, const ConnectOptions& options);

}  // namespace collective_ops
