#include <cstdlib>

#include "tuner/table.h"

namespace collective_ops {
namespace {

// What `collective-ops tune table` wrote on one x86 machine of two cores.
constexpr std::string_view kText = R"(collective-ops tuning table 1
# collective element ranks from shared private
all_reduce * 2 0 one_shot one_shot
all_reduce * 2 512 direct one_shot
all_reduce * 2 8192 direct two_shot
all_reduce * 4 0 one_shot one_shot
all_reduce * 4 5792 direct one_shot
all_reduce * 4 23170 direct two_shot
all_reduce * 8 0 one_shot one_shot
all_reduce * 8 5792 direct one_shot
all_reduce * 8 46340 direct two_shot
# Larger groups were not measured: the work of one_shot grows with the square of the ranks.
all_reduce * 65535 0 one_shot one_shot
all_reduce * 65535 2048 direct two_shot
all_gather * 2 0 one_shot one_shot
all_gather * 2 2048 direct one_shot
all_gather * 2 23170 direct read
all_gather * 4 0 one_shot one_shot
all_gather * 4 11585 push one_shot
all_gather * 4 370727 push staged
all_gather * 8 0 one_shot one_shot
all_gather * 8 46340 push one_shot
all_gather * 8 185363 push staged
reduce_scatter * 2 0 one_shot one_shot
reduce_scatter * 2 512 direct one_shot
reduce_scatter * 2 23170 direct read
reduce_scatter * 2 2965820 direct staged
reduce_scatter * 4 0 one_shot one_shot
reduce_scatter * 4 11585 direct one_shot
reduce_scatter * 4 92681 direct staged
reduce_scatter * 8 0 one_shot one_shot
reduce_scatter * 8 11585 direct one_shot
reduce_scatter * 8 46340 direct staged
broadcast * 2 0 one_shot one_shot
broadcast * 2 2048 direct one_shot
broadcast * 2 23170 push read
broadcast * 2 741455 push staged
broadcast * 4 0 one_shot one_shot
broadcast * 4 46340 direct one_shot
broadcast * 4 92681 push staged
broadcast * 8 0 one_shot one_shot
broadcast * 8 92681 direct staged
broadcast * 8 370727 push staged
reduce * 2 0 one_shot one_shot
reduce * 2 2048 pull one_shot
reduce * 2 92681 direct read
reduce * 2 741455 direct staged
reduce * 4 0 one_shot one_shot
reduce * 4 23170 pull one_shot
reduce * 4 92681 direct staged
reduce * 8 0 one_shot one_shot
reduce * 8 23170 pull one_shot
reduce * 8 92681 direct staged
# The root alone adds up what is small.
reduce * 65535 0 one_shot one_shot
reduce * 65535 8192 direct staged
gather * 2 0 one_shot one_shot
gather * 2 2048 direct one_shot
gather * 2 185363 push read
gather * 2 1482910 push staged
gather * 4 0 one_shot one_shot
gather * 4 92681 direct one_shot
gather * 4 185363 push read
gather * 4 1482910 push staged
gather * 8 0 one_shot one_shot
gather * 8 185363 direct one_shot
gather * 8 370727 push read
gather * 8 741455 push staged
scatter * 2 0 one_shot one_shot
scatter * 2 5792 direct one_shot
scatter * 2 92681 direct read
scatter * 2 1482910 direct staged
scatter * 4 0 one_shot one_shot
scatter * 4 92681 direct linear
scatter * 4 185363 direct read
scatter * 4 741455 direct linear
scatter * 8 0 one_shot one_shot
scatter * 8 92681 direct linear
scatter * 8 370727 direct read
all_to_all * 2 0 one_shot one_shot
all_to_all * 2 512 direct one_shot
all_to_all * 2 11585 direct read
all_to_all * 2 8388608 direct staged
all_to_all * 4 0 one_shot one_shot
all_to_all * 4 5792 direct one_shot
all_to_all * 4 92681 direct read
all_to_all * 4 8388608 direct staged
all_to_all * 8 0 one_shot one_shot
all_to_all * 8 11585 direct one_shot
all_to_all * 8 46340 direct staged
all_to_all * 8 185363 direct read
all_to_all * 8 1482910 direct staged
all_to_all * 8 2965820 direct pairwise
)";

}  // namespace

const Table& builtin_table() {
  // Never destroyed: a thread may still choose while the process exits.
  static const Table& table = *new Table([] {
    auto parsed = Table::parse(kText, "built in");
    if (!parsed.ok()) std::abort();  // a test parses it, too
    return std::move(*parsed);
  }());
  return table;
}

}  // namespace collective_ops
