#include "analysis/profile_names.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace collective_ops {
namespace {

constexpr uint32_t kNone = CallArguments::kNoName;

// Makes the ids of `profile` those of `names`.
void rename_all(RankProfile* profile, NameTable* names) {
  std::vector<uint32_t> renamed(profile->names.size(), kNone);
  for_each_name(profile, [&](uint32_t& name) {
    if (name == kNone) return;
    if (renamed[name] == kNone) renamed[name] = names->intern(profile->names[name]);
    name = renamed[name];
  });
}

template <typename Element>
void append(std::vector<Element>* to, std::vector<Element>* from) {
  to->insert(to->end(), std::make_move_iterator(from->begin()), std::make_move_iterator(from->end()));
}

// Both windows together; what lies between them was not profiled and counts in nothing.
void add_up(StepTime* sum, const StepTime& other) {
  sum->computing_us += other.computing_us;
  sum->communication_us += other.communication_us;
  sum->exposed_us += other.exposed_us;
  sum->overlapped_us += other.overlapped_us;
  sum->free_us += other.free_us;
  sum->stage_us += other.stage_us;
  sum->bubble_us += other.bubble_us;
  sum->exposed_without_bubble_us += other.exposed_without_bubble_us;
  sum->copies_us += other.copies_us;
  sum->end_ns += other.end_ns - other.begin_ns;
}

}  // namespace

void keep_used_names(RankProfile* profile, const std::shared_ptr<SharedTexts>& texts) {
  NameTable names(texts);
  rename_all(profile, &names);
  names.close();
  profile->names = std::move(names);
  profile->calls.shrink_to_fit();
  profile->operator_times.shrink_to_fit();
  profile->timeline.slices.shrink_to_fit();
}

void append_window(RankProfile* profile, RankProfile later) {
  rename_all(&later, &profile->names);
  const auto steps = static_cast<uint32_t>(profile->steps.size());
  for (ProfiledCall& call : later.calls) {
    if (call.step != kNone) call.step += steps;
  }
  append(&profile->steps, &later.steps);
  append(&profile->calls, &later.calls);
  append(&profile->operators, &later.operators);
  append(&profile->matrix, &later.matrix);
  append(&profile->operator_times, &later.operator_times);
  append(&profile->notes, &later.notes);
  append(&profile->timeline.slices, &later.timeline.slices);
  profile->timeline.left_out += later.timeline.left_out;
  profile->timeline.longest_left_out_ns =
      std::max(profile->timeline.longest_left_out_ns, later.timeline.longest_left_out_ns);
  std::stable_sort(profile->calls.begin(), profile->calls.end(),
                   [](const ProfiledCall& a, const ProfiledCall& b) { return a.start_ns < b.start_ns; });
  if (profile->whole && later.whole) add_up(&*profile->whole, *later.whole);
  profile->bytes += later.bytes;
  profile->events += later.events;
}

}  // namespace collective_ops
