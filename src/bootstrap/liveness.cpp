#include "bootstrap/liveness.h"

#include <sys/ioctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include <fmt/format.h>

namespace collective_ops {
namespace {

// ioctl PIDFD_GET_INFO of Linux 6.13; exit status from 6.15 on. Our own declaration: Debian 12's headers
// are older.
struct PidfdInfo {
  uint64_t mask = 0;
  uint64_t cgroup_id = 0;
  uint32_t pid = 0;
  uint32_t others[10] = {};
  int32_t exit_code = 0;
};
static_assert(sizeof(PidfdInfo) == 64);
constexpr uint64_t kInfoExit = 1 << 3;

std::string how_it_ended(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("killed by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  }
  return fmt::format("exited with status {}", WEXITSTATUS(status));
}

bool ended(pid_t pid, int64_t start_time) {
  const auto state = read_process(pid);
  return !state || state->dead() || state->start_time != start_time;
}

}  // namespace

PeerWatch::PeerWatch(const std::vector<PeerProcess>& peers, int own_rank, std::span<const int> ranks) {
  for (const auto& peer : peers) {
    if (peer.rank == own_rank) continue;
    if (!ranks.empty() && std::find(ranks.begin(), ranks.end(), peer.rank) == ranks.end()) continue;
    watched_.push_back({peer.rank, peer.pid, peer.start_time});
    poll_.push_back({peer.pidfd.get(), POLLIN, 0});  // poll ignores a negative descriptor
    without_pidfd_ |= !peer.pidfd.valid();
  }
}

std::optional<DeadPeer> PeerWatch::check() {
  auto dead = look(true);
  if (dead.empty()) return std::nullopt;
  return std::move(dead.front());
}

std::vector<DeadPeer> PeerWatch::check_all() { return look(false); }

std::vector<DeadPeer> PeerWatch::look(bool first_only) {
  std::vector<DeadPeer> dead;
  const int ready = poll_.empty() ? 0 : ::poll(poll_.data(), poll_.size(), 0);
  if (ready <= 0 && !without_pidfd_) return dead;
  for (size_t i = 0; i < watched_.size(); ++i) {
    const bool gone = poll_[i].fd >= 0 ? ready > 0 && poll_[i].revents != 0
                                       : ended(watched_[i].pid, watched_[i].start_time);
    if (!gone) continue;
    dead.push_back(describe(i));
    if (first_only) break;
  }
  return dead;
}

// A child tells its status to its parent; a zombie shows it in /proc; newer kernels keep it with the
// descriptor.
DeadPeer PeerWatch::describe(size_t index) const {
  const Watched& watched = watched_[index];
  DeadPeer dead{watched.rank, watched.pid, "gone"};
  const auto state = read_process(watched.pid);
  if (state && state->start_time == watched.start_time && state->dead()) {
    dead.how = how_it_ended(state->exit_code);
    return dead;
  }
  PidfdInfo info;
  info.mask = kInfoExit;
  constexpr auto kGetInfo = _IOWR(0xFF, 11, PidfdInfo);
  if (poll_[index].fd >= 0 && ::ioctl(poll_[index].fd, kGetInfo, &info) == 0 &&
      (info.mask & kInfoExit) != 0) {
    dead.how = how_it_ended(info.exit_code);
  }
  return dead;
}

}  // namespace collective_ops
