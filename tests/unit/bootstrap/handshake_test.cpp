#include "bootstrap/handshake.h"

#include <sys/socket.h>

#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "memory/descriptor.h"

namespace collective_ops::handshake {
namespace {

Digest key_of(const std::string& secret) {
  return job_key({JobSecret::Kind::kShared, secret, "a test"}, "job");
}

struct Sides {
  Sides() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
    asking = Descriptor(ends[0]);
    answering = Descriptor(ends[1]);
  }
  Descriptor asking, answering;
};

const Claim kClaim{3, 5, 4, 0, 77};

TEST(Handshake, BothSidesKnowTheSecretAndTheClaim) {
  Sides sides;
  Answering answering(key_of("the secret of both"));
  Asking asking(key_of("the secret of both"), kClaim);
  EXPECT_EQ(asking.step(sides.asking.get()), Progress::kWaiting);
  EXPECT_EQ(answering.step(sides.answering.get()), Progress::kWaiting);
  ASSERT_TRUE(answering.challenge(sides.answering.get()));
  EXPECT_EQ(asking.step(sides.asking.get()), Progress::kWaiting);
  EXPECT_EQ(answering.step(sides.answering.get()), Progress::kDone);
  EXPECT_EQ(answering.claim().channel, 77u);
  EXPECT_EQ(answering.claim().rank, 3);
  ASSERT_TRUE(answering.decide(sides.answering.get(), Verdict::kAccepted));
  // What follows the handshake is not touched by it.
  ASSERT_EQ(::send(sides.answering.get(), "data", 4, 0), 4);
  EXPECT_EQ(asking.step(sides.asking.get()), Progress::kDone);
  char text[8] = {};
  EXPECT_EQ(::recv(sides.asking.get(), text, sizeof(text), 0), 4);
  EXPECT_STREQ(text, "data");
}

TEST(Handshake, AnotherSecretAnotherJobAndNoneAreRefused) {
  const Digest keys[] = {key_of("another secret"),
                         job_key({JobSecret::Kind::kShared, "the secret of both", ""}, "another job"),
                         job_key({JobSecret::Kind::kInsecure, "the secret of both", ""}, "job")};
  for (const Digest& key : keys) {
    Sides sides;
    Answering answering(key_of("the secret of both"));
    Asking asking(key, kClaim);
    ASSERT_TRUE(answering.challenge(sides.answering.get()));
    EXPECT_EQ(asking.step(sides.asking.get()), Progress::kWaiting);
    EXPECT_EQ(answering.step(sides.answering.get()), Progress::kRefused);
    EXPECT_EQ(asking.step(sides.asking.get()), Progress::kRefused);
  }
}

// Whoever cannot prove the secret is not believed when it says yes.
TEST(Handshake, AFalseAcceptorIsFound) {
  Sides sides;
  Answering impostor(key_of("what the impostor guesses"));
  Asking asking(key_of("the secret of both"), kClaim);
  ASSERT_TRUE(impostor.challenge(sides.answering.get()));
  EXPECT_EQ(asking.step(sides.asking.get()), Progress::kWaiting);
  Answer answer;
  ASSERT_EQ(::recv(sides.answering.get(), &answer, sizeof(answer), 0), static_cast<ssize_t>(sizeof(answer)));
  Decision yes;
  yes.verdict = static_cast<uint32_t>(Verdict::kAccepted);
  yes.proof = answer.proof;  // reflected
  ASSERT_EQ(::send(sides.answering.get(), &yes, sizeof(yes), 0), static_cast<ssize_t>(sizeof(yes)));
  EXPECT_EQ(asking.step(sides.asking.get()), Progress::kStranger);
}

TEST(Handshake, AClaimCannotBeChangedOnTheWayNorAnAnswerUsedTwice) {
  Sides sides;
  Answering answering(key_of("the secret of both"));
  Asking asking(key_of("the secret of both"), kClaim);
  ASSERT_TRUE(answering.challenge(sides.answering.get()));
  EXPECT_EQ(asking.step(sides.asking.get()), Progress::kWaiting);
  Answer answer;
  ASSERT_EQ(::recv(sides.answering.get(), &answer, sizeof(answer), 0), static_cast<ssize_t>(sizeof(answer)));
  const Answer recorded = answer;
  answer.claim.rank = 4;
  ASSERT_EQ(::send(sides.asking.get(), &answer, sizeof(answer), 0), static_cast<ssize_t>(sizeof(answer)));
  EXPECT_EQ(answering.step(sides.answering.get()), Progress::kRefused);

  Sides later;
  Answering second(key_of("the secret of both"));
  ASSERT_TRUE(second.challenge(later.answering.get()));
  ASSERT_EQ(::send(later.asking.get(), &recorded, sizeof(recorded), 0),
            static_cast<ssize_t>(sizeof(recorded)));
  EXPECT_EQ(second.step(later.answering.get()), Progress::kRefused);
}

TEST(Handshake, ByteByByteAndNonsense) {
  Sides sides;
  Answering answering(key_of("the secret of both"));
  ASSERT_TRUE(answering.challenge(sides.answering.get()));
  for (size_t i = 0; i < sizeof(Answer); ++i) {
    EXPECT_EQ(answering.step(sides.answering.get()), Progress::kWaiting);
    ASSERT_EQ(::send(sides.asking.get(), "x", 1, 0), 1);
  }
  EXPECT_EQ(answering.step(sides.answering.get()), Progress::kRefused);

  Sides web;
  Asking asking(key_of("the secret of both"), kClaim);
  ASSERT_EQ(::send(web.answering.get(), "HTTP/1.1", 8, 0), 8);
  EXPECT_EQ(asking.step(web.asking.get()), Progress::kStranger);
  web.answering.reset();
  Asking alone(key_of("the secret of both"), kClaim);
  EXPECT_EQ(alone.step(web.asking.get()), Progress::kClosed);
}

}  // namespace
}  // namespace collective_ops::handshake
