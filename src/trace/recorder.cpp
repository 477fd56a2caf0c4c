#include "trace/recorder.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/environment.h"

namespace collective_ops {
namespace {

constexpr uint64_t kHeaderBytes = sizeof(TraceFileHeader);
constexpr uint64_t kPopulateBytes = uint64_t{64} << 10;  // stays in the L2 cache, 15 us at a time
constexpr uint64_t kLine = 64;  // of the cache
constexpr uint64_t kLargestStep = uint64_t{32} << 20;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, absent from older headers

uint64_t page_size() {
  static const uint64_t size = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return size;
}

uint64_t round_up(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

template <size_t N>
void copy_text(char (&field)[N], std::string_view text) {
  size_t length = std::min(text.size(), N - 1);
  // Never cut a UTF-8 sequence in two.
  while (length < text.size() && length > 0 && (static_cast<uint8_t>(text[length]) & 0xc0) == 0x80) --length;
  std::memcpy(field, text.data(), length);
}

std::string host_name() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "unknown";
}

std::string boot_id() {
  char text[37] = {};
  if (std::FILE* file = std::fopen("/proc/sys/kernel/random/boot_id", "re")) {
    if (std::fgets(text, sizeof(text), file) == nullptr) text[0] = '\0';
    std::fclose(file);
  }
  return text;
}

Status check(const RecorderIdentity& identity) {
  if (identity.world_size < 1 || identity.rank < 0 || identity.rank >= identity.world_size ||
      identity.world_size > kNoPeer) {
    return Status(
        ErrorCode::kInvalidArgument,
        fmt::format("starting the trace: rank {} of {} ranks cannot be", identity.rank, identity.world_size));
  }
  if (identity.algorithms.size() > kMaxAlgorithmNames) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("starting the trace: {} names of algorithms, at most {} fit",
                              identity.algorithms.size(), kMaxAlgorithmNames));
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<Recorder>> Recorder::open(const std::filesystem::path& directory,
                                                 const RecorderIdentity& identity,
                                                 const RecorderLimits& limits) {
  if (Status status = check(identity); !status.ok()) return status;
  const auto path = directory / trace_file_name(identity.job_id, identity.rank);
  // A new file takes the older one's name once it is usable. Cutting the older one short instead
  // would kill a process that still has it mapped.
  const std::string fresh = fmt::format("{}.{}.new", path.string(), getpid());
  unlink(fresh.c_str());
  const int descriptor = ::open(fresh.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (descriptor < 0) {
    return Status(
        ErrorCode::kSystem,
        fmt::format("rank {}: creating the trace file {}: {}; set COLLECTIVE_OPS_TRACE_DIR to a directory "
                    "that can be written",
                    identity.rank, path.string(), std::strerror(errno)));
  }
  std::unique_ptr<Recorder> recorder(new Recorder(path, descriptor, limits));
  if (Status status = recorder->start(identity); !status.ok()) {
    unlink(fresh.c_str());
    return status;
  }
  if (rename(fresh.c_str(), path.c_str()) != 0) {
    const int error = errno;
    unlink(fresh.c_str());
    return Status(ErrorCode::kSystem, fmt::format("rank {}: naming the trace file {}: {}", identity.rank,
                                                  path.string(), std::strerror(error)));
  }
  return recorder;
}

Recorder::Recorder(std::filesystem::path path, int descriptor, const RecorderLimits& limits)
    : path_(std::move(path)), descriptor_(descriptor), limits_(limits), owner_pid_(getpid()) {
  limits_.grow_bytes = round_up(std::max<uint64_t>(limits_.grow_bytes, 1), page_size());
}

Status Recorder::start(const RecorderIdentity& identity) {
  if (!allocate(kHeaderBytes)) return status_;
  void* page = mmap(nullptr, kHeaderBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (page == MAP_FAILED) {
    return Status(ErrorCode::kSystem, fmt::format("rank {}: mapping the trace file {}: {}", identity.rank,
                                                  path_.string(), std::strerror(errno)));
  }
  header_ = new (page) TraceFileHeader;
  header_->rank = identity.rank;
  header_->world_size = identity.world_size;
  header_->pid = owner_pid_;
  header_->run = identity.run;
  header_->opened_monotonic_ns = monotonic_ns();
  header_->opened_real_ns = real_ns();
  copy_text(header_->boot_id, boot_id());
  copy_text(header_->job_id, identity.job_id);
  copy_text(header_->host, host_name());
  for (size_t i = 0; i < identity.algorithms.size(); ++i)
    copy_text(header_->algorithms[i], identity.algorithms[i]);
  position_ = kHeaderBytes;
  // Tells a merge that this rank still records; the kernel drops it with the process. Where a file
  // system has no locks, a merge takes what is there.
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  fcntl(descriptor_, F_SETLK, &lock);
  return Status();
}

Recorder::~Recorder() {
  unmap_window();
  if (header_ != nullptr) {
    if (getpid() == owner_pid_) {
      if (ftruncate(descriptor_, static_cast<off_t>(position_)) != 0) {
        // The file keeps its unused tail, which readers do not look at.
      }
      header_->closed.store(1, std::memory_order_release);
    }
    munmap(header_, kHeaderBytes);
  }
  close(descriptor_);
}

void Recorder::define_group(uint32_t group, std::string_view name, std::span<const int> ranks) {
  const size_t members = std::min<size_t>(ranks.size(), kNoPeer);
  const std::string_view cut = name.substr(0, 256);
  GroupEntry entry;
  entry.header.items = static_cast<uint16_t>(members);
  entry.header.bytes =
      static_cast<uint32_t>(round_up(sizeof(entry) + members * sizeof(uint32_t) + cut.size(), 8));
  entry.group = group;
  entry.name_bytes = static_cast<uint32_t>(cut.size());
  const std::lock_guard lock(mutex_);
  std::byte* place = reserve(entry.header.bytes);
  if (place == nullptr) return;
  std::memcpy(place, &entry, sizeof(entry));
  place += sizeof(entry);
  for (size_t i = 0; i < members; ++i, place += sizeof(uint32_t)) {
    const auto rank = static_cast<uint32_t>(ranks[i]);
    std::memcpy(place, &rank, sizeof(rank));
  }
  std::memcpy(place, cut.data(), cut.size());
  commit(entry.header.bytes);
}

void Recorder::write_steps(const RecordedSteps& steps) {
  StepsEntry entry;
  entry.left_out = steps.left_out;
  entry.header.items = static_cast<uint16_t>(steps.list.size());
  entry.header.bytes = static_cast<uint32_t>(sizeof(entry) + steps.list.size_bytes());
  std::byte* place = reserve(entry.header.bytes);
  if (place == nullptr) return;
  std::memcpy(place, &entry, sizeof(entry));
  std::memcpy(place + sizeof(entry), steps.list.data(), steps.list.size_bytes());
  commit(entry.header.bytes);
}

void Recorder::record(const CallRecord& call, std::span<const PeerRecord> peers, const RecordedSteps& steps) {
  peers = peers.first(std::min<size_t>(peers.size(), kNoPeer));
  CallRecord entry = call;
  entry.header = {EntryKind::kCall, static_cast<uint16_t>(peers.size()),
                  static_cast<uint32_t>(sizeof(entry) + peers.size_bytes())};
  entry.longest_peer = kNoPeer;
  entry.longest_wait_ns = 0;
  for (const PeerRecord& peer : peers) {
    if (static_cast<int64_t>(peer.waited_ns) <= entry.longest_wait_ns) continue;
    entry.longest_peer = peer.peer;
    entry.longest_wait_ns = static_cast<int64_t>(peer.waited_ns);
  }
  const std::lock_guard lock(mutex_);
  if (!steps.list.empty()) write_steps(steps);
  std::byte* place = reserve(entry.header.bytes);
  if (place == nullptr) {
    header_->lost_calls.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  std::memcpy(place, &entry, sizeof(entry));
  if (!peers.empty()) std::memcpy(place + sizeof(entry), peers.data(), peers.size_bytes());
  commit(entry.header.bytes);
  // The next call's entry is as long, as a rule, and finds its lines in the cache.
  for (uint64_t ahead = 0; ahead < entry.header.bytes + kLine && position_ + ahead < ready_end_; ahead += kLine)
    __builtin_prefetch(window_ + (position_ - window_begin_) + ahead, /*rw=*/1);
  // Only the holder of the mutex writes: a plain load and store, no locked instruction.
  header_->committed_calls.store(header_->committed_calls.load(std::memory_order_relaxed) + 1,
                                 std::memory_order_relaxed);
}

void Recorder::commit(uint64_t bytes) {
  position_ += bytes;
  header_->committed_bytes.store(position_ - kHeaderBytes, std::memory_order_release);
}

std::byte* Recorder::reserve(uint64_t bytes) {
  if (!status_.ok()) return nullptr;
  if (position_ + bytes > ready_end_) {
    if (position_ + bytes > window_end_ && !grow(bytes)) return nullptr;
    if (!populate(bytes)) return nullptr;
  }
  return window_ + (position_ - window_begin_);
}

// One call for many pages costs half of a fault for each, and reports what a fault would turn into
// SIGBUS: a file system that promised room it does not have.
bool Recorder::populate(uint64_t bytes) {
  const uint64_t begin = std::max(ready_end_, window_begin_);
  const uint64_t end = std::min(window_end_, round_up(position_ + bytes, page_size()) + kPopulateBytes);
  const bool failed = madvise(window_ + (begin - window_begin_), end - begin, kPopulateWrite) != 0;
  if (failed && errno != EINVAL && errno != EINTR && errno != EAGAIN) {  // EINVAL: a kernel before 5.14
    stop(ErrorCode::kSystem, std::strerror(errno));
    return false;
  }
  ready_end_ = end;
  return true;
}

bool Recorder::grow(uint64_t bytes) {
  const uint64_t begin = position_ / page_size() * page_size();
  const uint64_t needed = round_up(position_ + bytes, page_size());
  const uint64_t most = limits_.max_bytes / page_size() * page_size();
  const uint64_t step = std::clamp(begin, limits_.grow_bytes, std::max(limits_.grow_bytes, kLargestStep));
  const uint64_t end = std::max(needed, std::min(begin + step, most));
  if (position_ + bytes > limits_.max_bytes) {
    stop(ErrorCode::kOutOfMemory, fmt::format("it reached its limit of {} bytes", limits_.max_bytes));
    return false;
  }
  if (!allocate(end)) return false;
  void* window =
      mmap(nullptr, end - begin, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, static_cast<off_t>(begin));
  if (window == MAP_FAILED) {
    stop(ErrorCode::kSystem, fmt::format("mapping more of it: {}", std::strerror(errno)));
    return false;
  }
  unmap_window();
  window_ = static_cast<std::byte*>(window);
  window_begin_ = begin;
  window_end_ = end;
  ready_end_ = begin;
  return true;
}

bool Recorder::allocate(uint64_t end) {
  // Past this limit the kernel sends SIGXFSZ, whose default ends the process: ask first.
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && end > limit.rlim_cur) {
    stop(ErrorCode::kSystem,
         fmt::format("files of this process may have {} bytes (ulimit -f)", limit.rlim_cur));
    return false;
  }
  const uint64_t begin = window_end_;
  int error = EINTR;
  while (error == EINTR) {
    error = posix_fallocate(descriptor_, static_cast<off_t>(begin), static_cast<off_t>(end - begin));
  }
  if (error != 0) {
    stop(ErrorCode::kSystem, std::strerror(error));
    return false;
  }
  return true;
}

void Recorder::stop(ErrorCode code, std::string reason) {
  status_ = Status(
      code, fmt::format("the trace file {} cannot grow: {}; later calls of this rank are missing in the "
                        "trace",
                        path_.string(), reason));
  std::fprintf(stderr, "collective_ops: warning: %s\n", status_.message().c_str());
}

void Recorder::unmap_window() {
  if (window_ != nullptr) munmap(window_, window_end_ - window_begin_);
  window_ = nullptr;
}

uint64_t Recorder::recorded_calls() const { return header_->committed_calls.load(std::memory_order_relaxed); }

Status Recorder::status() const {
  const std::lock_guard lock(mutex_);
  return status_;
}

std::filesystem::path trace_directory() {
  const std::string directory = environment_text("COLLECTIVE_OPS_TRACE_DIR");
  std::error_code error;
  const auto absolute = std::filesystem::absolute(directory.empty() ? "." : directory, error);
  return error ? std::filesystem::path(directory.empty() ? "." : directory) : absolute.lexically_normal();
}

std::string job_hash(std::string_view job_id) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, 64 bits
  for (const char c : job_id) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

std::string trace_file_name(std::string_view job_id, int rank) {
  return fmt::format("comm_trace.{}.rank{}.bin", job_hash(job_id), rank);
}

}  // namespace collective_ops
