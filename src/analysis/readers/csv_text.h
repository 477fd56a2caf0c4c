// Lines and cells of CSV text, as profilers write it: quotes, CRLF, a TAB behind a number.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace collective_ops {

// Takes the next line off `text`.
std::string_view next_line(std::string_view* text);

// The cells of one line, at most `most`; quotes around a cell are taken off, doubled ones inside become one.
std::vector<std::string> cells_of(std::string_view line, size_t most = SIZE_MAX);

}  // namespace collective_ops
