// What the tests of the trace share: a directory that goes away, files as text, made-up calls.
#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "trace/record.h"
#include "trace/recorder.h"

namespace collective_ops {

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "trace_test.XXXXXX").string();
    EXPECT_NE(mkdtemp(name.data()), nullptr);
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      found.push_back(entry.path().filename());
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::remove(path);  // ext4 flushes a file that is written over, which takes milliseconds
  std::ofstream(path, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
}

inline PeerRecord peer(int rank, uint64_t waited_ns, uint64_t read_bytes, uint64_t written_bytes = 0) {
  PeerRecord record;
  record.peer = static_cast<uint16_t>(rank);
  record.waited_ns = waited_ns;
  record.read_bytes = read_bytes;
  record.written_bytes = written_bytes;
  return record;
}

// An all-reduce of four float32.
inline CallRecord call(uint64_t sequence, int64_t begun_ns, int64_t ended_ns) {
  CallRecord record;
  record.sequence = sequence;
  record.collective = Collective::kAllReduce;
  record.type = DataType::kFloat32;
  record.path = TracePath::kInline;
  record.count = 4;
  record.bytes = 16;
  record.issued_ns = begun_ns;
  record.begun_ns = begun_ns;
  record.ended_ns = ended_ns;
  return record;
}

// The header's plain fields; atomics make it neither copyable nor movable.
struct FileView {
  std::string text;
  explicit FileView(const std::filesystem::path& path) : text(read_text(path)) {}
  const TraceFileHeader& header() const { return *reinterpret_cast<const TraceFileHeader*>(text.data()); }
  std::vector<CallRecord> calls() const {
    std::vector<CallRecord> found;
    const size_t end = sizeof(TraceFileHeader) + header().committed_bytes.load();
    for (size_t at = sizeof(TraceFileHeader); at < end;) {
      EntryHeader entry;
      std::memcpy(&entry, text.data() + at, sizeof(entry));
      if (entry.kind == EntryKind::kCall)
        std::memcpy(&found.emplace_back(), text.data() + at, sizeof(CallRecord));
      if (entry.bytes == 0) break;
      at += entry.bytes;
    }
    return found;
  }
  std::vector<PeerRecord> peers(size_t offset, size_t count) const {
    std::vector<PeerRecord> found(count);
    std::memcpy(found.data(), text.data() + offset, count * sizeof(PeerRecord));
    return found;
  }
};

}  // namespace collective_ops
