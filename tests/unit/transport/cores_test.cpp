#include "transport/shm/cores.h"

#include <array>

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace collective_ops::shm {
namespace {

TEST(UsableCores, BoundProcessesHaveAllTheirCoresTogether) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "one core cannot be divided";
  std::array<int, 2> cpus{};
  int found = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; ++cpu) {
    if (CPU_ISSET(cpu, &before)) cpus[static_cast<size_t>(found++)] = cpu;
  }
  const auto bind = [](int cpu) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return sched_setaffinity(0, sizeof(one), &one) == 0;
  };
  int hold[2], bound[2];
  ASSERT_EQ(pipe(hold), 0);
  ASSERT_EQ(pipe(bound), 0);
  const pid_t other = fork();
  if (other == 0) {
    close(hold[1]);
    char byte = bind(cpus[1]) ? 'y' : 'n';
    if (write(bound[1], &byte, 1) == 1) (void)!read(hold[0], &byte, 1);  // until the parent is done
    _exit(0);
  }
  char answer = 'n';
  const bool ready = read(bound[0], &answer, 1) == 1 && answer == 'y' && bind(cpus[0]);
  const int alone = usable_cores(2);
  const int together = usable_cores(2, std::array<pid_t, 2>{getpid(), other});
  sched_setaffinity(0, sizeof(before), &before);
  close(hold[0]);
  close(hold[1]);
  close(bound[0]);
  close(bound[1]);
  waitpid(other, nullptr, 0);
  ASSERT_TRUE(ready);
  EXPECT_EQ(alone, 1);
  EXPECT_LE(together, 2);
  EXPECT_GE(together, 1);
  // A quota of the control group may leave fewer.
  if (usable_cores(0) >= 2) {
    EXPECT_EQ(together, 2);
  }
}

TEST(UsableCores, ProcessesThatAreGoneCountNothing) {
  EXPECT_EQ(usable_cores(1 << 20, std::array<pid_t, 1>{1 << 30}), usable_cores(1 << 20));
}

}  // namespace
}  // namespace collective_ops::shm
