#include "trace/merge.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "support.h"
#include "trace/reader.h"
#include "trace/timeline.h"

namespace collective_ops {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr size_t kHeader = sizeof(TraceFileHeader);

struct MadeUp {
  std::string job = "digits";
  int rank = 0;
  int world_size = 2;
  uint64_t run = 1;
  int64_t opened_monotonic_ns = 1'000;
  int64_t opened_real_ns = 1'700'000'000'000'000'000;
  std::string host = "node-a";
  std::string boot_id = "boot";
};

// A rank's file with the given calls, whose header does not depend on machine or hour.
std::filesystem::path make_file(const TemporaryDirectory& directory, const MadeUp& made_up,
                                const std::vector<std::pair<CallRecord, std::vector<PeerRecord>>>& calls) {
  std::filesystem::path path;
  {
    auto recorder = Recorder::open(directory.path(), {.job_id = made_up.job,
                                                      .rank = made_up.rank,
                                                      .world_size = made_up.world_size,
                                                      .run = made_up.run,
                                                      .algorithms = {"direct", "two_shot"}});
    EXPECT_TRUE(recorder.ok()) << recorder.status().message();
    for (const auto& [record, peers] : calls) (*recorder)->record(record, peers);
    path = (*recorder)->path();
  }
  std::string text = read_text(path);
  auto& header = *reinterpret_cast<TraceFileHeader*>(text.data());
  header.pid = 100 + made_up.rank;
  header.opened_monotonic_ns = made_up.opened_monotonic_ns;
  header.opened_real_ns = made_up.opened_real_ns;
  std::strcpy(header.host, made_up.host.c_str());
  std::strcpy(header.boot_id, made_up.boot_id.c_str());
  write_text(path, text);
  return path;
}

MergeOptions into(const TemporaryDirectory& directory) {
  return {.output = directory.path() / "comm_trace.json"};
}

Result<MergeSummary> merge(const TemporaryDirectory& directory, const MergeOptions& options) {
  const std::vector inputs = {directory.path()};
  return merge_traces(inputs, options);
}

json events_named(const json& trace, std::string_view name) {
  json found = json::array();
  for (const auto& event : trace["traceEvents"]) {
    if (event["name"] == name) found.push_back(event);
  }
  return found;
}

TEST(Merge, WritesTheGoldenText) {
  TemporaryDirectory directory;
  CallRecord first = call(7, 2'005, 5'000'010);
  first.issued_ns = 2'000;
  first.waited_ns = 1'500;
  first.moved_ns = 400;
  make_file(directory, {.rank = 0}, {{first, {peer(1, 1'500, 16, 8)}}});
  CallRecord second = call(7, 2'900, 5'000'020);
  second.collective = Collective::kBroadcast;
  second.type = DataType::kBFloat16;
  second.root = 0;
  second.algorithm = 1;
  second.path = TracePath::kStaged;
  second.status = ErrorCode::kMismatch;
  make_file(directory, {.rank = 1, .opened_real_ns = 1'700'000'000'000'000'900}, {{second, {}}});
  const auto merged = merge(directory, into(directory));
  ASSERT_TRUE(merged.ok()) << merged.status().message();
  EXPECT_EQ(read_text(directory.path() / "comm_trace.json"), R"({"schemaVersion":1,
"distributedInfo":{"backend":"collective_ops","world_size":2,"pg_count":1,"pg_config":[
{"pg_name":"0","pg_desc":"default_pg","backend_config":"collective_ops","pg_size":2,"ranks":[0,1]}]},
"displayTimeUnit":"ns",
"baseTimeNanoseconds":1700000000000000000,
"collective_ops":{"format":1,"job":"digits","world_size":2,"missing_ranks":[],"ranks":[
{"rank":0,"host":"node-a","pid":100,"calls":1,"lost_calls":0,"closed":true,"problem":""},
{"rank":1,"host":"node-a","pid":101,"calls":1,"lost_calls":0,"closed":true,"problem":""}]},
"traceEvents":[
{"ph":"M","name":"process_name","pid":0,"tid":0,"args":{"name":"rank 0"}},
{"ph":"M","name":"process_labels","pid":0,"tid":0,"args":{"labels":"node-a pid 100"}},
{"ph":"M","name":"process_sort_index","pid":0,"tid":0,"args":{"sort_index":0}},
{"ph":"M","name":"thread_name","pid":0,"tid":0,"args":{"name":"world"}},
{"ph":"X","cat":"collective","name":"all_reduce","pid":0,"tid":0,"ts":1.005,"dur":4998.005,"args":{"Collective name":"allreduce","In msg nelems":4,"Out msg nelems":4,"Group size":2,"dtype":"Float","Process Group Name":"0","Process Group Description":"default_pg","Process Group Ranks":"[0, 1]","Rank":0,"Seq":7,"op":"sum","algorithm":"direct","path":"inline","bytes":16,"status":"ok","issued_us":1.000,"queued_us":0.005,"waited_us":1.500,"moved_us":0.400,"longest_wait_rank":1,"longest_wait_us":1.500,"peer_waited_us":{"1":1.500},"peer_read_bytes":{"1":16},"peer_written_bytes":{"1":8}}},
{"ph":"X","cat":"wait","name":"wait for rank 1","pid":0,"tid":0,"ts":1.005,"dur":1.500},
{"ph":"X","cat":"move","name":"move","pid":0,"tid":0,"ts":2.505,"dur":0.400},
{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"rank 1"}},
{"ph":"M","name":"process_labels","pid":1,"tid":0,"args":{"labels":"node-a pid 101"}},
{"ph":"M","name":"process_sort_index","pid":1,"tid":0,"args":{"sort_index":1}},
{"ph":"M","name":"thread_name","pid":1,"tid":0,"args":{"name":"world"}},
{"ph":"X","cat":"collective","name":"broadcast","pid":1,"tid":0,"ts":1.900,"dur":4997.120,"args":{"Collective name":"broadcast","In msg nelems":4,"Out msg nelems":4,"Group size":2,"dtype":"BFloat16","Process Group Name":"0","Process Group Description":"default_pg","Process Group Ranks":"[0, 1]","Rank":1,"Seq":7,"root":0,"algorithm":"two_shot","path":"staged","bytes":16,"status":"mismatch","issued_us":1.900,"queued_us":0.000,"waited_us":0.000,"moved_us":0.000}}
]}
)");
  EXPECT_THAT(directory.names(), ElementsAre("comm_trace.json"));
  EXPECT_TRUE(merged.value().complete());
  EXPECT_TRUE(merged.value().files_removed);
}

TEST(Merge, KeepsEveryNanosecond) {
  for (const auto& [nanoseconds, text] :
       std::vector<std::pair<int64_t, std::string>>{{0, "0.000"},
                                                    {5, "0.005"},
                                                    {50, "0.050"},
                                                    {999, "0.999"},
                                                    {1000, "1.000"},
                                                    {1'234'567, "1234.567"},
                                                    {7'900'000'000'000'001, "7900000000000.001"}}) {
    fmt::memory_buffer out;
    append_microseconds(out, nanoseconds);
    EXPECT_EQ(fmt::to_string(out), text);
  }
}

TEST(Merge, QuotesAnyBytes) {
  EXPECT_EQ(json_text("a\"b\\c\n"), R"("a\"b\\c\u000a")");
  EXPECT_EQ(json_text("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"");
  EXPECT_EQ(json_text("\xff\xc3 \xed\xa0\x80 \xc0\x80 \xe2\x82"), "\"?? ??? ?? ??\"");
  std::string every;
  for (int c = 0; c < 256; ++c) every += static_cast<char>(c);
  EXPECT_TRUE(json::accept(json_text(every)));
}

TEST(Merge, PutsRanksOfOneHostOnOneClock) {
  TemporaryDirectory directory;
  // The real clock was set back by 10 s between the two openings; another host has its own clock.
  make_file(directory, {.rank = 0, .world_size = 3}, {{call(0, 5'000, 6'000), {}}});
  make_file(directory, {.rank = 1, .world_size = 3, .opened_real_ns = 1'699'999'990'000'000'000},
            {{call(0, 5'500, 6'000), {}}});
  make_file(
      directory,
      {.rank = 2, .world_size = 3, .opened_monotonic_ns = 900'000, .host = "node-b", .boot_id = "other"},
      {{call(0, 905'000, 906'000), {}}});
  ASSERT_TRUE(merge(directory, into(directory)).ok());
  const json calls = events_named(json::parse(read_text(directory.path() / "comm_trace.json")), "all_reduce");
  ASSERT_EQ(calls.size(), 3U);
  EXPECT_EQ(calls[0]["ts"], 4.0);
  EXPECT_EQ(calls[1]["ts"], 4.5);
  EXPECT_EQ(calls[2]["ts"], 5.0);
}

TEST(Merge, NamesSubGroups) {
  TemporaryDirectory directory;
  {
    auto recorder = Recorder::open(directory.path(), {.job_id = "g", .rank = 2, .world_size = 40});
    std::vector<int> even;
    for (int rank = 0; rank < 40; rank += 2) even.push_back(rank);
    (*recorder)->define_group(9, "tensor \"parallel\"", even);
    const int64_t now = monotonic_ns();
    CallRecord made = call(1, now, now + 1);
    made.group = 9;
    made.collective = Collective::kAllGather;
    (*recorder)->record(made);
    made.collective = Collective::kAllToAll;
    (*recorder)->record(made);
  }
  const auto merged = merge(directory, into(directory));
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged.value().missing_ranks.size(), 39U);
  EXPECT_FALSE(merged.value().files_removed);
  const json trace = json::parse(read_text(directory.path() / "comm_trace.json"));
  const json groups = trace["distributedInfo"]["pg_config"];
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[1]["pg_desc"], "tensor \"parallel\"");
  EXPECT_EQ(groups[1]["ranks"].size(), 20U);
  const json event = events_named(trace, "all_gather").at(0);
  EXPECT_EQ(event["tid"], 9);
  EXPECT_EQ(event["args"]["In msg nelems"], 4);
  EXPECT_EQ(event["args"]["Out msg nelems"], 80);
  EXPECT_EQ(events_named(trace, "all_to_all").at(0)["args"]["In msg nelems"], 80);
  EXPECT_EQ(event["args"]["Process Group Ranks"], "[0, 2, 4, ..., 38]");
}

TEST(Merge, EventsNestAndPhasesStayInsideTheirCall) {
  TemporaryDirectory directory;
  CallRecord made = call(1, 2'000, 3'000);
  made.waited_ns = 800;  // more than the call has room for, by the jitter of two clock readings
  made.moved_ns = 300;
  make_file(directory, {.world_size = 1}, {{made, {}}, {call(2, 3'000, 4'000), {}}});
  ASSERT_TRUE(merge(directory, into(directory)).ok());
  const json trace = json::parse(read_text(directory.path() / "comm_trace.json"));
  const json wait = events_named(trace, "wait").at(0);
  const json move = events_named(trace, "move").at(0);
  EXPECT_EQ(wait["ts"], 1.0);
  EXPECT_EQ(wait["dur"], 0.8);
  EXPECT_EQ(move["ts"], 1.8);
  EXPECT_EQ(move["dur"], 0.2);
}

TEST(Merge, TakesTheNewestJobAndNamesTheOthers) {
  TemporaryDirectory directory;
  make_file(directory, {.job = "old", .opened_real_ns = 1'700'000'000'000'000'000},
            {{call(1, 2'000, 3'000), {}}});
  make_file(directory, {.job = "new", .world_size = 1, .opened_real_ns = 1'700'000'001'000'000'000},
            {{call(2, 2'000, 3'000), {}}});
  auto merged = merge(directory, into(directory));
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged.value().job, "new");
  EXPECT_THAT(merged.value().other_jobs, ElementsAre("old"));
  EXPECT_THAT(directory.names(), ElementsAre(trace_file_name("old", 0), "comm_trace.json"));

  auto options = into(directory);
  options.job = "absent";
  const Status absent = merge(directory, options).status();
  EXPECT_EQ(absent.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(absent.message(), HasSubstr("\"old\""));
  options.job = job_hash("old");
  merged = merge(directory, options);
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged.value().job, "old");
  EXPECT_THAT(merged.value().missing_ranks, ElementsAre(1));
}

TEST(Merge, LeavesFilesOfAnEarlierStartAlone) {
  TemporaryDirectory directory;
  make_file(directory, {.rank = 0, .run = 2, .opened_real_ns = 1'700'000'001'000'000'000}, {});
  make_file(directory, {.rank = 1, .run = 1}, {{call(1, 2'000, 3'000), {}}});
  const auto merged = merge(directory, into(directory));
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged.value().calls, 0U);
  EXPECT_THAT(merged.value().missing_ranks, ElementsAre(1));
  EXPECT_EQ(merged.value().older_files.size(), 1U);
  EXPECT_EQ(directory.names().size(), 3U);
}

TEST(Merge, RefusesTwoFilesOfOneRank) {
  TemporaryDirectory one;
  TemporaryDirectory two;
  const std::vector inputs = {make_file(one, {}, {}), make_file(two, {}, {})};
  const Status status = merge_traces(inputs, into(one)).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("both of rank 0"));
}

TEST(Merge, SaysWhatToDoWhereThereIsNothing) {
  TemporaryDirectory directory;
  write_text(directory.path() / "comm_trace.0123456789abcdef.rank0.bin", "no trace");
  write_text(directory.path() / "comm_trace.json", "older");
  const Status status = merge(directory, into(directory)).status();
  EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("COLLECTIVE_OPS_TRACE=1"));
  EXPECT_THAT(status.message(), HasSubstr("shorter than its header"));
  EXPECT_EQ(read_text(directory.path() / "comm_trace.json"), "older");
}

TEST(Merge, KeepsFilesWhereTheOutputCannotBeWritten) {
  TemporaryDirectory directory;
  make_file(directory, {.world_size = 1}, {{call(1, 2'000, 3'000), {}}});
  const Status status = merge(directory, {.output = directory.path() / "absent" / "out.json"}).status();
  EXPECT_EQ(status.code(), ErrorCode::kSystem);
  EXPECT_THAT(directory.names(), ElementsAre(trace_file_name("digits", 0)));
}

TEST(Merge, KeepsFilesWhereTheDiskIsFull) {
  TemporaryDirectory directory;
  std::vector<std::pair<CallRecord, std::vector<PeerRecord>>> calls(500, {call(1, 2'000, 3'000), {}});
  make_file(directory, {.world_size = 1}, calls);
  TemporaryDirectory small;
  if (mount("tmpfs", small.path().c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "may not mount a small disk";
  const Status status = merge(directory, into(small)).status();
  const auto left = small.names();
  umount(small.path().c_str());
  EXPECT_EQ(status.code(), ErrorCode::kSystem);
  EXPECT_THAT(status.message(), HasSubstr("No space left"));
  EXPECT_THAT(left, IsEmpty());
  EXPECT_THAT(directory.names(), ElementsAre(trace_file_name("digits", 0)));
}

TEST(Merge, SurvivesAFileCutAnywhere) {
  TemporaryDirectory directory;
  make_file(directory, {.rank = 0}, {{call(1, 2'000, 3'000), {}}});
  const auto path = make_file(directory, {.rank = 1},
                              {{call(1, 2'000, 3'000), {peer(0, 1, 2)}},
                               {call(2, 4'000, 5'000), {peer(0, 3, 4)}},
                               {call(3, 6'000, 7'000), {}}});
  const std::string whole = read_text(path);
  const size_t entry = sizeof(CallRecord) + sizeof(PeerRecord);
  for (size_t length = 0; length < whole.size(); length += length + 1 < kHeader ? 61 : 1) {
    write_text(path, whole.substr(0, length));
    std::filesystem::remove(directory.path() / "comm_trace.json");
    const auto merged = merge(directory, into(directory));
    ASSERT_TRUE(merged.ok()) << length << ": " << merged.status().message();
    EXPECT_FALSE(merged.value().complete());
    EXPECT_FALSE(merged.value().files_removed);
    if (length < kHeader) {
      EXPECT_THAT(merged.value().missing_ranks, ElementsAre(1));
      EXPECT_EQ(merged.value().unreadable.size(), 1U);
      continue;
    }
    const MergedRank& rank = merged.value().ranks.at(1);
    EXPECT_EQ(rank.calls, (length - kHeader) / entry) << length;
    EXPECT_THAT(rank.problem, HasSubstr("cut off"));
    const json trace = json::parse(read_text(directory.path() / "comm_trace.json"));
    EXPECT_EQ(events_named(trace, "all_reduce").size(), 1 + rank.calls);
    EXPECT_THAT(trace["collective_ops"]["ranks"][1]["problem"].get<std::string>(), HasSubstr("cut off"));
  }
}

TEST(Merge, SurvivesAnyByteTurnedOver) {
  TemporaryDirectory directory;
  make_file(directory, {.rank = 0}, {{call(1, 2'000, 3'000), {}}});
  const auto path =
      make_file(directory, {.rank = 1},
                {{call(1, 2'000, 3'000), {peer(0, 1, 2)}}, {call(2, 4'000, 5'000), {peer(0, 3, 4)}}});
  auto options = into(directory);
  options.keep_files = true;
  const std::string whole = read_text(path);
  const size_t fields = offsetof(TraceFileHeader, reserved);
  for (size_t at = 0; at < whole.size(); ++at) {
    if (at == fields) at = kHeader;
    std::string damaged = whole;
    damaged[at] = static_cast<char>(~damaged[at]);
    write_text(path, damaged);
    std::filesystem::remove(options.output);
    const auto merged = merge(directory, options);
    if (!merged.ok()) {  // the damage made it another job, or the rank of the other file
      EXPECT_EQ(merged.status().code(), ErrorCode::kInvalidArgument);
      continue;
    }
    EXPECT_TRUE(json::accept(read_text(directory.path() / "comm_trace.json"))) << "byte " << at;
  }
}

TEST(Merge, LeavesOutImpossibleCallsAndNamesThem) {
  TemporaryDirectory directory;
  CallRecord backwards = call(1, 3'000, 2'000);
  CallRecord unknown = call(2, 2'000, 3'000);
  unknown.collective = static_cast<Collective>(200);
  make_file(directory, {.world_size = 1},
            {{backwards, {}},
             {unknown, {}},
             {call(3, 2'000, 3'000), {peer(5, 1, 1)}},
             {call(4, 2'000, 3'000), {}}});
  const auto merged = merge(directory, into(directory));
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged.value().calls, 1U);
  EXPECT_THAT(merged.value().ranks.at(0).problem, HasSubstr("3 calls"));
  EXPECT_THAT(merged.value().text(), HasSubstr("damaged: rank 0"));
}

TEST(Merge, LeavesTheFilesOfARunningJob) {
  TemporaryDirectory directory;
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto recorder = Recorder::open(directory.path(), {.job_id = "live", .rank = 0, .world_size = 1});
    const int64_t now = monotonic_ns();
    (*recorder)->record(call(1, now, now + 1));
    if (write(ready[1], "x", 1) != 1) _exit(1);
    for (;;) pause();
  }
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1);
  auto merged = merge(directory, into(directory));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  ASSERT_TRUE(merged.ok()) << merged.status().message();
  EXPECT_EQ(merged.value().calls, 1U);
  EXPECT_TRUE(merged.value().ranks.at(0).recording);
  EXPECT_FALSE(merged.value().files_removed);
  EXPECT_THAT(merged.value().text(), HasSubstr("still recording"));

  merged = merge(directory, into(directory));  // killed: all that it wrote is there
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged.value().calls, 1U);
  EXPECT_FALSE(merged.value().ranks.at(0).closed);
  EXPECT_TRUE(merged.value().files_removed);
  EXPECT_THAT(merged.value().text(), HasSubstr("did not leave in order"));
}

}  // namespace
}  // namespace collective_ops
