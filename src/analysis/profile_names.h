// Where a profile holds ids of names, in one place; what joins or shrinks profiles by it.
#pragma once

#include "analysis/profile.h"

namespace collective_ops {

// Runs `visit(uint32_t&)` on every id of RankProfile::names.
template <typename Visit>
void for_each_name(RankProfile* profile, const Visit& visit) {
  for (ProfiledCall& call : profile->calls) {
    for (uint32_t* name : {&call.collective, &call.group, &call.operator_name, &call.busy_with, &call.type}) {
      visit(*name);
    }
  }
  for (CommunicationOperator& op : profile->operators) {
    for (uint32_t* name : {&op.step, &op.name, &op.group}) visit(*name);
    for (LinkTraffic& link : op.links) visit(link.link);
  }
  for (MatrixEntry& entry : profile->matrix) {
    for (uint32_t* name : {&entry.step, &entry.name, &entry.group, &entry.transport, &entry.operator_name}) {
      visit(*name);
    }
  }
  for (TimelineSlice& slice : profile->timeline.slices) {
    visit(slice.name);
    visit(slice.track);
  }
  for (OperatorStatistics& statistics : profile->operator_times) {
    visit(statistics.name);
    visit(statistics.type);
  }
}

// Keeps the names that something refers to, in texts that all ranks share: a trace has thousands of names,
// its summary some, and most of them are equal on all ranks.
void keep_used_names(RankProfile* profile, const std::shared_ptr<SharedTexts>& texts);

// A later window of the same rank: its steps and calls follow.
void append_window(RankProfile* profile, RankProfile later);

}  // namespace collective_ops
