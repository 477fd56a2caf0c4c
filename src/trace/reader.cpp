#include "trace/reader.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

namespace collective_ops {
namespace {

// Far from the ends of int64, so that sums of two clock values cannot overflow.
constexpr int64_t kLatestNs = int64_t{1} << 61;
constexpr uint32_t kLargestName = 4096;

bool is_time(int64_t value) { return value >= 0 && value < kLatestNs; }

template <size_t N>
std::string text_of(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}

// "" where the header can be used.
std::string fault_of(const TraceFileHeader& header) {
  if (header.magic != kTraceMagic) return "it is not a trace file of a rank";
  if (header.version != kTraceFormatVersion) {
    return fmt::format("its format is {}, this program reads {}; merge it with the version that wrote it",
                       header.version, kTraceFormatVersion);
  }
  const bool sound = header.header_bytes == sizeof(TraceFileHeader) &&
                     header.call_bytes == sizeof(CallRecord) && header.peer_bytes == sizeof(PeerRecord) &&
                     header.world_size >= 1 && header.world_size <= kNoPeer && header.rank >= 0 &&
                     header.rank < header.world_size && is_time(header.opened_monotonic_ns) &&
                     is_time(header.opened_real_ns);
  return sound ? "" : "its header is damaged";
}

int64_t recording_pid(int descriptor) {
  struct flock lock = {};
  lock.l_type = F_RDLCK;
  lock.l_whence = SEEK_SET;
  const bool held = fcntl(descriptor, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  return held ? lock.l_pid : 0;
}

}  // namespace

Result<TraceFileReader> TraceFileReader::open(const std::filesystem::path& path) {
  std::unique_ptr<std::FILE, FileCloser> file(std::fopen(path.c_str(), "rbe"));
  if (file == nullptr) {
    return Status(ErrorCode::kSystem,
                  fmt::format("opening the trace file {}: {}", path.string(), std::strerror(errno)));
  }
  const auto header = std::make_unique<TraceFileHeader>();
  if (std::fread(static_cast<void*>(header.get()), sizeof(*header), 1, file.get()) != 1) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("reading the trace file {}: it is shorter than its header", path.string()));
  }
  if (const std::string fault = fault_of(*header); !fault.empty()) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("reading the trace file {}: {}", path.string(), fault));
  }
  TraceFileInfo info;
  info.path = path;
  info.rank = header->rank;
  info.world_size = header->world_size;
  info.pid = header->pid;
  info.run = header->run;
  info.opened_monotonic_ns = header->opened_monotonic_ns;
  info.opened_real_ns = header->opened_real_ns;
  info.committed_bytes = header->committed_bytes.load();
  info.committed_calls = header->committed_calls.load();
  info.lost_calls = header->lost_calls.load();
  info.closed = header->closed.load() != 0;
  info.recording_pid = info.closed ? 0 : recording_pid(fileno(file.get()));
  info.boot_id = text_of(header->boot_id);
  info.job_id = text_of(header->job_id);
  info.host = text_of(header->host);
  for (const auto& name : header->algorithms) info.algorithms.push_back(text_of(name));
  return TraceFileReader(std::move(file), std::move(info));
}

TraceFileReader::TraceFileReader(std::unique_ptr<std::FILE, FileCloser> file, TraceFileInfo info)
    : file_(std::move(file)), info_(std::move(info)) {}

TraceFileReader::Entry TraceFileReader::next() {
  while (stopped_.empty() && position_ < info_.committed_bytes) {
    EntryHeader header;
    if (!read(&header, sizeof(header))) return Entry::kEnd;
    const bool call = header.kind == EntryKind::kCall &&
                      header.bytes == sizeof(CallRecord) + header.items * sizeof(PeerRecord);
    const bool group = header.kind == EntryKind::kGroup &&
                       header.bytes >= sizeof(GroupEntry) + header.items * sizeof(uint32_t) &&
                       header.bytes <= sizeof(GroupEntry) + header.items * sizeof(uint32_t) + kLargestName;
    const bool steps = header.kind == EntryKind::kSteps &&
                       header.bytes == sizeof(StepsEntry) + header.items * sizeof(StepRecord);
    if (steps) {  // which only profiles read
      if (!skip(header.bytes - sizeof(header))) return Entry::kEnd;
      continue;
    }
    if (!call && !group)
      return stop(fmt::format("damaged {} bytes behind its header", position_ - sizeof(header)));
    if (call ? !read_call(header) : !read_group(header)) return Entry::kEnd;
    if (group) return Entry::kGroup;
    ++calls_;
    if (plausible()) return Entry::kCall;
    ++skipped_;
  }
  return Entry::kEnd;
}

bool TraceFileReader::read(void* target, size_t bytes) {
  if (std::fread(target, 1, bytes, file_.get()) == bytes) {
    position_ += bytes;
    return true;
  }
  stop(fmt::format("cut off: {} of {} bytes of calls are there", position_, info_.committed_bytes));
  return false;
}

bool TraceFileReader::skip(size_t bytes) {
  std::byte unread[4096];
  while (bytes > 0) {
    const size_t part = std::min(bytes, sizeof(unread));
    if (!read(unread, part)) return false;
    bytes -= part;
  }
  return true;
}

bool TraceFileReader::read_call(const EntryHeader& header) {
  call_.header = header;
  auto* rest = reinterpret_cast<std::byte*>(&call_) + sizeof(header);
  peers_.resize(header.items);
  return read(rest, sizeof(call_) - sizeof(header)) &&
         (peers_.empty() || read(peers_.data(), peers_.size() * sizeof(PeerRecord)));
}

bool TraceFileReader::read_group(const EntryHeader& header) {
  GroupEntry entry;
  if (!read(reinterpret_cast<std::byte*>(&entry) + sizeof(header), sizeof(entry) - sizeof(header)))
    return false;
  std::vector<uint32_t> ranks(header.items);
  if (!ranks.empty() && !read(ranks.data(), ranks.size() * sizeof(uint32_t))) return false;
  std::string name(header.bytes - sizeof(entry) - ranks.size() * sizeof(uint32_t), '\0');
  if (!name.empty() && !read(name.data(), name.size())) return false;
  group_.id = entry.group;
  group_.name = name.substr(0, entry.name_bytes);
  group_.ranks.clear();
  for (const uint32_t rank : ranks) {
    if (rank < static_cast<uint32_t>(info_.world_size)) group_.ranks.push_back(static_cast<int>(rank));
  }
  return true;
}

bool TraceFileReader::plausible() const {
  const auto is_rank = [&](int64_t rank) { return rank >= 0 && rank < info_.world_size; };
  const bool names = static_cast<int>(call_.collective) < kCollectiveCount &&
                     static_cast<int>(call_.type) < kDataTypeCount &&
                     static_cast<int>(call_.op) < kReduceOpCount &&
                     static_cast<int>(call_.path) < kTracePathCount && call_.algorithm < kMaxAlgorithmNames &&
                     static_cast<int>(call_.status) < kErrorCodeCount;
  const bool times = is_time(call_.issued_ns) && is_time(call_.begun_ns) && is_time(call_.ended_ns) &&
                     is_time(call_.waited_ns) && is_time(call_.moved_ns) && is_time(call_.longest_wait_ns) &&
                     call_.issued_ns <= call_.begun_ns && call_.begun_ns <= call_.ended_ns;
  const bool message = call_.collective == Collective::kSend || call_.collective == Collective::kRecv;
  const bool root = message ? call_.root >= 0 : call_.root == -1 || is_rank(call_.root);
  const bool ranks = root && (call_.longest_peer == kNoPeer || is_rank(call_.longest_peer));
  return names && times && ranks && std::all_of(peers_.begin(), peers_.end(), [&](const PeerRecord& peer) {
           return is_rank(static_cast<int64_t>(peer.peer)) && is_time(static_cast<int64_t>(peer.moved_ns));
         });
}

TraceFileReader::Entry TraceFileReader::stop(std::string why) {
  stopped_ = std::move(why);
  return Entry::kEnd;
}

std::string TraceFileReader::problem() const {
  std::string text = stopped_;
  const auto add = [&](std::string more) { text += (text.empty() ? "" : "; ") + std::move(more); };
  if (skipped_ > 0) add(fmt::format("{} calls with impossible values are left out", skipped_));
  if (calls_ < info_.committed_calls && info_.recording_pid == 0) {
    add(fmt::format("{} of {} calls are missing", info_.committed_calls - calls_, info_.committed_calls));
  }
  return text;
}

}  // namespace collective_ops
