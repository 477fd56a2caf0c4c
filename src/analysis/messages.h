// Sends and receives: which of both sides waited for the other.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "analysis/profile_set.h"
#include "analysis/waits.h"

namespace collective_ops {

// All messages from one rank to another within one group.
struct MessageRoute {
  int source = 0, destination = 0;
  std::string group;
  uint64_t messages = 0;        // whose two sides are known
  uint64_t unpaired = 0;        // sends or receives without the other side
  double late_sender_ms = 0;    // the receiver was there, the sender not yet
  double late_receiver_ms = 0;  // the sender was held up until the receiver came
  double moving_ms = 0;         // both were there, until the receiver has it
};

std::vector<MessageRoute> analyze_messages(const ProfileSet& set, const WaitAnalysis& waits);

}  // namespace collective_ops
