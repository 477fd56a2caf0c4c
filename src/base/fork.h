// Whether this process is a child of the one that made an object: threads, sockets and ranks do not
// survive fork, so their owners compare generations before they act.
#pragma once

#include <cstdint>

#include <collective_ops/status.h>

namespace collective_ops {

// 0 in a process that never forked from one using this library; one more in each child. A few ns.
uint32_t fork_generation();

// kNotInitialized: what such a child is told where it would communicate.
Status after_fork();

}  // namespace collective_ops
