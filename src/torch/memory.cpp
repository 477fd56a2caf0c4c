// Tensors in memory that the ranks of a host share: collectives on them copy nothing.
#include "torch/backend.h"
#include "torch/errors.h"

namespace collective_ops::pytorch {
namespace {

class SharedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    auto buffer = Communicator::allocate(bytes);
    check(buffer.status());
    auto* kept = new std::shared_ptr<SharedBuffer>(*buffer);
    return {(*kept)->data(), kept, &free, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // data and context differ
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static void free(void* kept) { delete static_cast<std::shared_ptr<SharedBuffer>*>(kept); }
};

}  // namespace

std::shared_ptr<c10::Allocator> ProcessGroupCollectiveOps::getMemAllocator() {
  static const auto allocator = std::make_shared<SharedAllocator>();
  return allocator;
}

at::Tensor ProcessGroupCollectiveOps::allocateTensor(long size, at::TensorOptions options) {
  TORCH_CHECK_VALUE(size >= 0, "allocate_tensor: size ", size);
  TORCH_CHECK_VALUE(options.device().is_cpu(),
                    "allocate_tensor: the memory of this backend is the CPU's, not ", options.device());
  const auto type = c10::typeMetaToScalarType(options.dtype());
  const size_t bytes = static_cast<size_t>(size) * c10::elementSize(type);
  const auto allocator = getMemAllocator();
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator.get(),
                       /*resizable=*/false);
  at::Tensor tensor = at::empty({0}, options);
  tensor.set_(std::move(storage), 0, {size}, {1});
  return tensor;
}

}  // namespace collective_ops::pytorch
