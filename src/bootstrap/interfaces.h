// Which of this host's addresses and ports other hosts are told, by the variables that users of HCCL know.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <collective_ops/status.h>

#include "bootstrap/address.h"

namespace collective_ops {

struct InterfaceAddress {
  std::string interface;
  SocketAddress address;
};

// All addresses of the interfaces that are up, loopback too; in the kernel's order.
std::vector<InterfaceAddress> interface_addresses();

// "eth0 10.0.0.1, docker0 172.17.0.1, lo 127.0.0.1", for texts.
std::string describe_interfaces();

struct OwnAddresses {
  // Best first, without a port. Loopback only where the variables name it.
  std::vector<SocketAddress> addresses;
  bool chosen = false;     // by HCCL_IF_IP or HCCL_SOCKET_IFNAME: no other may be used
  SocketAddress only;      // HCCL_IF_IP; else empty
  int family = AF_UNSPEC;  // HCCL_SOCKET_FAMILY
};

// HCCL_IF_IP, else HCCL_SOCKET_IFNAME, else all that are up and no loopback: those of containers and bridges
// (docker0 ...) and link-local ones come last. kInvalidArgument where a variable fits nothing here; the text
// lists what there is.
Result<OwnAddresses> own_addresses();

// The same addresses with those first by which a peer was reached: `route` is our end of a connection.
std::vector<SocketAddress> prefer_route(const OwnAddresses& own, const SocketAddress& route);

// "eth" and "eth,ib": names that begin so; "=eth0": these exactly; "^docker,lo" and "^=eth0": all but these.
bool interface_matches(std::string_view pattern, std::string_view name);

// Ports to listen on: HCCL_HOST_SOCKET_PORT_RANGE ("60000-60031,61000"), else HCCL_IF_BASE_PORT and the
// 31 behind it, else {0}, any. kInvalidArgument names the variable.
Result<std::vector<uint16_t>> own_ports();

}  // namespace collective_ops
