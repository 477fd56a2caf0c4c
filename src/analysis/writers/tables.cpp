#include "analysis/writers/tables.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "analysis/step_rows.h"
#include "analysis/writers/output_file.h"

namespace collective_ops {
namespace {

// Waiting and moving by (row of the rank, row of its step).
struct StepWaiting {
  double waited_us = 0;    // latest start - own start
  double wait_us = 0;      // own duration - shortest duration over ranks, as msprof-analyze has it
  double transmit_us = 0;  // shortest duration over ranks
};
using WaitingOfSteps = std::map<std::pair<uint32_t, uint32_t>, StepWaiting>;

WaitingOfSteps waiting_of_steps(const ProfileSet& set, const WaitAnalysis& waits) {
  WaitingOfSteps result;
  for (const MatchedCall& call : waits.calls) {
    for (const MatchedMember& member : call.members) {
      const RankProfile& profile = set.ranks[member.rank_row];
      uint32_t step = profile.calls[member.call_row].step;
      if (step == CallArguments::kNoName && profile.steps.size() == 1) step = 0;
      if (step == CallArguments::kNoName) continue;
      StepWaiting& waiting = result[{member.rank_row, step}];
      waiting.waited_us += static_cast<double>(call.latest_start_ns - member.start_ns) / 1e3;
      waiting.wait_us += static_cast<double>(member.end_ns - member.start_ns - call.shortest_ns) / 1e3;
      waiting.transmit_us += static_cast<double>(call.shortest_ns) / 1e3;
    }
  }
  return result;
}

double step_length(const StepTime& time) {
  return time.end_ns > time.begin_ns ? static_cast<double>(time.end_ns - time.begin_ns) / 1e3
                                     : time.stage_us + time.bubble_us;
}

template <typename Row>
Status write_steps(const ProfileSet& set, const WaitAnalysis& waits, const std::filesystem::path& path,
                   std::string_view header, const Row& print_row) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  (*file)->print("{}\n", header);
  const WaitingOfSteps waiting = waiting_of_steps(set, waits);
  for (uint32_t row = 0; row < set.ranks.size(); ++row) {
    for (uint32_t step = 0; step < set.ranks[row].steps.size(); ++step) {
      const auto at = waiting.find({row, step});
      print_row(file->get(), set.ranks[row], set.ranks[row].steps[step],
                at == waiting.end() ? nullptr : &at->second);
    }
  }
  return (*file)->finish();
}

}  // namespace

Status write_summary(const ProfileSet& set, const WaitAnalysis& waits, const std::filesystem::path& path) {
  constexpr std::string_view kHeader =
      "step,rank,host,dp,pp,tp,computing_us,exposed_communication_us,overlapped_communication_us,waiting_us,"
      "free_us,step_us,computing_share,exposed_communication_share,waiting_share,free_share";
  return write_steps(
      set, waits, path, kHeader,
      [](OutputFile* out, const RankProfile& profile, const StepTime& time, const StepWaiting* waiting) {
        const double length = step_length(time);
        const auto share = [&](double part) {
          return length > 0 ? fmt::format("{:.4f}", part / length) : std::string();
        };
        const RankPlace place = place_of(profile);
        const auto index = [&](int value) { return place.known ? std::to_string(value) : std::string(); };
        out->print("{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\n", csv_cell(time.step), profile.rank,
                   csv_cell(profile.host), index(place.data), index(place.pipeline), index(place.tensor),
                   time.computing_us, time.exposed_us, time.overlapped_us,
                   waiting == nullptr ? std::string() : fmt::format("{:.3f}", waiting->waited_us),
                   time.free_us, length, share(time.computing_us), share(time.exposed_us),
                   waiting == nullptr ? std::string() : share(waiting->waited_us), share(time.free_us));
      });
}

Status write_time_summary(const ProfileSet& set, const WaitAnalysis& waits,
                          const std::filesystem::path& path) {
  constexpr std::string_view kHeader =
      "rank,step,stepTime,computation,communicationNotOverlapComputation,communicationOverlapComputation,"
      "communication,free,communicationWaitStageTime,communicationTransmitStageTime,"
      "memoryNotOverlapComputationCommunication";
  return write_steps(
      set, waits, path, kHeader,
      [](OutputFile* out, const RankProfile& profile, const StepTime& time, const StepWaiting* waiting) {
        const bool copies = time.end_ns > time.begin_ns && !profile.on_host;  // known
        out->print("{},{},{},{},{},{},{},{},{},{},{}\n", profile.rank, csv_cell(time.step), step_length(time),
                   time.computing_us, time.exposed_us, time.overlapped_us, time.communication_us,
                   time.free_us - (copies ? time.copies_us : 0),
                   waiting == nullptr ? std::string() : fmt::format("{:.3f}", waiting->wait_us),
                   waiting == nullptr ? std::string() : fmt::format("{:.3f}", waiting->transmit_us),
                   copies ? fmt::format("{}", time.copies_us) : std::string());
      });
}

Status write_call_statistics(const std::vector<CallStatistics>& calls, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  (*file)->print("OpType,Rank,Count,MeanNs,StdNs,MinNs,Q1Ns,MedianNs,Q3Ns,MaxNs,SumNs\n");
  for (const CallStatistics& call : calls) {
    (*file)->print("{},{},{},{:.3f},{:.3f},{},{},{},{},{},{}\n", csv_cell(call.collective),
                   call.rank < 0 ? std::string("all") : std::to_string(call.rank), call.count, call.mean_ns,
                   call.deviation_ns, call.min_ns, call.q1_ns, call.median_ns, call.q3_ns, call.max_ns,
                   call.sum_ns);
  }
  return (*file)->finish();
}

Status write_slow_ranks(const ProfileSet& set, const WaitAnalysis& waits, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  (*file)->print(
      "rank,verdict,confidence,late_ms,waited_ms,moved_ms,calls,times_last,heavy_calls,heavy_times_last,"
      "cause,"
      "evidence\n");
  const auto print_verdict = [&](const SlowRank* slow) {
    if (slow == nullptr) return (*file)->print(",,,\n");
    (*file)->print("{},{},{},{}\n", slow->calls, slow->times_last, csv_cell(slow->cause),
                   csv_cell(slow->evidence));
  };
  for (size_t row = 0; row < set.ranks.size(); ++row) {
    const RankWaiting& waiting = waits.waiting[row];
    const int rank = set.ranks[row].rank;
    const auto at = std::find_if(waits.slow.begin(), waits.slow.end(),
                                 [&](const SlowRank& other) { return other.rank == rank; });
    const SlowRank* slow = at == waits.slow.end() ? nullptr : &*at;
    (*file)->print("{},{},{},{:.3f},{:.3f},{:.3f},{},{},", rank, slow == nullptr ? "" : "slow",
                   slow == nullptr ? "" : slow->confidence, waiting.late_ms, waiting.waited_ms,
                   waiting.moved_ms, waiting.calls, waiting.times_last);
    print_verdict(slow);
  }
  for (const SlowRank& slow : waits.slow) {
    if (!std::binary_search(set.missing_ranks.begin(), set.missing_ranks.end(), slow.rank)) continue;
    (*file)->print("{},slow,{},{:.3f},,,,,", slow.rank, slow.confidence, slow.late_ms);
    print_verdict(&slow);
  }
  return (*file)->finish();
}

Status write_slow_links(const LinkAnalysis& links, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  (*file)->print(
      "source,destination,transport,size_mb,time_ms,bandwidth_gb_s,verdict,usual_gb_s,lost_ms,cause\n");
  for (const LinkSpeed& link : links.links) {
    const auto slow = std::find_if(links.slow.begin(), links.slow.end(), [&](const SlowLink& other) {
      return other.link.source == link.source && other.link.destination == link.destination &&
             other.link.transport == link.transport;
    });
    (*file)->print("{},{},{},{},{},{:.4f},", link.source, link.destination, csv_cell(link.transport),
                   link.megabytes, link.milliseconds, link.gigabytes_per_second);
    if (slow == links.slow.end()) {
      (*file)->print(",,,\n");
    } else {
      (*file)->print("slow,{:.4f},{:.3f},{}\n", slow->usual_gigabytes_per_second, slow->lost_ms,
                     csv_cell(slow->cause));
    }
  }
  return (*file)->finish();
}

}  // namespace collective_ops
