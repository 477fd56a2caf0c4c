// A group's messages between hosts, as its calls make them: peers are ranks of the group, every message
// carries the call that it belongs to, and failures are told in the words of calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <collective_ops/status.h>

#include "communicator/job_hosts.h"
#include "communicator/members.h"
#include "transport/shm/group_memory.h"
#include "transport/tcp/links.h"

namespace collective_ops {

struct HostLinksSettings {
  int rank = 0;     // of the group
  int index = 0;    // among its ranks on this host
  Members members;  // on this host; their places know all
  std::shared_ptr<HostConnector> connector;
  bool oversubscribed = false;
  // Asked every few milliseconds of a wait; a failure ends it.
  std::function<Status()> healthy;
};

class HostLinks final : private tcp::LinkOwner {
 public:
  HostLinks(HostLinksSettings settings, shm::HostsPace& pace, int connections);

  // The call that messages belong to from now on.
  void begin(const shm::Signature& call, uint32_t history, int64_t begun_ns, int64_t deadline_ns);

  // As in MessagePort. False: failed, see status().
  bool send(int rank, const void* data, size_t bytes);
  bool receive(int rank, void* data, size_t bytes);
  bool flush();
  void push() { links_.push(); }
  void keep(const std::byte* data, size_t bytes) { links_.keep(data, bytes); }

  // For traces: what was waited for and came from each rank of the group, since forget_traffic().
  int64_t waited_ns(int rank) { return links_.waited_ns()[static_cast<size_t>(rank)]; }
  uint64_t received_bytes(int rank) const { return received_bytes_[static_cast<size_t>(rank)]; }
  void forget_traffic();

  const Status& status() const { return status_; }
  // To all ranks that there is a link with, and to `waiting`, which may still wait for their first. After
  // this and tell_left() links are gone.
  void tell_failed(const Status& reason, std::span<const int> waiting);
  void tell_refused(uint32_t call);
  void tell_left();

 private:
  Result<PrivateDescriptor> connect(int peer, uint32_t number, int64_t deadline_ns) override;
  Status check(int peer, bool late) override;
  int pollable() const override { return settings_.connector->pollable(); }
  Status differs(int peer, const tcp::Header& theirs, const tcp::Header& ours) override;
  Status noticed(int peer, const tcp::Notice& notice) override;
  Status lost(int peer, const std::string& how) override;

  tcp::Header header(size_t bytes) const;
  bool note(Status status);
  int world_rank(int rank) const { return settings_.members.all()[static_cast<size_t>(rank)]; }
  std::string describe(int rank) const { return settings_.connector->describe(world_rank(rank)); }

  const HostLinksSettings settings_;
  tcp::Links links_;
  shm::Signature call_;
  uint32_t history_ = 0;
  int64_t begun_ns_ = 0;
  std::vector<uint64_t> received_bytes_;
  std::vector<uint32_t> refused_;  // the last call that each rank has refused
  Status status_;
  bool failed_ = false;
};

}  // namespace collective_ops
