#include "bootstrap/meeting_place.h"

#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/environment.h"
#include "bootstrap/address.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/launch.h"
#include "bootstrap/rank_table.h"

namespace collective_ops {
namespace {

constexpr int kRootPorts = 16;
constexpr uint16_t kTablePort = 60000;  // of rank tables that name none, as HCCL's

std::string variable(std::string_view name) { return environment_text(name); }

// Those that the variables name, else `count` from `first` on.
Result<std::vector<uint16_t>> root_ports(int first, int count) {
  auto ports = own_ports();
  if (!ports.ok() || ports->front() != 0) return ports;
  ports->clear();
  for (int port = first; port < first + count && port <= 65535; ++port) {
    ports->push_back(static_cast<uint16_t>(port));
  }
  return ports;
}

Result<std::optional<MeetingPlace>> by_table(const std::string& path, const ConnectOptions& options,
                                             MeetingPlace meeting) {
  auto table = read_rank_table(path);
  if (!table.ok()) return table.status();
  meeting.origin = fmt::format("the rank table {}", path);
  if (table->ranks.size() != static_cast<size_t>(options.world_size)) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("rank table {}: it lists {} ranks, and this job has {}", path,
                              table->ranks.size(), options.world_size));
  }
  if (table->servers == 1) return std::optional<MeetingPlace>();
  const TableRank& root = table->ranks[0];
  const TableRank& own = table->ranks[static_cast<size_t>(options.rank)];
  if (root.host.empty()) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("rank table {}: it has no address of rank 0's host, by which the others could reach "
                    "it; add host_ip to its server (version 2.0: an address of addr_type IPv4)",
                    path));
  }
  meeting.several_hosts = true;
  meeting.root_host = root.host;
  auto ports = root_ports(root.port.value_or(kTablePort), root.port ? 1 : kRootPorts);
  if (!ports.ok()) return ports.status();
  meeting.root_ports = root.port ? std::vector{*root.port} : std::move(*ports);
  meeting.own_host = own.host;
  meeting.own_port = own.port;
  return std::optional(std::move(meeting));
}

bool is_own_name(const std::string& name) {
  char own[256] = {};
  if (::gethostname(own, sizeof(own) - 1) != 0) return false;
  const std::string_view mine = own;
  return name.substr(0, name.find('.')) == mine.substr(0, mine.find('.'));
}

enum class Reach { kNetwork, kLoopback, kLoopbackByName };

// A name without an address may get one later.
Reach reach_of(const std::string& host) {
  if (auto number = SocketAddress::parse(host); number.ok()) {
    return number->is_loopback() ? Reach::kLoopback : Reach::kNetwork;
  }
  if (host == "localhost") return Reach::kLoopback;
  auto found = resolve(host, 0);
  if (!found.ok()) return Reach::kNetwork;
  const bool only = std::all_of(found->begin(), found->end(),
                                [](const SocketAddress& address) { return address.is_loopback(); });
  return only ? Reach::kLoopbackByName : Reach::kNetwork;
}

Status loopback_refused(const RootPlace& root, Reach reach) {
  return Status(
      ErrorCode::kRendezvous,
      fmt::format(
          "joining at {}: {}, by which a host reaches only itself, and the ranks are on several hosts. {} "
          "This host has {}",
          root.origin,
          reach == Reach::kLoopback ? "this is the loopback address"
                                    : "this host maps the name to the loopback address (/etc/hosts?)",
          reach == Reach::kLoopback
              ? "Set MASTER_ADDR to an address or name of rank 0's host that the others reach."
              : "Correct that, or set MASTER_ADDR to the address itself.",
          describe_interfaces()));
}

// What launchers know counts where they mean this world.
Result<std::optional<Launched>> launched_world(const ConnectOptions& options) {
  auto launched = find_launched(variable);
  if (launched.ok() && *launched && (*launched)->world_size != options.world_size) launched->reset();
  return launched;
}

Result<std::optional<MeetingPlace>> by_launcher(const ConnectOptions& options, MeetingPlace meeting) {
  auto launched = launched_world(options);
  if (!launched.ok()) return launched.status();
  if (*launched && (*launched)->on_one_host()) return std::optional<MeetingPlace>();
  meeting.several_hosts = *launched && (*launched)->on_several_hosts();
  auto root = find_root_place(variable);
  if (!root.ok()) return root.status();
  if (!*root) {
    if (!meeting.several_hosts) return std::optional<MeetingPlace>();
    return Status(
        ErrorCode::kRendezvous,
        fmt::format("the {} ranks are on several hosts ({} says so), and nothing says where rank 0 is: "
                    "export MASTER_ADDR, a name or address of its host, and MASTER_PORT to all ranks",
                    options.world_size, (*launched)->launcher));
  }
  const Reach reach = reach_of((*root)->host);
  if (reach != Reach::kNetwork) {
    if (!meeting.several_hosts) return std::optional<MeetingPlace>();
    // Debian maps a host's own name to 127.0.1.1: on rank 0's host that does no harm.
    const bool at_home = is_own_name((*root)->host) ||
                         (*launched && (*launched)->local_size > 0 && options.rank < (*launched)->local_size);
    if (reach == Reach::kLoopback || !at_home) return loopback_refused(**root, reach);
  }
  auto ports = root_ports((*root)->port + 1, kRootPorts);
  if (!ports.ok()) return ports.status();
  meeting.root_host = (*root)->host;
  meeting.root_ports = std::move(*ports);
  meeting.origin = (*root)->origin;
  meeting.job = fmt::format("{} port {}", meeting.job, (*root)->port);
  return std::optional(std::move(meeting));
}

}  // namespace

Result<std::optional<MeetingPlace>> find_meeting_place(const ConnectOptions& options) {
  MeetingPlace meeting;
  meeting.job = options.job_id.empty() ? launched_job(variable) : "id " + options.job_id;
  if (!options.root_info.empty()) {
    meeting.root_info = options.root_info;
    meeting.job = options.job_id;  // the text is the job's own, whatever launched its ranks
    meeting.origin = "the root info";
    return std::optional(std::move(meeting));
  }
  if (options.store) {
    meeting.store = options.store;
    meeting.origin = "the key-value store";
    return std::optional(std::move(meeting));
  }
  if (!options.rank_table.empty()) return by_table(options.rank_table, options, std::move(meeting));
  if (options.world_size == 1 || options.one_host) return std::optional<MeetingPlace>();
  if (const std::string path = environment_text("RANK_TABLE_FILE"); !path.empty()) {
    return by_table(path, options, std::move(meeting));
  }
  return by_launcher(options, std::move(meeting));
}

}  // namespace collective_ops
