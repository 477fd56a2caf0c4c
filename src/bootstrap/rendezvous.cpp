#include "bootstrap/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>

#include "base/clock.h"
#include "base/environment.h"
#include "bootstrap/job.h"
#include "bootstrap/listener.h"
#include "bootstrap/rendezvous_internal.h"

namespace collective_ops {
namespace rendezvous {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

}  // namespace

wire::Hello Context::hello() const {
  wire::Hello hello;
  hello.rank = rank;
  hello.world_size = world_size;
  hello.pid = ::getpid();
  const auto self = read_process(hello.pid);
  hello.start_time = self ? self->start_time : 0;
  hello.control_bytes = control_bytes;
  const std::string& version = settings->version;
  std::memcpy(hello.version, version.data(), std::min(version.size(), sizeof(hello.version) - 1));
  return hello;
}

double Context::waited_seconds() const { return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9; }

std::vector<PeerProcess> peers_of(const std::vector<wire::RosterEntry>& roster) {
  std::vector<PeerProcess> peers;
  const std::string host = host_name();
  for (size_t rank = 0; rank < roster.size(); ++rank) {
    const wire::RosterEntry& entry = roster[rank];
    peers.push_back({static_cast<int>(rank), entry.pid, entry.start_time, Descriptor(), host});
  }
  return peers;
}

std::string list_ranks(const std::set<int>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {}", *ranks.begin());
  const int first = ranks.empty() ? 0 : *ranks.begin();
  const int last = ranks.empty() ? 0 : *ranks.rbegin();
  if (ranks.size() > 2 && last - first + 1 == static_cast<int>(ranks.size())) {
    return fmt::format("ranks {} to {}", first, last);
  }
  std::string text = "ranks ";
  size_t index = 0;
  for (const int rank : ranks) {
    if (index > 0) text += index + 1 == ranks.size() ? " and " : ", ";
    text += std::to_string(rank);
    ++index;
  }
  return text;
}

Status missing_ranks(const Context& context, int waiting_rank, double waited_seconds,
                     const std::set<int>& missing, const std::vector<wire::RosterEntry>& duplicates) {
  if (missing.empty()) {
    return Status(
        ErrorCode::kRendezvous,
        fmt::format("joining job \"{}\": rank {} gave up after {:.1f} s, just before the last rank came; "
                    "raise HCCL_CONNECT_TIMEOUT",
                    context.job, waiting_rank, waited_seconds));
  }
  std::string text = fmt::format(
      "joining job \"{}\": {} did not come; rank {} waited {:.1f} s for {} of {} ranks. Was each process "
      "started with "
      "its own RANK (exported, 0 to {}) and WORLD_SIZE={}, by the same parent process or with the same "
      "COLLECTIVE_OPS_JOB_ID? HCCL_CONNECT_TIMEOUT sets how long to wait",
      context.job, list_ranks(missing), waiting_rank, waited_seconds, missing.size(), context.world_size,
      context.world_size - 1, context.world_size);
  for (const auto& duplicate : duplicates) {
    text += fmt::format(". Process {} also claimed a rank that was taken: is RANK set per process?",
                        duplicate.pid);
    break;
  }
  return Status(ErrorCode::kRendezvous, std::move(text));
}

Status differing_world_sizes(const std::map<int, wire::Hello>& hellos) {
  std::map<int, std::set<int>> by_size;
  for (const auto& [rank, hello] : hellos) by_size[hello.world_size].insert(rank);
  std::string text = "joining: the ranks were started with different values of WORLD_SIZE:";
  const char* separator = " ";
  for (const auto& [size, ranks] : by_size) {
    text += fmt::format("{}{} with {}", separator, list_ranks(ranks), size);
    separator = "; ";
  }
  return Status(ErrorCode::kRendezvous, text + ". Start all with the same one");
}

Status differing_builds(const std::map<int, wire::Hello>& hellos) {
  std::map<std::string, std::set<int>> by_build;
  for (const auto& [rank, hello] : hellos) {
    const std::string version(hello.version, ::strnlen(hello.version, sizeof(hello.version)));
    by_build[fmt::format("{} (control segment of {} bytes)", version, hello.control_bytes)].insert(rank);
  }
  std::string text = "joining: the ranks run different builds of collective-ops:";
  const char* separator = " ";
  for (const auto& [build, ranks] : by_build) {
    text += fmt::format("{}{} {}", separator, list_ranks(ranks), build);
    separator = "; ";
  }
  return Status(ErrorCode::kVersionMismatch, text + ". Install the same one for all");
}

}  // namespace rendezvous

namespace {

using rendezvous::Context;

Result<int64_t> connect_timeout_ns(const ConnectOptions& options) {
  if (options.connect_timeout) {
    const auto milliseconds = options.connect_timeout->count();
    if (milliseconds <= 0 || milliseconds > 86'400'000) {
      return Status(ErrorCode::kInvalidArgument,
                    fmt::format("connect_timeout of {} ms: expected 1 ms to one day", milliseconds));
    }
    return milliseconds * 1'000'000;
  }
  auto seconds = environment_seconds("HCCL_CONNECT_TIMEOUT", 1, 7200);
  if (!seconds.ok()) return seconds.status();
  return seconds->count() * 1'000'000'000;
}

Status check_ranks(const ConnectOptions& options) {
  if (options.world_size < 1 || options.world_size > kMaxRanksPerHost) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("world_size {}: expected 1 to {} ranks of one host", options.world_size,
                              kMaxRanksPerHost));
  }
  if (options.rank < 0 || options.rank >= options.world_size) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("rank {}: expected 0 to {}, since world_size is {}; check RANK and WORLD_SIZE",
                              options.rank, options.world_size - 1, options.world_size));
  }
  return Status();
}

Result<HostGroup> join_alone(const Context& context) {
  HostGroup group;
  group.job = context.job;
  auto control = SharedSegment::create(context.control_bytes, "the control segment", kControlSegmentName);
  if (!control.ok()) return control.status();
  group.control = std::move(*control);
  const auto hello = context.hello();
  group.peers = rendezvous::peers_of({{hello.start_time, hello.pid, 0}});
  return group;
}

// So that rank 0 can say why a rank is missing. Best effort: this process fails anyway.
void tell_host_of_duplicate(const Context& context) {
  const Descriptor socket = wire::new_socket();
  const auto address = wire::abstract_address(socket_name(context.job, 0));
  if (::connect(socket.get(), address.get(), address.length) != 0) return;
  const auto hello = context.hello();
  wire::send(socket.get(), wire::Kind::kDuplicate, wire::bytes_of(hello));
}

}  // namespace

std::string build_version() { return COLLECTIVE_OPS_VERSION; }

Result<HostGroup> join(const ConnectOptions& options,
                       const std::function<size_t(int world_size)>& control_bytes,
                       const JoinSettings& settings) {
  if (Status status = check_ranks(options); !status.ok()) return status;
  auto timeout = connect_timeout_ns(options);
  if (!timeout.ok()) return timeout.status();
  auto job = job_identity(options);
  if (!job.ok()) return job.status();
  const int64_t now = monotonic_ns();
  const Context context{options.rank, options.world_size, *job,     control_bytes(options.world_size),
                        now,          now + *timeout,     &settings};
  if (options.world_size == 1) return join_alone(context);

  auto listener = claim_rank(context.job, context.rank, context.deadline_ns);
  if (!listener.ok()) {
    if (listener.status().code() == ErrorCode::kDuplicateRank) tell_host_of_duplicate(context);
    return listener.status();
  }
  auto gathered =
      context.rank == 0 ? rendezvous::join_as_host(context, *listener) : rendezvous::join_as_guest(context);
  if (!gathered.ok()) return gathered.status();

  HostGroup group{
      context.rank, context.world_size, context.job, std::move(gathered->peers), std::move(gathered->control),
      nullptr};
  Mailbox::Config config{
      context.job, context.rank, {}, {gathered->secret[0], gathered->secret[1]}, std::move(*listener)};
  for (const auto& peer : group.peers) config.members.push_back(peer.pid);
  group.mailbox = std::make_unique<Mailbox>(std::move(config));
  return group;
}

}  // namespace collective_ops
