#include "torch/membership.h"

#include <algorithm>
#include <list>
#include <utility>

#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

// Of this process. Never destroyed: groups may outlive static objects.
struct Memberships {
  std::mutex mutex;
  std::list<std::weak_ptr<Membership>> list;
};

Memberships& memberships() {
  static auto* instance = new Memberships();
  return *instance;
}

// Where these ranks are in that group; nothing where one is not.
std::optional<std::vector<int>> places_in(const Roster& roster, const std::vector<uint64_t>& global_ranks) {
  std::vector<int> places;
  for (const uint64_t rank : global_ranks) {
    const auto place = std::find(roster.global_ranks.begin(), roster.global_ranks.end(), rank);
    if (place == roster.global_ranks.end()) return std::nullopt;
    places.push_back(static_cast<int>(place - roster.global_ranks.begin()));
  }
  return places;
}

}  // namespace

std::shared_ptr<Communicator> Membership::communicator() {
  const std::lock_guard lock(mutex_);
  return communicator_;
}

void Membership::leave() {
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard lock(mutex_);
    communicator = std::exchange(communicator_, nullptr);
  }
  if (!communicator) return;
  const WithoutGil released;
  communicator.reset();
}

std::shared_ptr<Membership> remember(std::shared_ptr<Communicator> communicator, Roster roster) {
  auto membership = std::make_shared<Membership>(std::move(communicator), std::move(roster));
  const std::lock_guard lock(memberships().mutex);
  memberships().list.remove_if([](const auto& known) { return known.expired(); });
  memberships().list.push_back(membership);
  return membership;
}

std::optional<Parent> find_parent(const std::vector<uint64_t>& global_ranks, int rank) {
  std::shared_ptr<Membership> chosen;
  std::optional<Parent> parent;
  const std::lock_guard lock(memberships().mutex);
  for (const auto& weak : memberships().list) {
    const auto known = weak.lock();
    if (!known || known->roster().several_hosts) continue;
    auto communicator = known->communicator();
    auto places = places_in(known->roster(), global_ranks);
    // Groups that were not made by torch.distributed itself may count their ranks otherwise.
    if (!communicator || !places || (*places)[static_cast<size_t>(rank)] != communicator->rank()) continue;
    const auto precedes = [](const Roster& one, const Roster& other) {
      const size_t size = one.global_ranks.size(), others = other.global_ranks.size();
      return size != others ? size > others : one.job < other.job;
    };
    if (chosen && !precedes(known->roster(), chosen->roster())) continue;
    chosen = known;
    parent = {std::move(communicator), {known->roster().job, false, global_ranks, {}}, std::move(*places)};
  }
  if (!parent) return std::nullopt;
  for (const int place : parent->ranks)
    parent->roster.processes.push_back(chosen->roster().processes[static_cast<size_t>(place)]);
  return parent;
}

void shutdown_all(const std::string& reason) {
  std::list<std::weak_ptr<Membership>> left;
  {
    const std::lock_guard lock(memberships().mutex);
    left.swap(memberships().list);
  }
  for (const auto& weak : left) {
    const auto membership = weak.lock();
    if (!membership) continue;
    if (const auto communicator = membership->communicator(); communicator && !reason.empty())
      communicator->abort(reason);
    membership->leave();
  }
}

}  // namespace collective_ops::pytorch
