// How many bytes of a call are whose, and what a rank tells its peers of a call beside its line: counts that
// they do not know, and its factor. These lie in the call's eager slot, which announced calls use for nothing
// else: written before the arrival, read after all have arrived.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <collective_ops/communicator.h>

#include "communicator/members.h"
#include "transport/shm/group_memory.h"

namespace collective_ops {

struct CallBytes {
  size_t input = 0;
  size_t output = 0;
};

// Of `rank`, where check_call() has passed. `counts` as in Binding; empty: those of the call itself.
CallBytes bytes_of(const Call& call, int rank, int world_size);
CallBytes bytes_of(const Call& call, const std::vector<size_t>& counts, int rank, int world_size);

// What a caller got wrong, found before any traffic: kUnsupportedType, kInvalidArgument.
Status check_call(const Call& call, int rank, int world_size);

// Whether no rank knows all counts of such a call.
bool exchanges_counts(Collective collective);

// Those of a v variant that every rank knows; empty for other calls.
std::vector<size_t> known_counts(const Call& call);

// What stands for the count in the call's signature.
uint64_t announced_count(const Call& call);

// Whether ranks must see each other's annex. Such a call is never eager.
bool needs_annex(const Call& call);
void write_annex(const shm::GroupMemory& memory, int rank, uint64_t sequence, const Call& call);

// The counts of all ranks, as Binding wants them. kMismatch where two ranks disagree.
Result<std::vector<size_t>> read_counts(const shm::GroupMemory& memory, const Members& members,
                                        uint64_t sequence, const Call& call);
double read_factor(const shm::GroupMemory& memory, int rank, uint64_t sequence);

}  // namespace collective_ops
