// Collectives by group, kind and size: how often, how much, how fast, and who holds them up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/profile_set.h"
#include "analysis/waits.h"

namespace collective_ops {

struct CommunicationClass {
  std::string group;       // its description, else its name; "" where the profiles do not say it
  std::string collective;  // as the profiles call it
  std::string size_class;  // "64KiB-1MiB"; "" where sizes are not known
  uint64_t calls = 0;      // that two ranks or more have
  uint64_t single = 0;     // as seen by one rank only: they count in `elapsed` alone
  double bytes = 0;        // of a whole call (as benchmarks count it), summed; 0: not known
  double elapsed_ms = 0;   // first start to last end
  double waiting_ms = 0;   // first start to last start
  double moving_ms = 0;    // last start to last end
  double algorithm_gb_s = 0;
  double bus_gb_s = 0;    // what each link carries, comparable between sizes of groups
  int slowest_rank = -1;  // leaves last, summed over calls; -1 where none does
  int latest_rank = -1;   // comes last, likewise
};

// By group, then the time they take.
std::vector<CommunicationClass> communication_classes(const ProfileSet& set, const WaitAnalysis& waits);

}  // namespace collective_ops
