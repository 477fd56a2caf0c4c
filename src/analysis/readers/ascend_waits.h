// Whom a card waited for inside a call: the notifications that it waits for name the other card.
#pragma once

#include <cstdint>
#include <filesystem>

#include "analysis/profile.h"

namespace collective_ops {

// Of `call`, the longest wait for one peer, a rank of the call's group. Waits that say nothing of a slow rank
// are left out: below 0.5 ms, or a tenth of the call.
void set_longest_wait(int64_t peer, int64_t nanoseconds, RankProfile* profile, ProfiledCall* call);

// The same from trace_view.json of a text export, for each call of `profile`.
void read_trace_view_waits(const std::filesystem::path& path, RankProfile* profile);

}  // namespace collective_ops
