#include "analysis/writers/ascend_cluster.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "analysis/writers/output_file.h"
#include "trace/timeline.h"

namespace collective_ops {
namespace {

struct Indices {
  bool known = false;
  int data = 0, pipeline = 0, tensor = 0;
};

// Ranks are numbered tensor first, then context, then data, and pipeline last.
Indices indices_of(const RankProfile& profile) {
  const ParallelSizes& sizes = profile.parallel;
  const auto or_one = [](int size) { return std::max(size, 1); };
  const int64_t tensor = or_one(sizes.tensor), context = or_one(sizes.context),
                pipeline = or_one(sizes.pipeline);
  int64_t data = sizes.data;
  const int64_t rest = tensor * context * pipeline;
  if (sizes.world <= 0 || sizes.tensor <= 0) return {};
  if (data == 0) data = sizes.world / rest;
  if (data < 1 || rest * data != sizes.world) return {};
  const int64_t rank = profile.rank;
  return {true, static_cast<int>(rank / (tensor * context) % data),
          static_cast<int>(rank / (tensor * context * data)), static_cast<int>(rank % tensor)};
}

void print_times(OutputFile* file, const StepTime& time, bool preparing) {
  file->print("{},{},{},{},{},{},{},{}", time.computing_us, time.exposed_us, time.overlapped_us,
              time.communication_us, time.free_us, time.stage_us, time.bubble_us,
              time.exposed_without_bubble_us);
  if (preparing) file->print(",{}", time.preparing_us.value_or(0));
}

// The stage's slowest rank in this step, all columns from it: columns of several ranks would not add up.
const StepTime* slowest_of(const ProfileSet& set, const std::vector<int>& stage, const std::string& step) {
  const StepTime* slowest = nullptr;
  for (const RankProfile& profile : set.ranks) {
    if (!std::binary_search(stage.begin(), stage.end(), profile.rank)) continue;
    for (const StepTime& time : profile.steps) {
      const auto length = [](const StepTime& t) { return t.stage_us + t.bubble_us; };
      if (time.step == step && (slowest == nullptr || length(time) > length(*slowest))) slowest = &time;
    }
  }
  return slowest;
}

}  // namespace

Status write_step_trace_time(const ProfileSet& set, const std::filesystem::path& path) {
  auto file = OutputFile::create(path);
  if (!file.ok()) return file.status();
  bool preparing = false, indices = false;
  std::vector<std::string> steps;
  for (const RankProfile& profile : set.ranks) {
    indices |= indices_of(profile).known;
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
  const std::vector<std::vector<int>> stages = pipeline_stages(set);
  for (const std::string& step : steps) {
    for (const RankProfile& profile : set.ranks) {
      for (const StepTime& time : profile.steps) {
        if (time.step != step) continue;
        out.print("{},rank,{},", csv_cell(step), profile.rank);
        print_times(&out, time, preparing);
        const Indices index = indices_of(profile);
        if (index.known) out.print(",{},{},{}", index.data, index.pipeline, index.tensor);
        if (indices && !index.known) out.print(",,,");
        out.print("\r\n");
      }
    }
    for (const std::vector<int>& stage : stages) {
      const StepTime* time = slowest_of(set, stage, step);
      if (time == nullptr) continue;
      out.print("{},stage,\"{}\",", csv_cell(step), rank_tuple(stage));
      print_times(&out, *time, preparing);
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
