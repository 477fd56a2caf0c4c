// Reduce, gather, scatter, all-to-all: ranks x roots x sizes x types x paths, in place and not.
#include "patterns.h"

namespace collective_ops {
namespace {

constexpr size_t kCounts[] = {0, 1, 3, 17, 1000, 70001};

class Rooted : public OnEveryPath {};

// Bytes of floats, halves and complex numbers that are small whole numbers.
Bytes numbers(DataType type, size_t count, int rank) {
  Bytes bytes = filled(0, count * size_of(type));
  for (size_t i = 0; i < count; ++i) {
    const int value = static_cast<int>((i * 5 + static_cast<size_t>(rank)) % 7) - 3;
    std::byte* at = bytes.data() + i * size_of(type);
    const auto put = [&](auto typed) { std::memcpy(at, &typed, sizeof(typed)); };
    if (type == DataType::kFloat32) put(static_cast<float>(value) * 0.37f);
    if (type == DataType::kInt64) put(static_cast<int64_t>(value) << 33);
    if (type == DataType::kBool) put(static_cast<uint8_t>(value > 1));
    if (type == DataType::kBFloat16) put(static_cast<uint16_t>(0x3f80 + value * 11));  // near 1
    if (type == DataType::kComplex64) {
      const float parts[2] = {static_cast<float>(value), 0.5f * static_cast<float>(rank)};
      std::memcpy(at, parts, sizeof(parts));
    }
  }
  return bytes;
}

// An all-reduce, which has its own test against computed values, gives the same bits.
TEST_P(Rooted, ReduceGivesTheRootWhatAllReduceGives) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    int turn = 0;
    for (DataType type :
         {DataType::kFloat32, DataType::kBFloat16, DataType::kInt64, DataType::kComplex64, DataType::kBool}) {
      for (size_t count : kCounts) {
        const int root = turn++ % n_;
        const bool is_root = comm.rank() == root;
        const Bytes mine = numbers(type, count, comm.rank());
        Bytes expected = mine, send = mine;
        EXPECT_DONE(comm.all_reduce(mine.data(), expected.data(), count, type, ReduceOp::kSum));
        Bytes recv = filled(0xee, mine.size());
        EXPECT_DONE(comm.reduce(send.data(), recv.data(), count, type, ReduceOp::kSum, root));
        ASSERT_EQ(send, mine) << "a rank's input is its own";
        ASSERT_EQ(recv, is_root ? expected : filled(0xee, mine.size()))
            << name_of(type) << " of " << count << " to " << root;
        void* in_place = is_root ? send.data() : nullptr;
        EXPECT_DONE(comm.reduce(send.data(), in_place, count, type, ReduceOp::kSum, root));
        ASSERT_EQ(send, is_root ? expected : mine) << name_of(type) << " of " << count << " in place";
      }
    }
  });
}

TEST_P(Rooted, ReduceAveragesAndPicks) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    for (ReduceOp op : {ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProd, ReduceOp::kBitXor}) {
      for (size_t count : {size_t{5}, size_t{60000}}) {
        const DataType type = op == ReduceOp::kBitXor ? DataType::kInt64 : DataType::kFloat32;
        const Bytes mine = numbers(type, count, comm.rank());
        Bytes expected = mine, recv = filled(0, mine.size());
        EXPECT_DONE(comm.all_reduce(mine.data(), expected.data(), count, type, op));
        EXPECT_DONE(comm.reduce(mine.data(), recv.data(), count, type, op, n_ - 1));
        if (comm.rank() == n_ - 1) {
          ASSERT_EQ(recv, expected) << name_of(op);
        }
      }
    }
  });
}

TEST_P(Rooted, Gather) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    for (DataType type : {DataType::kInt8, DataType::kFloat64}) {
      for (size_t count : kCounts) {
        for (int root = 0; root < n_; ++root) {
          if (count > 2000 && root > 1) continue;
          const bool is_root = comm.rank() == root;
          const size_t bytes = count * size_of(type);
          const Bytes mine = pattern(comm.rank(), root, bytes);
          Bytes expected = filled(0, 0);
          for (int rank = 0; is_root && rank < n_; ++rank) append(expected, pattern(rank, root, bytes));
          Bytes recv = filled(0xee, expected.size());
          EXPECT_DONE(comm.gather(mine.data(), is_root ? recv.data() : nullptr, count, type, root));
          ASSERT_EQ(recv, expected) << count << " to " << root;
          if (is_root) {  // in place: my part stands in the result already
            recv.assign(recv.size(), std::byte{0xee});
            std::byte* part = recv.data() + bytes * static_cast<size_t>(root);
            std::copy(mine.begin(), mine.end(), part);
            EXPECT_DONE(comm.gather(part, recv.data(), count, type, root));
            ASSERT_EQ(recv, expected);
          } else {
            EXPECT_DONE(comm.gather(mine.data(), nullptr, count, type, root));
          }
        }
      }
    }
  });
}

TEST_P(Rooted, Scatter) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    for (DataType type : {DataType::kFloat8E5M2, DataType::kComplex128}) {
      for (size_t count : kCounts) {
        for (int root = 0; root < n_; ++root) {
          if (count > 2000 && root > 1) continue;
          const bool is_root = comm.rank() == root;
          const size_t bytes = count * size_of(type);
          Bytes all = filled(0, 0);
          for (int rank = 0; is_root && rank < n_; ++rank) append(all, pattern(root, rank, bytes));
          const Bytes before = all;
          Bytes recv = filled(0xee, bytes);
          EXPECT_DONE(comm.scatter(is_root ? all.data() : nullptr, recv.data(), count, type, root));
          ASSERT_EQ(recv, pattern(root, comm.rank(), bytes)) << count << " from " << root;
          std::byte* part = is_root ? all.data() + bytes * static_cast<size_t>(root) : recv.data();
          EXPECT_DONE(comm.scatter(is_root ? all.data() : nullptr, part, count, type, root));
          ASSERT_EQ(all, before);
        }
      }
    }
  });
}

TEST_P(Rooted, AllToAll) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    for (DataType type : {DataType::kUInt8, DataType::kBFloat16, DataType::kInt64}) {
      for (size_t count : kCounts) {
        const size_t bytes = count * size_of(type);
        Bytes send = filled(0, 0), expected = filled(0, 0);
        for (int rank = 0; rank < n_; ++rank) {
          append(send, pattern(comm.rank(), rank, bytes));
          append(expected, pattern(rank, comm.rank(), bytes));
        }
        const Bytes before = send;
        Bytes recv = filled(0xee, expected.size());
        EXPECT_DONE(comm.all_to_all(send.data(), recv.data(), count, type));
        ASSERT_EQ(recv, expected) << count;
        ASSERT_EQ(send, before);
      }
    }
  });
}

// Small calls in which a rank waits for nobody, among others: nobody overwrites what is still read.
TEST_P(Rooted, RanksAheadDoNotOverwriteWhatOthersStillRead) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    for (int round = 0; round < 300; ++round) {
      const int root = round / 3 % n_;
      const bool is_root = comm.rank() == root;
      int64_t value = 1000 * round + comm.rank();
      std::vector<int64_t> all(static_cast<size_t>(n_), -1);
      if (round % 3 == 0) {
        EXPECT_DONE(comm.gather(&value, all.data(), 1, DataType::kInt64, root));
        for (int r = 0; is_root && r < n_; ++r) ASSERT_EQ(all[static_cast<size_t>(r)], 1000 * round + r);
      } else if (round % 3 == 1) {
        int64_t sum = 0;
        EXPECT_DONE(comm.reduce(&value, &sum, 1, DataType::kInt64, ReduceOp::kSum, root));
        if (is_root) {
          ASSERT_EQ(sum, int64_t{1000} * round * n_ + n_ * (n_ - 1) / 2);
        }
      } else {
        for (int r = 0; r < n_; ++r) all[static_cast<size_t>(r)] = is_root ? value * 10 + r : -1;
        EXPECT_DONE(comm.scatter(all.data(), &value, 1, DataType::kInt64, root));
        ASSERT_EQ(value, (int64_t{1000} * round + root) * 10 + comm.rank());
      }
    }
  });
}

// One root for long: it gets as far ahead as it may, with payloads of each kind of slot in turn, whose numbers of
// slots differ.
TEST_P(Rooted, ARootAheadKeepsWhatLiesInSlotsOfEachSize) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    const size_t counts[] = {1, 100, 3, 500, 128, 5};
    for (int round = 0; round < 400; ++round) {
      const bool is_root = comm.rank() == n_ - 1;
      const size_t count = counts[round % 7 % 6];
      std::vector<int64_t> values(count, is_root ? round * 10 : -1);
      EXPECT_DONE(comm.broadcast(values.data(), count, DataType::kInt64, n_ - 1));
      ASSERT_EQ(values, std::vector<int64_t>(count, round * 10)) << "round " << round;
      std::vector<int64_t> sum(count, -1);
      EXPECT_DONE(comm.reduce(values.data(), sum.data(), count, DataType::kInt64, ReduceOp::kSum, 0));
      if (comm.rank() == 0) {
        ASSERT_EQ(sum, std::vector<int64_t>(count, int64_t{10} * round * n_)) << "round " << round;
      }
    }
    for (int round = 0; round < 400; ++round) {  // nobody hears from the readers in between
      std::vector<int64_t> values(counts[round % 6], comm.rank() == 0 ? round : -1);
      EXPECT_DONE(comm.broadcast(values.data(), values.size(), DataType::kInt64, 0));
      ASSERT_EQ(values, std::vector<int64_t>(values.size(), round));
    }
  });
}

// More than the caches hold, in odd places.
TEST(LargePayloads, ArriveWholeOnEveryPath) {
  constexpr size_t kCount = (33 << 20) + 13;
  for (const char* path : {"staged", "direct", "auto"}) {
    ScopedVariable variable("COLLECTIVE_OPS_PATH", path);
    ThreadRanks ranks(2);
    ranks.run([&](Communicator& comm) {
      const Bytes mine = pattern(comm.rank(), 0, kCount), theirs = pattern(1 - comm.rank(), 0, kCount);
      Bytes data = filled(0xee, kCount + 2);
      if (comm.rank() == 1) std::copy(mine.begin(), mine.end(), data.begin() + 1);
      EXPECT_DONE(comm.broadcast(data.data() + 1, kCount, DataType::kUInt8, 1));
      const Bytes& sent = comm.rank() == 1 ? mine : theirs;
      ASSERT_TRUE(std::equal(sent.begin(), sent.end(), data.begin() + 1)) << path;
      ASSERT_EQ(data.front(), std::byte{0xee});
      ASSERT_EQ(data.back(), std::byte{0xee});
      Bytes all = filled(0, 2 * kCount + 1);
      EXPECT_DONE(comm.all_gather(mine.data(), all.data() + 1, kCount, DataType::kUInt8));
      const auto at = [&](int rank) { return all.begin() + 1 + static_cast<ptrdiff_t>(rank * kCount); };
      ASSERT_TRUE(std::equal(mine.begin(), mine.end(), at(comm.rank()))) << path;
      ASSERT_TRUE(std::equal(theirs.begin(), theirs.end(), at(1 - comm.rank()))) << path;
    });
  }
}

TEST_P(Rooted, FactorsOfAPreMultipliedSumMayDiffer) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    for (size_t count : {size_t{1}, size_t{333}, size_t{50000}}) {
      for (Collective collective : {Collective::kAllReduce, Collective::kReduce}) {
        std::vector<float> data(count, static_cast<float>(comm.rank() + 1));
        Call call{collective, data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kPreMulSum};
        call.factor = 0.5 * (comm.rank() + 2);
        EXPECT_DONE(comm.run(call));
        float expected = 0;
        for (int r = 0; r < n_; ++r) expected += 0.5f * static_cast<float>((r + 2) * (r + 1));
        if (collective == Collective::kReduce && comm.rank() != 0) {
          expected = static_cast<float>(comm.rank() + 1);
        }
        for (float value : data) ASSERT_EQ(value, expected);
      }
    }
  });
}

// Buffers that begin in the middle of an element.
TEST_P(Rooted, UnalignedPointers) {
  ThreadRanks ranks(n_);
  ranks.run([&](Communicator& comm) {
    for (size_t count : {size_t{3}, size_t{1000}, size_t{40001}}) {
      for (DataType type : {DataType::kFloat32, DataType::kComplex64, DataType::kBFloat16}) {
        const Bytes mine = numbers(type, count, comm.rank());
        Bytes expected = mine, shifted = filled(0xee, mine.size() + 2);
        EXPECT_DONE(comm.all_reduce(mine.data(), expected.data(), count, type, ReduceOp::kSum));
        std::copy(mine.begin(), mine.end(), shifted.begin() + 1);
        EXPECT_DONE(comm.all_reduce(shifted.data() + 1, shifted.data() + 1, count, type, ReduceOp::kSum));
        ASSERT_EQ(std::memcmp(shifted.data() + 1, expected.data(), expected.size()), 0) << name_of(type);
        ASSERT_EQ(shifted.front(), std::byte{0xee});
        ASSERT_EQ(shifted.back(), std::byte{0xee});
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Paths, Rooted, kPathSettings, path_name);

TEST(RootedCall, AllToAllInPlaceIsRefused) {
  ThreadRanks ranks(2);
  ranks.run([&](Communicator& comm) {
    int32_t data[2] = {1, 2};
    const Status status = comm.all_to_all(data, data, 1, DataType::kInt32);
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(status.message().find("blocks change places"), std::string::npos) << status.message();
    EXPECT_DONE(comm.barrier());
  });
}

TEST(RootedCall, AMissingBufferIsRefusedWhereItIsNeeded) {
  ThreadRanks ranks(1);
  int32_t value = 1;
  EXPECT_EQ(ranks[0].reduce(&value, nullptr, 1, DataType::kInt32, ReduceOp::kSum, 0).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(ranks[0].scatter(nullptr, &value, 1, DataType::kInt32, 0).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ranks[0].gather(&value, nullptr, 1, DataType::kInt32, 3).code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(ranks[0].gather(nullptr, nullptr, 0, DataType::kInt32, 0).ok());
}

TEST(RootedCall, DifferingRootsAreNamed) {
  ThreadRanks ranks(2);
  std::vector<Status> seen(2);
  ranks.run([&](Communicator& comm) {
    int32_t value = 1, sum = 0;
    Status& status = seen[static_cast<size_t>(comm.rank())];
    status = comm.reduce(&value, &sum, 1, DataType::kInt32, ReduceOp::kSum, comm.rank());
    if (status.ok()) status = comm.barrier();
  });
  for (const Status& status : seen) {
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("root"), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace collective_ops
