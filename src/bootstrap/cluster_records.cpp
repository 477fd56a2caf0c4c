// What ranks tell each other of themselves, and the texts of what can go wrong between them.
#include <unistd.h>

#include <algorithm>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/cluster_forming.h"
#include "bootstrap/process.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/rendezvous_internal.h"

namespace collective_ops::forming {
namespace {

constexpr size_t kMaxAddresses = 8;  // told to others; besides, one of loopback
constexpr int64_t kMaxCount = 64;    // of addresses that are believed

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

void pack(Packer& packer, const Record& record) {
  const ClusterMember& member = record.member;
  packer.text(record.version).number(record.world_size).number(record.loopback_route ? 1 : 0);
  packer.number(member.rank).number(member.pid).number(member.start_time);
  packer.text(member.host_id).text(member.host_name);
  packer.number(static_cast<int64_t>(member.addresses.size()));
  for (const SocketAddress& address : member.addresses) {
    packer.text(address.with_scope(0).host()).number(address.port());
  }
}

bool unpack(Unpacker& unpacker, Record& record) {
  ClusterMember& member = record.member;
  record.version = unpacker.text();
  record.world_size = static_cast<int>(unpacker.number());
  record.loopback_route = unpacker.number() != 0;
  member.rank = static_cast<int>(unpacker.number());
  member.pid = static_cast<int32_t>(unpacker.number());
  member.start_time = unpacker.number();
  member.host_id = unpacker.text();
  member.host_name = unpacker.text();
  const int64_t count = unpacker.number();
  if (!unpacker.ok() || count < 0 || count > kMaxCount) return false;
  for (int64_t i = 0; i < count; ++i) {
    const std::string text = unpacker.text();
    const int64_t port = unpacker.number();
    auto address = SocketAddress::parse(text, static_cast<uint16_t>(port));
    if (!address.ok()) return false;
    member.addresses.push_back(*address);
  }
  return unpacker.ok();
}

}  // namespace

double Context::waited_seconds() const { return static_cast<double>(monotonic_ns() - begin_ns) * 1e-9; }

Record own_record(const Context& context, const SocketAddress& route) {
  Record record;
  record.version = build_version();
  record.world_size = context.world_size();
  record.loopback_route = route.is_loopback();
  ClusterMember& member = record.member;
  member.rank = context.rank();
  member.pid = ::getpid();
  const auto self = read_process(member.pid);
  member.start_time = self ? self->start_time : 0;
  member.host_id = host_identity();
  member.host_name = host_name();
  const uint16_t port = context.door.port();
  for (const SocketAddress& address : prefer_route(context.own, route)) {
    if (member.addresses.size() < kMaxAddresses) member.addresses.push_back(address.with_port(port));
  }
  if (context.door.any_address()) {
    member.addresses.push_back(SocketAddress::loopback(context.own.family, port));
  }
  return record;
}

std::string pack(const Record& record) {
  Packer packer;
  pack(packer, record);
  return packer.take();
}

std::string pack_table(const std::string& run, const std::vector<Record>& records) {
  Packer packer;
  packer.text(run).number(static_cast<int64_t>(records.size()));
  for (const Record& record : records) pack(packer, record);
  return packer.take();
}

bool unpack_record(const std::string& bytes, Record& record) {
  Unpacker unpacker(bytes);
  return unpack(unpacker, record) && unpacker.done();
}

bool unpack_table(const std::string& bytes, std::string& run, std::vector<ClusterMember>& members) {
  Unpacker unpacker(bytes);
  run = unpacker.text();
  const int64_t count = unpacker.number();
  if (!unpacker.ok() || count < 1 || count > kMaxClusterRanks) return false;
  for (int64_t rank = 0; rank < count; ++rank) {
    Record record;
    if (!unpack(unpacker, record) || record.member.rank != rank) return false;
    members.push_back(std::move(record.member));
  }
  return unpacker.done();
}

std::string pack(const Status& status) {
  Packer packer;
  packer.number(static_cast<int64_t>(status.code())).text(status.message());
  return packer.take();
}

Status unpack_status(const std::string& bytes) {
  Unpacker unpacker(bytes);
  const int64_t code = unpacker.number();
  const std::string text = unpacker.text();
  if (!unpacker.done() || code <= 0 || code >= kErrorCodeCount) {
    return Status(ErrorCode::kInternal, "a rank told of a failure in words that cannot be read");
  }
  return Status(static_cast<ErrorCode>(code), text);
}

void scope_addresses(std::vector<ClusterMember>& members, uint32_t scope) {
  for (ClusterMember& member : members) {
    std::vector<SocketAddress> usable;
    for (const SocketAddress& address : member.addresses) {
      const bool scoped = address.family() == AF_INET6 && address.is_link_local();
      if (!scoped) usable.push_back(address);
      if (scoped && scope != 0) usable.push_back(address.with_scope(scope));
    }
    member.addresses = std::move(usable);
  }
}

std::string describe(const ClusterMember& member) {
  return fmt::format("rank {} on {} (process {})", member.rank, member.host_name, member.pid);
}

DialTarget target_of(const ClusterMember& member, const std::string& from_host_id,
                     const SocketAddress& source) {
  DialTarget target;
  target.source = source;
  for (const SocketAddress& address : member.addresses) {
    if (!address.is_loopback() || member.host_id == from_host_id) target.addresses.push_back(address);
  }
  return target;
}

std::string why_refused(const JobSecret& secret) {
  switch (secret.kind) {
    case JobSecret::Kind::kThisHost:
      return fmt::format(
          "This process has no secret, and without one only ranks of one host join each other. {}",
          kHowToGiveSecret);
    case JobSecret::Kind::kInsecure:
      return "This process does without a secret (COLLECTIVE_OPS_INSECURE=1) and that one has one, or it "
             "belongs to another job: start all ranks with the same variables";
    case JobSecret::Kind::kShared:
      break;
  }
  return fmt::format(
      "Its secret differs from this process's (from {}), or it belongs to another job: give all "
      "ranks the same secret, COLLECTIVE_OPS_JOB_ID and MASTER_PORT",
      secret.origin);
}

Status missing_ranks(const Context& context, int waiting_rank, double waited_seconds,
                     const std::set<int>& missing) {
  std::string text = fmt::format("joining at {}: {} did not come; rank {} waited {:.1f} s for {} of {} ranks",
                                 context.meeting.origin, rendezvous::list_ranks(missing), waiting_rank,
                                 waited_seconds, missing.size(), context.world_size());
  const Refusals refusals = context.door.refusals();
  if (refusals.count > 0) {
    text += fmt::format(". {} connections to rank 0 did not know its secret, the last one from {}. {}",
                        refusals.count, refusals.last.host(), why_refused(context.secret));
  } else {
    text += fmt::format(
        ". Were they started, with WORLD_SIZE={}, and can they reach port {} of rank 0's host (a firewall, "
        "another network)? Their own output says what they tried. HCCL_CONNECT_TIMEOUT sets how long to wait",
        context.world_size(), context.door.port());
  }
  return Status(ErrorCode::kRendezvous, std::move(text));
}

Status cannot_reach(const ClusterMember& from, const ClusterMember& to, const Dialled& dialled) {
  const std::string tried = dialled.text.empty() ? "it has no address for others" : dialled.text;
  return Status(
      ErrorCode::kRendezvous,
      fmt::format("{} cannot reach {}: {}. Do both hosts share a network, and does no firewall stand "
                  "between? HCCL_SOCKET_IFNAME or HCCL_IF_IP choose the interface; HCCL_HOST_SOCKET_"
                  "PORT_RANGE the ports",
                  describe(from), describe(to), tried));
}

Status lost_while_joining(const std::string& who) {
  return Status(
      ErrorCode::kRendezvous,
      fmt::format("{} ended, or lost its network, while the ranks were joining; see its own output for "
                  "the reason",
                  who));
}

Status for_others(const Status& status, const std::string& who) {
  if (status.code() != ErrorCode::kInterrupted) return status;
  return Status(ErrorCode::kRendezvous, fmt::format("{} was interrupted while the ranks were joining", who));
}

}  // namespace collective_ops::forming
