#include "base/fork.h"

#include <atomic>

#include <pthread.h>

namespace collective_ops {
namespace {

std::atomic<uint32_t> generation{0};

const int registered =
    pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint32_t fork_generation() {
  (void)registered;
  return generation.load(std::memory_order_relaxed);
}

Status after_fork() {
  return {ErrorCode::kNotInitialized,
          "this process is a fork of a rank: only the process that called init_hccl may communicate. Start "
          "workers with spawn, or call init_hccl in the child with a rank of its own"};
}

}  // namespace collective_ops
