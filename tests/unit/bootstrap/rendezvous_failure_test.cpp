#include <fcntl.h>
#include <sys/socket.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/clock.h"
#include "bootstrap/job.h"
#include "bootstrap/listener.h"
#include "bootstrap/wire.h"
#include "ranks.h"

namespace collective_ops {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string try_join(int rank, int world_size, const std::string& job, int timeout_ms = 20000,
                     const JoinSettings& settings = {}) {
  auto group = join(as_rank(rank, world_size, job, timeout_ms), control_of, settings);
  return text_of(group.status());
}

// What job_identity makes of a job's id.
std::string identity(const std::string& job) { return job_identity(as_rank(0, 2, job)).value(); }

Descriptor connect_to(const std::string& job, int rank) {
  for (;;) {
    Descriptor socket = wire::new_socket();
    const auto address = wire::abstract_address(socket_name(identity(job), rank));
    if (::connect(socket.get(), address.get(), address.length) == 0) return socket;
    ::usleep(500);
  }
}

TEST(RendezvousFailure, RefusesRanksOutOfRange) {
  EXPECT_THAT(try_join(2, 2, fresh_job()),
              AllOf(StartsWith("invalid_argument"), HasSubstr("rank 2: expected 0 to 1")));
  EXPECT_THAT(try_join(-1, 2, fresh_job()), StartsWith("invalid_argument"));
  EXPECT_THAT(try_join(0, 0, fresh_job()), StartsWith("invalid_argument"));
  EXPECT_THAT(try_join(0, 5000, fresh_job()), StartsWith("invalid_argument"));
  EXPECT_THAT(try_join(0, 2, fresh_job(), 0), StartsWith("invalid_argument"));
}

TEST(RendezvousFailure, MissingRanksAreNamedOnAllThatWait) {
  const std::string job = fresh_job();
  Ranks ranks;
  Gate waiting;
  JoinSettings settings;
  settings.interrupted = [&] {
    waiting.open();
    return Status();
  };
  for (const int rank : {1, 3}) {
    ranks.start([=] { return try_join(rank, 5, job, 60000, settings); });
    waiting.wait();
  }
  ranks.start([=] { return try_join(0, 5, job, 1500); });
  EXPECT_THAT(ranks.answers(), Each(AllOf(StartsWith("rendezvous"), HasSubstr("ranks 2 and 4 did not come"),
                                          HasSubstr("rank 0 waited 1.5 s"),
                                          HasSubstr("COLLECTIVE_OPS_JOB_ID"), HasSubstr("RANK"))));
}

TEST(RendezvousFailure, TheShortestTimeoutSpeaksForAll) {
  const std::string job = fresh_job();
  Ranks ranks;
  ranks.start([=] { return try_join(0, 3, job, 60000); });
  (void)connect_to(job, 0);  // it listens
  ranks.start([=] { return try_join(2, 3, job, 1000); });
  EXPECT_THAT(ranks.answers(),
              Each(AllOf(StartsWith("rendezvous"), HasSubstr("rank 1 did not come; rank 2 waited 1."))));
}

TEST(RendezvousFailure, RankZeroMissingIsNamedWithTheOthersThatAre) {
  const std::string job = fresh_job();
  const auto second = claim_rank(identity(job), 2, kNoDeadline);
  ASSERT_TRUE(second.ok());
  EXPECT_THAT(try_join(1, 4, job, 200),
              AllOf(StartsWith("rendezvous"), HasSubstr("ranks 0 and 3 did not come; rank 1 waited 0.")));
}

TEST(RendezvousFailure, ASecondLiveRankNamesTheFirst) {
  const std::string job = fresh_job();
  Ranks ranks;
  Gate joined;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.start([&, rank] {
      auto group = join(as_rank(rank, 2, job), control_of);
      joined.open();
      ::pause();
      return std::string("never");
    });
  }
  joined.wait(2);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(try_join(rank, 2, job),
                AllOf(StartsWith("duplicate_rank"),
                      HasSubstr(fmt::format("process {} already is rank {}",
                                            ranks.pid(static_cast<size_t>(rank)), rank)),
                      HasSubstr("COLLECTIVE_OPS_JOB_ID")));
  }
}

TEST(RendezvousFailure, AllProcessesAsRankZeroAreToldWhy) {
  const std::string job = fresh_job();
  Ranks ranks;
  for (int i = 0; i < 3; ++i) ranks.start([=] { return try_join(0, 3, job, 3000); });
  int duplicates = 0;
  for (const std::string& answer : ranks.answers()) {
    if (answer.starts_with("duplicate_rank")) {
      ++duplicates;
    } else {
      EXPECT_THAT(answer, AllOf(StartsWith("rendezvous"), HasSubstr("ranks 1 and 2 did not come"),
                                HasSubstr("also claimed a rank that was taken")));
    }
  }
  EXPECT_EQ(duplicates, 2);
}

TEST(RendezvousFailure, DifferingWorldSizesAreNamedOnAll) {
  const std::string job = fresh_job();
  Ranks ranks;
  for (int rank = 0; rank < 4; ++rank)
    ranks.start([=] { return try_join(rank, rank < 2 ? 2 + 2 * rank : 4, job); });
  EXPECT_THAT(ranks.answers(),
              Each(AllOf(StartsWith("rendezvous"), HasSubstr("rank 0 with 2; ranks 1 to 3 with 4"))));
}

TEST(RendezvousFailure, DifferingVersionsAreNamedOnAll) {
  const std::string job = fresh_job();
  Ranks ranks;
  for (int rank = 0; rank < 3; ++rank) {
    JoinSettings settings;
    settings.version = rank == 1 ? "9.8.7" : "9.8.8";
    ranks.start([=] { return try_join(rank, 3, job, 20000, settings); });
  }
  EXPECT_THAT(ranks.answers(), Each(AllOf(StartsWith("version_mismatch"), HasSubstr("rank 1 9.8.7"),
                                          HasSubstr("ranks 0 and 2 9.8.8"))));
}

TEST(RendezvousFailure, DifferingControlSegmentsAreDifferentBuilds) {
  const std::string job = fresh_job();
  Ranks ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.start([=] {
      auto group =
          join(as_rank(rank, 2, job), [=](int) { return size_t{4096} * static_cast<size_t>(rank + 1); });
      return text_of(group.status());
    });
  }
  EXPECT_THAT(ranks.answers(), Each(StartsWith("version_mismatch")));
}

// A rank that speaks the protocol by hand up to rank 0's welcome, so that a test knows where it stands.
Descriptor come_as(int rank, int world_size, const std::string& job) {
  Descriptor socket = connect_to(job, 0);
  wire::Hello hello;
  hello.rank = rank;
  hello.world_size = world_size;
  hello.pid = ::getpid();
  hello.start_time = read_process(hello.pid)->start_time;
  hello.control_bytes = control_of(world_size);
  const std::string version = build_version();
  std::memcpy(hello.version, version.data(), version.size());
  wire::send(socket.get(), wire::Kind::kHello, wire::bytes_of(hello));
  wire::Frame frame;
  wire::wait_readable(socket.get(), kNoDeadline);
  if (wire::receive(socket.get(), frame) != wire::Received::kFrame || frame.kind != wire::Kind::kWelcome)
    std::abort();
  return socket;
}

TEST(RendezvousFailure, ARankThatDiesWhileOthersWaitIsNamedAtOnce) {
  const std::string job = fresh_job();
  Ranks ranks;
  Gate come;
  ranks.start([=] { return try_join(0, 4, job, 60000); });
  ranks.start([&] {
    const Descriptor socket = come_as(1, 4, job);
    come.open();
    wire::wait_readable(socket.get(), kNoDeadline);
    wire::Frame frame;
    const auto received = wire::receive(socket.get(), frame);
    if (received != wire::Received::kFrame || frame.kind != wire::Kind::kFailure)
      return std::string("no failure");
    return text_of(wire::failure_of(frame.body));
  });
  ranks.start([&] {
    const Descriptor socket = come_as(2, 4, job);
    come.open();
    ::pause();
    return std::string("never");
  });
  come.wait(2);
  const int64_t begin = monotonic_ns();
  ranks.kill(2);
  const std::string expected = fmt::format("rank 2 (process {})", ranks.pid(2));
  EXPECT_THAT(ranks.answer(0),
              AllOf(StartsWith("rendezvous"), HasSubstr(expected), HasSubstr("3 of 4 had come")));
  EXPECT_THAT(ranks.answer(1), AllOf(StartsWith("rendezvous"), HasSubstr(expected)));
  const int64_t took = monotonic_ns() - begin;
  RecordProperty("named_after_us", static_cast<int>(took / 1000));
  EXPECT_LT(took, 30'000'000'000);  // and not the minute of the timeout
}

TEST(RendezvousFailure, RankZeroDyingIsNamedAtOnce) {
  const std::string job = fresh_job();
  Ranks ranks;
  Gate listening;
  ranks.start([&] {
    auto listener = claim_rank(identity(job), 0, kNoDeadline);
    std::vector<Descriptor> guests;
    listening.open();
    for (int i = 0; i < 2; ++i) {
      wire::wait_readable(listener->get(), kNoDeadline);
      guests.emplace_back(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      wire::wait_readable(guests.back().get(), kNoDeadline);
      wire::send(guests.back().get(), wire::Kind::kWelcome);
    }
    ::raise(SIGKILL);
    return std::string("never");
  });
  listening.wait();
  for (int rank = 1; rank < 3; ++rank) ranks.start([=] { return try_join(rank, 4, job, 60000); });
  const std::string expected = fmt::format("rank 0 (process {})", ranks.pid(0));
  EXPECT_THAT(ranks.answer(1), AllOf(StartsWith("rendezvous"), HasSubstr(expected)));
  EXPECT_THAT(ranks.answer(2), AllOf(StartsWith("rendezvous"), HasSubstr(expected)));
}

TEST(RendezvousFailure, ASecondHelloOfARankIsRefusedAndHarmsNobody) {
  const std::string job = fresh_job();
  Ranks ranks;
  Gate come;
  ranks.start([=] { return try_join(0, 3, job, 60000); });
  ranks.start([&] {
    const Descriptor first = come_as(1, 3, job);
    const Descriptor second = connect_to(job, 0);
    wire::Hello hello;
    hello.rank = 1;
    hello.world_size = 3;
    hello.pid = ::getpid();
    wire::send(second.get(), wire::Kind::kHello, wire::bytes_of(hello));
    wire::wait_readable(second.get(), kNoDeadline);
    wire::Frame frame;
    wire::receive(second.get(), frame);
    return text_of(wire::failure_of(frame.body));  // then its end breaks the join for rank 0
  });
  EXPECT_THAT(ranks.answer(1), StartsWith("duplicate_rank"));
  EXPECT_THAT(ranks.answer(0), HasSubstr("rank 1 (process"));
}

TEST(RendezvousFailure, AStoppedRankZeroIsSaidToBeThere) {
  const std::string job = fresh_job();
  Ranks ranks;
  ranks.start([=] { return try_join(0, 2, job, 60000); });
  (void)connect_to(job, 0);  // it listens
  ::kill(ranks.pid(0), SIGSTOP);
  ranks.start([=] { return try_join(1, 2, job, 300); });
  EXPECT_THAT(ranks.answer(1), AllOf(StartsWith("rendezvous"), HasSubstr("did not answer rank 1")));
}

TEST(RendezvousFailure, StrangersNeitherHarmNorDelay) {
  const std::string job = fresh_job();
  Ranks ranks;
  ranks.start([=] { return try_join(0, 2, job); });
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(connect_to(job, 0));
    const int fd = strangers.back().get();
    const std::string garbage(static_cast<size_t>(1 + i * 37), static_cast<char>(i));
    switch (i % 5) {
      case 0:
        break;  // silent
      case 1:
        ::send(fd, garbage.data(), garbage.size(), MSG_NOSIGNAL);
        break;
      case 2:
        wire::send(fd, wire::Kind::kHello, std::as_bytes(std::span(garbage)).first(10));
        break;
      case 3:
        wire::send(fd, wire::Kind::kFailure, std::as_bytes(std::span(garbage)), fd);
        break;
      case 4: {
        wire::Hello hello;
        hello.rank = i % 2 == 0 ? -5 : 1 << 30;
        wire::send(fd, wire::Kind::kHello, wire::bytes_of(hello));
      }
    }
  }
  ranks.start([=] { return try_join(1, 2, job); });
  EXPECT_THAT(ranks.answers(), Each("ok"));
}

TEST(RendezvousFailure, AnotherUsersProcessIsNotHeard) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string job = fresh_job();
  Ranks ranks;
  ranks.start([=] { return try_join(0, 2, job, 1000); });
  ranks.start([=] {
    const Descriptor kept = connect_to(job, 0);  // found by root, spoken to as somebody else
    const std::string name = socket_name(identity(job), 0);
    if (::setresuid(65534, 65534, 65534) != 0) return std::string("no setresuid");
    const Descriptor socket = wire::new_socket();
    const auto address = wire::abstract_address(name);
    if (::connect(socket.get(), address.get(), address.length) != 0) return std::string("no connection");
    wire::Hello hello;
    hello.rank = 1;
    hello.world_size = 2;
    hello.pid = ::getpid();
    wire::send(socket.get(), wire::Kind::kHello, wire::bytes_of(hello));
    wire::Frame frame;
    wire::wait_readable(socket.get(), monotonic_ns() + 20'000'000'000);
    return std::string(wire::receive(socket.get(), frame) == wire::Received::kClosed ? "closed" : "heard");
  });
  EXPECT_THAT(ranks.answer(0), HasSubstr("rank 1 did not come"));
  EXPECT_EQ(ranks.answer(1), "closed");
}

TEST(RendezvousFailure, ANameHeldByAnotherUserIsAnErrorAndNotARank) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  const std::string job = fresh_job();
  Ranks ranks;
  Gate listening;
  const std::string name = socket_name(identity(job), 0);
  ranks.start([&] {
    if (::setresuid(65534, 65534, 65534) != 0) return std::string("no setresuid");
    const Descriptor socket = wire::new_socket();
    const auto address = wire::abstract_address(name);
    if (::bind(socket.get(), address.get(), address.length) != 0 || ::listen(socket.get(), 10) != 0) {
      return std::string("no listener");
    }
    listening.open();
    ::pause();
    return std::string("never");
  });
  listening.wait();
  EXPECT_THAT(try_join(1, 2, job, 5000), AllOf(StartsWith("rendezvous"), HasSubstr("another user")));
  EXPECT_THAT(try_join(0, 2, job, 5000), AllOf(StartsWith("rendezvous"), HasSubstr("user 65534")));
}

TEST(RendezvousFailure, InterruptionEndsTheWait) {
  JoinSettings settings;
  settings.interrupted = [] { return Status(ErrorCode::kTimeout, "stopped by hand"); };
  EXPECT_THAT(try_join(0, 2, fresh_job(), 60000, settings), HasSubstr("stopped by hand"));
  EXPECT_THAT(try_join(1, 2, fresh_job(), 60000, settings), HasSubstr("stopped by hand"));
}

}  // namespace
}  // namespace collective_ops
