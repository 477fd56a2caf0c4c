// Where rank 0 listens, as text that it hands to the others, and what a meeting says of that.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "bootstrap/dial.h"
#include "bootstrap/door.h"
#include "bootstrap/interfaces.h"
#include "bootstrap/meeting_place.h"
#include "bootstrap/secret.h"

namespace collective_ops {

struct RootInfo {
  std::string secret;  // "" where it is not handed over like this
  std::string host;    // tells whether a reader is on rank 0's host, and nothing else
  std::vector<SocketAddress> addresses;
};

// "collective-ops-root/1 SECRET HOST ADDRESS PORT ADDRESS PORT ..."; "-" for no secret.
std::string root_info_text(const RootInfo& info);
// kInvalidArgument where it is no such text.
Result<RootInfo> parse_root_info(const std::string& text);

// Of this process.
RootInfo root_info_of(const Door& door, const OwnAddresses& own, const std::string& secret);

// The door that create_root_info() opened in this process; nullptr where it did not, or it was taken already.
std::unique_ptr<Door> take_root_door(const std::string& text);

// Key of the root info in a store.
std::string root_key(const std::string& job);

// Where a guest finds rank 0. kTimeout: a store does not say so yet; kRendezvous: the name has no address;
// kInvalidArgument: it can never be found like this. May wait for a second.
Result<DialTarget> root_target(const MeetingPlace& meeting, const std::string& job, const OwnAddresses& own,
                               const JobSecret& secret);

}  // namespace collective_ops
