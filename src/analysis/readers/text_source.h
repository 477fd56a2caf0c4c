// The text of a file, plain or gzip (told by its first bytes, not by its name), piece by piece.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <collective_ops/status.h>

namespace collective_ops {

class TextSource {
 public:
  static Result<std::unique_ptr<TextSource>> open(const std::filesystem::path& path);
  ~TextSource();
  TextSource(const TextSource&) = delete;
  TextSource& operator=(const TextSource&) = delete;

  // Appends at most `bytes` to `text`; false at the end. A damaged gzip stream ends where the damage is,
  // and `problem()` says so.
  bool read(size_t bytes, std::string* text);
  const std::string& problem() const { return problem_; }

 private:
  TextSource() = default;
  struct Inflation;
  bool read_plain(size_t bytes, std::string* text);
  bool read_inflated(size_t bytes, std::string* text);
  size_t fill();

  int file_ = -1;
  std::unique_ptr<Inflation> inflation_;  // of gzip files
  std::string problem_;
};

// A whole file; for those that are known to be small beside their trace.
struct WholeText {
  std::string text;
  std::string problem;  // "" where all of it was read
};
Result<WholeText> read_whole(const std::filesystem::path& path);

}  // namespace collective_ops
