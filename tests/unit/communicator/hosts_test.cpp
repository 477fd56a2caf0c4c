// Groups whose ranks pretend to be on several hosts: every collective against what one rank alone computes.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "thread_ranks.h"

namespace collective_ops {
namespace {

using Hosts = std::vector<int>;

std::string name_of_hosts(const testing::TestParamInfo<Hosts>& test) {
  std::string name = "hosts";
  for (const int host : test.param) name += "_" + std::to_string(host);
  return name;
}

class OverHosts : public testing::TestWithParam<Hosts> {
 protected:
  OverHosts() : size_(static_cast<int>(GetParam().size())), ranks_(size_, {}, GetParam()) {}

  float value(int rank, size_t i) const {
    return static_cast<float>((rank + 1) * 3 + static_cast<int>(i % 17));
  }
  std::vector<float> input(int rank, size_t count) const {
    std::vector<float> data(count);
    for (size_t i = 0; i < count; ++i) data[i] = value(rank, i);
    return data;
  }
  float sum(size_t i) const {
    float all = 0;
    for (int rank = 0; rank < size_; ++rank) all += value(rank, i);
    return all;
  }
  // None, few, more than one rank speaks for, several pieces.
  static constexpr size_t kCounts[] = {0, 1, 5, 1000, 40'000, 300'001};

  const int size_;
  ThreadRanks ranks_;
};

TEST_P(OverHosts, AllReduce) {
  ranks_.run([&](Communicator& rank) {
    for (const size_t count : kCounts) {
      for (const bool in_place : {false, true}) {
        const auto send = input(rank.rank(), count);
        std::vector<float> recv = in_place ? send : std::vector<float>(count);
        const Status status = rank.all_reduce(in_place ? recv.data() : send.data(), recv.data(), count,
                                              DataType::kFloat32, ReduceOp::kSum);
        ASSERT_TRUE(status.ok()) << status.message();
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(recv[i], sum(i)) << i << " of " << count;
      }
    }
  });
}

TEST_P(OverHosts, Averages) {
  ranks_.run([&](Communicator& rank) {
    for (const size_t count : {size_t{5}, size_t{60'000}}) {
      const auto send = input(rank.rank(), count);
      std::vector<float> recv(count);
      ASSERT_TRUE(rank.all_reduce(send.data(), recv.data(), count, DataType::kFloat32, ReduceOp::kAvg).ok());
      for (size_t i = 0; i < count; ++i) ASSERT_FLOAT_EQ(recv[i], sum(i) / static_cast<float>(size_));
      std::vector<int32_t> whole(count), mean(count);
      for (size_t i = 0; i < count; ++i) whole[i] = static_cast<int32_t>(send[i]);
      ASSERT_TRUE(rank.all_reduce(whole.data(), mean.data(), count, DataType::kInt32, ReduceOp::kAvg).ok());
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(mean[i], static_cast<int32_t>(sum(i)) / size_);
    }
  });
}

TEST_P(OverHosts, FactorsOfRanks) {
  ranks_.run([&](Communicator& rank) {
    for (const size_t count : {size_t{5}, size_t{60'000}}) {
      const auto send = input(rank.rank(), count);
      std::vector<float> recv(count);
      const Status status = rank.run({.collective = Collective::kAllReduce,
                                      .send = send.data(),
                                      .recv = recv.data(),
                                      .count = count,
                                      .type = DataType::kFloat32,
                                      .op = ReduceOp::kPreMulSum,
                                      .factor = rank.rank() + 0.5});
      ASSERT_TRUE(status.ok()) << status.message();
      for (size_t i = 0; i < count; ++i) {
        float wanted = 0;
        for (int r = 0; r < size_; ++r) wanted += value(r, i) * (static_cast<float>(r) + 0.5f);
        ASSERT_FLOAT_EQ(recv[i], wanted);
      }
    }
  });
}

TEST_P(OverHosts, HalfSumsThatOverflowDoNotSpoilAverages) {
  ranks_.run([&](Communicator& rank) {
    const std::vector<uint16_t> send(100, 0x7800);  // 32768 in float16: the sum of two is no number of it
    std::vector<uint16_t> recv(100);
    ASSERT_TRUE(rank.all_reduce(send.data(), recv.data(), 100, DataType::kFloat16, ReduceOp::kAvg).ok());
    for (const uint16_t bits : recv) ASSERT_NEAR(bits, 0x7800, 1);
  });
}

TEST_P(OverHosts, ReduceAndBroadcastOfEveryRoot) {
  ranks_.run([&](Communicator& rank) {
    for (int root = 0; root < size_; ++root) {
      for (const size_t count : {size_t{1}, size_t{1000}, size_t{300'001}}) {
        const auto send = input(rank.rank(), count);
        std::vector<float> recv(count, -1);
        ASSERT_TRUE(
            rank.reduce(send.data(), recv.data(), count, DataType::kFloat32, ReduceOp::kSum, root).ok());
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(recv[i], rank.rank() == root ? sum(i) : -1);
        recv = send;
        ASSERT_TRUE(rank.broadcast(recv.data(), count, DataType::kFloat32, root).ok());
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(recv[i], value(root, i));
      }
    }
  });
}

TEST_P(OverHosts, AllGatherAndReduceScatter) {
  ranks_.run([&](Communicator& rank) {
    const auto n = static_cast<size_t>(size_);
    for (const size_t count : {size_t{0}, size_t{1}, size_t{33}, size_t{70'001}}) {
      const auto send = input(rank.rank(), count);
      std::vector<float> recv(n * count);
      ASSERT_TRUE(rank.all_gather(send.data(), recv.data(), count, DataType::kFloat32).ok());
      for (size_t r = 0; r < n; ++r) {
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(recv[r * count + i], value(static_cast<int>(r), i));
      }
      const auto all = input(rank.rank(), n * count);
      std::vector<float> part(count);
      const Status status =
          rank.reduce_scatter(all.data(), part.data(), count, DataType::kFloat32, ReduceOp::kSum);
      ASSERT_TRUE(status.ok()) << status.message();
      const size_t begin = static_cast<size_t>(rank.rank()) * count;
      for (size_t i = 0; i < count; ++i) ASSERT_EQ(part[i], sum(begin + i)) << count;
    }
  });
}

TEST_P(OverHosts, UnequalParts) {
  ranks_.run([&](Communicator& rank) {
    const auto n = static_cast<size_t>(size_), me = static_cast<size_t>(rank.rank());
    for (const size_t scale : {size_t{1}, size_t{20'000}}) {
      std::vector<size_t> counts(n), begins(n);
      for (size_t r = 0; r < n; ++r) counts[r] = (r * 7 + 3) % 5 * scale;
      std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), size_t{0});
      const size_t total = begins.back() + counts.back();
      const auto mine = input(rank.rank(), counts[me]);
      std::vector<float> recv(total);
      ASSERT_TRUE(rank.all_gather_v(mine.data(), recv.data(), counts, DataType::kFloat32).ok());
      for (size_t r = 0; r < n; ++r) {
        for (size_t i = 0; i < counts[r]; ++i) ASSERT_EQ(recv[begins[r] + i], value(static_cast<int>(r), i));
      }
      const auto all = input(rank.rank(), total);
      std::vector<float> part(counts[me]);
      ASSERT_TRUE(
          rank.reduce_scatter_v(all.data(), part.data(), counts, DataType::kFloat32, ReduceOp::kSum).ok());
      for (size_t i = 0; i < counts[me]; ++i) ASSERT_EQ(part[i], sum(begins[me] + i));
      for (int root = 0; root < size_; ++root) {
        const bool is_root = rank.rank() == root;
        std::vector<float> gathered(is_root ? total : 0), scattered(counts[me]);
        ASSERT_TRUE(rank.gather_v(mine.data(), counts[me], gathered.data(),
                                  is_root ? std::span<const size_t>(counts) : std::span<const size_t>(),
                                  DataType::kFloat32, root)
                        .ok());
        if (is_root) {
          ASSERT_EQ(gathered, recv);
        }
        ASSERT_TRUE(rank.scatter_v(all.data(),
                                   is_root ? std::span<const size_t>(counts) : std::span<const size_t>(),
                                   scattered.data(), counts[me], DataType::kFloat32, root)
                        .ok());
        for (size_t i = 0; i < counts[me]; ++i) ASSERT_EQ(scattered[i], value(root, begins[me] + i));
      }
    }
  });
}

TEST_P(OverHosts, AllToAllOfAnyCounts) {
  ranks_.run([&](Communicator& rank) {
    const auto n = static_cast<size_t>(size_), me = static_cast<size_t>(rank.rank());
    for (const size_t scale : {size_t{1}, size_t{30'000}}) {
      std::vector<size_t> to(n), from(n);
      for (size_t r = 0; r < n; ++r) {
        to[r] = (me * 3 + r) % 4 * scale;
        from[r] = (r * 3 + me) % 4 * scale;
      }
      std::vector<int32_t> send, recv(std::accumulate(from.begin(), from.end(), size_t{0})), wanted;
      for (size_t r = 0; r < n; ++r) send.insert(send.end(), to[r], static_cast<int32_t>(me * 100 + r));
      for (size_t r = 0; r < n; ++r) wanted.insert(wanted.end(), from[r], static_cast<int32_t>(r * 100 + me));
      const Status status = rank.all_to_all_v(send.data(), to, recv.data(), from, DataType::kInt32);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(recv, wanted);
    }
  });
}

TEST_P(OverHosts, GatherAndScatterInPlace) {
  ranks_.run([&](Communicator& rank) {
    const auto n = static_cast<size_t>(size_), me = static_cast<size_t>(rank.rank());
    const size_t count = 1000;
    for (int root = 0; root < size_; ++root) {
      std::vector<float> all(n * count, -1);
      const auto mine = input(rank.rank(), count);
      std::copy(mine.begin(), mine.end(), all.begin() + static_cast<ptrdiff_t>(me * count));
      ASSERT_TRUE(rank.gather(all.data() + me * count, all.data(), count, DataType::kFloat32, root).ok());
      if (rank.rank() != root) continue;
      for (size_t r = 0; r < n; ++r) {
        for (size_t i = 0; i < count; ++i) ASSERT_EQ(all[r * count + i], value(static_cast<int>(r), i));
      }
    }
  });
}

TEST_P(OverHosts, BarriersAndStartedCallsKeepTheirOrder) {
  ranks_.run([&](Communicator& rank) {
    std::vector<float> data(1000, 1);
    std::vector<std::shared_ptr<Work>> works;
    for (int i = 0; i < 5; ++i) {
      works.push_back(rank.start({.collective = Collective::kAllReduce,
                                  .send = data.data(),
                                  .recv = data.data(),
                                  .count = data.size(),
                                  .type = DataType::kFloat32}));
    }
    ASSERT_TRUE(rank.barrier().ok());
    for (const auto& work : works) ASSERT_TRUE(work->wait().ok());
    for (const float element : data) ASSERT_EQ(element, std::pow(static_cast<float>(size_), 5));
  });
}

TEST_P(OverHosts, GroupsOfSomeRanks) {
  ranks_.run([&](Communicator& rank) {
    std::vector<int> members;
    for (int r = rank.rank() % 2; r < size_; r += 2) members.push_back(r);
    auto group = rank.create_group(members, {.name = "half"});
    ASSERT_TRUE(group.ok()) << group.status().message();
    for (const size_t count : {size_t{3}, size_t{50'000}}) {
      std::vector<float> data = input(rank.rank(), count);
      ASSERT_TRUE(
          (*group)->all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kSum).ok());
      for (size_t i = 0; i < count; ++i) {
        float wanted = 0;
        for (const int member : members) wanted += value(member, i);
        ASSERT_EQ(data[i], wanted);
      }
    }
    ASSERT_EQ(std::vector<int>((*group)->ranks().begin(), (*group)->ranks().end()), members);
  });
}

TEST_P(OverHosts, MessagesToEveryRankInAnyOrder) {
  ranks_.run([&](Communicator& rank) {
    const int me = rank.rank();
    for (const size_t count : {size_t{0}, size_t{3}, size_t{4096}, size_t{200'000}}) {
      std::vector<std::vector<int32_t>> sent,
          got(static_cast<size_t>(size_), std::vector<int32_t>(count, -1));
      std::vector<Transfer> transfers;
      for (int peer = 0; peer < size_; ++peer)
        sent.emplace_back(count, static_cast<int32_t>(me * 100 + peer));
      // Receives in one order of peers, sends in the other; tags keep them apart.
      for (int peer = size_ - 1; peer >= 0; --peer) {
        transfers.push_back(Transfer::receive(got[static_cast<size_t>(peer)].data(), count, DataType::kInt32,
                                              peer, peer + 1));
      }
      for (int peer = 0; peer < size_; ++peer) {
        transfers.push_back(
            Transfer::send(sent[static_cast<size_t>(peer)].data(), count, DataType::kInt32, peer, me + 1));
      }
      std::vector<Received> received(transfers.size());
      const Status status = rank.exchange(transfers, received);
      ASSERT_TRUE(status.ok()) << status.message();
      for (int peer = 0; peer < size_; ++peer) {
        ASSERT_EQ(got[static_cast<size_t>(peer)], std::vector<int32_t>(count, peer * 100 + me));
        ASSERT_EQ(received[static_cast<size_t>(size_ - 1 - peer)].source, peer);
      }
    }
  });
}

TEST_P(OverHosts, ReceivesFromAnyRankTellTheSource) {
  ranks_.run([&](Communicator& rank) {
    const int me = rank.rank();
    if (me > 0) {
      ASSERT_TRUE(rank.send(&me, 1, DataType::kInt32, 0, 7).ok());
      return;
    }
    std::vector<bool> seen(static_cast<size_t>(size_));
    for (int i = 1; i < size_; ++i) {
      int value = -1;
      Received received;
      const Status status = rank.recv(&value, 1, DataType::kInt32, kAnySource, 7, &received);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(received.source, value);
      ASSERT_FALSE(seen[static_cast<size_t>(value)]);
      seen[static_cast<size_t>(value)] = true;
    }
  });
}

TEST_P(OverHosts, StartedTransfersGoOnBesideCalls) {
  ranks_.run([&](Communicator& rank) {
    const int me = rank.rank(), next = (me + 1) % size_, previous = (me + size_ - 1) % size_;
    std::vector<float> mine(100'000, static_cast<float>(me)), theirs(100'000), sum(10, 1);
    const Transfer transfers[] = {
        Transfer::receive(theirs.data(), theirs.size(), DataType::kFloat32, previous),
        Transfer::send(mine.data(), mine.size(), DataType::kFloat32, next),
    };
    const auto works = rank.start(transfers);
    ASSERT_TRUE(rank.all_reduce(sum.data(), sum.data(), 10, DataType::kFloat32, ReduceOp::kSum).ok());
    for (const auto& work : works) ASSERT_TRUE(work->wait().ok());
    ASSERT_EQ(theirs, std::vector<float>(100'000, static_cast<float>(previous)));
    ASSERT_EQ(sum, std::vector<float>(10, static_cast<float>(size_)));
  });
}

INSTANTIATE_TEST_SUITE_P(Places, OverHosts,
                         testing::Values(Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 0, 0, 1}, Hosts{0, 1, 2},
                                         Hosts{0, 1, 0, 1}, Hosts{2, 2, 0, 0, 1, 1, 1},
                                         Hosts{0, 0, 1, 1, 2, 2, 3, 3}),
                         name_of_hosts);

// More pieces than are under way at once, and more bytes than sockets hold.
TEST(OverHostsInPieces, LongSumsAndAverages) {
  for (const Hosts& hosts : {Hosts{0, 1}, Hosts{0, 0, 1, 1}, Hosts{0, 0, 1, 1, 1, 2, 2}}) {
    const int size = static_cast<int>(hosts.size());
    ThreadRanks ranks(size, {}, hosts);
    ranks.run([&](Communicator& rank) {
      const size_t count = (size_t{3} << 20) + 17;
      std::vector<float> data(count), mean(count);
      for (size_t i = 0; i < count; ++i)
        data[i] = static_cast<float>(rank.rank() + static_cast<int>(i % 1000));
      for (const ReduceOp op : {ReduceOp::kAvg, ReduceOp::kSum}) {
        const Status status = rank.all_reduce(data.data(), mean.data(), count, DataType::kFloat32, op);
        ASSERT_TRUE(status.ok()) << status.message();
        const float ranks_in = op == ReduceOp::kAvg ? 1.0f : static_cast<float>(size);
        for (size_t i = 0; i < count; ++i) {
          const float wanted = (static_cast<float>(size - 1) / 2 + static_cast<float>(i % 1000)) * ranks_in;
          ASSERT_FLOAT_EQ(mean[i], wanted) << i;
        }
      }
    });
  }
}

// Finite numbers of any type of floats, whose sums depend on their order.
std::vector<std::byte> rough_numbers(DataType type, int rank, size_t count) {
  std::vector<std::byte> bytes(count * size_of(type));
  std::minstd_rand random(static_cast<uint32_t>(rank) * 7919 + 1);
  const auto put = [&](size_t i, auto value) {
    std::memcpy(bytes.data() + i * sizeof(value), &value, sizeof(value));
  };
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = random() ^ (random() << 16);
    const float fraction = 1.0f + static_cast<float>(bits % 65536) / 65536;
    const float value = std::ldexp((bits & 0x10000) != 0 ? fraction : -fraction,
                                   static_cast<int>(bits >> 28) - 8);
    if (type == DataType::kFloat64) {
      put(i, static_cast<double>(value) / 3);
    } else if (type == DataType::kFloat32) {
      put(i, value / 3);
    } else if (type == DataType::kBFloat16) {
      put(i, static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
    } else {
      put(i, static_cast<uint16_t>((bits & 0x83ff) | (10 + (bits >> 20) % 8) << 10));
    }
  }
  return bytes;
}

// What all ranks together hold after a few reductions of `type`.
std::vector<std::byte> bits_over(const Hosts& hosts, DataType type) {
  const auto size = static_cast<int>(hosts.size());
  const size_t element = size_of(type), most = 50'000 * static_cast<size_t>(size);
  std::vector<std::vector<std::byte>> of_ranks(hosts.size());
  ThreadRanks ranks(size, {}, hosts);
  ranks.run([&](Communicator& rank) {
    const std::vector<std::byte> data = rough_numbers(type, rank.rank(), most);
    std::vector<std::byte>& all = of_ranks[static_cast<size_t>(rank.rank())];
    std::vector<std::byte> result(most * element);
    const auto keep = [&](const Status& status, size_t count) {
      ASSERT_TRUE(status.ok()) << status.message();
      all.insert(all.end(), result.begin(), result.begin() + static_cast<ptrdiff_t>(count * element));
    };
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg}) {
      for (const size_t count : {size_t{7}, size_t{1000}, size_t{50'000}}) {
        keep(rank.all_reduce(data.data(), result.data(), count, type, op), count);
        keep(rank.reduce(data.data(), result.data(), count, type, op, 1), rank.rank() == 1 ? count : 0);
        keep(rank.reduce_scatter(data.data(), result.data(), count, type, op), count);
      }
    }
  });
  std::vector<std::byte> together;
  for (const auto& one : of_ranks) together.insert(together.end(), one.begin(), one.end());
  return together;
}

TEST(OverHostsStrictly, TheBitsAreThoseOfOneHost) {
  const ScopedVariable strict("HCCL_DETERMINISTIC", "strict");
  for (const DataType type :
       {DataType::kFloat16, DataType::kBFloat16, DataType::kFloat32, DataType::kFloat64}) {
    SCOPED_TRACE(name_of(type));
    const std::vector<std::byte> wanted = bits_over({0, 0, 0, 0, 0, 0, 0, 0}, type);
    EXPECT_TRUE(bits_over({0, 0, 0, 0, 1, 1, 1, 1}, type) == wanted);
    EXPECT_TRUE(bits_over({0, 0, 1, 1, 2, 2, 3, 3}, type) == wanted);
    EXPECT_TRUE(bits_over({0, 0, 0, 1, 1, 2, 3, 3}, type) == wanted);
    EXPECT_TRUE(bits_over({0, 1, 0, 1, 0, 1, 0, 1}, type) == wanted);
    EXPECT_TRUE(bits_over({0, 1, 2, 3, 4, 5, 6, 7}, type) == wanted);
  }
}

// Whatever algorithm and path is asked for: those that add in another order are not taken.
TEST(OverHostsStrictly, TheBitsAreThoseOfEveryAlgorithm) {
  const ScopedVariable strict("HCCL_DETERMINISTIC", "strict");
  const Hosts one(6, 0), two = {0, 0, 0, 1, 1, 1}, three = {0, 0, 1, 1, 2, 2};
  const std::vector<std::byte> wanted = bits_over(one, DataType::kFloat32);
  for (const std::string path : {"auto", "staged"}) {
    for (const std::string algorithm : {"ring", "H-D_R", "NHR", "NB"}) {
      SCOPED_TRACE(path + " " + algorithm);
      const ScopedVariable forced_path("COLLECTIVE_OPS_PATH", path);
      const ScopedVariable forced("HCCL_ALGO", "level0:NA;level1:" + algorithm);
      for (const Hosts& hosts : {one, two, three}) EXPECT_TRUE(bits_over(hosts, DataType::kFloat32) == wanted);
    }
  }
}

}  // namespace
}  // namespace collective_ops
