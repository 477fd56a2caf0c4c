#include "torch/activity.h"

#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/record_function.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

namespace collective_ops::pytorch {
namespace {

using Row = std::array<int64_t, 4>;

// Of one thread, which alone adds to it. Kinds: 0 any operator, 1 one that issues a collective.
struct ThreadLog {
  std::mutex mutex;  // against the thread that collects
  int64_t thread = syscall(SYS_gettid);
  std::array<int, 2> depth{};
  std::array<int64_t, 2> begun{};
  std::vector<Row> rows;
};

struct Logs {
  std::mutex mutex;
  std::vector<std::shared_ptr<ThreadLog>> threads;
  std::optional<at::CallbackHandle> handle;
};

Logs& logs() {
  static auto* const all = new Logs;  // threads may outlive static objects
  return *all;
}

thread_local ThreadLog* known_log = nullptr;  // operators come by the million: no guard, no count to look at

[[gnu::noinline]] ThreadLog& first_log() {
  thread_local const std::shared_ptr<ThreadLog> holder = [] {
    auto log = std::make_shared<ThreadLog>();
    const std::lock_guard lock(logs().mutex);
    logs().threads.push_back(log);
    return log;
  }();
  return *(known_log = holder.get());
}

ThreadLog& own_log() { return known_log != nullptr ? *known_log : first_log(); }

bool issues_communication(const char* name) {
  if (*name != 'c' && *name != '_' && *name != 'r') return false;
  const auto begins = [name](const char* start) {
    return std::strncmp(name, start, std::strlen(start)) == 0;
  };
  return begins("c10d::") || begins("record_param_comms") || begins("_c10d_functional::");
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
  ThreadLog& log = own_log();
  const bool communicates = issues_communication(function.name());
  if (log.depth[0]++ != 0 && !communicates) return nullptr;
  const std::lock_guard lock(log.mutex);
  const int64_t now = monotonic_ns();
  if (log.depth[0] == 1) log.begun[0] = now;
  if (communicates && log.depth[1]++ == 0) log.begun[1] = now;
  return nullptr;
}

// In the thread of begin(): scopes that may end in another one are not observed.
void end(const at::RecordFunction& function, at::ObserverContext* /*context*/) {
  ThreadLog& log = own_log();
  const bool communicates = issues_communication(function.name());
  if (--log.depth[0] != 0 && !communicates) return;
  const std::lock_guard lock(log.mutex);
  const int64_t now = monotonic_ns();
  const auto close = [&](size_t kind) {
    log.rows.push_back({log.thread, log.begun[kind], now, static_cast<int64_t>(kind)});
    log.begun[kind] = 0;
  };
  if (communicates && --log.depth[1] == 0 && log.begun[1] != 0) close(1);
  if (log.depth[0] == 0 && log.begun[0] != 0) close(0);
}

}  // namespace

void start_activity() {
  const std::lock_guard lock(logs().mutex);
  if (logs().handle) return;
  for (const auto& log : logs().threads) {
    const std::lock_guard own(log->mutex);
    log->rows.clear();
  }
  logs().handle =
      at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end)
                                .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

std::string stop_activity() {
  const std::lock_guard lock(logs().mutex);
  if (!logs().handle) return "";
  at::removeCallback(*logs().handle);
  logs().handle.reset();
  const int64_t now = monotonic_ns();
  std::string result;
  std::vector<std::shared_ptr<ThreadLog>> kept;
  for (const auto& log : logs().threads) {
    const std::lock_guard own(log->mutex);
    for (const size_t kind : {size_t{0}, size_t{1}}) {
      if (log->begun[kind] == 0) continue;
      log->rows.push_back({log->thread, log->begun[kind], now, static_cast<int64_t>(kind)});
      log->begun[kind] = 0;
    }
    result.append(reinterpret_cast<const char*>(log->rows.data()), log->rows.size() * sizeof(Row));
    log->rows = {};
    if (log.use_count() > 1) kept.push_back(log);  // its thread lives
  }
  logs().threads = std::move(kept);
  return result;
}

}  // namespace collective_ops::pytorch
