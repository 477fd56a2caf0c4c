#include "analysis/writers/ascend_cluster.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "analysis/step_rows.h"
#include "analysis/writers/output_file.h"
#include "trace/timeline.h"

namespace collective_ops {
namespace {

void print_times(OutputFile* file, const StepTime& time, bool preparing) {
  file->print("{},{},{},{},{},{},{},{}", time.computing_us, time.exposed_us, time.overlapped_us,
              time.communication_us, time.free_us, time.stage_us, time.bubble_us,
              time.exposed_without_bubble_us);
  if (preparing) file->print(",{}", time.preparing_us.value_or(0));
}

}  // namespace

Status write_step_trace_time(const ProfileSet& set, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  bool preparing = false, indices = false;
  std::vector<std::string> steps;
  for (const RankProfile& profile : set.ranks) {
    indices |= place_of(profile).known;
    for (const StepTime& time : profile.steps) {
      preparing |= time.preparing_us.has_value();
      if (std::find(steps.begin(), steps.end(), time.step) == steps.end()) steps.push_back(time.step);
    }
  }
  OutputFile& out = **file;
  out.print(
      "Step,Type,Index,Computing,Communication(Not Overlapped),Overlapped,Communication,Free,Stage,Bubble,"
      "Communication(Not Overlapped and Exclude Receive){}{}\r\n",
      preparing ? ",Preparing" : "", indices ? ",DP Index,PP Index,TP Index" : "");
  const std::vector<StageTime> stages = stage_times(set);
  for (const std::string& step : steps) {
    for (const RankProfile& profile : set.ranks) {
      for (const StepTime& time : profile.steps) {
        if (time.step != step) continue;
        out.print("{},rank,{},", csv_cell(step), profile.rank);
        print_times(&out, time, preparing);
        const RankPlace index = place_of(profile);
        if (index.known) out.print(",{},{},{}", index.data, index.pipeline, index.tensor);
        if (indices && !index.known) out.print(",,,");
        out.print("\r\n");
      }
    }
    for (const StageTime& stage : stages) {
      if (stage.time->step != step) continue;
      out.print("{},stage,\"{}\",", csv_cell(step), rank_tuple(stage.ranks));
      print_times(&out, *stage.time, preparing);
      out.print("{}\r\n", indices ? ",,," : "");
    }
  }
  return out.finish();
}

Status write_communication_group(const ClusterGroups& groups, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  OutputFile& out = **file;
  const auto list = [](const std::vector<int>& ranks) { return fmt::format("[{}]", fmt::join(ranks, ", ")); };
  const auto lists = [&](const std::map<std::string, ClusterGroup>& all) {
    std::vector<std::string> texts;
    for (const auto& [hash, group] : all) {
      const std::string text = list(group.ranks);
      if (std::find(texts.begin(), texts.end(), text) == texts.end()) texts.push_back(text);
    }
    return fmt::format("[{}]", fmt::join(texts, ", "));
  };
  out.print("{{\"collective\": {}, \"p2p\": {}, \"comm_group_parallel_info\": [", lists(groups.by_hash),
            lists(groups.point_to_point));
  bool first = true;
  for (const auto* part : {&groups.by_hash, &groups.point_to_point}) {
    for (const auto& [hash, group] : *part) {
      out.print(
          "{}{{\"type\": \"{}\", \"rank_set\": {}, \"group_name\": {}, \"group_id\": {}, \"pg_name\": {}}}",
          first ? "" : ", ", group.point_to_point ? "p2p" : "collective", list(group.ranks), json_text(hash),
          json_text(group.id), json_text(group.description));
      first = false;
    }
  }
  out.print("]}}");
  return out.finish();
}

}  // namespace collective_ops
