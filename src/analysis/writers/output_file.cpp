#include "analysis/writers/output_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace collective_ops {

Result<std::unique_ptr<OutputFile>> OutputFile::create(const std::filesystem::path& path) {
  std::filesystem::path temporary = path;
  temporary += fmt::format(".{}.part", ::getpid());
  std::FILE* const file = std::fopen(temporary.c_str(), "wbe");
  if (file == nullptr) {
    return Status(ErrorCode::kSystem, fmt::format("cannot write {}: {}; choose another place with -o",
                                                  path.string(), std::strerror(errno)));
  }
  return std::unique_ptr<OutputFile>(new OutputFile(path, temporary, file));
}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void OutputFile::flush() {
  if (std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size() && error_ == 0) error_ = errno;
  buffer_.clear();
}

Status OutputFile::finish() {
  flush();
  if (std::fclose(file_) != 0 && error_ == 0) error_ = errno;
  file_ = nullptr;
  std::error_code moved;
  if (error_ == 0) std::filesystem::rename(temporary_, path_, moved);
  if (error_ == 0 && !moved) return {};
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
  return {ErrorCode::kSystem, fmt::format("cannot write {}: {}", path_.string(),
                                          error_ != 0 ? std::strerror(error_) : moved.message().c_str())};
}

std::string csv_cell(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string cell = "\"";
  for (const char c : text) {
    if (c == '"') cell.push_back('"');
    cell.push_back(c);
  }
  return cell + "\"";
}

}  // namespace collective_ops
