// From one rank's events to the times of its steps and its calls. Definitions: docs/analysis.md.
#pragma once

#include <vector>

#include "analysis/profile.h"
#include "analysis/readers/chrome_trace.h"

namespace collective_ops {

// Fills steps, whole, calls and notes of `profile` from the events of its rank. Takes over the names.
void summarize_trace(ChromeTrace trace, RankProfile* profile);

// The same of a file that holds all ranks: one profile each.
std::vector<RankProfile> summarize_all_ranks(const ChromeTrace& trace);

}  // namespace collective_ops
