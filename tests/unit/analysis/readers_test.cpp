#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "analysis/discovery.h"
#include "analysis/readers/ascend.h"
#include "analysis/readers/chrome_trace.h"
#include "analysis/readers/json_scanner.h"

namespace collective_ops {
namespace {

TEST(Nanoseconds, AreReadExactly) {
  EXPECT_EQ(nanoseconds_of("1736408883688177.930"), 1736408883688177930);
  EXPECT_EQ(nanoseconds_of("5183222291600.674"), 5183222291600674);
  EXPECT_EQ(nanoseconds_of("0.005"), 5);
  EXPECT_EQ(nanoseconds_of("10.0"), 10'000);
  EXPECT_EQ(nanoseconds_of("7.25\t"), 7'250);
  EXPECT_EQ(nanoseconds_of("1.23456"), 1'234);
  EXPECT_EQ(nanoseconds_of("-7.5"), -7'500);
  EXPECT_EQ(nanoseconds_of("1.5e3"), 1'500'000);
  for (const char* text : {"", "NaN", "Infinity", "-", "none", "1e300", "99999999999999999999", "{", "."}) {
    EXPECT_EQ(nanoseconds_of(text), std::nullopt) << text;
  }
}

TEST(JsonScanner, PassesOverAnyValue) {
  JsonScanner scanner(R"({"a": [1, {"b": "]}\"", "c": [[]]}, NaN], "d": -1.5e3, "e": "x", "f": true})");
  std::string_view key, text;
  ASSERT_TRUE(scanner.enter('{'));
  ASSERT_TRUE(scanner.next_key(&key));
  EXPECT_EQ(key, "a");
  ASSERT_TRUE(scanner.skip());
  ASSERT_TRUE(scanner.next_key(&key));
  EXPECT_EQ(scanner.number(), -1500);
  ASSERT_TRUE(scanner.next_key(&key));
  ASSERT_TRUE(scanner.string(&text));
  EXPECT_EQ(text, "x");
  ASSERT_TRUE(scanner.next_key(&key));
  ASSERT_TRUE(scanner.scalar(&text));
  EXPECT_EQ(text, "true");
  EXPECT_FALSE(scanner.next_key(&key));
  EXPECT_TRUE(scanner.good());
}

TEST(JsonScanner, SaysWhetherTextIsBrokenOrEnds) {
  const std::string text = R"({"a": [1, "two", {"b": 3}], "c": "d"})";
  for (size_t length = 0; length < text.size(); ++length) {
    JsonScanner scanner(std::string_view(text).substr(0, length));
    scanner.skip();
    EXPECT_EQ(scanner.state(), JsonScanner::State::kEnded) << length;
  }
  JsonScanner broken(R"({"a": "b"c", "d": 1})");
  broken.skip();
  EXPECT_EQ(broken.state(), JsonScanner::State::kBroken);
}

TEST(JsonScanner, DecodesEscapes) {
  EXPECT_EQ(unescaped(R"(a\"\\\/\n\u00e9\u4e2d\ud83d\ude00)"), "a\"\\/\n\u00e9\u4e2d\U0001F600");
  EXPECT_EQ(unescaped(R"(\u12)"), "12");
  EXPECT_EQ(unescaped("end\\"), "end\\");
}

TEST(GroupHash, IsTheProfilers) {
  EXPECT_EQ(ascend_group_hash("90.91.105.46%enp189s0f0_60000_0_1736410538306028"), "17148521525495523210");
  EXPECT_EQ(ascend_group_hash(""), "");
}

TEST(RankInPath, KnowsTheUsualNames) {
  EXPECT_EQ(rank_in_path("rank-34.Jan_01.99.pt.trace.json.gz"), 34);
  EXPECT_EQ(rank_in_path("iteration_5/rank2_trace.json"), 2);
  EXPECT_EQ(rank_in_path("sampled_rank-0.json.gz"), 0);
  EXPECT_EQ(rank_in_path("worker7_step_12.1694128201553.pt.trace.json"), 7);
  EXPECT_EQ(rank_in_path("out/rank[3]"), 3);
  EXPECT_EQ(rank_in_path("r12-2024-01-01.5.json"), 12);
  EXPECT_EQ(rank_in_path("profiler/6/host_99.pt.trace.json"), 6);
  EXPECT_EQ(rank_in_path("host_4711.1694128201553.pt.trace.json"), -1);
  EXPECT_EQ(rank_in_path("ranking.json"), -1);
}

class RandomDamage : public testing::TestWithParam<int> {};

// Whatever is done to the text, reading ends, and what it gives is in order.
TEST_P(RandomDamage, IsSurvived) {
  std::string text =
      R"({"distributedInfo": {"rank": 1, "pg_config": [{"pg_name": "0", "ranks": "[0, 1]"}]}, "traceEvents": [)";
  for (int i = 0; i < 50; ++i) {
    text += R"({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": )" +
            std::to_string(i * 10) +
            R"(.125, "dur": 5, "args": {"stream": 7, "Input Dims": [[1, 2], [3]], "grid": [1, 1, 1]}},)";
  }
  text.back() = ']';
  text += R"(, "traceName": "x"})";
  std::mt19937 random(static_cast<unsigned>(GetParam()));
  const auto path =
      std::filesystem::path(testing::TempDir()) / ("damage" + std::to_string(GetParam()) + ".json");
  for (int round = 0; round < 100; ++round) {
    std::string damaged = text;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % damaged.size();
      if (random() % 3 == 0) {
        damaged.erase(at, 1 + random() % 30);
      } else {
        damaged[at] = "\"{}[],:\\x09\n\xff"[random() % 13];
      }
    }
    std::ofstream(path, std::ios::binary) << damaged;
    const auto trace = read_chrome_trace(path);
    if (!trace.ok()) continue;
    EXPECT_LE(trace->events.size(), 50u);
    EXPECT_TRUE(std::is_sorted(trace->events.start_ns.begin(), trace->events.start_ns.end()));
    for (const int64_t duration : trace->events.duration_ns) EXPECT_GE(duration, 0);
  }
  std::filesystem::remove(path);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomDamage, testing::Range(0, 8));

// An event may lie across windows of any size: this file is many times as large as one.
TEST(ChromeTrace, IsReadInWindows) {
  const auto path = std::filesystem::path(testing::TempDir()) / "windows.json";
  constexpr int kEvents = 40'000;
  {
    std::ofstream out(path, std::ios::binary);
    out << R"({"traceEvents": [)";
    for (int i = 0; i < kEvents; ++i) {
      out << (i == 0 ? "" : ",") << R"({"ph": "X", "cat": "cpu_op", "name": "op)" << i % 7
          << R"(", "pid": 1, "tid": 2, "ts": )" << i << R"(, "dur": 0.5, "args": {"Call stack": ")"
          << std::string(static_cast<size_t>(i % 200), 's') << "\"}}";
    }
    out << R"(], "baseTimeNanoseconds": 1000, "distributedInfo": {"rank": 5, "world_size": 6}})";
  }
  const auto trace = read_chrome_trace(path);
  std::filesystem::remove(path);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_EQ(trace->events.size(), static_cast<size_t>(kEvents));
  EXPECT_EQ(trace->seen, static_cast<uint64_t>(kEvents));
  EXPECT_EQ(trace->damage.events, 0u);
  EXPECT_EQ(trace->damage.text, "");
  EXPECT_EQ(trace->header.rank, 5);
  EXPECT_EQ(trace->events.start_ns.back(), (kEvents - 1) * 1000 + 1000);
  EXPECT_EQ(trace->events.names.size(), 7u + 1u);  // and one track
}

}  // namespace
}  // namespace collective_ops
