// Runs a function on every rank of a group of threads.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <collective_ops/communicator.h>

namespace collective_ops {

// Sets a variable for the life of the object.
class ScopedVariable {
 public:
  ScopedVariable(std::string name, const std::string& value) : name_(std::move(name)) {
    setenv(name_.c_str(), value.c_str(), 1);
  }
  ~ScopedVariable() { unsetenv(name_.c_str()); }

 private:
  std::string name_;
};

class ThreadRanks {
 public:
  explicit ThreadRanks(int world_size, const ConnectOptions& options = {}, std::span<const int> hosts = {}) {
    auto made = Communicator::create_for_threads(world_size, options, hosts);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (made.ok()) ranks_ = std::move(*made);
  }

  void run(const std::function<void(Communicator&)>& body) {
    std::vector<std::thread> threads;
    for (auto& rank : ranks_) threads.emplace_back([&body, &rank] { body(*rank); });
    for (auto& thread : threads) thread.join();
  }

  Communicator& operator[](int rank) { return *ranks_[static_cast<size_t>(rank)]; }
  void drop(int rank) { ranks_[static_cast<size_t>(rank)].reset(); }

 private:
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

}  // namespace collective_ops
