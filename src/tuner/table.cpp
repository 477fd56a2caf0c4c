#include "tuner/table.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <tuple>

#include <fmt/format.h>

#include "algorithms/algorithms.h"

namespace collective_ops {

bool is_direct(std::string_view plan) { return plan == "direct" || plan == "push" || plan == "pull"; }

namespace {

constexpr std::string_view kFirstLine = "collective-ops tuning table 1";

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream stream(line.substr(0, line.find('#')));
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::optional<uint64_t> number(std::string_view text) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

bool is_plan(Collective collective, std::string_view name, bool shared) {
  if (name == "read") return !shared;
  const Plan* plan = find_plan(collective, name);
  // On private memory, direct plans are those that "read" names, and nobody writes.
  return plan != nullptr && (shared || !is_direct(name));
}

// "" where the row can be.
std::string problem_of(const std::vector<std::string>& words, TableRow& row) {
  if (words.size() != 6) return "expected six words: collective element ranks from shared private";
  const auto collective = collective_from(words[0]);
  if (!collective || *collective > Collective::kAllToAll) return words[0] + ": no such collective";
  const auto element = words[1] == "*" ? std::optional<uint64_t>(0) : number(words[1]);
  const auto ranks = number(words[2]);
  const auto from = number(words[3]);
  if (!element || *element > 8) return words[1] + ": expected bytes of an element, 1 to 8, or *";
  if (!ranks || *ranks < 1 || *ranks > 65535) return words[2] + ": expected a number of ranks, 1 to 65535";
  if (!from) return words[3] + ": expected bytes";
  for (const bool shared : {true, false}) {
    const std::string& name = words[shared ? 4 : 5];
    if (!is_plan(*collective, name, shared)) {
      return fmt::format("{}: there is no such plan of {} for {} memory", name, words[0],
                         shared ? "shared" : "private");
    }
  }
  if (words[4] == "one_shot" && words[5] != "one_shot") {
    return "one_shot for shared memory means one_shot for private memory, too";
  }
  row = {*collective, static_cast<int>(*element), static_cast<int>(*ranks), *from, words[4], words[5]};
  return "";
}

auto order_of(const TableRow& row) { return std::tuple(row.collective, row.element, row.ranks, row.from); }

}  // namespace

Result<Table> Table::parse(std::string_view text, std::string_view name) {
  Table table;
  std::istringstream stream{std::string(text)};
  int number_of_line = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number_of_line;
    const auto refuse = [&](std::string_view what) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("tuning table {}, line {}: {}", name, number_of_line, what));
    };
    if (number_of_line == 1) {
      if (line != kFirstLine) return refuse(fmt::format("expected \"{}\"", kFirstLine));
      continue;
    }
    const std::vector<std::string> words = words_of(line);
    if (words.empty()) continue;
    TableRow row;
    if (const std::string problem = problem_of(words, row); !problem.empty()) return refuse(problem);
    if (!table.rows_.empty() && order_of(table.rows_.back()) >= order_of(row)) {
      return refuse(
          "rows have to rise: by collective (all_reduce, all_gather ... as listed), element, ranks, from");
    }
    table.rows_.push_back(std::move(row));
  }
  if (number_of_line == 0) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("tuning table {} is empty", name));
  }
  return table;
}

Result<Table> Table::read(const std::string& file) {
  std::ifstream stream(file);
  std::stringstream text;
  if (stream) text << stream.rdbuf();
  if (!stream) {
    return Status(
        ErrorCode::kSystem,
        fmt::format("tuning table {} cannot be read; `collective-ops tune table` writes one", file));
  }
  return parse(text.str(), file);
}

// Rows of one element size and one number of ranks stand together, rising.
const TableRow* Table::find(Collective collective, size_t element, int ranks, uint64_t bytes) const {
  const auto is_of = [&](const TableRow& row, int size) {
    return row.collective == collective && row.element == size;
  };
  for (const int size : {static_cast<int>(element), 0}) {
    int group = 0;
    for (const TableRow& row : rows_) {
      if (!is_of(row, size)) continue;
      group = row.ranks;
      if (row.ranks >= ranks) break;
    }
    const TableRow* found = nullptr;
    for (const TableRow& row : rows_) {
      if (is_of(row, size) && row.ranks == group && row.from <= bytes) found = &row;
    }
    if (found != nullptr) return found;
  }
  return nullptr;
}

std::string Table::text() const {
  std::string text(kFirstLine);
  text += "\n# collective element ranks from shared private\n";
  for (const TableRow& row : rows_) {
    text += fmt::format("{} {} {} {} {} {}\n", name_of(row.collective),
                        row.element == 0 ? "*" : std::to_string(row.element), row.ranks, row.from, row.shared,
                        row.unshared);
  }
  return text;
}

}  // namespace collective_ops
