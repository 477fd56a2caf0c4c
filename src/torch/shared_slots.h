// Memory that holds what a group's ranks gather, once for all of them: slots of pages that every rank maps.
// FSDP2's gathered parameters lie in them (collective_ops_torch/fsdp.py).
//
// A slot is taken for a number, which ranks that gather the same thing share: the first takes a slot that has
// no readers, the others find it there. Nobody waits: where every slot is still read, memory is private.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "torch/backend.h"

namespace collective_ops::pytorch {

// A slot as long as this rank reads it.
class Lease {
 public:
  Lease(std::shared_ptr<Window> window, int index) : window_(std::move(window)), index_(index) {}
  ~Lease() { word(*window_).fetch_sub(1, std::memory_order_acq_rel); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

  int index() const { return index_; }
  std::byte* data() const { return window_->data(0) + kFront; }
  size_t size() const { return window_->size(0) - kFront; }

  static constexpr size_t kFront = 64;
  // At the front of a slot's pages: the number it was taken for, above 16 bits that count its readers.
  static std::atomic<uint64_t>& word(const Window& window) {
    return *reinterpret_cast<std::atomic<uint64_t>*>(window.data(0));
  }

 private:
  const std::shared_ptr<Window> window_;
  const int index_;
};

// Slots of one size. One thread at a time.
class SharedSlots {
 public:
  SharedSlots(c10::intrusive_ptr<ProcessGroupCollectiveOps> group, size_t bytes)
      : group_(std::move(group)), bytes_(bytes) {}

  int count() const { return static_cast<int>(slots_.size()); }
  // One more; every rank, in the order of its calls. Rank 0's memory. Throws.
  void add();
  // For `number`, 48 bits; nullptr where all slots have readers of other numbers.
  std::shared_ptr<Lease> take(uint64_t number) const;
  // The same of this slot alone.
  std::shared_ptr<Lease> take_slot(uint64_t number, int index) const;

 private:
  const c10::intrusive_ptr<ProcessGroupCollectiveOps> group_;
  const size_t bytes_;
  std::vector<std::shared_ptr<Window>> slots_;
};

// A tensor at the front of a leased slot, which it keeps.
at::Tensor leased_tensor(const std::shared_ptr<Lease>& lease, int64_t elements, at::ScalarType type);

// Where tensors find memory whose storage is freed and taken again, as FSDP2 does with a module's parameters:
// in the slot that was set last, each at its own place; private memory where there is none.
class SlotPlaces {
 public:
  SlotPlaces();
  // For the next `tensors` that take memory.
  void set(std::shared_ptr<Lease> lease, int tensors);
  // `offset` bytes behind the front of a slot. Takes memory at once.
  at::Tensor tensor(int64_t elements, at::ScalarType type, size_t offset);

 private:
  struct State;
  class PlaceAllocator;
  const std::shared_ptr<State> state_;
};

}  // namespace collective_ops::pytorch
