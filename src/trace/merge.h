// Makes one comm_trace.json, which Perfetto and chrome://tracing open, from the files of all ranks of
// a job. docs/formats.md lists its columns and the rule of its clock. Records are streamed: memory
// does not grow with the length of the trace.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include <collective_ops/status.h>

namespace collective_ops {

struct MergeOptions {
  std::filesystem::path output = "comm_trace.json";
  std::string job;          // id or hash of the job; empty: the one that started last
  bool keep_files = false;  // else the ranks' files go once all ranks are merged without a loss
  // Where set, ranks of other hosts may still write: nothing is merged before all files here are closed, and
  // where ranks have none here, what is there goes to this file.
  std::filesystem::path output_of_some;
};

// What became of one rank's file.
struct MergedRank {
  int rank = 0;
  std::string path;
  std::string host;
  int64_t pid = 0;
  uint64_t calls = 0;
  uint64_t lost_calls = 0;  // the recorder had no more room
  bool closed = false;      // false: the rank was killed, or is still running
  bool recording = false;   // a live process still writes it
  std::string problem;      // "" where all of the file was read
};

struct MergeSummary {
  std::string job;
  std::string output;
  int world_size = 0;
  uint64_t calls = 0;
  std::vector<MergedRank> ranks;         // ascending
  std::vector<int> missing_ranks;        // no file, or one whose header cannot be read
  std::vector<std::string> unreadable;   // "path: reason"
  std::vector<std::string> other_jobs;   // jobs whose files lie there too and were left alone
  std::vector<std::string> older_files;  // of an earlier start of the same job, left alone
  bool files_removed = false;
  bool left_to_others = false;  // nothing was written: ranks still record, and the last one merges

  // All ranks are there and nothing of them is damaged, lost or still being written.
  bool complete() const;
  // A few sentences for a user: what was written, what is missing, what to do.
  std::string text() const;
};

// `inputs` are directories and rank files. kInvalidArgument: nothing to merge, an unknown job, two
// files of one rank; kSystem: the output cannot be written (nothing is removed then).
Result<MergeSummary> merge_traces(std::span<const std::filesystem::path> inputs, const MergeOptions& options);

}  // namespace collective_ops
