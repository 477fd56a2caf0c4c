#include "torch/processes.h"

#include <sys/stat.h>
#include <unistd.h>

#include <sstream>

#include "bootstrap/liveness.h"
#include "bootstrap/secret.h"
#include "torch/pytorch.h"

namespace collective_ops::pytorch {

ProcessPlace ProcessPlace::here() {
  struct stat space {};
  if (::stat("/proc/self/ns/pid", &space) != 0) space.st_ino = 0;
  const auto state = read_process(::getpid());
  return {host_tag(), space.st_ino, ::getpid(), state ? state->start_time : 0};
}

std::string ProcessPlace::text() const { return c10::str(host, " ", pid_space, " ", pid, " ", start_time); }

ProcessPlace ProcessPlace::parse(const std::string& text) {
  ProcessPlace place;
  std::istringstream(text) >> place.host >> place.pid_space >> place.pid >> place.start_time;
  return place;
}

bool ProcessPlace::visible_from(const ProcessPlace& other) const {
  return host == other.host && pid_space != 0 && pid_space == other.pid_space && pid > 0 && start_time > 0;
}

void ProcessWatch::add(int rank, const ProcessPlace& place) {
  if (!place.visible_from(here_) || place.pid == here_.pid) return;
  // Without a descriptor, id and start time serve.
  processes_.push_back(
      {rank, place.pid, place.start_time, open_process(place.pid, place.start_time), ""});
}

std::string ProcessWatch::lost() const {
  if (processes_.empty()) return {};
  const auto dead = PeerWatch(processes_, /*own_rank=*/-1).check();
  return dead ? c10::str("rank ", dead->rank, " (pid ", dead->pid, ") was lost: ", dead->how) : "";
}

}  // namespace collective_ops::pytorch
