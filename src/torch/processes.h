// Who the ranks of a group are while it forms: over the store each tells where its process is found, so that
// those who wait for it learn at once that it has died.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bootstrap/process.h"

namespace collective_ops::pytorch {

// A rank's process, as the others of its host find it.
struct ProcessPlace {
  std::string host;        // host_tag()
  uint64_t pid_space = 0;  // the namespace that its id belongs to; 0: not known
  pid_t pid = 0;
  int64_t start_time = 0;  // clock ticks after boot

  static ProcessPlace here();
  std::string text() const;  // one line, for the store
  // Of what text() gave; nobody's place where it is something else.
  static ProcessPlace parse(const std::string& text);
  // Whether its id means something here.
  bool visible_from(const ProcessPlace& other) const;
};

// One thread at a time.
class ProcessWatch {
 public:
  // `rank`: what errors call it. Processes of other hosts, or whose ids are not known here, are left out.
  void add(int rank, const ProcessPlace& place);
  // "rank 2 (pid 123) was lost: killed by signal 9 (Killed)"; "" while all live.
  std::string lost() const;

 private:
  ProcessPlace here_ = ProcessPlace::here();
  std::vector<PeerProcess> processes_;
};

}  // namespace collective_ops::pytorch
