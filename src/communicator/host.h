// What all groups of a rank have in common: the world that it started with, and how it meets the members of
// a new group. Two kinds, as of Peers: processes that joined through bootstrap/, and threads of this process.
// Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <collective_ops/communicator.h>
#include <collective_ops/status.h>

#include "communicator/job_hosts.h"
#include "communicator/members.h"
#include "communicator/peers.h"
#include "transport/shm/group_memory.h"

namespace collective_ops {

class Recording;

// One creation of a group, as all its members know it: the same parent, name and ranks, for the same time.
struct Meeting {
  Members members;
  int rank = 0;         // of this one, in the group
  uint32_t number = 0;  // of this rank's creations by that name of that list in that parent, from 0
  std::string job;
  int64_t deadline_ns = 0;
  std::function<Status()> check;  // asked every few milliseconds while waiting: interrupted, or a member lost
};

class Host : public std::enable_shared_from_this<Host> {
 public:
  Host(const shm::GroupMemory& world, int world_rank) : world_(world), world_rank_(world_rank) {}
  virtual ~Host() = default;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Of a job on several hosts; nullptr where this host has all its ranks. Then ranks of the world are, here
  // and in Peers, ranks of this host.
  const JobHosts* job_hosts() const { return job_hosts_.get(); }
  void set_job_hosts(std::unique_ptr<const JobHosts> hosts) { job_hosts_ = std::move(hosts); }

  int world_rank() const { return world_rank_; }
  int world_size() const { return world_.world_size(); }
  // That the ranks of this host share; at least 1.
  int cores() const { return cores_; }
  void set_cores(int cores) { cores_ = cores; }
  // Of every group, the world too: when the last one has left, so has this rank.
  void enter() { groups_.fetch_add(1); }
  void leave() {
    if (groups_.fetch_sub(1) == 1) left();
  }
  virtual std::string job() const { return ""; }
  virtual int32_t pid() const { return 0; }
  // Of this rank's calls; nullptr where ranks are threads.
  virtual std::shared_ptr<Recording> recording() const { return nullptr; }

  virtual std::unique_ptr<Peers> peers_of(const Members& members) = 0;

  // Memory of the new group, zeroed and named. One member makes it, the others wait for that one here. Where
  // this fails, the other members are told.
  virtual Result<std::shared_ptr<std::byte>> memory_for(const Meeting& meeting) = 0;
  // Not ok where another member failed in memory_for(). Asked while members wait for each other.
  virtual Status given_up(const Meeting& meeting) = 0;

  // How often this rank has made a group of that name and list in that parent before; counts.
  uint32_t next_number(const Members& members);

  // What this rank waits for in a group other than the world, for errors of others; "" ends it.
  void note(const void* group, const std::string& text);
  // What a rank of the world does outside of `asking`: "; meanwhile it waits in call #3 ...", or "".
  std::string elsewhere(int world_rank, const Members& asking) const;

 protected:
  virtual void left() {}

  const shm::GroupMemory world_;
  const int world_rank_;

 private:
  int cores_ = 1;
  std::unique_ptr<const JobHosts> job_hosts_;
  std::atomic<int> groups_{0};
  std::mutex mutex_;
  std::map<std::tuple<uint32_t, std::string, std::vector<int>>, uint32_t> numbers_;
  std::map<const void*, std::string> notes_;
};

struct HostGroup;
// `joined` with its control segment, which is the world's memory.
std::shared_ptr<Host> make_process_host(HostGroup joined, std::shared_ptr<Recording> recording);

// One for each rank of a world of threads. The memory is the world's, and lives as long as any of them.
std::vector<std::shared_ptr<Host>> make_thread_hosts(int world_size, std::shared_ptr<std::byte> memory);

// Zeroed memory that takes pages only as they are touched. kOutOfMemory.
Result<std::shared_ptr<std::byte>> thread_memory(size_t bytes);

}  // namespace collective_ops
