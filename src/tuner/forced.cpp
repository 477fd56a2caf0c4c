#include "tuner/forced.h"

#include <algorithm>
#include <cctype>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "algorithms/algorithms.h"
#include "base/environment.h"

namespace collective_ops {
namespace {

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

struct OperationName {
  std::string_view name;
  Collective collective;
};
constexpr std::array kOperations = {
    OperationName{"allreduce", Collective::kAllReduce},
    OperationName{"allgather", Collective::kAllGather},
    OperationName{"broadcast", Collective::kBroadcast},
    OperationName{"reducescatter", Collective::kReduceScatter},
    OperationName{"reduce", Collective::kReduce},
    OperationName{"scatter", Collective::kScatter},
    OperationName{"alltoall", Collective::kAllToAll},
};

// Words of others, and the plans that are meant.
struct AlgorithmWord {
  std::string_view word;
  std::string_view plan;
};
constexpr std::array kHcclWords = {
    AlgorithmWord{"ring", "ring"}, AlgorithmWord{"h-d_r", "halving_doubling"},
    AlgorithmWord{"nhr", "nhr"},   AlgorithmWord{"nhr_v1", "nhr"},
    AlgorithmWord{"nb", "bruck"},  AlgorithmWord{"pairwise", "pairwise"},
};
// PAT's messages are those of nhr.
constexpr std::array kNcclWords = {AlgorithmWord{"ring", "ring"}, AlgorithmWord{"tree", "tree"},
                                   AlgorithmWord{"pat", "nhr"}};

std::string_view plan_of(std::span<const AlgorithmWord> words, std::string_view word) {
  for (const AlgorithmWord& one : words) {
    if (one.word == word) return one.plan;
  }
  return "";
}

// `operation` empty: all.
void set(AlgorithmNames& names, std::string_view operation, const std::string& algorithm) {
  for (const OperationName& one : kOperations) {
    if (operation.empty() || one.name == operation) names[static_cast<size_t>(one.collective)] = algorithm;
  }
}

}  // namespace

AlgorithmNames algorithms_of_hccl(std::string_view given) {
  AlgorithmNames names;
  const std::string text = lower_case(given);
  for (std::string_view entry : split(text, '/')) {
    std::string_view operation;
    if (const size_t equals = entry.find('='); equals != std::string_view::npos) {
      operation = entry.substr(0, equals);
      entry.remove_prefix(equals + 1);
    }
    for (const std::string_view level : split(entry, ';')) {
      constexpr std::string_view kLevel = "level1:";
      if (!level.starts_with(kLevel)) continue;
      const std::string_view plan = plan_of(kHcclWords, level.substr(kLevel.size()));
      if (!plan.empty()) set(names, operation, std::string(plan));
    }
  }
  return names;
}

AlgorithmNames algorithms_of_nccl(std::string_view given) {
  AlgorithmNames names;
  const std::string text = lower_case(given);
  for (std::string_view entry : split(text, ';')) {
    std::string_view operation;
    if (const size_t colon = entry.find(':'); colon != std::string_view::npos) {
      operation = entry.substr(0, colon);
      entry.remove_prefix(colon + 1);
    }
    for (const std::string_view algorithm : split(entry, ',')) {
      const std::string_view plan = plan_of(kNcclWords, algorithm);
      if (plan.empty()) continue;
      set(names, operation, std::string(plan));
      break;
    }
  }
  return names;
}

std::string Forced::text() const {
  return fmt::format("{};{};{};{};{}", algorithm, fmt::join(preferred, ","), strict,
                     table == nullptr ? "" : table->text(), plugin_file);
}

Result<Forced> forced_by_environment() {
  Forced forced;
  const std::string path = environment_text("COLLECTIVE_OPS_PATH");
  if (path == "staged") {
    forced.path = PathChoice::kStaged;
  } else if (path == "direct") {
    forced.path = PathChoice::kDirect;
  } else if (path == "read") {
    forced.path = PathChoice::kRead;
  } else if (path != "auto") {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("COLLECTIVE_OPS_PATH=\"{}\": expected auto, staged, direct or read", path));
  }
  forced.preferred = algorithms_of_hccl(environment_text("HCCL_ALGO"));
  if (environment_text("HCCL_ALGO").empty())
    forced.preferred = algorithms_of_nccl(environment_text("NCCL_ALGO"));
  forced.strict = lower_case(environment_text("HCCL_DETERMINISTIC")) == "strict";
  if (const std::string file = environment_text("COLLECTIVE_OPS_TUNING_TABLE"); !file.empty()) {
    auto table = Table::read(file);
    if (!table.ok()) return table.status();
    forced.table = std::make_shared<const Table>(std::move(*table));
  }
  forced.plugin_file = environment_text("COLLECTIVE_OPS_TUNER_PLUGIN");
  if (!forced.plugin_file.empty()) {
    auto plugin = Plugin::load(forced.plugin_file);
    if (!plugin.ok()) return plugin.status();
    forced.plugin = std::move(*plugin);
  }
  const std::string algorithm = environment_text("COLLECTIVE_OPS_ALGORITHM");
  if (algorithm == "auto") return forced;
  std::string known;
  for (const Algorithm& one : algorithms()) {
    if (one.name == algorithm) forced.algorithm = algorithm;
    if (known.find(one.name) == std::string::npos) known += fmt::format(", {}", one.name);
  }
  if (forced.algorithm.empty()) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("COLLECTIVE_OPS_ALGORITHM=\"{}\": expected auto{}", algorithm, known));
  }
  return forced;
}

}  // namespace collective_ops
