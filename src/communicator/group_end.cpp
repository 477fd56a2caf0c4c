#include "communicator/group_end.h"

#include <utility>

#include "communicator/communicator_parts.h"
#include "communicator/spanning_group.h"

namespace collective_ops {
namespace {

// Beside the channels of calls, which are numbered from 0.
constexpr uint64_t kMessagesChannel = 0xff;

}  // namespace

std::unique_ptr<GroupEnd> make_group_end(const shm::GroupMemory& memory, std::unique_ptr<Peers> peers,
                                         GroupSettings settings, int rank,
                                         const std::function<Status()>& interrupted) {
  const JobHosts* job = settings.host->job_hosts();
  const std::vector<int> ranks = settings.members.all();
  const bool spans = job != nullptr && settings.members.ranks.size() != ranks.size();
  if (spans) {
    settings.divisor = static_cast<int>(ranks.size());
    settings.remote = std::make_shared<RemoteMessages>(GroupHosts(*job, ranks, rank), ranks, job->connector,
                                                       uint64_t{settings.members.id} << 8 | kMessagesChannel);
  }
  auto here = std::make_unique<Group>(memory, std::move(peers), settings);
  std::unique_ptr<GroupEnd> end;
  if (spans) {
    end = std::make_unique<SpanningGroup>(
        std::move(here), SpanningSettings{rank, ranks, job, settings.connections, settings.oversubscribed()});
  } else {
    end = std::move(here);
  }
  end->record_into(settings.host->recording());
  if (job == nullptr || spans) {
    end->set_interrupt_check(interrupted);
  } else {
    end->set_interrupt_check([connector = job->connector, interrupted]() -> Status {
      if (Status status = connector->look(); !status.ok()) return status;
      return interrupted ? interrupted() : Status();
    });
  }
  return end;
}

}  // namespace collective_ops
