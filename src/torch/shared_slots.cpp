#include "torch/shared_slots.h"

#include <utility>

#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

constexpr int kReaderBits = 16;
constexpr uint64_t kReaders = (uint64_t{1} << kReaderBits) - 1;

void release(void* kept) { delete static_cast<std::shared_ptr<Lease>*>(kept); }

c10::DataPtr place_in(const std::shared_ptr<Lease>& lease, size_t offset) {
  return {lease->data() + offset, new std::shared_ptr<Lease>(lease), &release,
          c10::Device(c10::DeviceType::CPU)};
}

at::Tensor tensor_of(c10::Storage storage, int64_t elements, at::ScalarType type) {
  at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(type));
  return tensor.set_(std::move(storage), 0, {elements}, {1});
}

}  // namespace

void SharedSlots::add() {
  std::shared_ptr<SharedBuffer> part;
  if (group_->getRank() == 0) {
    auto made = Communicator::allocate_part(Lease::kFront + (bytes_ + 3) / 4 * 4);  // whole words
    if (made.ok()) part = *made;                                                    // else no rank gets one
  }
  auto window = group_->open_window(std::move(part), 0);
  if (window->data(0) != nullptr) slots_.push_back(std::move(window));
}

std::shared_ptr<Lease> SharedSlots::take_slot(uint64_t number, int index) const {
  const auto& window = slots_[static_cast<size_t>(index)];
  std::atomic<uint64_t>& word = Lease::word(*window);
  uint64_t seen = word.load(std::memory_order_acquire);
  for (;;) {
    const bool same = seen >> kReaderBits == number;
    if (!same && (seen & kReaders) != 0) return nullptr;
    const uint64_t taken = (same ? seen : number << kReaderBits) + 1;
    if (word.compare_exchange_weak(seen, taken, std::memory_order_acq_rel)) break;
  }
  return std::make_shared<Lease>(window, index);
}

std::shared_ptr<Lease> SharedSlots::take(uint64_t number) const {
  for (int index = 0; index < count(); ++index) {
    const uint64_t seen = Lease::word(*slots_[static_cast<size_t>(index)]).load(std::memory_order_acquire);
    if (seen >> kReaderBits != number) continue;
    if (auto lease = take_slot(number, index)) return lease;
  }
  for (int index = 0; index < count(); ++index) {
    if (auto lease = take_slot(number, index)) return lease;
  }
  return nullptr;
}

at::Tensor leased_tensor(const std::shared_ptr<Lease>& lease, int64_t elements, at::ScalarType type) {
  const size_t bytes = static_cast<size_t>(elements) * c10::elementSize(type);
  TORCH_CHECK_VALUE(elements >= 0 && bytes <= lease->size(), "a tensor of ", bytes, " bytes in a slot of ",
                    lease->size());
  return tensor_of(c10::Storage(c10::Storage::use_byte_size_t(), bytes, place_in(lease, 0), nullptr, false),
                   elements, type);
}

struct SlotPlaces::State {
  std::mutex mutex;
  std::shared_ptr<Lease> lease;
  int left = 0;  // tensors that may take it
};

// Of one tensor. Never destroyed: storages know it by its address alone, and may outlive all else.
class SlotPlaces::PlaceAllocator final : public c10::Allocator {
 public:
  PlaceAllocator(std::shared_ptr<State> state, size_t offset) : state_(std::move(state)), offset_(offset) {}

  c10::DataPtr allocate(size_t bytes) override {
    const std::lock_guard lock(state_->mutex);
    const std::shared_ptr<Lease> lease = state_->lease;
    if (!lease || offset_ + bytes > lease->size())
      return c10::GetAllocator(c10::DeviceType::CPU)->allocate(bytes);
    if (--state_->left <= 0) state_->lease.reset();
    return place_in(lease, offset_);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // data and context differ
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  const std::shared_ptr<State> state_;
  const size_t offset_;
};

SlotPlaces::SlotPlaces() : state_(std::make_shared<State>()) {}

void SlotPlaces::set(std::shared_ptr<Lease> lease, int tensors) {
  const std::lock_guard lock(state_->mutex);
  state_->lease = std::move(lease);
  state_->left = tensors;
}

at::Tensor SlotPlaces::tensor(int64_t elements, at::ScalarType type, size_t offset) {
  auto* allocator = new PlaceAllocator(state_, offset);
  const size_t bytes = static_cast<size_t>(elements) * c10::elementSize(type);
  return tensor_of(
      c10::Storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator, true),
      elements, type);
}

}  // namespace collective_ops::pytorch
