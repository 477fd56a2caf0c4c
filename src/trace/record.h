// What one rank writes down about one call, and how it lies in the rank's trace file: a header page,
// then entries one after the other, little-endian, each a multiple of 8 bytes. docs/formats.md shows
// the same tables. Whoever changes a layout raises kFormatVersion.
//
//   TraceFileHeader | GroupEntry + members + name | [StepsEntry + StepRecord * n] CallRecord + PeerRecord * n
//   | ...
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>
#include <string_view>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

namespace collective_ops {

static_assert(std::endian::native == std::endian::little, "trace files are little-endian");

inline constexpr uint64_t kTraceMagic = 0x4543415254504f43;  // "COPTRACE"
inline constexpr uint32_t kTraceFormatVersion = 2;
inline constexpr uint32_t kMergedFormatVersion = 1;  // of comm_trace.json
inline constexpr uint16_t kNoPeer = 0xffff;
inline constexpr int kMaxAlgorithmNames = 32;
inline constexpr uint64_t kMaxWaitNs = (uint64_t{1} << 48) - 1;  // 78 hours; longer waits are cut to this

// How the bytes of a call travelled.
enum class TracePath : uint8_t { kNone, kInline, kStaged, kDirect, kRead, kMessages };
inline constexpr int kTracePathCount = 6;
std::string_view name_of(TracePath path);  // "none", "inline", "staged", "direct", "read", "messages"

enum class EntryKind : uint16_t { kCall = 1, kGroup = 2, kSteps = 3 };

// First 8 bytes of every entry. `bytes` counts the whole entry, this header included.
struct EntryHeader {
  EntryKind kind = EntryKind::kCall;
  uint16_t items = 0;  // peers of a call, members of a group, steps
  uint32_t bytes = 0;
};

// One call of one rank. Times are CLOCK_MONOTONIC nanoseconds.
struct CallRecord {
  EntryHeader header;  // set by the recorder
  uint64_t sequence =
      0;               // of the call in its group, equal on all ranks; of send and recv of this rank's alone
  uint32_t group = 0;  // 0: the world; others as given to define_group()
  int32_t root = -1;   // world rank, -1 where the collective has none; of send and recv the tag
  Collective collective = Collective::kBarrier;
  DataType type = DataType::kUInt8;
  ReduceOp op = ReduceOp::kSum;  // meaningless where the collective does not reduce
  TracePath path = TracePath::kNone;
  uint8_t algorithm = 0;  // index into the names given to Recorder::open
  ErrorCode status = ErrorCode::kOk;
  uint16_t longest_peer = kNoPeer;  // set by the recorder from the peers
  uint64_t count = 0;               // elements, as the caller of the collective gave them
  uint64_t bytes = 0;               // payload of this rank's call
  int64_t issued_ns = 0;            // the user made the call
  int64_t begun_ns = 0;             // it left the queue; equal to issued_ns for a blocking call
  int64_t ended_ns = 0;
  int64_t waited_ns = 0;  // in this call, for peers, all together; waits below some 0.2 us are not counted
  int64_t longest_wait_ns = 0;  // set by the recorder from the peers
  int64_t moved_ns = 0;         // executing copies and reductions
};
static_assert(sizeof(CallRecord) == 96);

// What passed between this rank and one peer in one call. A moved byte is counted by one side only:
// by the reader if it loaded from the peer's memory or staging slot, by the writer if it stored
// into the peer's.
struct PeerRecord {
  uint64_t peer : 16 = 0;       // world rank
  uint64_t waited_ns : 48 = 0;  // until this peer was ready
  uint64_t read_bytes = 0;      // from the peer
  uint64_t written_bytes = 0;   // to the peer
  uint64_t moved_ns = 0;        // 0: not measured per peer; readers then split the call's by bytes
};
static_assert(sizeof(PeerRecord) == 32);

// Steps of a plan: what the rank did, one after the other, in a call.
enum class StepKind : uint8_t { kWait = 1, kCopy, kReduce, kSend, kReceive };
inline constexpr int kStepKindCount = 6;
inline constexpr uint64_t kMaxStepNs = (uint64_t{1} << 40) - 1;  // 18 minutes; longer steps are cut to this

struct StepRecord {
  int64_t begun_ns = 0;
  uint64_t kind : 8 = 0;   // StepKind
  uint64_t peer : 16 = 0;  // world rank; this rank's own: within its memory; kNoPeer: of several at once
  uint64_t length_ns : 40 = 0;
  uint64_t bytes = 0;  // moved to or from peers, or copied within this rank's memory
};
static_assert(sizeof(StepRecord) == 24);

// Followed by `items` steps; stands before the call that they are of.
struct StepsEntry {
  EntryHeader header{EntryKind::kSteps, 0, 0};
  uint64_t left_out = 0;  // steps behind these, for which there was no room
};
static_assert(sizeof(StepsEntry) == 16);
inline constexpr size_t kMaxSteps = 4096;  // of a call

// Followed by `items` uint32 world ranks and then `name_bytes` characters, padded to 8.
struct GroupEntry {
  EntryHeader header{EntryKind::kGroup, 0, 0};
  uint32_t group = 0;
  uint32_t name_bytes = 0;
};
static_assert(sizeof(GroupEntry) == 16);

// The first page of a file. Texts are NUL-padded UTF-8 and are cut to fit.
struct TraceFileHeader {
  uint64_t magic = kTraceMagic;
  uint32_t version = kTraceFormatVersion;
  uint32_t header_bytes = 4096;
  uint32_t call_bytes = sizeof(CallRecord);
  uint32_t peer_bytes = sizeof(PeerRecord);
  int32_t rank = 0;
  int32_t world_size = 1;
  int64_t pid = 0;
  uint64_t run = 0;                 // equal on all ranks of one start of the job; 0: unknown
  int64_t opened_monotonic_ns = 0;  // one instant on both clocks
  int64_t opened_real_ns = 0;
  std::atomic<uint64_t> committed_bytes{0};  // of entries behind the header; written after them
  std::atomic<uint64_t> committed_calls{0};
  std::atomic<uint64_t> lost_calls{0};  // after the disk was full
  std::atomic<uint64_t> closed{0};      // 1: the rank left in order
  char boot_id[40] = {};                // equal: CLOCK_MONOTONIC is comparable
  char job_id[512] = {};
  char host[256] = {};
  char algorithms[kMaxAlgorithmNames][32] = {};
  char reserved[4096 - 96 - 40 - 512 - 256 - kMaxAlgorithmNames * 32] = {};
};
static_assert(sizeof(TraceFileHeader) == 4096 && std::atomic<uint64_t>::is_always_lock_free);

}  // namespace collective_ops
