// Random messages among several ranks, held against an oracle: what the n-th message of a source, receiver
// and tag holds is known on both sides.
#include <chrono>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "thread_ranks.h"

namespace collective_ops {
namespace {

constexpr int kRanks = 4;
constexpr int kTags = 3;

struct Planned {
  int source, receiver, tag;
  size_t count;   // elements of int32
  uint32_t seed;  // of the contents
};

std::vector<uint32_t> contents(const Planned& message) {
  std::vector<uint32_t> values(message.count);
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = message.seed + static_cast<uint32_t>(i) * 2654435761u;
  return values;
}

// The same on all ranks.
std::vector<Planned> plan_of(uint32_t seed, int messages) {
  std::mt19937 random(seed);
  std::vector<Planned> plan;
  for (int i = 0; i < messages; ++i) {
    const int size_class = static_cast<int>(random() % 8);
    const size_t most = size_class < 3 ? 11 : size_class < 6 ? 5000 : size_class == 6 ? 20'000 : 300'000;
    plan.push_back({static_cast<int>(random() % kRanks), static_cast<int>(random() % kRanks),
                    static_cast<int>(random() % kTags), random() % most, static_cast<uint32_t>(random())});
  }
  return plan;
}

struct Open {
  Planned message;
  std::vector<uint32_t> data;
  std::shared_ptr<Work> work;
};

// Messages of one tag are received from any source; receives of that tag name none.
bool takes_any(const Planned& message) { return message.tag == kTags - 1; }

void check_received(std::map<int, std::vector<const Planned*>>& expected_any, Open& entry) {
  ASSERT_TRUE(entry.work->wait().ok()) << entry.work->wait().message();
  const auto received = entry.work->received();
  ASSERT_TRUE(received.has_value());
  const Planned* wanted = &entry.message;
  if (takes_any(entry.message)) {
    auto& queue = expected_any[received->source];
    ASSERT_FALSE(queue.empty());
    wanted = queue.front();
    queue.erase(queue.begin());
  }
  ASSERT_EQ(received->source, wanted->source);
  ASSERT_EQ(received->count, wanted->count);
  entry.data.resize(wanted->count);
  ASSERT_EQ(entry.data, contents(*wanted));
}

void run_rank(Communicator& comm, const std::vector<Planned>& plan, uint32_t seed) {
  std::mt19937 random(seed * 7919 + static_cast<uint32_t>(comm.rank()));
  std::vector<Open> sends, receives;
  std::map<int, std::vector<const Planned*>> expected_any;  // by source, in order
  // Sends and receives keep their order, and are woven at random.
  std::vector<const Planned*> out, in;
  for (const Planned& message : plan) {
    if (message.source == comm.rank()) out.push_back(&message);
    if (message.receiver != comm.rank()) continue;
    in.push_back(&message);
    if (takes_any(message)) expected_any[message.source].push_back(&message);
  }
  receives.reserve(in.size());
  sends.reserve(out.size());
  size_t next_out = 0, next_in = 0;
  while (next_out < out.size() || next_in < in.size()) {
    const bool sends_now = next_in == in.size() || (next_out < out.size() && random() % 2 == 0);
    const Planned& message = sends_now ? *out[next_out++] : *in[next_in++];
    Open& entry = (sends_now ? sends : receives).emplace_back(Open{message, {}, nullptr});
    Transfer transfer;
    if (sends_now) {
      entry.data = contents(message);
      transfer =
          Transfer::send(entry.data.data(), message.count, DataType::kUInt32, message.receiver, message.tag);
    } else {
      const bool any = takes_any(message);
      entry.data.resize(any ? 300'000 : message.count);
      transfer = Transfer::receive(entry.data.data(), entry.data.size(), DataType::kUInt32,
                                   any ? kAnySource : message.source, message.tag);
      transfer.allow_shorter = any;
    }
    entry.work = comm.start({&transfer, 1})[0];
    if (sends_now && random() % 16 == 0) (void)entry.work->wait(std::chrono::milliseconds(1));
  }
  for (Open& entry : receives) check_received(expected_any, entry);
  for (Open& entry : sends) ASSERT_TRUE(entry.work->wait().ok()) << entry.work->wait().message();
}

class MessageSoak : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Paths, MessageSoak, testing::Values("auto", "staged"),
                         [](const auto& path) { return std::string(path.param); });

TEST_P(MessageSoak, RandomTransfersAreExact) {
  const ScopedVariable path("COLLECTIVE_OPS_PATH", GetParam());
  ThreadRanks ranks(kRanks);
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    const std::vector<Planned> plan = plan_of(seed, 400);
    ranks.run([&](Communicator& comm) {
      run_rank(comm, plan, seed);
      // Any-source receives of the next round must not take messages of this one, nor the other way round.
      ASSERT_TRUE(comm.barrier().ok());
    });
    if (testing::Test::HasFatalFailure()) return;
  }
  uint64_t sent = 0, received = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    sent += ranks[rank].counters().sent_bytes;
    received += ranks[rank].counters().received_bytes;
  }
  EXPECT_EQ(sent, received);
}

}  // namespace
}  // namespace collective_ops
