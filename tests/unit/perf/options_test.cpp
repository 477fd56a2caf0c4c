// The command line of `collective-ops perf`, and the rank that launchers give.
#include "perf/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "perf/place.h"

namespace collective_ops::perf {
namespace {

Result<Options> parse(const std::string& line) {
  std::istringstream words("perf " + line);
  std::vector<std::string> texts;
  for (std::string word; words >> word;) texts.push_back(word);
  std::vector<char*> arguments;
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  return parse_options(static_cast<int>(texts.size()), arguments.data());
}

std::string refusal(const std::string& line) {
  const auto options = parse(line);
  return options.ok() ? "understood" : std::string(options.status().message());
}

TEST(Options, ACommandLineOfHcclTest) {
  const auto options = parse("all_reduce -b 8K -e 64M -f 2 -d bfp16 -o prod -r 3 -p 8 -n 7 -w 0 -c 0 -z 0");
  ASSERT_TRUE(options.ok()) << options.status().message();
  EXPECT_EQ(options->begin, 8192U);
  EXPECT_EQ(options->end, 67108864U);
  EXPECT_EQ(options->type, DataType::kBFloat16);
  EXPECT_EQ(options->op, ReduceOp::kProd);
  EXPECT_EQ(options->root, 3);
  EXPECT_EQ(options->ranks, 8);
  EXPECT_EQ(options->iterations, 7);
  EXPECT_EQ(options->warmup, 0);
  EXPECT_FALSE(options->check);
  EXPECT_FALSE(options->shared);
  EXPECT_EQ(sizes(options.value()).size(), 14U);
}

TEST(Options, TheDefaultsOfHcclTest) {
  for (const std::string name : {"all_reduce", "allreduce", "AllReduce", "all-reduce", "all_reduce_perf"}) {
    EXPECT_EQ(parse("--npus 2 " + name)->collective, Collective::kAllReduce) << name;
  }
  const auto options = parse("--npus 2 alltoall_test");
  ASSERT_TRUE(options.ok());
  EXPECT_EQ(options->collective, Collective::kAllToAll);
  EXPECT_EQ(sizes(options.value()), std::vector<size_t>{size_t{64} << 20});
  EXPECT_EQ(options->iterations, 20);
  EXPECT_EQ(options->warmup, 5);
  EXPECT_TRUE(options->check);
  EXPECT_FALSE(options->op_given);
}

TEST(Options, StepsAreATenthOfTheRangeWhereNoneIsGiven) {
  EXPECT_EQ(sizes(parse("reduce -b 100 -e 200").value()).size(), 11U);
  EXPECT_EQ(sizes(parse("reduce -b 100 -e 200 -i 50").value()), (std::vector<size_t>{100, 150, 200}));
  EXPECT_EQ(sizes(parse("reduce -b 128M").value()), std::vector<size_t>{size_t{128} << 20});
  const auto endless = parse("reduce -b 64 -e 64 -i 0").value();
  EXPECT_TRUE(endless.repeats());
  EXPECT_EQ(sizes(endless), std::vector<size_t>{64});
  EXPECT_FALSE(parse("reduce -b 64 -e 64").value().repeats());
  EXPECT_EQ(sizes(parse("barrier").value()), std::vector<size_t>{0});
}

TEST(Options, CountsAreRoundedUp) {
  EXPECT_EQ(element_count(parse("all_reduce").value(), 9, 8), 3U);
  EXPECT_EQ(element_count(parse("all_gather").value(), 4 * 17, 8), 3U);
  EXPECT_EQ(element_count(parse("scatter").value(), 0, 8), 0U);
}

TEST(Options, WhatIsWrongIsNamed) {
  using testing::HasSubstr;
  EXPECT_THAT(refusal(""), HasSubstr("no collective"));
  EXPECT_THAT(refusal("all_reduce extra"), HasSubstr("extra: one too many"));
  EXPECT_THAT(refusal("send"), HasSubstr("\"send\": expected all_reduce"));
  EXPECT_THAT(refusal("reduce -b 8X"), HasSubstr("-b \"8X\": expected a size"));
  EXPECT_THAT(refusal("reduce -b 99999999999G"), HasSubstr("expected a size"));
  EXPECT_THAT(refusal("reduce -b 2K -e 1K"), HasSubstr("-b 2048 is more than -e 1024"));
  EXPECT_THAT(refusal("reduce -b 0 -e 1K -f 2"), HasSubstr("-b 0"));
  EXPECT_THAT(refusal("reduce -f 1"), HasSubstr("-f \"1\": expected a whole number from 2"));
  EXPECT_THAT(refusal("reduce -o avg"), HasSubstr("expected sum, prod, max or min"));
  EXPECT_THAT(refusal("reduce -d bool"), HasSubstr("-d \"bool\""));
  EXPECT_THAT(refusal("reduce -n 0"), HasSubstr("-n \"0\""));
  EXPECT_THAT(refusal("reduce -c 2"), HasSubstr("-c \"2\""));
  EXPECT_THAT(refusal("reduce --format osu"), HasSubstr("hccl-test or nccl-tests"));
  EXPECT_THAT(refusal("reduce --bytes 8"), HasSubstr("--bytes: unknown"));
}

Result<Place> place(std::map<std::string, std::string> variables) {
  return find_place([=](std::string_view name) {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::string() : found->second;
  });
}

TEST(Place, EachLauncherIsKnown) {
  const std::vector<std::map<std::string, std::string>> launchers = {
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "4"}},
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}},
      {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}},
      {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALNRANKS", "4"}},
      {{"SLURM_PROCID", "3"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_NUM_NODES", "1"}},
  };
  for (const auto& launcher : launchers) {
    const auto found = place(launcher);
    ASSERT_TRUE(found.ok()) << launcher.begin()->first;
    EXPECT_EQ(found->rank, 3);
    EXPECT_EQ(found->world_size, 4);
  }
}

TEST(Place, WithoutALauncherThereIsNone) {
  EXPECT_FALSE(place({})->launched());
  EXPECT_FALSE(place({{"WORLD_SIZE", "8"}})->launched());
  EXPECT_FALSE(place({{"SLURM_PROCID", "0"}})->launched());  // a batch script
}

TEST(Place, WrongNumbersAreRefused) {
  const auto text = [](const auto& variables) { return std::string(place(variables).status().message()); };
  using Variables = std::map<std::string, std::string>;
  EXPECT_THAT(text(Variables{{"RANK", "4"}, {"WORLD_SIZE", "4"}}), testing::HasSubstr("RANK=4"));
  EXPECT_THAT(text(Variables{{"RANK", "x"}, {"WORLD_SIZE", "4"}}), testing::HasSubstr("RANK=x"));
}

}  // namespace
}  // namespace collective_ops::perf
