#include "bootstrap/interfaces.h"

#include <ifaddrs.h>
#include <net/if.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include <fmt/format.h>

#include "base/environment.h"

namespace collective_ops {
namespace {

constexpr int kPortsFromBase = 32;
constexpr uint16_t kHighestBase = 65520;  // as HCCL has it
constexpr size_t kMaxPorts = 4096;
constexpr uint16_t kLowestPort = 1024;

// Bridges and ends of containers: other hosts cannot reach them, or only by chance.
constexpr std::array kLocalNames = {"docker", "br-", "virbr", "veth",   "cni",   "flannel",
                                    "cali",   "lxc", "lxdbr", "podman", "kube-", "dummy"};

bool is_local_name(std::string_view name) {
  return std::any_of(kLocalNames.begin(), kLocalNames.end(),
                     [name](const char* prefix) { return name.starts_with(prefix); });
}

std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    if (comma > 0) parts.push_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

Status invalid(std::string_view variable, const std::string& value, const std::string& why) {
  return Status(ErrorCode::kInvalidArgument, fmt::format("{}=\"{}\": {}", variable, value, why));
}

Result<int> wanted_family() {
  const std::string text = environment_text("HCCL_SOCKET_FAMILY");
  if (text.empty()) return AF_UNSPEC;
  if (text == "AF_INET") return AF_INET;
  if (text == "AF_INET6") return AF_INET6;
  return invalid("HCCL_SOCKET_FAMILY", text, "expected AF_INET or AF_INET6");
}

Result<OwnAddresses> by_address(const std::string& text, OwnAddresses own) {
  auto address = SocketAddress::parse(text);
  if (!address.ok()) return invalid("HCCL_IF_IP", text, address.status().message());
  const auto all = interface_addresses();
  const auto found = std::find_if(all.begin(), all.end(), [&](const InterfaceAddress& entry) {
    return entry.address.same_host(*address);
  });
  if (found == all.end()) {
    return invalid(
        "HCCL_IF_IP", text,
        fmt::format("no interface of this host that is up has it; there are {}", describe_interfaces()));
  }
  if (own.family != AF_UNSPEC && own.family != address->family()) {
    return invalid("HCCL_IF_IP", text, "it is not of the family that HCCL_SOCKET_FAMILY names");
  }
  own.addresses = {found->address};
  own.only = found->address;
  own.chosen = true;
  return own;
}

// Lower is better.
int order_of(const InterfaceAddress& entry) {
  return (is_local_name(entry.interface) ? 2 : 0) + (entry.address.is_link_local() ? 1 : 0);
}

std::optional<uint16_t> port_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value < kLowestPort || value > 65535) return std::nullopt;
  return static_cast<uint16_t>(value);
}

Result<std::vector<uint16_t>> ports_of_range(const std::string& text) {
  std::vector<uint16_t> ports;
  for (const std::string_view part : split(text)) {
    const size_t dash = part.find('-');
    const auto first = port_number(part.substr(0, dash));
    const auto last = dash == std::string_view::npos ? first : port_number(part.substr(dash + 1));
    if (!first || !last || *first > *last || ports.size() + (*last - *first + 1) > kMaxPorts) {
      return invalid("HCCL_HOST_SOCKET_PORT_RANGE", text,
                     fmt::format("expected ports from {} to 65535 such as 60000-60031,61000, at most {}",
                                 kLowestPort, kMaxPorts));
    }
    for (int port = *first; port <= *last; ++port) ports.push_back(static_cast<uint16_t>(port));
  }
  if (ports.empty()) return invalid("HCCL_HOST_SOCKET_PORT_RANGE", text, "it names no port");
  return ports;
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> result;
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return result;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const SocketAddress address(entry->ifa_addr,
                                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    result.push_back({entry->ifa_name, address});
  }
  ::freeifaddrs(first);
  return result;
}

std::string describe_interfaces() {
  std::string text;
  for (const auto& [interface, address] : interface_addresses()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", interface, address.host());
  }
  return text.empty() ? "none" : text;
}

bool interface_matches(std::string_view pattern, std::string_view name) {
  const bool without = pattern.starts_with('^');
  if (without) pattern.remove_prefix(1);
  const bool exact = pattern.starts_with('=');
  if (exact) pattern.remove_prefix(1);
  const auto names = split(pattern);
  const bool found = std::any_of(names.begin(), names.end(), [&](std::string_view entry) {
    return exact ? name == entry : name.starts_with(entry);
  });
  return found != without;
}

Result<OwnAddresses> own_addresses() {
  OwnAddresses own;
  auto family = wanted_family();
  if (!family.ok()) return family.status();
  own.family = *family;
  if (const std::string text = environment_text("HCCL_IF_IP"); !text.empty()) return by_address(text, own);

  const std::string pattern = environment_text("HCCL_SOCKET_IFNAME");
  own.chosen = !pattern.empty();
  std::vector<InterfaceAddress> usable = interface_addresses();
  std::erase_if(usable, [&](const InterfaceAddress& entry) {
    if (own.family != AF_UNSPEC && entry.address.family() != own.family) return true;
    if (own.chosen) return !interface_matches(pattern, entry.interface);
    return entry.address.is_loopback();
  });
  // "^docker" means what is not docker, and that is not meant to be loopback.
  if (pattern.starts_with('^')) {
    std::erase_if(usable, [](const InterfaceAddress& entry) { return entry.address.is_loopback(); });
  }
  if (own.chosen && usable.empty()) {
    return invalid("HCCL_SOCKET_IFNAME", pattern,
                   fmt::format("no interface of this host that is up fits{}; there are {}",
                               own.family == AF_UNSPEC ? "" : " and has an address of HCCL_SOCKET_FAMILY",
                               describe_interfaces()));
  }
  std::stable_sort(usable.begin(), usable.end(), [](const InterfaceAddress& a, const InterfaceAddress& b) {
    return order_of(a) < order_of(b);
  });
  for (const auto& entry : usable) own.addresses.push_back(entry.address);
  return own;
}

std::vector<SocketAddress> prefer_route(const OwnAddresses& own, const SocketAddress& route) {
  std::vector<SocketAddress> addresses = own.addresses;
  const auto found = std::find_if(addresses.begin(), addresses.end(),
                                  [&](const SocketAddress& address) { return address.same_host(route); });
  if (found != addresses.end()) std::rotate(addresses.begin(), found, found + 1);
  return addresses;
}

Result<std::vector<uint16_t>> own_ports() {
  const std::string range = environment_text("HCCL_HOST_SOCKET_PORT_RANGE");
  if (!range.empty() && range != "auto") return ports_of_range(range);
  const std::string base = environment_text("HCCL_IF_BASE_PORT");
  if (base.empty()) return std::vector<uint16_t>{0};
  const auto first = port_number(base);
  if (!first || *first > kHighestBase) {
    return invalid("HCCL_IF_BASE_PORT", base,
                   fmt::format("expected a port from {} to {}", kLowestPort, kHighestBase));
  }
  std::vector<uint16_t> ports;
  for (int port = *first; port < *first + kPortsFromBase && port <= 65535; ++port) {
    ports.push_back(static_cast<uint16_t>(port));
  }
  return ports;
}

}  // namespace collective_ops
