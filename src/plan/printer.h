// Plans as text that a reader follows, for documents, golden tests and explanations of a choice.
#pragma once

#include <string>
#include <string_view>

#include "plan/plan.h"

namespace collective_ops {

// Several lines: a head that states layouts, scratch and what peers must see, then the statements in order.
std::string print(const Plan& plan);

std::string_view name_of(Space space);  // "input", "output", "scratch"

}  // namespace collective_ops
