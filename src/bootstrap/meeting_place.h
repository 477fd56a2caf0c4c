// Where the ranks of a job on several hosts meet: where rank 0 is found, or by what it tells the others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <collective_ops/communicator.h>
#include <collective_ops/hosts.h>
#include <collective_ops/status.h>

namespace collective_ops {

// Exactly one of the three ways is used: the first that is set, in this order.
struct MeetingPlace {
  std::string root_info;                 // made by create_root_info() on rank 0
  std::shared_ptr<KeyValueStore> store;  // rank 0 writes its root info there
  // Rank 0's host by name or number, and the ports of which it takes the first that is free. The others try
  // them in turn until one of them proves to be rank 0 of this job.
  std::string root_host;
  std::vector<uint16_t> root_ports;

  // Of this rank, where a rank table gives them: the address that others are told, if this host has it, and
  // the port to listen on.
  std::string own_host;
  std::optional<uint16_t> own_port;

  bool several_hosts = false;  // known before anybody is asked
  std::string job;             // ClusterOptions::job
  std::string origin;          // for texts: "MASTER_ADDR=node1, MASTER_PORT=29500", "the rank table /x.json"
};

// How the ranks of `options` meet; nothing where they join on this host alone (rendezvous.h). The first of
//   options.root_info, options.store, options.rank_table;
//   one rank, options.one_host, or a launcher that says all are on this host: nothing;
//   RANK_TABLE_FILE; MASTER_ADDR and MASTER_PORT; msrun's MS_SCHED_HOST and MS_SCHED_PORT; the first host of
//   Slurm's step: those of the loopback address, like none at all, mean this host alone.
// Rank 0 listens on the first free one of the sixteen ports behind MASTER_PORT, which itself is PyTorch's; or
// on one of HCCL_HOST_SOCKET_PORT_RANGE or HCCL_IF_BASE_PORT.
//   kInvalidArgument  variables or a file that cannot be used
//   kRendezvous       ranks on several hosts, and rank 0's address is not given, or is loopback
Result<std::optional<MeetingPlace>> find_meeting_place(const ConnectOptions& options);

}  // namespace collective_ops
