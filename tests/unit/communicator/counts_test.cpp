// The v variants: parts of any sizes, and what happens where ranks disagree about them.
#include <numeric>

#include "patterns.h"

namespace collective_ops {
namespace {

using Counts = std::vector<size_t>;

// Counts of each rank: equal and not, some none, all none, small and large.
std::vector<Counts> lists(int world_size) {
  const auto n = static_cast<size_t>(world_size);
  std::vector<Counts> result = {Counts(n, 0), Counts(n, 5)};
  for (size_t scale : {size_t{1}, size_t{37}, size_t{9001}, size_t{60000}}) {
    Counts counts(n);
    for (size_t r = 0; r < n; ++r) counts[r] = r % 3 == 1 ? 0 : scale * ((r * 5 + 2) % 4);
    result.push_back(counts);
  }
  result.push_back(Counts(n, 0));
  result.back()[n - 1] = 100000;  // one rank has everything
  return result;
}

size_t sum(const Counts& counts) { return std::accumulate(counts.begin(), counts.end(), size_t{0}); }

class Parts : public OnEveryPath {};

TEST_P(Parts, AllGather) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    for (const Counts& counts : lists(n_)) {
      for (DataType type : {DataType::kInt8, DataType::kInt32}) {
        const Bytes mine = pattern(comm.rank(), 0, counts[me] * size_of(type));
        Bytes expected = filled(0, 0);
        for (int r = 0; r < n_; ++r) {
          append(expected, pattern(r, 0, counts[static_cast<size_t>(r)] * size_of(type)));
        }
        Bytes recv = filled(0xee, expected.size());
        EXPECT_DONE(comm.all_gather_v(mine.data(), recv.data(), counts, type));
        ASSERT_EQ(recv, expected);
      }
    }
  });
}

TEST_P(Parts, ReduceScatterGivesPartsOfAnAllReduce) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    for (const Counts& counts : lists(n_)) {
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
        std::vector<float> send(sum(counts) + 1), whole(sum(counts) + 1), recv(counts[me] + 1, -1.0f);
        for (size_t i = 0; i < send.size(); ++i) {
          send[i] = 0.3f * static_cast<float>((i * 11 + me * 7) % 101);
        }
        EXPECT_DONE(comm.all_reduce(send.data(), whole.data(), sum(counts), DataType::kFloat32, op));
        EXPECT_DONE(comm.reduce_scatter_v(send.data(), recv.data(), counts, DataType::kFloat32, op));
        const size_t begin = std::accumulate(counts.begin(), counts.begin() + comm.rank(), size_t{0});
        for (size_t i = 0; i < counts[me]; ++i) ASSERT_EQ(recv[i], whole[begin + i]) << i;
        ASSERT_EQ(recv.back(), -1.0f) << "nothing behind my part";
      }
    }
  });
}

TEST_P(Parts, GatherAndScatter) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    int root = 0;
    for (const Counts& counts : lists(n_)) {
      root = (root + 1) % n_;
      const bool is_root = comm.rank() == root;
      const Counts known = is_root ? counts : Counts{};
      const Bytes mine = pattern(comm.rank(), 1, counts[me] * 2);
      Bytes all = filled(0, 0);
      for (int r = 0; is_root && r < n_; ++r) append(all, pattern(r, 1, counts[static_cast<size_t>(r)] * 2));
      Bytes recv = filled(0xee, all.size());
      EXPECT_DONE(comm.gather_v(mine.data(), counts[me], recv.data(), known, DataType::kInt16, root));
      ASSERT_EQ(recv, all);
      Bytes part = filled(0xee, mine.size());
      EXPECT_DONE(comm.scatter_v(all.data(), known, part.data(), counts[me], DataType::kInt16, root));
      ASSERT_EQ(part, mine);
    }
  });
}

TEST_P(Parts, AllToAll) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    for (size_t scale : {size_t{0}, size_t{1}, size_t{19}, size_t{5000}, size_t{40000}}) {
      for (DataType type : {DataType::kInt8, DataType::kFloat32}) {
        const auto count_of = [&](int source, int destination) {
          return scale * static_cast<size_t>((source * 3 + destination * 5) % 4);
        };
        Counts sent, received;
        Bytes send = filled(0, 0), expected = filled(0, 0);
        for (int r = 0; r < n_; ++r) {
          sent.push_back(count_of(comm.rank(), r));
          received.push_back(count_of(r, comm.rank()));
          append(send, pattern(comm.rank(), r, sent.back() * size_of(type)));
          append(expected, pattern(r, comm.rank(), received.back() * size_of(type)));
        }
        Bytes recv = filled(0xee, expected.size());
        EXPECT_DONE(comm.all_to_all_v(send.data(), sent, recv.data(), received, type));
        ASSERT_EQ(recv, expected) << scale;
      }
    }
  });
}

TEST_P(Parts, AllToAllOfNothingButOnesOwn) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    for (size_t count : {size_t{3}, size_t{70000}}) {
      Counts counts(static_cast<size_t>(n_), 0);
      counts[static_cast<size_t>(comm.rank())] = count;
      const Bytes send = pattern(comm.rank(), comm.rank(), count * 4);
      Bytes recv = filled(0xee, count * 4);
      EXPECT_DONE(comm.all_to_all_v(send.data(), counts, recv.data(), counts, DataType::kInt32));
      ASSERT_EQ(recv, send);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, Parts, kPathSettings, path_name);

TEST(DifferingCounts, PairsThatDisagreeAreNamedOnEveryRank) {
  ThreadRanks ranks(3);
  std::vector<Status> seen(3);
  ranks.run([&](Communicator& comm) {
    std::vector<float> send(30), recv(30);
    Counts sent(3, 2), received(3, 2);
    if (comm.rank() == 0) sent[2] = 5;
    seen[static_cast<size_t>(comm.rank())] =
        comm.all_to_all_v(send.data(), sent, recv.data(), received, DataType::kFloat32);
  });
  for (const Status& status : seen) {
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
    EXPECT_NE(status.message().find("rank 0 sends 20 bytes to rank 2, which expects 8 bytes"),
              std::string::npos)
        << status.message();
  }
}

TEST(DifferingCounts, AGatherThatExpectsAnotherPartNamesIt) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    std::vector<int16_t> data(9), all(20);
    const Counts counts = {9, 4};
    const Status status =
        comm.gather_v(data.data(), 9, all.data(), comm.rank() == 0 ? counts : Counts{}, DataType::kInt16, 0);
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
    EXPECT_NE(status.message().find("rank 1 sends 18 bytes to rank 0, which expects 8 bytes"),
              std::string::npos)
        << status.message();
  });
}

TEST(DifferingCounts, OtherListsInAnAllGatherAreAMismatch) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    std::vector<int32_t> data(9), all(20);
    const Counts counts = {3, comm.rank() == 0 ? size_t{4} : size_t{5}};
    const Status status = comm.all_gather_v(data.data(), all.data(), counts, DataType::kInt32);
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << status.message();
    EXPECT_NE(status.message().find("all_gather_v of int32, counts with fingerprint"), std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("differ in counts"), std::string::npos) << status.message();
  });
}

TEST(DifferingCounts, WrongListsAreRefusedBeforeAnyTraffic) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    std::vector<int32_t> data(9), all(20);
    const auto refused = [](const Status& status, const char* why) {
      EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(status.message().find(why), std::string::npos) << status.message();
    };
    refused(comm.all_gather_v(data.data(), all.data(), Counts{1, 2, 3}, DataType::kInt32),
            "recv_counts has 3 entries; give one for each of the 2 ranks");
    refused(comm.all_to_all_v(data.data(), Counts{1}, all.data(), Counts{1, 1}, DataType::kInt32),
            "send_counts has 1 entries");
    refused(comm.reduce_scatter_v(data.data(), all.data(), Counts{size_t{1} << 46, size_t{1} << 46},
                                  DataType::kInt32, ReduceOp::kSum),
            "add up to more than any memory");
    refused(comm.all_gather_v(nullptr, all.data(), Counts{1, 1}, DataType::kInt32), "null buffer");
    EXPECT_DONE(comm.barrier());
  });
}

TEST(DifferingCounts, AStartedCallKeepsItsCounts) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    const Bytes send = pattern(comm.rank(), 7, 300);
    Bytes recv = filled(0xee, 600), expected = pattern(0, 7, 300);
    append(expected, pattern(1, 7, 300));
    std::shared_ptr<Work> work;
    {
      Counts counts = {300, 300};
      work = comm.start({.collective = Collective::kAllGatherV,
                         .send = send.data(),
                         .recv = recv.data(),
                         .type = DataType::kInt8,
                         .recv_counts = counts});
      counts = {1, 1};
    }
    EXPECT_DONE(work->wait());
    ASSERT_EQ(recv, expected);
  });
}

}  // namespace
}  // namespace collective_ops
