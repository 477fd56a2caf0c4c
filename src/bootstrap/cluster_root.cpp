// Rank 0: lets all register, finds out what is wrong, and tells everyone the same.
#include <algorithm>
#include <list>
#include <optional>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/cluster_forming.h"
#include "bootstrap/rendezvous_internal.h"

namespace collective_ops::forming {
namespace {

constexpr int64_t kSliceNs = 50'000'000;
constexpr int64_t kSettleNs = 2'000'000'000;   // for late ranks to hear of a failure that is certain
constexpr int64_t kFinishNs = 30'000'000'000;  // for the steps after the last rank has come

class Root {
 public:
  explicit Root(const Context& context) : context_(context), waiting_(context.waiting) {}

  Result<Formed> run() {
    if (Status status = gather(); !status.ok()) return fail(std::move(status));
    if (Status status = judge(); !status.ok()) return fail(std::move(status));
    waiting_.deadline_ns = std::max(waiting_.deadline_ns, monotonic_ns() + kFinishNs);
    if (Status status = spread(); !status.ok()) return fail(std::move(status));
    context_.door.stop_registering();
    for (const int rank : children_of(0, context_.world_size())) {
      FrameLink link = std::move(by_rank_[rank]->link);
      link.send(FrameKind::kGo);
      formed_.children.emplace_back(rank, std::move(link));
    }
    return std::move(formed_);
  }

 private:
  // One connection of somebody who knows the secret.
  struct Guest {
    FrameLink link;
    int claimed = 0;               // its rank, as it said when it came in
    std::optional<Record> record;  // once it has said more
    bool ready = false;
    bool told = false;  // of the failure
  };

  // Until all have registered.
  Status gather() {
    while (by_rank_.size() + 1 < static_cast<size_t>(context_.world_size())) {
      if (Status status = wait(); !status.ok()) {
        if (status.code() != ErrorCode::kTimeout || !status.message().empty()) return status;
        return missing_ranks(context_, 0, context_.waited_seconds(), missing());
      }
      if (Status status = look(); !status.ok()) return status;
    }
    return Status();
  }

  Status wait() {
    std::vector<pollfd> polled;
    for (const Guest& guest : guests_) {
      const int events = guest.link.unsent() ? POLLIN | POLLOUT : POLLIN;
      polled.push_back({guest.link.fd(), static_cast<short>(events), 0});
    }
    if (Status status = waiting_.poll(polled, monotonic_ns() + kSliceNs); !status.ok()) return status;
    if (!context_.door.starved()) return Status();
    return Status(ErrorCode::kSystem,
                  fmt::format("rank 0 may open no more files, and needs one for each of {} ranks while they "
                              "join; raise ulimit -n",
                              context_.world_size()));
  }

  // One look at everything that may have happened.
  Status look() {
    let_in();
    for (Guest& guest : guests_) {
      if (Status status = read(guest); !status.ok()) return status;
    }
    guests_.remove_if([](const Guest& guest) { return !guest.link.valid(); });  // none of them has registered
    return Status();
  }

  void let_in() {
    while (auto visitor = context_.door.take_any(static_cast<uint32_t>(Purpose::kRegister))) {
      guests_.push_back({FrameLink(std::move(visitor->fd)), visitor->claim.rank, std::nullopt, false, false});
    }
  }

  Status read(Guest& guest) {
    guest.link.flush();
    for (;;) {
      NetFrame frame;
      const auto received = guest.link.receive(frame);
      if (received == FrameLink::Received::kNothing) return Status();
      if (received == FrameLink::Received::kClosed) {
        if (guest.record) return lost_while_joining(describe(guest.record->member));
        guest.link.close();  // it may come again
        return Status();
      }
      if (frame.kind == FrameKind::kFailure) return unpack_status(frame.body);
      if (frame.kind == FrameKind::kReady) guest.ready = true;
      if (frame.kind == FrameKind::kGiveUp) {
        const double waited = static_cast<double>(Unpacker(frame.body).number()) * 1e-3;
        return missing_ranks(context_, guest.claimed, waited, missing());
      }
      if (frame.kind == FrameKind::kRecord) {
        if (Status status = enter(guest, frame.body); !status.ok()) return status;
      }
    }
  }

  Status enter(Guest& guest, const std::string& body) {
    Record record;
    const int rank = guest.claimed;
    if (guest.record || !unpack_record(body, record) || record.member.rank != rank) {
      return Status(ErrorCode::kInternal, fmt::format("rank {} registered with what cannot be read", rank));
    }
    note_route(guest.link, record);
    guest.record = std::move(record);
    const ClusterMember& second = guest.record->member;
    if (rank < 1 || rank >= context_.world_size()) {
      return Status(
          ErrorCode::kRendezvous,
          fmt::format("joining: {} was started with WORLD_SIZE={}, rank 0 with {}. Start all with the "
                      "same one",
                      describe(second), guest.record->world_size, context_.world_size()));
    }
    const auto [place, fresh] = by_rank_.try_emplace(rank, &guest);
    if (fresh) return Status();
    const ClusterMember& first = place->second->record->member;
    return Status(
        ErrorCode::kDuplicateRank,
        fmt::format(
            "joining: process {} on {} and process {} on {} both are rank {}. Give each process its own "
            "RANK; two jobs that run at once need different values of MASTER_PORT or COLLECTIVE_OPS_JOB_ID",
            first.pid, first.host_name, second.pid, second.host_name, rank));
  }

  // By which of our addresses others reach us.
  void note_route(const FrameLink& link, const Record& record) {
    if (record.member.host_id == host_identity()) return;
    const SocketAddress mine = local_address(link.fd());
    if (route_.empty() && !mine.is_loopback()) route_ = mine;
  }

  std::set<int> missing() const {
    std::set<int> ranks;
    for (int rank = 1; rank < context_.world_size(); ++rank) {
      if (by_rank_.count(rank) == 0) ranks.insert(rank);
    }
    return ranks;
  }

  // All are there; can they work together?
  Status judge() {
    records_ = {own_record(context_, route_)};
    for (const auto& [rank, guest] : by_rank_) records_.push_back(*guest->record);
    std::map<int, wire::Hello> hellos;
    std::set<std::string> versions, hosts;
    std::set<int> sizes;
    for (const Record& record : records_) {
      wire::Hello hello;
      hello.rank = record.member.rank;
      hello.world_size = record.world_size;
      std::snprintf(hello.version, sizeof(hello.version), "%s", record.version.c_str());
      hellos[hello.rank] = hello;
      versions.insert(record.version);
      hosts.insert(record.member.host_id);
      sizes.insert(record.world_size);
    }
    if (sizes.size() > 1) return rendezvous::differing_world_sizes(hellos);
    if (versions.size() > 1) return rendezvous::differing_builds(hellos);
    share_own_addresses();
    return hosts.size() > 1 ? judge_addresses() : Status();
  }

  // Ranks of this host that came by loopback have the addresses by which others reach this process.
  void share_own_addresses() {
    const ClusterMember& own = records_[0].member;
    for (Record& record : records_) {
      ClusterMember& member = record.member;
      if (member.host_id != own.host_id || !record.loopback_route || member.addresses.empty()) continue;
      const uint16_t port = member.addresses.front().port();
      member.addresses = own.addresses;
      for (SocketAddress& address : member.addresses) address = address.with_port(port);
    }
  }

  Status judge_addresses() const {
    for (const Record& record : records_) {
      const auto& addresses = record.member.addresses;
      const bool reachable = std::any_of(addresses.begin(), addresses.end(),
                                         [](const SocketAddress& address) { return !address.is_loopback(); });
      if (reachable) continue;
      return Status(
          ErrorCode::kRendezvous,
          fmt::format("joining: {} has no address but those of loopback, by which ranks on other hosts "
                      "cannot reach it. Give its host a network, or name the right interface by "
                      "HCCL_SOCKET_IFNAME or HCCL_IF_IP",
                      describe(record.member)));
    }
    return Status();
  }

  Status spread() {
    const Nonce nonce = random_nonce();
    formed_.run = hex(std::span(nonce).first(16));
    const std::string table = pack_table(formed_.run, records_);
    if (!unpack_table(table, formed_.run, formed_.members))
      return Status(ErrorCode::kInternal, "the table of ranks cannot be read back");
    scope_addresses(formed_.members, route_.scope());
    const auto children = children_of(0, context_.world_size());
    for (const int child : children) by_rank_[child]->link.send(FrameKind::kTable, table);
    const auto all_ready = [&] {
      return std::all_of(children.begin(), children.end(), [&](int child) { return by_rank_[child]->ready; });
    };
    while (!all_ready()) {
      if (Status status = wait(); !status.ok()) {
        if (status.code() != ErrorCode::kTimeout || !status.message().empty()) return status;
        return not_ready();
      }
      if (Status status = look(); !status.ok()) return status;
    }
    return Status();
  }

  Status not_ready() const {
    std::set<int> silent;
    for (const int child : children_of(0, context_.world_size())) {
      if (!by_rank_.at(child)->ready) silent.insert(child);
    }
    return Status(
        ErrorCode::kRendezvous,
        fmt::format("joining: {}, or ranks that they pass the word to, did not confirm within {:.0f} s; "
                    "are they stopped, or their hosts overloaded?",
                    rendezvous::list_ranks(silent), context_.waited_seconds()));
  }

  // Tells everyone, those too that come within a moment.
  Status fail(Status status) {
    const std::string body = pack(for_others(status, "rank 0"));
    std::set<int> told;
    // Whoever has not come by the deadline is not waited for again.
    const bool late = monotonic_ns() >= waiting_.deadline_ns;
    const int64_t until = monotonic_ns() + kSettleNs;
    for (;;) {
      let_in();
      bool unsent = false;
      for (Guest& guest : guests_) {
        if (!std::exchange(guest.told, true)) guest.link.send(FrameKind::kFailure, body);
        unsent |= guest.link.flush() && guest.link.unsent();
        told.insert(guest.claimed);
      }
      const bool all = late || told.size() + 1 >= static_cast<size_t>(context_.world_size());
      if ((all && !unsent) || monotonic_ns() >= until || status.code() == ErrorCode::kInterrupted) break;
      pollfd polled{context_.door.pollable(), POLLIN, 0};
      ::poll(&polled, 1, 20);
      context_.door.serve();
    }
    return status;
  }

  const Context& context_;
  Waiting waiting_;
  std::list<Guest> guests_;
  std::map<int, Guest*> by_rank_;  // those that have registered
  SocketAddress route_;
  std::vector<Record> records_;
  Formed formed_;
};

}  // namespace

Result<Formed> form_as_root(const Context& context) { return Root(context).run(); }

}  // namespace collective_ops::forming
