// What was read of some ranks, kept in one small file: hosts read their own ranks' profiles, and one place
// joins the shards. The result is that of one reading of all profiles.
#pragma once

#include <filesystem>
#include <vector>

#include <collective_ops/status.h>

#include "analysis/profile_set.h"

namespace collective_ops {

// An SQLite file, whole or not at all. It can be read by the version that wrote it.
Status write_shard(ProfileSet* set, const std::filesystem::path& path);

// A shard that is damaged, and a rank that an earlier shard has, are problems of the set. kInvalidArgument:
// nothing in them can be used.
Result<ProfileSet> read_shards(const std::vector<std::filesystem::path>& paths);

}  // namespace collective_ops
