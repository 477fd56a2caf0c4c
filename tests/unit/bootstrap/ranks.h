// Forked processes as ranks, which answer with a line of text each.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "bootstrap/rendezvous.h"

namespace collective_ops {

class Ranks {
 public:
  Ranks() = default;
  Ranks(const Ranks&) = delete;
  ~Ranks() {
    for (const auto& child : children_) {
      if (!child.reaped) ::kill(child.pid, SIGKILL);
    }
    for (size_t i = 0; i < children_.size(); ++i) {
      if (!children_[i].reaped) ::waitpid(children_[i].pid, nullptr, 0);
      ::close(children_[i].pipe);
    }
  }

  // Returns the process id.
  pid_t start(const std::function<std::string()>& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) std::abort();
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::alarm(60);  // a rank that waits for one that failed ends too
      const std::string answer = body() + "\n";
      const bool written =
          ::write(ends[1], answer.data(), answer.size()) == static_cast<ssize_t>(answer.size());
      ::_exit(written ? 0 : 9);
    }
    ::close(ends[1]);
    children_.push_back({pid, ends[0], false});
    return pid;
  }

  // What a child answered; "" where it died without.
  std::string answer(size_t index) {
    std::string text;
    char piece[4096];
    for (ssize_t count; (count = ::read(children_[index].pipe, piece, sizeof(piece))) > 0;) {
      text.append(piece, static_cast<size_t>(count));
    }
    reap(index);
    if (!text.empty()) text.pop_back();
    return text;
  }

  std::vector<std::string> answers() {
    std::vector<std::string> all;
    for (size_t i = 0; i < children_.size(); ++i) all.push_back(answer(i));
    return all;
  }

  pid_t pid(size_t index) const { return children_[index].pid; }
  void kill(size_t index) { ::kill(children_[index].pid, SIGKILL); }
  void reap(size_t index) {
    if (!children_[index].reaped) ::waitpid(children_[index].pid, nullptr, 0);
    children_[index].reaped = true;
  }

 private:
  struct Child {
    pid_t pid;
    int pipe;
    bool reaped;
  };
  std::vector<Child> children_;
};

// A pipe on which one process waits for another.
class Gate {
 public:
  Gate() {
    if (::pipe2(ends_, O_CLOEXEC) != 0) std::abort();
  }
  ~Gate() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Gate(const Gate&) = delete;
  void open(int count = 1) const {
    for (int i = 0; i < count; ++i) {
      if (::write(ends_[1], "x", 1) != 1) std::abort();
    }
  }
  void wait(int count = 1) const {
    char byte;
    for (int i = 0; i < count; ++i) {
      if (::read(ends_[0], &byte, 1) != 1) std::abort();
    }
  }

 private:
  int ends_[2];
};

inline std::string fresh_job() {
  static int counter = 0;
  return fmt::format("test-{}-{}", ::getpid(), ++counter);
}

inline ConnectOptions as_rank(int rank, int world_size, const std::string& job, int timeout_ms = 20000) {
  return {rank, world_size, job, std::chrono::milliseconds(timeout_ms), std::nullopt};
}

inline size_t control_of(int world_size) { return static_cast<size_t>(world_size) * 4096; }

// A barrier of the group's processes, on the first word of its control segment.
inline void meet(const HostGroup& group) {
  auto* count = reinterpret_cast<unsigned*>(group.control.data());
  const auto size = static_cast<unsigned>(group.world_size);
  const unsigned until = __atomic_fetch_add(count, 1, __ATOMIC_SEQ_CST) / size * size + size;
  while (__atomic_load_n(count, __ATOMIC_SEQ_CST) < until) ::usleep(100);
}

inline std::string text_of(const Status& status) {
  return status.ok() ? "ok" : fmt::format("{}: {}", name_of(status.code()), status.message());
}

// Starts a group of processes that run `body` once they have joined; their answers by rank.
inline std::vector<std::string> run_group(int world_size,
                                          const std::function<std::string(HostGroup&)>& body) {
  const std::string job = fresh_job();
  Ranks ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.start([&, rank] {
      auto group = join(as_rank(rank, world_size, job), control_of);
      const std::string answer = group.ok() ? body(*group) : text_of(group.status());
      if (answer != "ok") fmt::print(stderr, "rank {}: {}\n", rank, answer);
      return answer;
    });
  }
  return ranks.answers();
}

}  // namespace collective_ops
