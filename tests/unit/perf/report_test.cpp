// The layouts of hccl_test and nccl-tests, byte for byte.
#include "perf/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace collective_ops::perf {
namespace {

Machine machine(int ranks) {
  Machine result{{}, "Processor", {}};
  for (int rank = 0; rank < ranks; ++rank) {
    result.hosts.emplace_back("host");
    result.processes.push_back(100 + rank);
  }
  return result;
}

TEST(Report, BusFactorsAreThoseOfNcclTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllReduce, 8), 1.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::kAllReduce, 2), 1.0);
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllGather,
                                      Collective::kAllToAll, Collective::kGather, Collective::kScatter}) {
    EXPECT_DOUBLE_EQ(bus_factor(collective, 8), 0.875) << name_of(collective);
    EXPECT_DOUBLE_EQ(bus_factor(collective, 2), 0.5) << name_of(collective);
  }
  for (const Collective collective : {Collective::kBroadcast, Collective::kReduce}) {
    EXPECT_DOUBLE_EQ(bus_factor(collective, 8), 1.0) << name_of(collective);
  }
}

TEST(Report, BandwidthIsInDecimalGigabytes) {
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(1'000'000, 1000), 1.0);
  EXPECT_DOUBLE_EQ(algorithm_bandwidth(0, 0), 0.0);
}

TEST(Report, HcclTest) {
  Options options;
  options.begin = 8192;
  options.end = 67108864;
  Report report(options, machine(8));
  EXPECT_EQ(report.head(),
            "the minbytes is 8192, maxbytes is 67108864, iters is 20, warmup_iters is 5\n"
            "data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:\n");
  EXPECT_EQ(report.row({8192, 8192, 2048, Measurement{57.01, 0}}),
            "8192              | 57.01          | 0.14369              | success\n");
  EXPECT_EQ(report.row({67108864, 67108864, 16777216, Measurement{1234.5, std::nullopt}}),
            "67108864          | 1234.50        | 54.36117             | NULL\n");
  EXPECT_TRUE(report.all_right());
  EXPECT_EQ(report.row({16, 16, 4, Measurement{10, 3}}),
            "16                | 10.00          | 0.00160              | failed\n");
  EXPECT_FALSE(report.all_right());
  EXPECT_EQ(report.tail(), "");
}

TEST(Report, HcclTestSaysThatAnOperationCountsForNothing) {
  Options options;
  options.collective = Collective::kBroadcast;
  options.op_given = true;
  EXPECT_THAT(
      Report(options, machine(2)).head(),
      testing::StartsWith("Warning: The -o,--op <sum/prod/min/max> option does not take effect. Check the "
                          "cmd parameter.\nthe minbytes is "));
}

TEST(Report, NcclTests) {
  Options options;
  options.begin = 1048576;
  options.end = 8589934592;
  options.factor = 2;
  options.format = Format::kNccl;
  Report report(options, machine(2));
  EXPECT_EQ(
      report.head(),
      "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 "
      "agg "
      "iters: 1 validation: 1 graph: 0\n"
      "#\n"
      "# Using devices\n"
      "#  Rank  0 Group  0 Pid    100 on       host device  0 [0x00] Processor\n"
      "#  Rank  1 Group  0 Pid    101 on       host device  1 [0x00] Processor\n"
      "#\n"
      "#                                                              out-of-place                       "
      "in-place          \n"
      "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw "
      "  "
      "busbw #wrong\n"
      "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s) "
      " "
      "(GB/s)       \n");
  EXPECT_EQ(report.row({1048576, 1048576, 262144, Measurement{105.9, 0}, Measurement{105.7, 0}}),
            "     1048576        262144     float     sum      -1    105.9    9.90    9.90      0    105.7   "
            " 9.92    "
            "9.92      0\n");
  EXPECT_EQ(report.row({8, 8, 2, Measurement{10.37, 2}, Measurement{12345.6, std::nullopt}}),
            "           8             2     float     sum      -1    10.37    0.00    0.00      2    12346   "
            " 0.00    "
            "0.00    N/A\n");
  EXPECT_THAT(
      report.tail(),
      testing::MatchesRegex("# Out of bounds values : 1 FAILED\n# Avg bus bandwidth    : 4\\.955.* \n#\n"));
}

TEST(Report, NcclTestsOfWhatHasARootAndNoOperation) {
  Options options;
  options.collective = Collective::kBroadcast;
  options.type = DataType::kFloat16;
  options.root = 1;
  options.format = Format::kNccl;
  Report report(options, machine(2));
  EXPECT_THAT(report.row({8, 8, 4, Measurement{1, 0}, Measurement{1, 0}}),
              testing::StartsWith(
                  "           8             4      half    none       1     1.00    0.01    0.01      0"));
  options.collective = Collective::kAllToAll;
  EXPECT_THAT(Report(options, machine(2)).row({8, 8, 2, Measurement{1, 0}, std::nullopt}),
              testing::EndsWith("      0      N/A     N/A     N/A    N/A\n"));
}

TEST(Report, Json) {
  Options options;
  options.format = Format::kJson;
  Report report(options, machine(4));
  EXPECT_EQ(report.head(), "");
  EXPECT_EQ(report.row({1000, 1000, 250, Measurement{1, 0}, Measurement{2, std::nullopt}}), "");
  const auto document = nlohmann::json::parse(report.tail());
  EXPECT_EQ(document["collective"], "all_reduce");
  EXPECT_EQ(document["ranks"], 4);
  ASSERT_EQ(document["rows"].size(), 2U);
  EXPECT_EQ(document["rows"][0]["in_place"], false);
  EXPECT_DOUBLE_EQ(document["rows"][0]["busbw_gbs"], 1.5);
  EXPECT_EQ(document["rows"][0]["wrong"], 0);
  EXPECT_TRUE(document["rows"][1]["wrong"].is_null());
}

}  // namespace
}  // namespace collective_ops::perf
