// What is known of one rank once its files are read: small, whatever the size of the files. Readers fill
// it, analyses over ranks read nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "analysis/timeline_slices.h"
#include "trace/events.h"

namespace collective_ops {

// Times of one step. Those from an Ascend profile are its own figures; others are unions of intervals, for
// which computing + exposed + free = window holds to the nanosecond.
struct StepTime {
  std::string step;  // "10"; "" where the profile knows no steps
  double computing_us = 0;
  double communication_us = 0;
  double exposed_us = 0;     // communication that no computation hides
  double overlapped_us = 0;  // communication - exposed
  double free_us = 0;        // neither of both
  double stage_us = 0;       // window - bubble
  double bubble_us = 0;      // sum of receives of a pipeline
  double exposed_without_bubble_us = 0;
  std::optional<double> preparing_us;  // begin of the step on the host until its first work on the device
  double copies_us = 0;                // copies and fills that neither of both hides; part of free
  int64_t begin_ns = 0, end_ns = 0;    // the window; 0 where only sums are known
};

// How far a call came: a recorder of calls in flight knows more than the completed ones.
enum class CallState : uint8_t { kCompleted, kStarted, kScheduled };

// One collective or message as one rank saw it.
struct ProfiledCall {
  int64_t start_ns = 0;
  int64_t end_ns = 0;
  int64_t elements = -1;
  int64_t sequence = -1;
  int64_t link_bytes = -1;         // that this rank sent over links, where the profiler counts these
  int64_t waited_ns = -1;          // as the communicator measured it
  int32_t longest_wait_rank = -1;  // likewise
  uint32_t collective = 0;         // name
  uint32_t group = CallArguments::kNoName;
  uint32_t operator_name = CallArguments::kNoName;  // where the profiler numbers calls: equal on all ranks
  uint32_t type = CallArguments::kNoName;           // of an element
  int32_t window = -1;                              // of the times that the rank was profiled; -1: once
  int32_t peer = -1;                                // of a message, a rank of the job; -1: not said
  bool point_to_point = false;
  bool sends = false;
  CallState state = CallState::kCompleted;
  uint32_t step = CallArguments::kNoName;       // row of the rank's steps
  uint32_t busy_with = CallArguments::kNoName;  // what filled most of the time since the call before
};

enum class OperatorKind : uint8_t { kCompute, kCommunication, kCopy, kHost };

// All runs of one operator or kernel on one rank.
struct OperatorStatistics {
  uint32_t name = 0;
  uint32_t type = CallArguments::kNoName;  // as the profiler says it: MatMulV2, AI_CORE ...
  OperatorKind kind = OperatorKind::kCompute;
  uint64_t count = 0;
  int64_t total_ns = 0, min_ns = 0, max_ns = 0;
  double squares = 0;  // sum of (ns)^2
};

// Section of communication.json: links of a node (HCCS, PCIE, SIO; SDMA is their sum) and beyond (RDMA).
struct SizeClass {
  double megabytes = 0;
  double count = 0;
  double milliseconds = 0;
};
struct LinkTraffic {
  uint32_t link = 0;  // name: RDMA, HCCS, PCIE, SDMA, SIO
  double megabytes = 0;
  double milliseconds = 0;
  double gigabytes_per_second = 0;
  double large_packet_ratio = 0;
  std::vector<SizeClass> sizes;
};
struct OperatorTimes {
  double start_us = 0;
  double elapse_ms = 0;
  double transit_ms = 0;
  double wait_ms = 0;
  double synchronization_ms = 0;
  double idle_ms = 0;
};
struct CommunicationOperator {
  uint32_t step = 0, name = 0, group = 0;  // names; group is the hash as decimal text
  bool point_to_point = false;
  OperatorTimes times;
  std::vector<LinkTraffic> links;  // those with traffic
};
struct MatrixEntry {
  uint32_t step = 0, name = 0, group = 0;
  bool point_to_point = false;
  int source = 0, destination = 0;  // ranks of the group
  uint32_t transport = 0, operator_name = 0;
  double megabytes = 0;
  double milliseconds = 0;
  double gigabytes_per_second = 0;
};

struct ProfiledGroup {
  std::string hash;         // Ascend: of `id`; else the name in the profile
  std::string id;           // "" where unknown
  std::string description;  // "tp", "dp" ...
  std::vector<int> ranks;   // ascending, of the job
};

struct ParallelSizes {  // 0: not said
  int tensor = 0, pipeline = 0, data = 0, context = 0, world = 0;
};

// Of a profile that our own profiler made; "" where it is not.
struct ProfiledRun {
  std::string id;              // equal on all ranks of one start of a job
  std::string started;         // sorts by time
  std::string host;            // where it was recorded
  std::string clock_host;      // whose clock the times are on; "": on that of `host`
  int64_t clock_error_ns = 0;  // how far they may be off that, at most
};

struct RankProfile {
  int rank = 0;
  int device = -1;
  std::string host_uid;
  std::string host;    // "" where the profile does not say
  std::string source;  // the file or directory it came from
  std::string format;  // "kineto", "ascend_text", "ascend_db", "comm_trace", "flight_recorder"
  ProfiledRun run;
  int world_size = 0;    // 0: not said
  bool on_host = false;  // calls ran on CPUs, where ranks may leave one call far apart
  ParallelSizes parallel;
  NameTable names;
  std::vector<StepTime> steps;
  std::optional<StepTime> whole;    // first to last event of the file
  std::vector<ProfiledCall> calls;  // by start
  std::vector<CommunicationOperator> operators;
  std::vector<MatrixEntry> matrix;
  std::vector<OperatorStatistics> operator_times;
  RankTimeline timeline;
  std::vector<ProfiledGroup> groups;  // that this rank belongs to, as far as said
  std::vector<std::string> notes;     // what could not be used
  uint64_t bytes = 0, events = 0;     // read
};

}  // namespace collective_ops
