#include "bootstrap/root_info.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <sstream>

#include <fmt/format.h>

namespace collective_ops {
namespace {

constexpr const char* kFormat = "collective-ops-root/1";
constexpr size_t kMaxText = 4000;
constexpr size_t kMaxAddresses = 16;
constexpr auto kStoreWait = std::chrono::milliseconds(1000);

struct OpenDoors {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Door>> by_text;
};

OpenDoors& open_doors() {
  static OpenDoors doors;
  return doors;
}

// Addresses that mean something to this process: loopback on rank 0's host alone, link-local ones with an
// interface of ours.
Result<DialTarget> target_from(const RootInfo& info, const OwnAddresses& own, const JobSecret& secret) {
  const bool here = info.host == host_tag();
  if (!here && secret.kind == JobSecret::Kind::kThisHost) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("rank 0 is on another host, and this process has no secret, without which only "
                              "ranks of one host join each other. {}",
                              kHowToGiveSecret));
  }
  DialTarget target;
  target.source = own.only;
  for (const SocketAddress& address : info.addresses) {
    if (address.is_loopback() && !here) continue;
    if (address.family() != AF_INET6 || !address.is_link_local()) {
      target.addresses.push_back(address);
      continue;
    }
    for (const SocketAddress& mine : own.addresses) {
      if (mine.scope() != 0) target.addresses.push_back(address.with_scope(mine.scope()));
    }
  }
  if (!target.addresses.empty()) return target;
  return Status(ErrorCode::kInvalidArgument,
                "rank 0 is on another host, and told of no address but loopback: its host has no network, or "
                "HCCL_SOCKET_IFNAME or HCCL_IF_IP name the wrong interface there");
}

}  // namespace

std::string root_info_text(const RootInfo& info) {
  std::string text = fmt::format("{} {} {}", kFormat, info.secret.empty() ? "-" : info.secret, info.host);
  for (const SocketAddress& address : info.addresses) {
    text += fmt::format(" {} {}", address.with_scope(0).host(), address.port());
  }
  return text;
}

Result<RootInfo> parse_root_info(const std::string& text) {
  const Status invalid(ErrorCode::kInvalidArgument,
                       "this is no root info: give what create_root_info() returned on rank 0, whole");
  std::istringstream words(text.size() <= kMaxText ? text : "");
  RootInfo info;
  std::string format, host;
  int port = 0;
  if (!(words >> format >> info.secret >> info.host) || format != kFormat) return invalid;
  if (info.secret == "-") info.secret.clear();
  while (words >> host >> port) {
    auto address = SocketAddress::parse(host, static_cast<uint16_t>(port));
    if (!address.ok() || port < 1 || port > 65535) return invalid;
    info.addresses.push_back(*address);
  }
  if (!words.eof() || info.addresses.empty()) return invalid;
  return info;
}

RootInfo root_info_of(const Door& door, const OwnAddresses& own, const std::string& secret) {
  RootInfo info{secret, host_tag(), {}};
  for (const SocketAddress& address : own.addresses) {
    if (info.addresses.size() < kMaxAddresses) info.addresses.push_back(address.with_port(door.port()));
  }
  if (door.any_address()) {
    info.addresses.push_back(SocketAddress::loopback(own.family, door.port()));
  }
  return info;
}

std::unique_ptr<Door> take_root_door(const std::string& text) {
  OpenDoors& doors = open_doors();
  const std::lock_guard lock(doors.mutex);
  const auto found = doors.by_text.find(text);
  if (found == doors.by_text.end()) return nullptr;
  auto door = std::move(found->second);
  doors.by_text.erase(found);
  return door;
}

std::string root_key(const std::string& job) { return fmt::format("collective_ops/root/{}", job); }

Result<DialTarget> root_target(const MeetingPlace& meeting, const std::string& job, const OwnAddresses& own,
                               const JobSecret& secret) {
  if (!meeting.root_info.empty()) {
    auto info = parse_root_info(meeting.root_info);
    if (!info.ok()) return info.status();
    return target_from(*info, own, secret);
  }
  if (meeting.store) {
    auto text = meeting.store->get(root_key(job), kStoreWait);
    if (!text.ok()) return text.status();
    auto info = parse_root_info(*text);
    if (!info.ok()) return info.status();
    return target_from(*info, own, secret);
  }
  auto found = resolve(meeting.root_host, 0, own.family);
  if (!found.ok()) return found.status();
  DialTarget target;
  target.search = true;
  target.source = own.only;
  for (const SocketAddress& address : *found) {
    if (own.family != AF_UNSPEC && address.family() != own.family) continue;
    for (const uint16_t port : meeting.root_ports) target.addresses.push_back(address.with_port(port));
  }
  if (!target.addresses.empty()) return target;
  return Status(
      ErrorCode::kInvalidArgument,
      fmt::format("{} has no address of the family that HCCL_SOCKET_FAMILY names", meeting.root_host));
}

Result<std::string> create_root_info() {
  auto own = own_addresses();
  if (!own.ok()) return own.status();
  auto ports = own_ports();
  if (!ports.ok()) return ports.status();
  auto door = Door::open({std::move(*ports), own->only, own->family}, 0);
  if (!door.ok()) return door.status();
  const std::string text = root_info_text(root_info_of(**door, *own, new_secret()));
  OpenDoors& doors = open_doors();
  const std::lock_guard lock(doors.mutex);
  doors.by_text[text] = std::move(*door);
  return text;
}

}  // namespace collective_ops
