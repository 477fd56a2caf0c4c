// Messages that cannot be: each is told with ranks, tag and bytes, and nothing hangs.
#include <chrono>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "thread_ranks.h"

namespace collective_ops {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr DataType kFloat = DataType::kFloat32;

// As many elements as are sent small, and as many as are sent large.
class MessageFailure : public testing::TestWithParam<size_t> {
 protected:
  const size_t count_ = GetParam();
};
INSTANTIATE_TEST_SUITE_P(Sizes, MessageFailure, testing::Values(3, 100'000));

TEST_P(MessageFailure, ArgumentsAreNamedAndTheGroupGoesOn) {
  ThreadRanks ranks(2);
  float value = 0;
  const auto refused = [](const Status& status, const char* text) {
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument) << status.message();
    EXPECT_THAT(status.message(), HasSubstr(text));
  };
  refused(ranks[0].send(&value, 1, kFloat, 2), "no rank 2");
  refused(ranks[0].send(&value, 1, kFloat, kAnySource), "no rank -1");
  refused(ranks[0].recv(&value, 1, kFloat, -2), "no rank -2");
  refused(ranks[0].send(&value, 1, kFloat, 1, -1), "tag -1");
  refused(ranks[0].send(nullptr, 1, kFloat, 1), "null");
  refused(ranks[0].recv(&value, SIZE_MAX, kFloat, 1), "more than memory holds");
  // Of several at once none is begun.
  const Transfer both[] = {Transfer::send(&value, 1, kFloat, 1), Transfer::send(&value, 1, kFloat, 9)};
  refused(ranks[0].exchange(both), "no rank 9");
  refused(ranks[0].start({&both[1], 1})[0]->wait(), "no rank 9");

  std::vector<float> data(count_, 2), got(count_);
  const Transfer receive = Transfer::receive(got.data(), count_, kFloat, 0);
  const auto work = ranks[1].start({&receive, 1})[0];
  EXPECT_TRUE(ranks[0].send(data.data(), count_, kFloat, 1).ok());
  EXPECT_TRUE(work->wait().ok());
  EXPECT_EQ(got, data);
}

struct Disagreement {
  const char* name;
  size_t count;  // that is received, of 100
  DataType type;
  const char* difference;
};

class Disagreements : public testing::TestWithParam<std::tuple<Disagreement, size_t, bool>> {};

// The message is there before it is asked for, or comes later; large ones make both sides wait.
TEST_P(Disagreements, AreNamedOnBothSides) {
  const auto& [wrong, factor, receives_first] = GetParam();
  ThreadRanks ranks(2);
  std::vector<double> data(100 * factor), got(200 * factor);
  const Transfer send = Transfer::send(data.data(), 100 * factor, kFloat, 1, 4);
  const Transfer receive = Transfer::receive(got.data(), wrong.count * factor, wrong.type, 0, 4);
  std::shared_ptr<Work> sending, receiving;
  if (receives_first) receiving = ranks[1].start({&receive, 1})[0];
  sending = ranks[0].start({&send, 1})[0];
  if (!receives_first) receiving = ranks[1].start({&receive, 1})[0];
  const Status status = receiving->wait();
  EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("rank 0 sent"), HasSubstr("rank 1 receives"), HasSubstr("tag 4"),
                    HasSubstr(std::to_string(100 * factor) + " float32"), HasSubstr(wrong.difference)));
  // A small one has left the sender already, which learns of it at its next call.
  const Status sent = sending->wait();
  if (factor > 1) {
    EXPECT_EQ(sent.code(), ErrorCode::kMismatch) << sent.message();
    EXPECT_EQ(sent.message(), status.message());
  }
  const Status next = ranks[0].barrier();
  EXPECT_EQ(next.code(), ErrorCode::kGroupBroken);
  EXPECT_THAT(next.message(), HasSubstr("rank 1 receives"));
  EXPECT_EQ(ranks[0].send(data.data(), 1, kFloat, 1).code(), ErrorCode::kGroupBroken);
}

INSTANTIATE_TEST_SUITE_P(
    Messages, Disagreements,
    testing::Combine(testing::Values(Disagreement{"longer", 99, kFloat, "too short"},
                                     Disagreement{"shorter", 101, kFloat, "longer than the message"},
                                     Disagreement{"type", 100, DataType::kInt32, "differ in type"}),
                     testing::Values(size_t{1}, size_t{1000}), testing::Bool()),
    [](const auto& one) {
      return std::string(std::get<0>(one.param).name) + (std::get<1>(one.param) > 1 ? "Large" : "Small") +
             (std::get<2>(one.param) ? "Posted" : "Arrived");
    });

TEST_P(MessageFailure, DeadlineTellsWhatCameInstead) {
  ThreadRanks ranks(2);
  std::vector<float> data(count_);
  const Transfer send = Transfer::send(data.data(), count_, kFloat, 1, 3);
  const auto sending = ranks[0].start({&send, 1})[0];
  Transfer receive = Transfer::receive(data.data(), count_, kFloat, 0, 5);
  receive.timeout = milliseconds(30);
  const Status status = ranks[1].exchange({&receive, 1});
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("rank 1 in recv"), HasSubstr("tag 5, from rank 0"),
                                      HasSubstr("rank 0 has sent " + std::to_string(count_) + " float32"),
                                      HasSubstr("with tag 3, which nobody has asked for")));
  // The group is broken for both, and a large send ends with the reason.
  const Status sent = sending->wait();
  EXPECT_EQ(sent.ok(), count_ == 3);
  EXPECT_EQ(ranks[0].barrier().code(), ErrorCode::kGroupBroken);
}

TEST_P(MessageFailure, DeadlineOfASendNobodyAskedFor) {
  const ConnectOptions options{.exec_timeout = milliseconds(30)};
  ThreadRanks ranks(2, options);
  std::vector<float> data(100'000);
  const Status status = ranks[0].send(data.data(), data.size(), kFloat, 1, 6);
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("send of 100000 float32 (400000 bytes), tag 6, to rank 1"),
                                      HasSubstr("has not asked for it")));
}

TEST_P(MessageFailure, WaitsForEachOtherAreTold) {
  // One rank waits in a message, the other in a collective.
  ThreadRanks ranks(2);
  std::vector<float> data(count_);
  for (const bool message_ends : {true, false}) {
    if (!message_ends) ranks = ThreadRanks(2);
    Status received, passed;
    std::thread receiver([&] {
      Transfer receive = Transfer::receive(data.data(), count_, kFloat, 1, 9);
      receive.timeout = milliseconds(message_ends ? 500 : 0);
      received = ranks[0].exchange({&receive, 1});
    });
    passed =
        ranks[1].run({.collective = Collective::kBarrier, .timeout = milliseconds(message_ends ? 0 : 1000)});
    receiver.join();
    EXPECT_EQ(received.code(), ErrorCode::kTimeout);
    EXPECT_EQ(passed.message(), received.message());
    EXPECT_THAT(received.message(), message_ends ? HasSubstr("that rank is in call #1 (barrier)")
                                                 : HasSubstr("meanwhile it waits in recv of"));
  }
}

TEST_P(MessageFailure, DeadlineOfAStartedOneThatNobodyWaitsFor) {
  ThreadRanks ranks(2);
  std::vector<float> data(count_);
  Transfer receive = Transfer::receive(data.data(), count_, kFloat, 0);
  receive.timeout = milliseconds(10);
  const auto work = ranks[1].start({&receive, 1})[0];
  while (!work->done()) std::this_thread::yield();
  EXPECT_EQ(work->wait().code(), ErrorCode::kTimeout);
}

TEST_P(MessageFailure, FailedCollectiveFreesWaitingMessages) {
  ThreadRanks ranks(2);
  std::vector<float> data(count_);
  const Transfer receive = Transfer::receive(data.data(), count_, kFloat, 1);
  const auto work = ranks[0].start({&receive, 1})[0];
  ranks.run([](Communicator& comm) {
    float value = 0;
    const DataType type = comm.rank() == 0 ? kFloat : DataType::kInt32;
    EXPECT_FALSE(comm.all_reduce(&value, &value, 1, type, ReduceOp::kSum).ok());
  });
  const Status status = work->wait();
  EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
}

TEST_P(MessageFailure, FailedMessageFreesWaitingCollectives) {
  ThreadRanks ranks(2);
  std::vector<float> data(count_);
  const auto waiting = ranks[0].start({.collective = Collective::kBarrier});
  Transfer receive = Transfer::receive(data.data(), count_, kFloat, 0);
  receive.timeout = milliseconds(20);
  EXPECT_EQ(ranks[1].exchange({&receive, 1}).code(), ErrorCode::kTimeout);
  // The barrier may begin only now, in its thread.
  const Status status = waiting->wait();
  EXPECT_THAT(status.code(), testing::AnyOf(ErrorCode::kTimeout, ErrorCode::kGroupBroken));
  EXPECT_THAT(status.message(), HasSubstr("rank 1 in recv"));
}

TEST_P(MessageFailure, RankThatLeavesIsNamed) {
  ThreadRanks ranks(3);
  std::vector<float> data(count_);
  std::thread receiver([&] {
    const Status status = ranks[0].recv(data.data(), count_, kFloat, 1, 2);
    EXPECT_EQ(status.code(), ErrorCode::kPeerLost) << status.message();
    EXPECT_THAT(status.message(), AllOf(HasSubstr("tag 2, from rank 1"), HasSubstr("has left the group")));
  });
  ranks.drop(1);
  receiver.join();
}

TEST_P(MessageFailure, NobodyIsLeftToSend) {
  ThreadRanks ranks(3);
  std::vector<float> data(count_);
  ranks.drop(1);
  ranks.drop(2);
  const Status status = ranks[0].recv(data.data(), count_, kFloat);
  EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(status.message(), HasSubstr("all other ranks have left"));
}

TEST_P(MessageFailure, SendToARankThatHasLeft) {
  ThreadRanks ranks(2);
  std::vector<float> data(count_);
  ranks.drop(1);
  const Status status = ranks[0].send(data.data(), count_, kFloat, 1);
  EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("to rank 1"), HasSubstr("has left the group")));
}

TEST_P(MessageFailure, SendThatWaitsForARankThatLeaves) {
  ThreadRanks ranks(2);
  std::vector<float> data(100'000);
  const Transfer send = Transfer::send(data.data(), data.size(), kFloat, 1);
  const auto sending = ranks[0].start({&send, 1})[0];
  ranks.drop(1);
  const Status status = sending->wait();
  EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
  EXPECT_THAT(status.message(), HasSubstr("has no taker"));
}

TEST_P(MessageFailure, LeavingWithSendsThatNobodyTakes) {
  // Both leave, and neither has received: each says so, and neither waits for the other.
  std::vector<float> data(100'000);
  ThreadRanks ranks(2);
  std::vector<std::shared_ptr<Work>> works;
  for (int rank = 0; rank < 2; ++rank) {
    const Transfer transfers[] = {Transfer::send(data.data(), data.size(), kFloat, 1 - rank, 8),
                                  Transfer::send(data.data(), data.size(), kFloat, rank, 8),
                                  Transfer::receive(data.data(), 1, kFloat, 1 - rank, 9)};
    for (auto& work : ranks[rank].start(transfers)) works.push_back(work);
  }
  testing::internal::CaptureStderr();
  std::thread other([&] { ranks.drop(1); });
  ranks.drop(0);
  other.join();
  const std::string printed = testing::internal::GetCapturedStderr();
  EXPECT_THAT(printed, AllOf(HasSubstr("in send of 100000 float32"), HasSubstr("tag 8")));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(works[static_cast<size_t>(3 * rank)]->wait().code(), ErrorCode::kPeerLost);
    EXPECT_EQ(works[static_cast<size_t>(3 * rank + 1)]->wait().code(), ErrorCode::kPeerLost);
    // Given up; or ended with the group, where this rank saw the other one go before it went itself.
    EXPECT_THAT(works[static_cast<size_t>(3 * rank + 2)]->wait().code(),
                testing::AnyOf(ErrorCode::kNotInitialized, ErrorCode::kPeerLost));
  }
}

TEST_P(MessageFailure, InterruptEndsTheWait) {
  std::atomic<bool> interrupt{false};
  const ConnectOptions options{
      .interrupted = [&] { return interrupt ? Status(ErrorCode::kInterrupted, "enough") : Status(); }};
  ThreadRanks ranks(2, options);
  std::vector<float> data(count_);
  std::thread receiver([&] {
    const Status status = ranks[0].recv(data.data(), count_, kFloat, 1, 2);
    EXPECT_EQ(status.code(), ErrorCode::kInterrupted);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("tag 2, from rank 1"), HasSubstr("enough")));
  });
  interrupt = true;
  receiver.join();
  EXPECT_EQ(ranks[1].barrier().code(), ErrorCode::kGroupBroken);
}

}  // namespace
}  // namespace collective_ops
