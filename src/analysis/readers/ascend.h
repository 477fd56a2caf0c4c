// A rank's directory as the Ascend PyTorch or MindSpore profiler leaves it (`..._ascend_pt`,
// `..._ascend_ms`), text or db export: step times, communication by operator and by link, groups, sizes of
// the parallelism.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include <collective_ops/status.h>

#include "analysis/profile.h"

namespace collective_ops {

bool is_ascend_directory(const std::filesystem::path& directory);

// From the content of profiler_info*.json, else from its name; nothing where neither says it.
std::optional<int> rank_of_ascend_directory(const std::filesystem::path& directory);

// kInvalidArgument: nothing in it can be used; the text says what to do. Missing and damaged files are notes.
Result<RankProfile> read_ascend_directory(const std::filesystem::path& directory, int rank);

// distributed_args and parallel_group_info, as profiler_metadata.json has them.
void read_ascend_metadata(std::string_view text, RankProfile* profile);

// The number that stands for a group's id in the profiler's files; "" stays "".
std::string ascend_group_hash(std::string_view id);

}  // namespace collective_ops
