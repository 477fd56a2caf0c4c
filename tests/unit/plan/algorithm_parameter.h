// Tests over all algorithms: how a parameter is printed and how its test is called.
#pragma once

#include <ostream>
#include <string>

#include <gtest/gtest.h>

#include "algorithms/algorithms.h"

namespace collective_ops {

inline std::string test_name(const testing::TestParamInfo<Algorithm>& test) {
  return std::string(name_of(test.param.collective)) + "_" + std::string(test.param.name);
}

inline void PrintTo(const Algorithm& algorithm, std::ostream* out) {
  *out << name_of(algorithm.collective) << " " << algorithm.name;
}

inline const Plan& plan_of(const Algorithm& algorithm) {
  return *find_plan(algorithm.collective, algorithm.name);
}

}  // namespace collective_ops
