#include "bootstrap/mailbox.h"

#include <sys/socket.h>

#include <cstring>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "bootstrap/job.h"
#include "bootstrap/wire.h"
#include "ranks.h"

namespace collective_ops {
namespace {

using ::testing::Each;

std::span<const std::byte> as_header(const std::string& text) { return std::as_bytes(std::span(text)); }
std::string text_in(const Message& message) {
  return std::string(reinterpret_cast<const char*>(message.header.data()), message.header.size());
}
bool any(const Message&) { return true; }
int64_t soon() { return monotonic_ns() + 20'000'000'000; }

TEST(Mailbox, PassesMessagesWithDescriptorsBetweenAllRanks) {
  EXPECT_THAT(run_group(4,
                        [](HostGroup& group) -> std::string {
                          for (int rank = 0; rank < 4; ++rank) {
                            int pipe[2];
                            if (rank == group.rank || ::pipe(pipe) != 0) continue;
                            const std::string text = fmt::format("{} to {}", group.rank, rank);
                            if (::write(pipe[1], text.data(), text.size()) < 0) return "write";
                            ::close(pipe[1]);
                            Status status = group.mailbox->send(rank, as_header(text), pipe[0]);
                            ::close(pipe[0]);
                            if (!status.ok()) return text_of(status);
                          }
                          for (int rank = 0; rank < 4; ++rank) {
                            if (rank == group.rank) continue;
                            auto message = group.mailbox->receive(
                                [&](const Message& m) { return m.rank == rank; }, soon());
                            if (!message.ok()) return text_of(message.status());
                            const std::string expected = fmt::format("{} to {}", rank, group.rank);
                            char read[64] = {};
                            if (text_in(*message) != expected) return "wrong text " + text_in(*message);
                            if (::read(message->fd.get(), read, sizeof(read)) < 0 || read != expected)
                              return "wrong descriptor";
                          }
                          meet(group);
                          return "ok";
                        }),
              Each("ok"));
}

TEST(Mailbox, KeepsWhatIsNotWantedYetInOrder) {
  EXPECT_THAT(run_group(2,
                        [](HostGroup& group) -> std::string {
                          if (group.rank == 0) {
                            for (const char* text : {"a", "b", "c"}) {
                              if (!group.mailbox->send(1, as_header(text), -1).ok()) return "send";
                            }
                          } else {
                            auto last = group.mailbox->receive(
                                [](const Message& m) { return text_in(m) == "c"; }, soon());
                            auto first = group.mailbox->receive(any, soon());
                            auto second = group.mailbox->receive(any, soon());
                            if (text_in(*last) + text_in(*first) + text_in(*second) != "cab") return "order";
                            if (last->fd.valid()) return "descriptor from nowhere";
                            if (group.mailbox->receive(any, 0).status().code() != ErrorCode::kTimeout)
                              return "more than was sent";
                          }
                          meet(group);
                          return "ok";
                        }),
              Each("ok"));
}

TEST(Mailbox, LosesNothingWhenMuchHasComeBeforeItLooks) {
  EXPECT_THAT(run_group(3,
                        [](HostGroup& group) -> std::string {
                          constexpr int kEach = 150;
                          if (group.rank != 0) {
                            for (int i = 0; i < kEach; ++i) {
                              const Status status = group.mailbox->send(0, as_header(std::to_string(i)), -1);
                              if (!status.ok()) return text_of(status);
                            }
                          }
                          meet(group);  // all of it waits now
                          for (int i = 0; group.rank == 0 && i < 2 * kEach; ++i) {
                            const int from = 1 + i % 2;
                            auto message = group.mailbox->receive(
                                [&](const Message& m) { return m.rank == from; }, soon());
                            if (!message.ok()) return text_of(message.status());
                            if (text_in(*message) != std::to_string(i / 2)) return "order";
                          }
                          meet(group);
                          return "ok";
                        }),
              Each("ok"));
}

TEST(Mailbox, EndsAtDeadlineAndInterruption) {
  EXPECT_THAT(
      run_group(2,
                [](HostGroup& group) -> std::string {
                  auto late = group.mailbox->receive(any, monotonic_ns() + 1'000'000);
                  auto stopped = group.mailbox->receive(
                      any, kNoDeadline, [] { return Status(ErrorCode::kPeerLost, "rank 1 died"); });
                  if (late.status().code() != ErrorCode::kTimeout) return "no timeout";
                  if (stopped.status().message() != "rank 1 died") return "no interruption";
                  const std::string huge(kMaxMailHeader + 1, 'x');
                  if (group.mailbox->send(0, as_header(huge), -1).code() != ErrorCode::kInvalidArgument)
                    return "too long";
                  if (group.mailbox->send(7, as_header("x"), -1).code() != ErrorCode::kInvalidArgument)
                    return "no such rank";
                  meet(group);
                  return "ok";
                }),
      Each("ok"));
}

TEST(Mailbox, SendingToARankThatLeftIsPeerLost) {
  EXPECT_THAT(run_group(2,
                        [](HostGroup& group) -> std::string {
                          if (group.rank == 1) {
                            group.mailbox.reset();
                            meet(group);
                            return "ok";
                          }
                          meet(group);
                          const Status status = group.mailbox->send(1, as_header("x"), -1);
                          return status.code() == ErrorCode::kPeerLost ? "ok" : text_of(status);
                        }),
              Each("ok"));
}

// Same user, right name, but no member: without the secret, or with it and another process id.
TEST(Mailbox, StrangersCannotPutAnythingIn) {
  EXPECT_THAT(run_group(2,
                        [](HostGroup& group) -> std::string {
                          if (group.rank == 1) {
                            const auto address = wire::abstract_address(socket_name(group.job, 0));
                            for (int i = 0; i < 20; ++i) {
                              const Descriptor socket = wire::new_socket();
                              if (::connect(socket.get(), address.get(), address.length) != 0)
                                return "connect";
                              const std::string body(static_cast<size_t>(i * 10), '\0');
                              if (i % 2 == 0) wire::send(socket.get(), wire::Kind::kMail, as_header(body), 0);
                              if (i % 4 == 1) ::send(socket.get(), body.data(), body.size(), MSG_NOSIGNAL);
                            }
                            if (::fork() == 0) {  // a member's child knows the secret, and is none
                              const bool sent = group.mailbox->send(0, as_header("from a child"), -1).ok();
                              ::_exit(sent ? 0 : 1);
                            }
                            int status = 0;
                            ::wait(&status);
                            if (status != 0) return "the child could not send";
                            if (!group.mailbox->send(0, as_header("real"), -1).ok()) return "send";
                          } else {
                            auto message = group.mailbox->receive(any, soon());
                            if (!message.ok()) return text_of(message.status());
                            if (text_in(*message) != "real") return "took a stranger's: " + text_in(*message);
                          }
                          meet(group);
                          return "ok";
                        }),
              Each("ok"));
}

TEST(Mailbox, ThreadsReceiveEachTheirOwn) {
  EXPECT_THAT(run_group(2,
                        [](HostGroup& group) -> std::string {
                          constexpr int kMessages = 50;
                          std::vector<int> seen(2, 0);
                          std::vector<std::thread> threads;
                          for (const char mark : {'a', 'b'}) {
                            threads.emplace_back([&, mark] {
                              for (int i = 0; i < kMessages; ++i) {
                                const std::string text = fmt::format("{}{}", mark, i);
                                if (!group.mailbox->send(1 - group.rank, as_header(text), -1).ok()) return;
                              }
                              for (int i = 0; i < kMessages; ++i) {
                                auto message = group.mailbox->receive(
                                    [&](const Message& m) { return text_in(m)[0] == mark; }, soon());
                                if (message.ok() && text_in(*message) == fmt::format("{}{}", mark, i))
                                  ++seen[static_cast<size_t>(mark - 'a')];
                              }
                            });
                          }
                          for (auto& thread : threads) thread.join();
                          meet(group);
                          return seen == std::vector<int>{kMessages, kMessages}
                                     ? "ok"
                                     : fmt::format("{} and {}", seen[0], seen[1]);
                        }),
              Each("ok"));
}

}  // namespace
}  // namespace collective_ops
