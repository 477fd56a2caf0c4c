#include "analysis/readers/text_source.h"

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <vector>

#include <fmt/format.h>

namespace collective_ops {
namespace {

constexpr size_t kPiece = size_t{1} << 18;

Status system_error(const std::filesystem::path& path, int error) {
  return {ErrorCode::kSystem, fmt::format("cannot read {}: {}", path.string(), std::strerror(error))};
}

}  // namespace

struct TextSource::Inflation {
  z_stream stream{};
  std::vector<unsigned char> input = std::vector<unsigned char>(kPiece);
  bool ended = false;
  Inflation() { inflateInit2(&stream, 15 + 16); }
  ~Inflation() { inflateEnd(&stream); }
  Inflation(const Inflation&) = delete;
  Inflation& operator=(const Inflation&) = delete;
};

TextSource::~TextSource() {
  if (file_ >= 0) ::close(file_);
}

Result<std::unique_ptr<TextSource>> TextSource::open(const std::filesystem::path& path) {
  std::unique_ptr<TextSource> source(new TextSource);
  source->file_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (source->file_ < 0) return system_error(path, errno);
  std::array<unsigned char, 2> head{};
  const ssize_t got = ::pread(source->file_, head.data(), head.size(), 0);
  if (got < 0) return system_error(path, errno);
  if (got == 2 && head[0] == 0x1F && head[1] == 0x8B) source->inflation_ = std::make_unique<Inflation>();
  return source;
}

bool TextSource::read(size_t bytes, std::string* text) {
  return inflation_ ? read_inflated(bytes, text) : read_plain(bytes, text);
}

bool TextSource::read_plain(size_t bytes, std::string* text) {
  const size_t old = text->size();
  text->resize(old + bytes);
  ssize_t got = 0;
  do {
    got = ::read(file_, text->data() + old, bytes);
  } while (got < 0 && errno == EINTR);
  if (got < 0) problem_ = fmt::format("reading failed: {}", std::strerror(errno));
  text->resize(old + static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return got > 0;
}

// Fresh compressed bytes; 0 at the end of the file.
size_t TextSource::fill() {
  ssize_t got = 0;
  do {
    got = ::read(file_, inflation_->input.data(), inflation_->input.size());
  } while (got < 0 && errno == EINTR);
  if (got < 0) problem_ = fmt::format("reading failed: {}", std::strerror(errno));
  inflation_->stream.next_in = inflation_->input.data();
  inflation_->stream.avail_in = static_cast<uInt>(std::max<ssize_t>(got, 0));
  return inflation_->stream.avail_in;
}

bool TextSource::read_inflated(size_t bytes, std::string* text) {
  if (inflation_->ended) return false;
  z_stream& stream = inflation_->stream;
  const size_t old = text->size();
  text->resize(old + bytes);
  stream.next_out = reinterpret_cast<Bytef*>(text->data() + old);
  stream.avail_out = static_cast<uInt>(bytes);
  while (stream.avail_out > 0) {
    if (stream.avail_in == 0 && fill() == 0) {
      if (problem_.empty()) problem_ = "the gzip stream is cut off";
      inflation_->ended = true;
      break;
    }
    const int code = inflate(&stream, Z_NO_FLUSH);
    if (code == Z_STREAM_END) {
      // Another member may follow: gzip files can be joined by cat.
      if (stream.avail_in == 0 && fill() == 0) {
        inflation_->ended = true;
        break;
      }
      inflateReset(&stream);
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      problem_ =
          fmt::format("the gzip stream is damaged: {}", stream.msg != nullptr ? stream.msg : "unknown");
      inflation_->ended = true;
      break;
    }
  }
  text->resize(old + bytes - stream.avail_out);
  return text->size() > old;
}

Result<WholeText> read_whole(const std::filesystem::path& path) {
  auto source = TextSource::open(path);
  if (!source.ok()) return source.status();
  WholeText whole;
  while ((*source)->read(kPiece, &whole.text)) {
  }
  whole.problem = (*source)->problem();
  return whole;
}

}  // namespace collective_ops
