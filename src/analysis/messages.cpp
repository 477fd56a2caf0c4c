#include "analysis/messages.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace collective_ops {
namespace {

struct Side {
  int64_t start_ns = 0, end_ns = 0;
};
struct Route {
  std::vector<Side> sends, receives;  // in order
};

void add_pair(const Side& send, const Side& receive, MessageRoute* route) {
  const auto milliseconds = [](int64_t ns) { return static_cast<double>(std::max<int64_t>(ns, 0)) / 1e6; };
  ++route->messages;
  route->late_sender_ms += milliseconds(std::min(send.start_ns, receive.end_ns) - receive.start_ns);
  // A send that has returned before was buffered: nothing held it up.
  route->late_receiver_ms += milliseconds(std::min(receive.start_ns, send.end_ns) - send.start_ns);
  route->moving_ms += milliseconds(receive.end_ns - std::max(send.start_ns, receive.start_ns));
}

}  // namespace

std::vector<MessageRoute> analyze_messages(const ProfileSet& set, const WaitAnalysis& waits) {
  std::map<std::tuple<int, int, std::string>, Route> routes;
  for (size_t row = 0; row < set.ranks.size(); ++row) {
    const RankProfile& profile = set.ranks[row];
    for (const ProfiledCall& call : profile.calls) {
      if (!call.point_to_point || call.peer < 0 || call.state != CallState::kCompleted) continue;
      const std::string group(call.group == CallArguments::kNoName ? "" : profile.names[call.group]);
      Route& route = routes[call.sends ? std::tuple(profile.rank, call.peer, group)
                                       : std::tuple(call.peer, profile.rank, group)];
      const int64_t offset = waits.offset_ns[row];
      (call.sends ? route.sends : route.receives).push_back({call.start_ns - offset, call.end_ns - offset});
    }
  }
  std::vector<MessageRoute> result;
  for (const auto& [key, route] : routes) {
    MessageRoute sum;
    std::tie(sum.source, sum.destination, sum.group) = key;
    const size_t paired = std::min(route.sends.size(), route.receives.size());
    for (size_t i = 0; i < paired; ++i) {
      // Nothing arrives before it is sent: then these two are not one message.
      if (route.receives[i].end_ns < route.sends[i].start_ns) {
        sum.unpaired += 2;
      } else {
        add_pair(route.sends[i], route.receives[i], &sum);
      }
    }
    sum.unpaired += route.sends.size() + route.receives.size() - 2 * paired;
    result.push_back(std::move(sum));
  }
  return result;
}

}  // namespace collective_ops
