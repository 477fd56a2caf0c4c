// Messages between two ranks, with Python's arrays in place of pointers.
#pragma once

#include <vector>

#include <pybind11/pybind11.h>

#include <collective_ops/communicator.h>

#include "pending_work.h"

namespace collective_ops::python {

// Each item is (sends, array, peer, tag), with a peer of None where any rank may be the source. All are begun
// in this order.

// Blocks until all are done. Returns a list with the source of each receive, a rank of the group, and None
// for each send.
pybind11::list exchange_messages(Communicator& communicator, const pybind11::sequence& items,
                                 pybind11::handle timeout);

std::vector<MaybeWork> start_messages(Communicator& communicator, const pybind11::sequence& items,
                                      pybind11::handle timeout);

}  // namespace collective_ops::python
