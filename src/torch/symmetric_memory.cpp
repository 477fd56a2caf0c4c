// alloc() gives a rank pages of its own; rendezvous() opens a window (collective_ops/window.h) of the tensors
// of all ranks. Signals lie behind the tensor, in PyTorch's own order, so a window's are those of
// get_signal_pad.
#include "torch/symmetric_memory.h"

#include <map>
#include <mutex>
#include <utility>

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/symm_mem/SymmetricMemory.hpp>

#include "torch/backend.h"
#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

namespace symm_mem = c10d::symmetric_memory;

constexpr size_t kAlignment = alignof(uint32_t);  // of signals

size_t round_up(size_t value) { return (value + kAlignment - 1) / kAlignment * kAlignment; }

// A tensor's memory: `bytes`, and behind them the signals.
struct Allocation {
  std::shared_ptr<SharedBuffer> memory;
  size_t bytes = 0;
  size_t signal_bytes = 0;
};

// What a group's ranks see of each other's tensor. Keeps all of it, whatever becomes of tensors and group.
class CpuSymmetricMemory final : public symm_mem::SymmetricMemory {
 public:
  CpuSymmetricMemory(const Allocation& own, std::shared_ptr<Window> window, int rank, std::vector<int> ranks)
      : window_(std::move(window)), bytes_(own.bytes), rank_(rank), global_ranks_(std::move(ranks)) {
    for (int peer = 0; peer < get_world_size(); ++peer) {
      std::byte* data = window_->data(peer);
      buffers_.push_back(data);
      signals_.push_back(data + window_->size(peer) - own.signal_bytes);
    }
  }

  std::vector<void*> get_buffer_ptrs() override { return buffers_; }
  std::vector<void*> get_signal_pad_ptrs() override { return signals_; }
  void** get_buffer_ptrs_dev() override { return buffers_.data(); }
  void** get_signal_pad_ptrs_dev() override { return signals_.data(); }
  size_t get_buffer_size() override { return bytes_; }
  size_t get_offset() override { return 0; }
  bool has_multicast_support() override { return false; }
  void* get_multicast_ptr() override { return nullptr; }

  void barrier(int channel, size_t timeout_ms) override {
    wait([&] { return window_->barrier(channel, timeout(timeout_ms)); });
  }
  void put_signal(int to, int channel, size_t timeout_ms) override {
    wait([&] { return window_->signal(to, channel, timeout(timeout_ms)); });
  }
  void wait_signal(int from, int channel, size_t timeout_ms) override {
    wait([&] { return window_->await(from, channel, timeout(timeout_ms)); });
  }

  int get_rank() override { return rank_; }
  int get_world_size() override { return static_cast<int>(global_ranks_.size()); }
  c10::Device get_device() override { return c10::Device(c10::DeviceType::CPU); }
  const std::vector<int>& get_rank_to_global_rank() override { return global_ranks_; }
  int* get_rank_to_global_rank_dev() override { return global_ranks_.data(); }
  bool world_within_direct_access() override { return true; }

 private:
  // c10d's 0 is "as long as it takes": the group's timeout.
  static Window::Timeout timeout(size_t ms) {
    return ms == 0 ? Window::Timeout() : std::chrono::milliseconds(ms);
  }
  template <typename Waiting>
  static void wait(const Waiting& waiting) {
    Status status;
    {
      const WithoutGil released;
      const Interruptible here;
      status = waiting();
    }
    check(status);
  }

  const std::shared_ptr<Window> window_;
  const size_t bytes_;
  const int rank_;
  std::vector<int> global_ranks_;
  std::vector<void*> buffers_, signals_;
};

ProcessGroupCollectiveOps& group_named(const std::string& name) {
  const auto backend = c10d::resolve_process_group(name)->getBackend(c10::DeviceType::CPU);
  auto* ours = dynamic_cast<ProcessGroupCollectiveOps*>(backend.get());
  TORCH_CHECK_VALUE(ours != nullptr, "rendezvous: symmetric memory of the CPU needs a group of the backend ",
                    "collective_ops (not wrapped, as by TORCH_DISTRIBUTED_DEBUG=DETAIL); the CPU backend of ",
                    "group ", name, " is ", backend->getBackendName());
  return *ours;
}

class CpuAllocator final : public symm_mem::SymmetricMemoryAllocator {
 public:
  void* alloc(size_t size, int /*device*/, const std::optional<std::string>& group) override {
    Allocation made;
    made.bytes = size;
    made.signal_bytes = symm_mem::get_signal_pad_size() / sizeof(uint32_t) * sizeof(uint32_t);
    auto memory = Communicator::allocate_part(round_up(size) + made.signal_bytes);
    collective_ops::pytorch::check(memory.status());
    made.memory = std::move(*memory);
    void* pointer = made.memory->data();
    const std::lock_guard lock(mutex_);
    known_[pointer] = {std::move(made), group, {}};
    return pointer;
  }

  // Windows that are still held keep the pages.
  void free(void* pointer) override {
    const std::unique_lock lock(mutex_);
    known_.erase(pointer);
  }

  size_t get_alloc_size(void* pointer) override { return find(pointer).allocation.bytes; }

  c10::intrusive_ptr<symm_mem::SymmetricMemory> rendezvous(void* pointer,
                                                           const std::optional<std::string>& group) override {
    const Known known = find(pointer);
    const auto name = group ? group : known.group;
    TORCH_CHECK_VALUE(name, "rendezvous: which group? Give its name here, or where the tensor is made");
    if (const auto before = known.windows.find(*name); before != known.windows.end()) return before->second;
    const Allocation& own = known.allocation;
    auto [window, rank, ranks] = open(group_named(*name), own);
    auto made = c10::make_intrusive<CpuSymmetricMemory>(own, std::move(window), rank, std::move(ranks));
    const std::lock_guard lock(mutex_);
    if (const auto at = known_.find(pointer); at != known_.end()) at->second.windows[*name] = made;
    return made;
  }

  bool has_multicast_support(int) override { return false; }
  c10::DeviceType supported_device_type() override { return c10::DeviceType::CPU; }
  std::string name() override { return "collective_ops"; }
  bool has_allocation(void* pointer) override {
    const std::lock_guard lock(mutex_);
    return known_.count(pointer) != 0;
  }

 private:
  struct Known {
    Allocation allocation;
    std::optional<std::string> group;
    std::map<std::string, c10::intrusive_ptr<symm_mem::SymmetricMemory>> windows;
  };
  struct Opened {
    std::shared_ptr<Window> window;
    int rank;
    std::vector<int> ranks;
  };

  Known find(void* pointer) {
    const std::lock_guard lock(mutex_);
    const auto at = known_.find(pointer);
    TORCH_CHECK_VALUE(at != known_.end(), "this tensor is no symmetric memory of the CPU: make it by ",
                      "torch.distributed._symmetric_memory.empty(..., device='cpu'), and no view of it ",
                      "that has other memory");
    return at->second;
  }

  static Opened open(ProcessGroupCollectiveOps& group, const Allocation& own) {
    auto window = group.open_window(own.memory, own.signal_bytes);
    for (int peer = 0; peer < group.getSize(); ++peer) {
      TORCH_CHECK_VALUE(window->size(peer) == own.memory->size(), "rendezvous: the tensor of rank ", peer,
                        " of the group has another size than that of rank ", group.getRank(), ": ",
                        window->size(peer), " and ", own.memory->size(), " bytes, signals included");
    }
    const auto& global = group.getBackendOptions()->global_ranks_in_group;
    return {std::move(window), group.getRank(), std::vector<int>(global.begin(), global.end())};
  }

  std::mutex mutex_;
  std::map<void*, Known> known_;
};

}  // namespace

void offer_symmetric_memory() {
  const auto allocator = c10::make_intrusive<CpuAllocator>();
  symm_mem::register_availability(allocator->name(), allocator);
  if (!symm_mem::has_allocator(c10::DeviceType::CPU)) {
    symm_mem::register_allocator(c10::DeviceType::CPU, allocator);
  }
}

}  // namespace collective_ops::pytorch
