#include "trace/timeline.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>

#include <unistd.h>

#include <fmt/compile.h>

namespace collective_ops {
namespace {

constexpr size_t kFlushBytes = size_t{1} << 20;
constexpr uint32_t kMessageTrack = uint32_t{1} << 31;  // set in the track of a group's messages
constexpr size_t kRanksInFull = 16;                    // longer member lists stand in distributedInfo only

// As PyTorch's profiler spells them.
constexpr std::array<std::string_view, kCollectiveCount> kKinetoNames = {
    "barrier", "allreduce",  "_allgather_base", "_reduce_scatter_base", "broadcast", "reduce",  "gather",
    "scatter", "all_to_all", "allgather",       "reduce_scatter",       "gather",    "scatter", "all_to_allv",
    "send",    "recv"};
constexpr std::array<std::string_view, kDataTypeCount> kKinetoTypes = {
    "Char",   "Short",        "Int",           "Long",          "Byte",       "UInt16",
    "UInt32", "UInt64",       "Half",          "BFloat16",      "Float",      "Double",
    "Bool",   "ComplexFloat", "ComplexDouble", "Float8_e4m3fn", "Float8_e5m2"};

bool is_message(const CallRecord& call) {
  return call.collective == Collective::kSend || call.collective == Collective::kRecv;
}

struct MessageSizes {
  bool known = false;
  uint64_t in = 0;
  uint64_t out = 0;
};

// Elements that this rank gives and receives, where they follow from the count.
MessageSizes sizes_of(const CallRecord& call, uint64_t members, bool is_root) {
  const uint64_t count = call.count;
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kBroadcast:
    case Collective::kSend:
    case Collective::kRecv:
      return {true, count, count};
    case Collective::kAllGather:
      return {true, count, count * members};
    case Collective::kReduceScatter:
      return {true, count * members, count};
    case Collective::kAllToAll:
      return {true, count * members, count * members};
    case Collective::kReduce:
      return {true, count, is_root ? count : 0};
    case Collective::kGather:
      return {true, count, is_root ? count * members : 0};
    case Collective::kScatter:
      return {true, is_root ? count * members : 0, count};
    default:
      return {};
  }
}

// Length of the well-formed UTF-8 sequence at the start of `text`, 0 where there is none.
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  if (byte(0) < 0x80) return 1;
  if (byte(0) >= 0xc2 && byte(0) <= 0xdf) return follows(1) ? 2 : 0;
  if ((byte(0) & 0xf0) == 0xe0) {
    const bool overlong = byte(0) == 0xe0 && byte(1) < 0xa0;
    const bool surrogate = byte(0) == 0xed && byte(1) >= 0xa0;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (byte(0) >= 0xf0 && byte(0) <= 0xf4) {
    const bool outside = (byte(0) == 0xf0 && byte(1) < 0x90) || (byte(0) == 0xf4 && byte(1) >= 0x90);
    return follows(1) && follows(2) && follows(3) && !outside ? 4 : 0;
  }
  return 0;
}

std::string ranks_text(const std::vector<int>& ranks) {
  if (ranks.size() <= kRanksInFull) return fmt::format("[{}]", fmt::join(ranks, ", "));
  return fmt::format("[{}, ..., {}]", fmt::join(ranks.begin(), ranks.begin() + 3, ", "), ranks.back());
}

template <typename Format, typename... Values>
void append(fmt::memory_buffer& out, const Format& format, Values&&... values) {
  fmt::format_to(std::back_inserter(out), format, std::forward<Values>(values)...);
}

void put(fmt::memory_buffer& out, std::string_view text) {
  out.append(text.data(), text.data() + text.size());
}

}  // namespace

std::string json_text(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const size_t length = utf8_length(text);
    const auto c = static_cast<uint8_t>(text[0]);
    if (length == 0) {
      quoted += '?';
    } else if (c == '"' || c == '\\') {
      quoted += {'\\', text[0]};
    } else if (c < 0x20 || c == 0x7f) {
      quoted += fmt::format("\\u{:04x}", c);
    } else {
      quoted += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return quoted + '"';
}

void append_microseconds(fmt::memory_buffer& out, int64_t nanoseconds) {
  append(out, FMT_COMPILE("{}.{:03}"), nanoseconds / 1000, nanoseconds % 1000);
}

Result<std::unique_ptr<TimelineWriter>> TimelineWriter::create(const std::filesystem::path& path) {
  std::string temporary = fmt::format("{}.{}.tmp", path.string(), getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wbe");
  if (file == nullptr) {
    return Status(ErrorCode::kSystem,
                  fmt::format("writing the trace {}: {}; choose another output or make its "
                              "directory writable",
                              path.string(), std::strerror(errno)));
  }
  return std::unique_ptr<TimelineWriter>(new TimelineWriter(path, std::move(temporary), file));
}

TimelineWriter::TimelineWriter(std::filesystem::path path, std::string temporary, std::FILE* file)
    : path_(std::move(path)), temporary_(std::move(temporary)), file_(file) {}

TimelineWriter::~TimelineWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  unlink(temporary_.c_str());
}

void TimelineWriter::begin(const MergeSummary& summary, const std::vector<TraceGroup>& groups,
                           int64_t base_ns) {
  const auto out = std::back_inserter(out_);
  fmt::format_to(out,
                 "{{\"schemaVersion\":1,\n\"distributedInfo\":{{\"backend\":\"collective_ops\","
                 "\"world_size\":{},\"pg_count\":{},\"pg_config\":[",
                 summary.world_size, groups.size());
  std::string_view comma = "";
  for (const TraceGroup& group : groups) {
    fmt::format_to(out,
                   "{}\n{{\"pg_name\":\"{}\",\"pg_desc\":{},\"backend_config\":\"collective_ops\","
                   "\"pg_size\":{},\"ranks\":[{}]}}",
                   comma, group.id, json_text(group.name), group.ranks.size(), fmt::join(group.ranks, ","));
    comma = ",";
  }
  fmt::format_to(out,
                 "]}},\n\"displayTimeUnit\":\"ns\",\n\"baseTimeNanoseconds\":{},\n\"collective_ops\":"
                 "{{\"format\":{},\"job\":{},\"world_size\":{},\"missing_ranks\":[{}],\"ranks\":[",
                 base_ns, kMergedFormatVersion, json_text(summary.job), summary.world_size,
                 fmt::join(summary.missing_ranks, ","));
  comma = "";
  for (const MergedRank& rank : summary.ranks) {
    fmt::format_to(out,
                   "{}\n{{\"rank\":{},\"host\":{},\"pid\":{},\"calls\":{},\"lost_calls\":{},\"closed\":{},"
                   "\"problem\":{}}}",
                   comma, rank.rank, json_text(rank.host), rank.pid, rank.calls, rank.lost_calls, rank.closed,
                   json_text(rank.problem));
    comma = ",";
  }
  put(out_, "]},\n\"traceEvents\":[");
}

void TimelineWriter::separator() {
  put(out_, first_event_ ? "\n" : ",\n");
  first_event_ = false;
}

void TimelineWriter::metadata(std::string_view name, int rank, std::string_view thread, std::string_view key,
                              std::string_view value) {
  separator();
  append(out_, FMT_COMPILE("{{\"ph\":\"M\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"args\":{{\"{}\":{}}}}}"),
         name, rank, thread, key, value);
}

void TimelineWriter::begin_rank(const TimelineRank& rank) {
  const TraceFileInfo& info = *rank.info;
  metadata("process_name", info.rank, "0", "name", fmt::format("\"rank {}\"", info.rank));
  metadata("process_labels", info.rank, "0", "labels",
           json_text(fmt::format("{} pid {}", info.host, info.pid)));
  metadata("process_sort_index", info.rank, "0", "sort_index", fmt::format("{}", info.rank));
  for (const auto& [id, group] : rank.groups) {
    const std::string name = id == 0 ? "world" : fmt::format("group {} {}", id, group.name);
    metadata("thread_name", info.rank, fmt::format("{}", id), "name", json_text(name));
  }
}

void TimelineWriter::open_event(std::string_view category, std::string_view name, int rank, uint32_t group,
                                int64_t ts, int64_t dur) {
  separator();
  append(out_, FMT_COMPILE("{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":"),
         category, name, rank, group);
  append_microseconds(out_, ts);
  put(out_, ",\"dur\":");
  append_microseconds(out_, dur);
}

void TimelineWriter::call(const TimelineRank& rank, const CallRecord& call,
                          std::span<const PeerRecord> peers) {
  const auto duration = [&](std::string_view key, int64_t nanoseconds) {
    append(out_, FMT_COMPILE(",\"{}\":"), key);
    append_microseconds(out_, nanoseconds);
  };
  const bool message = is_message(call);
  open_event("collective", name_of(call.collective), rank.info->rank, track_of(rank, call),
             call.begun_ns + rank.to_base_ns, call.ended_ns - call.begun_ns);
  append(out_, FMT_COMPILE(",\"args\":{{\"Collective name\":\"{}\""),
         kKinetoNames[static_cast<size_t>(call.collective)]);
  group_arguments(rank, call);
  append(out_, FMT_COMPILE(",\"Rank\":{},\"Seq\":{}"), rank.info->rank, call.sequence);
  if (reduces(call.collective)) append(out_, FMT_COMPILE(",\"op\":\"{}\""), name_of(call.op));
  if (message) {
    message_arguments(rank.info->rank, call, peers);
  } else if (call.root >= 0) {
    append(out_, FMT_COMPILE(",\"root\":{}"), call.root);
  }
  const std::string& algorithm = rank.info->algorithms[call.algorithm];
  append(out_, FMT_COMPILE(",\"algorithm\":{},\"path\":\"{}\",\"bytes\":{},\"status\":\"{}\""),
         json_text(message ? "message" : algorithm), name_of(call.path), call.bytes, name_of(call.status));
  duration("issued_us", call.issued_ns + rank.to_base_ns);
  duration("queued_us", call.begun_ns - call.issued_ns);
  duration("waited_us", call.waited_ns);
  duration("moved_us", call.moved_ns);
  if (call.longest_peer != kNoPeer) {
    append(out_, FMT_COMPILE(",\"longest_wait_rank\":{}"), call.longest_peer);
    duration("longest_wait_us", call.longest_wait_ns);
  }
  peer_arguments(peers);
  put(out_, "}}");
  phases(rank, call);
  flush(kFlushBytes);
}

// Messages go on beside the calls of their group, so they have a track of their own.
uint32_t TimelineWriter::track_of(const TimelineRank& rank, const CallRecord& call) {
  if (!is_message(call)) return call.group;
  const uint32_t track = call.group ^ kMessageTrack;
  if (named_tracks_.emplace(rank.info->rank, track).second) {
    const auto group = rank.groups.find(call.group);
    const bool named = group != rank.groups.end() && call.group != 0;
    metadata("thread_name", rank.info->rank, fmt::format("{}", track), "name",
             json_text(named ? fmt::format("messages of group {} {}", call.group, group->second.name)
                             : "messages"));
  }
  return track;
}

// The peer is missing where a receive from any rank has failed.
void TimelineWriter::message_arguments(int rank, const CallRecord& call, std::span<const PeerRecord> peers) {
  append(out_, FMT_COMPILE(",\"tag\":{}"), call.root);
  if (peers.empty()) return;
  const auto peer = static_cast<int>(peers.front().peer);
  const bool sends = call.collective == Collective::kSend;
  append(out_, FMT_COMPILE(",\"Src Rank\":{},\"Dst Rank\":{}"), sends ? rank : peer, sends ? peer : rank);
}

void TimelineWriter::group_arguments(const TimelineRank& rank, const CallRecord& call) {
  const auto group = rank.groups.find(call.group);
  const uint64_t members = group == rank.groups.end() ? 0 : group->second.ranks.size();
  const MessageSizes sizes = sizes_of(call, members, call.root == rank.info->rank);
  if (sizes.known && members > 0) {
    append(out_,
           FMT_COMPILE(",\"In msg nelems\":{},\"Out msg nelems\":{},\"Group size\":{},\"dtype\":\"{}\""),
           sizes.in, sizes.out, members, kKinetoTypes[static_cast<size_t>(call.type)]);
  }
  append(out_, FMT_COMPILE(",\"Process Group Name\":\"{}\""), call.group);
  if (members > 0) {
    append(out_, FMT_COMPILE(",\"Process Group Description\":{},\"Process Group Ranks\":\"{}\""),
           json_text(group->second.name), ranks_text(group->second.ranks));
  }
}

// {"<peer>": value, ...} per column, without the peers for which the value is zero.
void TimelineWriter::peer_arguments(std::span<const PeerRecord> peers) {
  const auto column = [&](std::string_view key, auto value_of, bool is_time) {
    bool open = false;
    for (const PeerRecord& peer : peers) {
      const uint64_t value = value_of(peer);
      if (value == 0) continue;
      if (open) {
        append(out_, FMT_COMPILE(",\"{}\":"), static_cast<unsigned>(peer.peer));
      } else {
        append(out_, FMT_COMPILE(",\"{}\":{{\"{}\":"), key, static_cast<unsigned>(peer.peer));
      }
      open = true;
      is_time ? append_microseconds(out_, static_cast<int64_t>(value))
              : append(out_, FMT_COMPILE("{}"), value);
    }
    if (open) put(out_, "}");
  };
  column(
      "peer_waited_us", [](const PeerRecord& peer) { return uint64_t{peer.waited_ns}; }, true);
  column(
      "peer_moved_us", [](const PeerRecord& peer) { return peer.moved_ns; }, true);
  column(
      "peer_read_bytes", [](const PeerRecord& peer) { return peer.read_bytes; }, false);
  column(
      "peer_written_bytes", [](const PeerRecord& peer) { return peer.written_bytes; }, false);
}

// What the call spent waiting and moving, drawn inside it, waiting first. Waits and moves alternate
// in truth: lengths are measured, places are not.
void TimelineWriter::phases(const TimelineRank& rank, const CallRecord& call) {
  const int64_t whole = call.ended_ns - call.begun_ns;
  const int64_t waited = std::min(call.waited_ns, whole);
  const int64_t moved = std::min(call.moved_ns, whole - waited);
  const int64_t begin = call.begun_ns + rank.to_base_ns;
  if (waited > 0) {
    const auto name = call.longest_peer == kNoPeer
                          ? std::string("wait")
                          : fmt::format(FMT_COMPILE("wait for rank {}"), call.longest_peer);
    open_event("wait", name, rank.info->rank, track_of(rank, call), begin, waited);
    put(out_, "}");
  }
  if (moved > 0) {
    open_event("move", "move", rank.info->rank, track_of(rank, call), begin + waited, moved);
    put(out_, "}");
  }
}

void TimelineWriter::flush(size_t above) {
  if (out_.size() <= above) return;
  if (error_ == 0 && std::fwrite(out_.data(), 1, out_.size(), file_) != out_.size()) error_ = errno;
  out_.clear();
}

Status TimelineWriter::finish() {
  put(out_, "\n]}\n");
  flush(0);
  if (std::fclose(file_) != 0 && error_ == 0) error_ = errno;
  file_ = nullptr;
  if (error_ == 0 && rename(temporary_.c_str(), path_.c_str()) != 0) error_ = errno;
  if (error_ == 0) return Status();
  unlink(temporary_.c_str());
  return Status(ErrorCode::kSystem,
                fmt::format("writing the trace {}: {}; the ranks' files are kept, make room and "
                            "merge again",
                            path_.string(), std::strerror(error_)));
}

}  // namespace collective_ops
