// Each plan's text stands in tests/golden/plans, to be reviewed like code. With
// COLLECTIVE_OPS_GOLDEN_UPDATE=1 the files are written anew instead.
#include "plan/printer.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "algorithms/algorithms.h"

namespace collective_ops {
namespace {

TEST(Printer, TextsOfAllPlansAreTheGoldenOnes) {
  for (const Algorithm& algorithm : algorithms()) {
    const std::string name =
        std::string(name_of(algorithm.collective)) + "_" + std::string(algorithm.name) + ".txt";
    const std::string path = std::string(GOLDEN_PLANS) + "/" + name;
    const std::string text = print(algorithm.make());
    if (std::getenv("COLLECTIVE_OPS_GOLDEN_UPDATE") != nullptr) std::ofstream(path) << text;
    std::ifstream file(path);
    ASSERT_TRUE(file.good()) << path << " is missing";
    std::stringstream golden;
    golden << file.rdbuf();
    EXPECT_EQ(text, golden.str()) << name;
  }
}

TEST(Printer, TermsOfStepsAreSpelledOut) {
  Plan plan{.name = "test"};
  plan.loops = {
      {.over = Loop::Over::kSteps,
       .descending = true,
       .body = {{.action = Action::kWait, .lag = 2, .peer = {.offset = 3, .step_factor = -2}, .signal = 1}}}};
  EXPECT_NE(print(plan).find(
                "for step n-2 .. 0:\n  wait for signal 1 of rank me+3-2*step  (of 2 iterations before)\n"),
            std::string::npos)
      << print(plan);
}

}  // namespace
}  // namespace collective_ops
