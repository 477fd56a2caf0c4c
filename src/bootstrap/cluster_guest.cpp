// Every rank but 0: finds rank 0, registers, passes on down the tree what comes from above.
#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/cluster_forming.h"
#include "bootstrap/root_info.h"

namespace collective_ops::forming {
namespace {

constexpr int64_t kSliceNs = 50'000'000;
constexpr int64_t kFirstPauseNs = 5'000'000;  // between two searches for rank 0; doubled up to
constexpr int64_t kLongestPauseNs = 200'000'000;
constexpr int64_t kRefusalsNs = 3'000'000'000;  // an earlier job may still be leaving that port
constexpr int64_t kNoNameNs = 30'000'000'000;   // names of pods come up late
constexpr int64_t kAnswerNs = 1'000'000'000;    // for rank 0's last words after our timeout
constexpr int64_t kFinishNs = 30'000'000'000;   // for the steps after the table

class Guest {
 public:
  explicit Guest(const Context& context) : context_(context), waiting_(context.waiting) {}

  Result<Formed> run() {
    if (Status status = find_root(); !status.ok()) return status;
    const Record record = own_record(context_, local_address(root_.fd()));
    root_.send(FrameKind::kRecord, pack(record));
    self_ = record.member;
    if (Status status = follow(); !status.ok()) return last_word(std::move(status));
    for (auto& [rank, link] : formed_.children) link.send(FrameKind::kGo);
    if (!formed_.parent.valid()) formed_.parent = std::move(root_);
    return std::move(formed_);
  }

 private:
  Status find_root() {
    const int64_t begin = monotonic_ns();
    std::optional<int64_t> refused_since;
    int64_t pause = kFirstPauseNs;
    for (;;) {
      auto target = root_target(context_.meeting, context_.options.job, context_.own, context_.secret);
      Dialled dialled;
      if (target.ok()) {
        handshake::Claim claim;
        claim.rank = context_.rank();
        claim.purpose = static_cast<uint32_t>(Purpose::kRegister);
        dialled = dial(*target, context_.key, claim, waiting_);
        if (dialled.outcome == Dialled::Outcome::kConnected) {
          root_ = FrameLink(std::move(dialled.fd));
          return Status();
        }
        last_tried_ = dialled.text;
        if (dialled.outcome == Dialled::Outcome::kEnded && !is_deadline(dialled.status))
          return dialled.status;
      } else {
        last_tried_ = target.status().message();
        const ErrorCode code = target.status().code();
        const bool patient = code == ErrorCode::kTimeout ||
                             (code == ErrorCode::kRendezvous && monotonic_ns() - begin < kNoNameNs);
        if (!patient) return not_found(code);
      }
      const int64_t now = monotonic_ns();
      if (dialled.outcome == Dialled::Outcome::kRefused) {
        if (now - refused_since.value_or(now) >= kRefusalsNs) return refused();
        refused_since = refused_since.value_or(now);
      } else if (dialled.outcome != Dialled::Outcome::kEnded) {
        refused_since.reset();
      }
      std::vector<pollfd> nothing;
      if (Status status = waiting_.poll(nothing, now + pause); !status.ok()) {
        if (!is_deadline(status)) return status;
        return refused_since ? refused() : not_found(ErrorCode::kRendezvous);
      }
      pause = std::min(pause * 2, kLongestPauseNs);
    }
  }

  static bool is_deadline(const Status& status) {
    return status.code() == ErrorCode::kTimeout && status.message().empty();
  }

  Status refused() const {
    return Status(ErrorCode::kRendezvous,
                  fmt::format("rank {} reached rank 0 ({}), which did not let it in: {}. {}", context_.rank(),
                              context_.meeting.origin, last_tried_, why_refused(context_.secret)));
  }

  Status not_found(ErrorCode code) const {
    return Status(
        code, fmt::format("rank {} did not find rank 0 at {} within {:.1f} s: {}. Is rank 0 started, "
                          "and is this the address of its host, which a firewall does not block? "
                          "HCCL_CONNECT_TIMEOUT sets how long to wait",
                          context_.rank(), context_.meeting.origin, context_.waited_seconds(), last_tried_));
  }

  // From registering to being let go.
  Status follow() {
    for (;;) {
      if (Status status = look_at_links(); !status.ok()) return status;
      if (go_) return Status();
      if (!formed_.members.empty() && formed_.children.size() < wanted_children_.size()) {
        if (Status status = connect_children(); !status.ok()) return status;
      }
      const bool all_ready = ready_.size() == wanted_children_.size();
      if (!formed_.members.empty() && all_ready && !confirmed_) {
        above().send(FrameKind::kReady);
        confirmed_ = true;
      }
      if (Status status = wait(); !status.ok()) {
        return is_deadline(status) ? give_up() : status;
      }
    }
  }

  FrameLink& above() { return formed_.parent.valid() ? formed_.parent : root_; }

  Status wait() {
    std::vector<pollfd> polled;
    const auto add = [&polled](const FrameLink& link) {
      const int events = link.unsent() ? POLLIN | POLLOUT : POLLIN;
      if (link.valid()) polled.push_back({link.fd(), static_cast<short>(events), 0});
    };
    add(root_);
    add(formed_.parent);
    for (const auto& [rank, link] : formed_.children) add(link);
    return waiting_.poll(polled, monotonic_ns() + kSliceNs);
  }

  Status look_at_links() {
    const uint32_t tree = static_cast<uint32_t>(Purpose::kTree);
    if (auto visitor = context_.door.take(parent_of(context_.rank()), tree, 0)) {
      formed_.parent = FrameLink(std::move(visitor->fd));
    }
    if (Status status = read(root_, 0); !status.ok()) return status;
    if (Status status = read(formed_.parent, parent_of(context_.rank())); !status.ok()) return status;
    for (auto& [rank, link] : formed_.children) {
      if (go_) break;
      if (Status status = read(link, rank); !status.ok()) return status;
    }
    return Status();
  }

  Status read(FrameLink& link, int from) {
    if (!link.valid()) return Status();
    link.flush();
    for (;;) {
      NetFrame frame;
      const auto received = link.receive(frame);
      if (received == FrameLink::Received::kNothing) return Status();
      if (received == FrameLink::Received::kClosed) return closed(link, from);
      if (frame.kind == FrameKind::kFailure) {
        told_ = true;
        return unpack_status(frame.body);
      }
      if (frame.kind == FrameKind::kReady) ready_.insert(from);
      if (frame.kind == FrameKind::kGo) {
        go_ = true;
        return Status();  // what comes behind it is for the cluster
      }
      if (frame.kind == FrameKind::kTable) {
        if (Status status = take_table(frame.body); !status.ok()) return status;
      }
    }
  }

  // Rank 0 lets go of those who are not its children once all have confirmed; the word to go comes by the
  // tree.
  Status closed(FrameLink& link, int from) {
    link.close();
    if (from == 0 && confirmed_ && formed_.parent.valid()) return Status();
    if (from == 0 || formed_.members.empty()) {
      return lost_while_joining(fmt::format("rank {} ({})", from, context_.meeting.origin));
    }
    return lost_while_joining(describe(formed_.members[static_cast<size_t>(from)]));
  }

  Status take_table(const std::string& body) {
    if (!formed_.members.empty()) return Status();
    const size_t size = static_cast<size_t>(context_.world_size());
    if (!unpack_table(body, formed_.run, formed_.members) || formed_.members.size() != size) {
      return Status(ErrorCode::kInternal,
                    fmt::format("rank {} was sent a table of ranks that cannot be read", context_.rank()));
    }
    scope_addresses(formed_.members, local_address(root_.fd()).scope());
    wanted_children_ = children_of(context_.rank(), context_.world_size());
    waiting_.deadline_ns = std::max(waiting_.deadline_ns, monotonic_ns() + kFinishNs);
    table_ = body;
    return Status();
  }

  Status connect_children() {
    for (const int child : wanted_children_) {
      const ClusterMember& member = formed_.members[static_cast<size_t>(child)];
      handshake::Claim claim;
      claim.rank = context_.rank();
      claim.peer = child;
      claim.purpose = static_cast<uint32_t>(Purpose::kTree);
      auto dialled = dial(target_of(member, self_.host_id, context_.own.only), context_.key, claim, waiting_);
      if (dialled.outcome == Dialled::Outcome::kEnded && !is_deadline(dialled.status)) return dialled.status;
      if (dialled.outcome != Dialled::Outcome::kConnected) return cannot_reach(self_, member, dialled);
      formed_.children.emplace_back(child, FrameLink(std::move(dialled.fd)));
      formed_.children.back().second.send(FrameKind::kTable, table_);
    }
    return Status();
  }

  // Rank 0 knows who is missing, and tells all.
  Status give_up() {
    Packer packer;
    packer.number(static_cast<int64_t>(context_.waited_seconds() * 1e3));
    root_.send(FrameKind::kGiveUp, packer.take());
    if (auto told = wait_for_failure()) return *told;
    return Status(ErrorCode::kRendezvous,
                  fmt::format("joining at {}: rank 0 let rank {} in, but did not answer for {:.1f} s: it is "
                              "stopped, or its host is overloaded",
                              context_.meeting.origin, context_.rank(), context_.waited_seconds()));
  }

  // What this rank found is told to rank 0, which tells everyone, us too.
  Status last_word(Status status) {
    if (told_ || !root_.valid()) return status;
    root_.send(FrameKind::kFailure, pack(for_others(status, describe(self_))));
    if (status.code() == ErrorCode::kInterrupted) return status;
    return wait_for_failure().value_or(status);
  }

  std::optional<Status> wait_for_failure() {
    const int64_t until = monotonic_ns() + kAnswerNs;
    while (root_.valid() && monotonic_ns() < until) {
      root_.flush();
      NetFrame frame;
      const auto received = root_.receive(frame);
      if (received == FrameLink::Received::kClosed) break;
      if (received == FrameLink::Received::kFrame && frame.kind == FrameKind::kFailure) {
        told_ = true;
        return unpack_status(frame.body);
      }
      pollfd ready{root_.fd(), POLLIN, 0};
      if (received == FrameLink::Received::kNothing) ::poll(&ready, 1, 20);
    }
    return std::nullopt;
  }

  const Context& context_;
  Waiting waiting_;
  std::string last_tried_;
  FrameLink root_;  // where this rank has registered
  ClusterMember self_;
  std::string table_;
  std::vector<int> wanted_children_;
  std::set<int> ready_;
  bool confirmed_ = false;
  bool go_ = false;
  bool told_ = false;  // by rank 0 what to return
  Formed formed_;
};

}  // namespace

Result<Formed> form_as_guest(const Context& context) { return Guest(context).run(); }

}  // namespace collective_ops::forming
