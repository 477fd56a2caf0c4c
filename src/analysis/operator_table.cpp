#include "analysis/operator_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

namespace collective_ops {
namespace {

constexpr uint32_t kNone = CallArguments::kNoName;
using Key = std::tuple<OperatorKind, std::string_view, std::string_view>;  // views live as long as the set

void add(const OperatorStatistics& from, OperatorRow* row) {
  row->min_ns = row->count == 0 ? from.min_ns : std::min(row->min_ns, from.min_ns);
  row->max_ns = std::max(row->max_ns, from.max_ns);
  row->count += from.count;
  row->total_ns += from.total_ns;
  row->squares += from.squares;
}

std::string_view type_of(const RankProfile& profile, const OperatorStatistics& statistics) {
  return statistics.type == kNone ? std::string_view() : profile.names[statistics.type];
}

void sort_and_share(std::vector<OperatorRow>* rows) {
  std::map<std::pair<OperatorKind, int>, double> whole;
  for (const OperatorRow& row : *rows) whole[{row.kind, row.rank}] += static_cast<double>(row.total_ns);
  for (OperatorRow& row : *rows) {
    const double sum = whole[{row.kind, row.rank}];
    row.share = sum > 0 ? static_cast<double>(row.total_ns) / sum : 0;
  }
  std::stable_sort(rows->begin(), rows->end(), [](const OperatorRow& a, const OperatorRow& b) {
    return std::tuple(a.rank, a.kind, -a.total_ns) < std::tuple(b.rank, b.kind, -b.total_ns);
  });
}

}  // namespace

double OperatorRow::deviation_ns() const {
  if (count < 2) return 0;
  const auto n = static_cast<double>(count);
  return std::sqrt(std::max(0.0, squares - n * mean_ns() * mean_ns()) / (n - 1));
}

std::string_view name_of(OperatorKind kind) {
  static constexpr std::array<std::string_view, 4> kNames = {"compute", "communication", "copy", "host"};
  return kNames[static_cast<size_t>(kind)];
}

std::vector<OperatorRow> operator_table(const ProfileSet& set) {
  std::map<Key, OperatorRow> rows;
  for (const RankProfile& profile : set.ranks) {
    std::map<Key, OperatorRow> own;  // windows of one rank are several statistics
    for (const OperatorStatistics& statistics : profile.operator_times) {
      add(statistics, &own[{statistics.kind, profile.names[statistics.name], type_of(profile, statistics)}]);
    }
    for (const auto& [key, part] : own) {
      OperatorRow& row = rows[key];
      if (row.count == 0 || part.total_ns < row.least_ns) {
        row.least_ns = part.total_ns, row.least_rank = profile.rank;
      }
      if (row.count == 0 || part.total_ns > row.most_ns) {
        row.most_ns = part.total_ns, row.most_rank = profile.rank;
      }
      add({0, kNone, part.kind, part.count, part.total_ns, part.min_ns, part.max_ns, part.squares}, &row);
    }
  }
  std::vector<OperatorRow> result;
  for (auto& [key, row] : rows) {
    std::tie(row.kind, row.name, row.type) = key;
    result.push_back(std::move(row));
  }
  sort_and_share(&result);
  return result;
}

std::vector<OperatorRow> compute_types(const ProfileSet& set) {
  std::map<std::pair<int, std::string_view>, OperatorRow> rows;
  for (const RankProfile& profile : set.ranks) {
    for (const OperatorStatistics& statistics : profile.operator_times) {
      if (statistics.kind != OperatorKind::kCompute) continue;
      // Profilers without types: each kernel is its own.
      const std::string_view type =
          statistics.type == kNone ? profile.names[statistics.name] : profile.names[statistics.type];
      for (const int rank : {-1, profile.rank}) add(statistics, &rows[{rank, type}]);
    }
  }
  std::vector<OperatorRow> result;
  for (auto& [key, row] : rows) {
    std::tie(row.rank, row.type) = key;
    result.push_back(std::move(row));
  }
  sort_and_share(&result);
  return result;
}

}  // namespace collective_ops
