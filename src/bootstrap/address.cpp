#include "bootstrap/address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>

namespace collective_ops {
namespace {

const sockaddr_in& v4(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in&>(storage);
}
const sockaddr_in6& v6(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6&>(storage);
}

std::string scope_name(uint32_t scope) {
  char name[IF_NAMESIZE] = {};
  return ::if_indextoname(scope, name) != nullptr ? name : std::to_string(scope);
}

// "eth0" or "2"; 0 where there is no such interface.
uint32_t scope_of(const std::string& text) {
  if (const unsigned index = ::if_nametoindex(text.c_str()); index != 0) return index;
  uint32_t index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  return error == std::errc() && end == text.data() + text.size() ? index : 0;
}

}  // namespace

// An IPv4 address that an IPv6 socket shows ("::ffff:10.0.0.1") is that IPv4 address.
SocketAddress::SocketAddress(const sockaddr* address, socklen_t length) {
  if (address->sa_family == AF_INET && length >= sizeof(sockaddr_in)) {
    std::memcpy(&storage_, address, sizeof(sockaddr_in));
    length_ = sizeof(sockaddr_in);
    return;
  }
  if (address->sa_family != AF_INET6 || length < sizeof(sockaddr_in6)) return;
  sockaddr_in6 six{};
  std::memcpy(&six, address, sizeof(six));
  if (!IN6_IS_ADDR_V4MAPPED(&six.sin6_addr)) {
    std::memcpy(&storage_, &six, sizeof(six));
    length_ = sizeof(six);
    return;
  }
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = six.sin6_port;
  std::memcpy(&four.sin_addr, six.sin6_addr.s6_addr + 12, 4);
  std::memcpy(&storage_, &four, sizeof(four));
  length_ = sizeof(four);
}

Result<SocketAddress> SocketAddress::parse(std::string_view given, uint16_t port) {
  std::string text(given);
  if (text.size() > 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_port = htons(port);
  if (::inet_pton(AF_INET, text.c_str(), &four.sin_addr) == 1) {
    return SocketAddress(reinterpret_cast<const sockaddr*>(&four), sizeof(four));
  }
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  const size_t percent = text.find('%');
  if (::inet_pton(AF_INET6, text.substr(0, percent).c_str(), &six.sin6_addr) != 1) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("\"{}\" is no internet address: expected one such as 10.0.0.1, fd00::1 or "
                              "fe80::1%eth0",
                              given));
  }
  if (percent != std::string::npos) {
    six.sin6_scope_id = scope_of(text.substr(percent + 1));
    if (six.sin6_scope_id == 0) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("\"{}\": this host has no interface {}", given, text.substr(percent + 1)));
    }
  }
  return SocketAddress(reinterpret_cast<const sockaddr*>(&six), sizeof(six));
}

SocketAddress SocketAddress::any(int family, uint16_t port) {
  sockaddr_storage storage{};
  storage.ss_family = static_cast<sa_family_t>(family);
  const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), length).with_port(port);
}

SocketAddress SocketAddress::loopback(int family, uint16_t port) {
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_loopback;
  const bool is_six = family == AF_INET6;
  const auto* address = is_six ? reinterpret_cast<const sockaddr*>(&six) : reinterpret_cast<sockaddr*>(&four);
  return SocketAddress(address, is_six ? sizeof(six) : sizeof(four)).with_port(port);
}

uint16_t SocketAddress::port() const {
  if (empty()) return 0;
  return ntohs(family() == AF_INET ? v4(storage_).sin_port : v6(storage_).sin6_port);
}

SocketAddress SocketAddress::with_port(uint16_t port) const {
  SocketAddress result = *this;
  if (family() == AF_INET) reinterpret_cast<sockaddr_in&>(result.storage_).sin_port = htons(port);
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(result.storage_).sin6_port = htons(port);
  return result;
}

uint32_t SocketAddress::scope() const { return family() == AF_INET6 ? v6(storage_).sin6_scope_id : 0; }

SocketAddress SocketAddress::with_scope(uint32_t scope) const {
  SocketAddress result = *this;
  if (family() == AF_INET6) reinterpret_cast<sockaddr_in6&>(result.storage_).sin6_scope_id = scope;
  return result;
}

bool SocketAddress::is_loopback() const {
  if (family() == AF_INET) return ntohl(v4(storage_).sin_addr.s_addr) >> 24 == 127;
  return family() == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6(storage_).sin6_addr);
}

bool SocketAddress::is_link_local() const {
  if (family() == AF_INET) return ntohl(v4(storage_).sin_addr.s_addr) >> 16 == 0xA9FE;
  return family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&v6(storage_).sin6_addr);
}

bool SocketAddress::is_any() const {
  if (family() == AF_INET) return v4(storage_).sin_addr.s_addr == 0;
  return family() == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6(storage_).sin6_addr);
}

bool SocketAddress::same_host(const SocketAddress& other) const {
  if (empty() || family() != other.family()) return false;
  if (family() == AF_INET) return v4(storage_).sin_addr.s_addr == v4(other.storage_).sin_addr.s_addr;
  return IN6_ARE_ADDR_EQUAL(&v6(storage_).sin6_addr, &v6(other.storage_).sin6_addr);
}

std::string SocketAddress::host() const {
  if (empty()) return "no address";
  char text[INET6_ADDRSTRLEN] = {};
  if (family() == AF_INET) return ::inet_ntop(AF_INET, &v4(storage_).sin_addr, text, sizeof(text));
  ::inet_ntop(AF_INET6, &v6(storage_).sin6_addr, text, sizeof(text));
  const uint32_t scope = v6(storage_).sin6_scope_id;
  return scope == 0 ? text : fmt::format("{}%{}", text, scope_name(scope));
}

std::string SocketAddress::with_port() const {
  return family() == AF_INET6 ? fmt::format("[{}]:{}", host(), port()) : fmt::format("{}:{}", host(), port());
}

Result<std::vector<SocketAddress>> resolve(const std::string& name, uint16_t port, int family) {
  if (auto number = SocketAddress::parse(name, port); number.ok()) return std::vector{*number};
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return Status(
        ErrorCode::kRendezvous,
        fmt::format("the name \"{}\" has no address on this host: {}. Is it spelled right, and does "
                    "/etc/hosts or the name server know it? An address does instead of a name",
                    name, error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    const SocketAddress address = SocketAddress(entry->ai_addr, entry->ai_addrlen).with_port(port);
    const auto same = [&](const SocketAddress& other) { return other.same_host(address); };
    if (!address.empty() && std::none_of(addresses.begin(), addresses.end(), same)) {
      addresses.push_back(address);
    }
  }
  ::freeaddrinfo(found);
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const SocketAddress& address) { return !address.is_loopback(); });
  return addresses;
}

SocketAddress local_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), length);
}

SocketAddress peer_address(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof(storage);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return {};
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), length);
}

}  // namespace collective_ops
