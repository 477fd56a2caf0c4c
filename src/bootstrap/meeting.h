// Where the ranks of a job on several hosts meet: where rank 0 is found, or by what it tells the others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <collective_ops/hosts.h>
#include <collective_ops/status.h>

namespace collective_ops {

// Exactly one of the three ways is used: the first that is set, in this order.
struct Meeting {
  std::string root_info;                 // made by create_root_info() on rank 0
  std::shared_ptr<KeyValueStore> store;  // rank 0 writes its root info there
  // Rank 0's host by name or number, and the ports of which it takes the first that is free. The others try
  // them in turn until one of them proves to be rank 0 of this job.
  std::string root_host;
  std::vector<uint16_t> root_ports;

  // Of this rank, where given (a rank table's): the address and port to listen at.
  std::string own_host;
  std::optional<uint16_t> own_port;

  std::string origin;  // for texts: "MASTER_ADDR=node1, MASTER_PORT=29500", "rank table /x.json"
};

}  // namespace collective_ops
