#include "communicator/own_thread.h"

#include <csignal>
#include <system_error>
#include <utility>

namespace collective_ops {

bool start_own_thread(std::thread& thread, std::function<void()> run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread = std::thread(std::move(run));
  } catch (const std::system_error&) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread.joinable();
}

}  // namespace collective_ops
