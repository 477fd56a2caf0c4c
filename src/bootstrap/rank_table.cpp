#include "bootstrap/rank_table.h"

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bootstrap/address.h"

namespace collective_ops {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxRanks = 1 << 20;
constexpr int64_t kMaxFile = 256 << 20;  // bytes

Status invalid(const std::string& text) { return Status(ErrorCode::kInvalidArgument, text); }

// Members are looked up in objects alone; nullptr where there is none.
const Json* member(const Json& object, const char* name) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(name);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::optional<int64_t> number(const Json* value) {
  if (value == nullptr) return std::nullopt;
  if (value->is_number_integer()) return value->get<int64_t>();
  if (!value->is_string()) return std::nullopt;
  const std::string& text = value->get_ref<const std::string&>();
  int64_t result = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), result);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return result;
}

std::string text(const Json* value) {
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  if (value->is_number_integer()) return std::to_string(value->get<int64_t>());
  return "";
}

bool is_address(const std::string& text) { return SocketAddress::parse(text).ok(); }

Result<std::optional<uint16_t>> host_port(const Json& object, const std::string& where) {
  const Json* value = member(object, "host_port");
  if (value == nullptr) return std::optional<uint16_t>();
  const auto port = number(value);
  if (port && *port >= 1 && *port <= 65535) return std::optional(static_cast<uint16_t>(*port));
  return invalid(fmt::format("{}.host_port {}: expected a port from 1 to 65535", where, value->dump()));
}

// Ranks as they come, in any order; each once, from 0 on.
class Ranks {
 public:
  Status add(const Json& object, const std::string& where, TableRank rank) {
    const Json* value = member(object, "rank_id");
    const auto id = number(value);
    if (!id || *id < 0 || *id >= kMaxRanks) {
      return invalid(fmt::format("{}.rank_id {}: expected a number from 0 on", where,
                                 value == nullptr ? "is missing" : value->dump()));
    }
    auto port = host_port(object, where);
    if (!port.ok()) return port.status();
    rank.port = *port;
    if (!by_id_.emplace(*id, std::move(rank)).second) {
      return invalid(fmt::format("{}.rank_id {}: another entry has the same", where, *id));
    }
    return Status();
  }

  Result<RankTable> finish(const std::string& version) {
    if (by_id_.empty()) return invalid("it lists no rank");
    RankTable table;
    table.version = version;
    std::set<std::string> servers;
    for (auto& [id, rank] : by_id_) {
      if (id != static_cast<int64_t>(table.ranks.size())) {
        return invalid(fmt::format("it lists {} ranks, and rank_id {} is missing: expected 0 to {}",
                                   by_id_.size(), table.ranks.size(), by_id_.size() - 1));
      }
      servers.insert(rank.server);
      table.ranks.push_back(std::move(rank));
    }
    table.servers = static_cast<int>(servers.size());
    return table;
  }

 private:
  std::map<int64_t, TableRank> by_id_;
};

// Where a field counts the entries of a list, it shall be right.
Status check_count(const Json& object, const char* name, size_t count) {
  const Json* value = member(object, name);
  if (value == nullptr || number(value) == static_cast<int64_t>(count)) return Status();
  return invalid(fmt::format("{} is {}, and {} are listed", name, value->dump(), count));
}

// server_list: versions 1.0 and 1.2.
Result<RankTable> read_servers(const Json& root, const std::string& version) {
  const Json* servers = member(root, "server_list");
  if (servers == nullptr || !servers->is_array()) return invalid("server_list is missing: expected a list");
  if (Status status = check_count(root, "server_count", servers->size()); !status.ok()) return status;
  Ranks ranks;
  for (size_t i = 0; i < servers->size(); ++i) {
    const Json& server = (*servers)[i];
    const std::string where = fmt::format("server_list[{}]", i);
    TableRank rank;
    rank.server = text(member(server, "server_id"));
    if (rank.server.empty()) return invalid(where + ".server_id is missing");
    rank.host = text(member(server, "host_ip"));
    if (!is_address(rank.host)) rank.host = is_address(rank.server) ? rank.server : "";
    const Json* devices = member(server, "device");
    if (devices == nullptr || !devices->is_array())
      return invalid(where + ".device is missing: expected a list");
    for (size_t j = 0; j < devices->size(); ++j) {
      Status status = ranks.add((*devices)[j], fmt::format("{}.device[{}]", where, j), rank);
      if (!status.ok()) return status;
    }
  }
  return ranks.finish(version);
}

// Where the ranks of one server are told by the lowest layer, and the host's own address among those of any.
Status read_levels(const Json& entry, const std::string& where, TableRank& rank) {
  const Json* levels = member(entry, "level_list");
  if (levels == nullptr || !levels->is_array())
    return invalid(where + ".level_list is missing: expected a list");
  int64_t lowest = INT64_MAX;
  for (const Json& level : *levels) {
    const int64_t layer = number(member(level, "net_layer")).value_or(INT64_MAX - 1);
    if (layer < lowest) {
      lowest = layer;
      rank.server = text(member(level, "net_instance_id"));
    }
    const Json* addresses = member(level, "rank_addr_list");
    if (addresses == nullptr || !addresses->is_array()) continue;
    for (const Json& address : *addresses) {
      const std::string type = text(member(address, "addr_type"));
      const std::string value = text(member(address, "addr"));
      if ((type == "IPv4" || type == "IPV4" || type == "IPv6" || type == "IPV6") && is_address(value)) {
        rank.host = value;
      }
    }
  }
  return Status();
}

// rank_list: version 2.0.
Result<RankTable> read_ranks(const Json& root, const std::string& version) {
  const Json* list = member(root, "rank_list");
  if (list == nullptr || !list->is_array()) return invalid("rank_list is missing: expected a list");
  if (Status status = check_count(root, "rank_count", list->size()); !status.ok()) return status;
  Ranks ranks;
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("rank_list[{}]", i);
    TableRank rank;
    if (Status status = read_levels((*list)[i], where, rank); !status.ok()) return status;
    if (Status status = ranks.add((*list)[i], where, std::move(rank)); !status.ok()) return status;
  }
  return ranks.finish(version);
}

}  // namespace

Result<RankTable> parse_rank_table(std::string_view json) {
  const Json root = Json::parse(json.begin(), json.end(), nullptr, false);
  if (root.is_discarded() || !root.is_object())
    return invalid("it is no JSON object (comments are not allowed)");
  const std::string version = text(member(root, "version"));
  const std::string status = text(member(root, "status"));
  if (!status.empty() && status != "completed") {
    return invalid(
        fmt::format("its status is \"{}\": it is still being written; start the ranks once it is "
                    "\"completed\"",
                    status));
  }
  if (version == "1.0" || version == "1.2") return read_servers(root, version);
  if (version == "2.0") return read_ranks(root, version);
  if (member(root, "group_list") != nullptr) {
    return invalid("it is the old form with group_list; write it as version 1.0, with server_list");
  }
  return invalid(fmt::format("version \"{}\": expected 1.0, 1.2 or 2.0", version));
}

Result<RankTable> read_rank_table(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return invalid(fmt::format("rank table {}: {}", path, std::strerror(errno)));
  if (file.tellg() < 0 || file.tellg() > kMaxFile)
    return invalid(fmt::format("rank table {}: no such size", path));
  file.seekg(0);
  std::ostringstream content;
  content << file.rdbuf();
  auto table = parse_rank_table(content.str());
  if (!table.ok()) {
    return Status(table.status().code(), fmt::format("rank table {}: {}", path, table.status().message()));
  }
  return table;
}

}  // namespace collective_ops
