#include "bootstrap/job.h"

#include <unistd.h>

#include <cstdlib>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/process.h"

namespace collective_ops {
namespace {

class Job : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  void clear() {
    for (const char* name : {"COLLECTIVE_OPS_JOB_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                             "MASTER_ADDR", "MASTER_PORT"}) {
      ::unsetenv(name);
    }
  }
  std::string identity(const std::string& job_id = "") {
    ConnectOptions options;
    options.job_id = job_id;
    auto result = job_identity(options);
    return result.ok() ? *result : std::string(name_of(result.status().code()));
  }
  void torchrun(const char* id, const char* port, const char* restart) {
    ::setenv("TORCHELASTIC_RUN_ID", id, 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", port, 1);
    ::setenv("TORCHELASTIC_RESTART_COUNT", restart, 1);
  }
};

TEST_F(Job, TheArgumentWinsThenTheVariableThenTorchrunThenTheParent) {
  const std::string by_parent = identity();
  EXPECT_THAT(by_parent, ::testing::HasSubstr(std::to_string(::getppid())));
  torchrun("none", "29500", "0");
  const std::string by_torchrun = identity();
  EXPECT_NE(by_torchrun, by_parent);
  ::setenv("COLLECTIVE_OPS_JOB_ID", "mine", 1);
  EXPECT_EQ(identity(), "id mine");
  EXPECT_EQ(identity("argument"), "id argument");
}

TEST_F(Job, TorchrunsJobsDifferByPortAndRestart) {
  torchrun("none", "29500", "0");
  const std::string first = identity();
  EXPECT_EQ(identity(), first);
  torchrun("none", "29501", "0");
  EXPECT_NE(identity(), first);
  torchrun("none", "29500", "1");
  EXPECT_NE(identity(), first);
  // MASTER_ADDR alone is what shells export for other tools: no launcher's id.
  ::unsetenv("TORCHELASTIC_RUN_ID");
  EXPECT_THAT(identity(), ::testing::HasSubstr("under process"));
}

TEST_F(Job, RefusesWhatIsNoName) {
  EXPECT_EQ(identity(std::string(2000, 'x')), "invalid_argument");
  EXPECT_EQ(identity(std::string("a\0b", 3)), "invalid_argument");
}

TEST_F(Job, SocketNamesDifferByJobAndRankAndFit) {
  EXPECT_NE(socket_name("a", 0), socket_name("b", 0));
  EXPECT_NE(socket_name("a", 0), socket_name("a", 1));
  EXPECT_LT(socket_name(std::string(1000, 'x'), 1023).size(), 107u);
}

TEST(Process, ReadsItsOwnParentAndStartTime) {
  const auto self = read_process(::getpid());
  ASSERT_TRUE(self.has_value());
  EXPECT_EQ(self->parent, ::getppid());
  EXPECT_GT(self->start_time, 0);
  EXPECT_FALSE(self->dead());
  EXPECT_FALSE(self->exiting);
  EXPECT_FALSE(read_process(0x7ffffff0).has_value());
}

}  // namespace
}  // namespace collective_ops
