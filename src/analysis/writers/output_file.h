// A file of results: written beside its place and moved there once it is whole.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include <collective_ops/status.h>

namespace collective_ops {

class OutputFile {
 public:
  static Result<std::unique_ptr<OutputFile>> create(const std::filesystem::path& path);
  ~OutputFile();  // removes what was not finished
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  template <typename... Arguments>
  void print(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(fmt::appender(buffer_), format, std::forward<Arguments>(arguments)...);
    if (buffer_.size() > kFlush) flush();
  }
  Status finish();

 private:
  static constexpr size_t kFlush = size_t{1} << 18;
  OutputFile(std::filesystem::path path, std::filesystem::path temporary, std::FILE* file)
      : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}
  void flush();

  std::filesystem::path path_, temporary_;
  std::FILE* file_;
  fmt::memory_buffer buffer_;
  int error_ = 0;
};

// A cell of CSV: in quotes where it needs them.
std::string csv_cell(std::string_view text);

}  // namespace collective_ops
