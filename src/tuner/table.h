// Which plan was measured to be the best one, as text and as data. The table that is built in and those that
// `collective-ops tune table` writes are of this form:
//
//   collective-ops tuning table 1
//   # collective element ranks from shared private
//   all_reduce * 2 0 one_shot one_shot
//   all_reduce * 2 512 direct one_shot
//
// element: bytes of one, or * for any. ranks: groups of up to so many, from the next smaller number on;
// larger groups than any take the largest. from: bytes of the whole vector, of all ranks' parts where the
// collective has parts, up to the next row of the same group. shared: where peers can reach the memory of all
// ranks; private: elsewhere, where `read` stands for the kernel's reading of peers' memory, by whichever
// plan.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <collective_ops/status.h>
#include <collective_ops/types.h>

namespace collective_ops {

// Plans that work on the callers' memory, where peers reach it.
bool is_direct(std::string_view plan);

struct TableRow {
  Collective collective = Collective::kAllReduce;
  int element = 0;  // 0: any
  int ranks = 0;
  uint64_t from = 0;
  std::string shared;
  std::string unshared;
};

class Table {
 public:
  // kInvalidArgument with the line and what is wrong: a word that is none, a plan that there is not, rows not
  // in order, or a pair that a communicator cannot tell apart: one_shot for shared memory alone.
  static Result<Table> parse(std::string_view text, std::string_view name);
  // kInvalidArgument, kSystem: also where it cannot be read.
  static Result<Table> read(const std::string& file);

  // nullptr: nothing is known of this call.
  const TableRow* find(Collective collective, size_t element, int ranks, uint64_t bytes) const;

  const std::vector<TableRow>& rows() const { return rows_; }
  std::string text() const;

 private:
  std::vector<TableRow> rows_;
};

// From measurements on one x86 machine of two cores: it knows what is used where no other table is given.
const Table& builtin_table();

}  // namespace collective_ops
