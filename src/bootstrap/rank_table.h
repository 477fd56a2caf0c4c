// Rank tables: JSON files that list the ranks of a job and where they are. Versions 1.0, 1.2 (with super
// pods) and 2.0; numbers may be written as such or as strings.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <collective_ops/status.h>

namespace collective_ops {

struct TableRank {
  std::string server;            // equal for the ranks of one server
  std::string host;              // an address of its host; "" where the table has none
  std::optional<uint16_t> port;  // host_port
};

struct RankTable {
  std::string version;
  std::vector<TableRank> ranks;  // by rank
  int servers = 0;
};

// kInvalidArgument: what is no such table, with the place in it and what was expected there.
Result<RankTable> parse_rank_table(std::string_view json);
// The same of a file; the text names it.
Result<RankTable> read_rank_table(const std::string& path);

}  // namespace collective_ops
