// Internet addresses with their port, as text and as the kernel wants them.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <collective_ops/status.h>

namespace collective_ops {

class SocketAddress {
 public:
  SocketAddress() = default;
  // Of AF_INET or AF_INET6; anything else yields an empty one.
  SocketAddress(const sockaddr* address, socklen_t length);

  // "10.0.0.1", "fe80::1%eth0", "[::1]"; no names. kInvalidArgument says what was expected.
  static Result<SocketAddress> parse(std::string_view text, uint16_t port = 0);
  static SocketAddress any(int family, uint16_t port = 0);
  static SocketAddress loopback(int family, uint16_t port);

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage_); }
  socklen_t length() const { return length_; }
  bool empty() const { return length_ == 0; }
  int family() const { return storage_.ss_family; }
  uint16_t port() const;
  SocketAddress with_port(uint16_t port) const;
  uint32_t scope() const;  // index of the interface that a link-local IPv6 address is of; 0: none
  SocketAddress with_scope(uint32_t scope) const;

  bool is_loopback() const;    // 127.0.0.0/8, ::1
  bool is_link_local() const;  // fe80::/10, 169.254.0.0/16
  bool is_any() const;
  bool same_host(const SocketAddress& other) const;  // the port left out

  std::string host() const;       // "10.0.0.1", "fe80::1%eth0"
  std::string with_port() const;  // "10.0.0.1:60000", "[fe80::1%eth0]:60000"

 private:
  sockaddr_storage storage_{};
  socklen_t length_ = 0;
};

// Of a name or a number, by the system's resolver (hosts file, DNS), loopback ones last. `family` AF_UNSPEC:
// both. kRendezvous where there is none, with the reason and what to look at. May block for as long as the
// resolver does (its own timeouts, seconds).
Result<std::vector<SocketAddress>> resolve(const std::string& name, uint16_t port, int family = AF_UNSPEC);

// The addresses of a connected or bound socket's two ends; empty where it has none.
SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);

}  // namespace collective_ops
