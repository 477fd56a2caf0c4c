#include "analysis/readers/csv_text.h"

namespace collective_ops {

std::string_view next_line(std::string_view* text) {
  const size_t end = text->find('\n');
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return line;
}

std::vector<std::string> cells_of(std::string_view line, size_t most) {
  std::vector<std::string> cells(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted) {
      if (c != '"') {
        cells.back().push_back(c);
      } else if (i + 1 < line.size() && line[i + 1] == '"') {
        cells.back().push_back(line[i++]);
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      quoted = true;
    } else if (c == ',') {
      if (cells.size() == most) break;
      cells.emplace_back();
    } else if (c != '\r' && c != '\t') {
      cells.back().push_back(c);
    }
  }
  return cells;
}

}  // namespace collective_ops
