#include "bootstrap/cluster.h"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "base/clock.h"
#include "bootstrap/cluster_forming.h"
#include "bootstrap/meeting_place.h"
#include "bootstrap/root_info.h"
#include "bootstrap/wire.h"

namespace collective_ops {
namespace {

constexpr int64_t kAcceptSliceNs = 10'000'000;  // another thread may have let our visitor in
constexpr int64_t kFirstPauseNs = 5'000'000;    // between two attempts at a peer; doubled up to
constexpr int64_t kLongestPauseNs = 200'000'000;
constexpr int64_t kHopelessNs = 3'000'000'000;  // a route may flap, a neighbour be looked for
constexpr int64_t kFarewellNs = 200'000'000;

bool is_deadline(const Status& status) {
  return status.code() == ErrorCode::kTimeout && status.message().empty();
}

}  // namespace

struct Cluster::Impl {
  // A neighbour in the tree, by which news come and go.
  struct Neighbour {
    int rank = 0;
    FrameLink link;
  };

  ClusterOptions options;
  JobSecret secret;
  Digest key{};
  OwnAddresses own;
  std::unique_ptr<Door> door;
  PrivateDescriptor epoll;  // of the door and the neighbours
  std::vector<ClusterMember> members;
  std::vector<std::vector<int>> hosts;
  std::string local_job;

  std::mutex mutex;  // of what follows
  std::vector<Neighbour> neighbours;
  Status failed;
  bool leaving = false;
  std::atomic<bool> has_failed{false};

  Status prepare(const MeetingPlace& meeting);
  void prefer_table(const std::string& host);
  Status open_door(const MeetingPlace& meeting);
  void take(forming::Formed formed);
  void number_hosts();
  Status watch(int fd) const;
  void read_news();
  void hear(Neighbour& neighbour);
  void fail(const Status& status, int except);
  void forget(Neighbour& neighbour) const;
  Waiting waiting(int64_t deadline_ns, const std::function<Status()>& interrupted, Cluster* cluster) const;
  const ClusterMember& self() const { return members[static_cast<size_t>(options.rank)]; }
};

Cluster::Cluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Result<std::unique_ptr<Cluster>> Cluster::join(const MeetingPlace& meeting, const ClusterOptions& options) {
  if (options.world_size < 1 || options.world_size > kMaxClusterRanks || options.rank < 0 ||
      options.rank >= options.world_size) {
    return Status(ErrorCode::kInvalidArgument,
                  fmt::format("rank {} of {}: expected 1 to {} ranks, and a rank below their number",
                              options.rank, options.world_size, kMaxClusterRanks));
  }
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (Status status = impl->prepare(meeting); !status.ok()) return status;
  Door& door = *impl->door;
  Waiting waiting{options.deadline_ns, options.interrupted, door.pollable(), [&door] {
                    door.serve();
                    return Status();
                  }};
  const forming::Context context{meeting,   impl->options, impl->secret,       impl->key,
                                 impl->own, door,          std::move(waiting), monotonic_ns()};
  auto formed = options.rank == 0 ? forming::form_as_root(context) : forming::form_as_guest(context);
  if (!formed.ok()) return formed.status();
  impl->take(std::move(*formed));
  for (const auto& neighbour : impl->neighbours) {
    if (Status status = impl->watch(neighbour.link.fd()); !status.ok()) return status;
  }
  return std::unique_ptr<Cluster>(new Cluster(std::move(impl)));
}

// The secret, the door, and where rank 0 tells of itself.
Status Cluster::Impl::prepare(const MeetingPlace& meeting) {
  auto addresses = own_addresses();
  if (!addresses.ok()) return addresses.status();
  own = std::move(*addresses);
  prefer_table(meeting.own_host);
  if (!meeting.root_info.empty()) {
    auto info = parse_root_info(meeting.root_info);
    if (!info.ok()) return info.status();
    secret = {JobSecret::Kind::kShared, info->secret, "the root info"};
  }
  if (secret.bytes.empty()) {
    auto found = find_secret();
    if (!found.ok()) return found.status();
    secret = std::move(*found);
  }
  if (meeting.several_hosts && secret.kind == JobSecret::Kind::kThisHost) {
    return Status(
        ErrorCode::kRendezvous,
        fmt::format("joining at {}: the ranks are on several hosts and have no secret, so nobody could "
                    "tell them from strangers. {}",
                    meeting.origin, kHowToGiveSecret));
  }
  key = job_key(secret, options.job);
  if (Status status = open_door(meeting); !status.ok()) return status;
  door->set_key(key);
  epoll = PrivateDescriptor(Descriptor(::epoll_create1(EPOLL_CLOEXEC)));
  if (Status status = watch(door->pollable()); !status.ok()) return status;
  if (options.rank != 0 || !meeting.store) return Status();
  return meeting.store->set(root_key(options.job), root_info_text(root_info_of(*door, own, "")));
}

// The address that a rank table gives this host, if the host has it: inside a container it may not.
void Cluster::Impl::prefer_table(const std::string& host) {
  if (host.empty() || own.chosen) return;
  auto address = SocketAddress::parse(host);
  if (!address.ok()) return;
  const auto found = std::find_if(own.addresses.begin(), own.addresses.end(),
                                  [&](const SocketAddress& mine) { return mine.same_host(*address); });
  if (found != own.addresses.end()) own.addresses = {SocketAddress(*found)};
}

Status Cluster::Impl::open_door(const MeetingPlace& meeting) {
  if (options.rank == 0 && !meeting.root_info.empty()) {
    door = take_root_door(meeting.root_info);
    if (door) return Status();
    return Status(
        ErrorCode::kInvalidArgument,
        "rank 0 is the process that called create_root_info(), and each text serves one group: this "
        "process did not make this one, or has used it already");
  }
  Door::Config config;
  config.address = own.only;
  config.family = own.family;
  if (options.rank == 0 && !meeting.root_ports.empty()) {
    config.ports = meeting.root_ports;
  } else if (meeting.own_port) {
    config.ports = {*meeting.own_port};
  } else {
    auto ports = own_ports();
    if (!ports.ok()) return ports.status();
    config.ports = std::move(*ports);
  }
  auto opened = Door::open(config, options.rank);
  if (!opened.ok()) return opened.status();
  door = std::move(*opened);
  return Status();
}

void Cluster::Impl::take(forming::Formed formed) {
  members = std::move(formed.members);
  local_job = fmt::format("cluster {}", formed.run);
  if (formed.parent.valid()) {
    neighbours.push_back({forming::parent_of(options.rank), std::move(formed.parent)});
  }
  for (auto& [rank, link] : formed.children) neighbours.push_back({rank, std::move(link)});
  number_hosts();
}

void Cluster::Impl::number_hosts() {
  std::map<std::string, int> numbers;
  for (ClusterMember& member : members) {
    const auto [entry, fresh] = numbers.try_emplace(member.host_id, static_cast<int>(hosts.size()));
    if (fresh) hosts.emplace_back();
    auto& ranks = hosts[static_cast<size_t>(entry->second)];
    member.host = entry->second;
    member.local_rank = static_cast<int>(ranks.size());
    ranks.push_back(member.rank);
  }
}

Status Cluster::Impl::watch(int fd) const {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll.valid() && ::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0) return Status();
  return Status(ErrorCode::kSystem,
                fmt::format("joining as rank {}: too many open files; raise ulimit -n", options.rank));
}

void Cluster::Impl::forget(Neighbour& neighbour) const {
  ::epoll_ctl(epoll.get(), EPOLL_CTL_DEL, neighbour.link.fd(), nullptr);
  neighbour.link.close();
}

void Cluster::Impl::read_news() {
  const std::lock_guard lock(mutex);
  for (Neighbour& neighbour : neighbours) {
    if (neighbour.link.valid()) hear(neighbour);
  }
}

void Cluster::Impl::hear(Neighbour& neighbour) {
  for (;;) {
    neighbour.link.flush();
    NetFrame frame;
    const auto received = neighbour.link.receive(frame);
    if (received == FrameLink::Received::kNothing) return;
    if (received == FrameLink::Received::kClosed) {
      forget(neighbour);
      const auto& member = members[static_cast<size_t>(neighbour.rank)];
      return fail(Status(ErrorCode::kPeerLost,
                         fmt::format("{} has died, or its host or network has failed: its connection ended "
                                     "without a farewell; see its own output for the reason",
                                     forming::describe(member))),
                  -1);
    }
    if (frame.kind == FrameKind::kNews) fail(forming::unpack_status(frame.body), neighbour.rank);
    if (frame.kind == FrameKind::kBye) return forget(neighbour);
  }
}

// The first failure is the one that counts, and is passed on. `mutex` is held.
void Cluster::Impl::fail(const Status& status, int except) {
  if (!failed.ok() || leaving) return;
  failed = status;
  has_failed.store(true, std::memory_order_release);
  const std::string body = forming::pack(status);
  for (Neighbour& neighbour : neighbours) {
    if (neighbour.rank != except && neighbour.link.valid()) neighbour.link.send(FrameKind::kNews, body);
  }
}

Waiting Cluster::Impl::waiting(int64_t deadline_ns, const std::function<Status()>& interrupted,
                               Cluster* cluster) const {
  return {deadline_ns, interrupted, epoll.get(), [cluster] { return cluster->serve(); }};
}

Cluster::~Cluster() { leave(); }

int Cluster::rank() const { return impl_->options.rank; }
int Cluster::world_size() const { return impl_->options.world_size; }
const std::vector<ClusterMember>& Cluster::members() const { return impl_->members; }
const std::vector<std::vector<int>>& Cluster::hosts() const { return impl_->hosts; }
const std::string& Cluster::local_job() const { return impl_->local_job; }
std::string Cluster::describe(int rank) const {
  return forming::describe(impl_->members[static_cast<size_t>(rank)]);
}
int Cluster::pollable() const { return impl_->epoll.get(); }

Status Cluster::serve() {
  impl_->door->serve();
  impl_->read_news();
  return failure();
}

Status Cluster::failure() const {
  if (!impl_->has_failed.load(std::memory_order_acquire)) return Status();
  const std::lock_guard lock(impl_->mutex);
  return impl_->failed;
}

void Cluster::announce(const Status& status) {
  const std::lock_guard lock(impl_->mutex);
  impl_->fail(status, -1);
}

void Cluster::leave() {
  const std::lock_guard lock(impl_->mutex);
  if (std::exchange(impl_->leaving, true)) return;
  for (auto& neighbour : impl_->neighbours) {
    if (neighbour.link.valid()) neighbour.link.send(FrameKind::kBye);
  }
  const int64_t until = monotonic_ns() + kFarewellNs;
  for (auto& neighbour : impl_->neighbours) {
    while (neighbour.link.unsent() && neighbour.link.flush() && monotonic_ns() < until) {
      pollfd ready{neighbour.link.fd(), POLLOUT, 0};
      ::poll(&ready, 1, 10);
    }
  }
}

std::optional<PrivateDescriptor> Cluster::take(int peer, Purpose purpose, uint64_t channel) {
  auto visitor = impl_->door->take(peer, static_cast<uint32_t>(purpose), channel);
  if (!visitor) return std::nullopt;
  return std::move(visitor->fd);
}

Result<PrivateDescriptor> Cluster::connect(int peer, Purpose purpose, uint64_t channel, int64_t deadline_ns,
                                           const std::function<Status()>& interrupted) {
  const ClusterMember& member = impl_->members[static_cast<size_t>(peer)];
  const ClusterMember& self = impl_->self();
  const auto target = forming::target_of(member, self.host_id, impl_->own.only);
  const handshake::Claim claim{self.rank, peer, static_cast<uint32_t>(purpose), 0, channel};
  const Waiting waiting = impl_->waiting(deadline_ns, interrupted, this);
  const int64_t begin = monotonic_ns();
  int64_t pause = kFirstPauseNs;
  for (;;) {
    Dialled dialled = dial(target, impl_->key, claim, waiting);
    if (dialled.outcome == Dialled::Outcome::kConnected) return std::move(dialled.fd);
    Status ended = dialled.status;
    if (dialled.outcome != Dialled::Outcome::kEnded) {
      if (monotonic_ns() - begin >= kHopelessNs) return forming::cannot_reach(self, member, dialled);
      std::vector<pollfd> nothing;
      ended = waiting.poll(nothing, monotonic_ns() + pause);
      pause = std::min(pause * 2, kLongestPauseNs);
    }
    if (ended.ok()) continue;
    if (!is_deadline(ended)) return ended;
    return Status(ErrorCode::kTimeout,
                  fmt::format("{} waited {:.1f} s for a connection to {}: {}", forming::describe(self),
                              static_cast<double>(monotonic_ns() - begin) * 1e-9, forming::describe(member),
                              dialled.text));
  }
}

Result<PrivateDescriptor> Cluster::accept(int peer, Purpose purpose, uint64_t channel, int64_t deadline_ns,
                                          const std::function<Status()>& interrupted) {
  const Waiting waiting = impl_->waiting(deadline_ns, interrupted, this);
  const int64_t begin = monotonic_ns();
  for (;;) {
    if (auto fd = take(peer, purpose, channel)) return std::move(*fd);
    if (impl_->door->starved()) {
      return Status(ErrorCode::kSystem,
                    fmt::format("rank {} may open no more files, and cannot let {} in; raise ulimit -n",
                                rank(), describe(peer)));
    }
    std::vector<pollfd> nothing;
    const Status status = waiting.poll(nothing, monotonic_ns() + kAcceptSliceNs);
    if (status.ok()) continue;
    if (!is_deadline(status)) return status;
    if (auto fd = take(peer, purpose, channel)) return std::move(*fd);
    return Status(
        ErrorCode::kTimeout,
        fmt::format("{} waited {:.1f} s for {} to connect: it did not come. Its own error says what it "
                    "tried, if it did; a firewall may stand between the two hosts",
                    describe(rank()), static_cast<double>(monotonic_ns() - begin) * 1e-9, describe(peer)));
  }
}

}  // namespace collective_ops
