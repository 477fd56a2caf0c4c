// When the threads of this process were in operators of PyTorch, and when in those that issue collectives:
// intervals alone, without names, at a small part of what a profiler costs.
#pragma once

#include <cstdint>
#include <string>

namespace collective_ops::pytorch {

// From now on. Without effect where it is on already.
void start_activity();

// Ends it. Four int64 each: thread id of the system, begin and end on the monotonic clock, and 1 where the
// operator issues a collective, else 0. Of operators inside one another the outermost; one that still runs
// ends now.
std::string stop_activity();

}  // namespace collective_ops::pytorch
