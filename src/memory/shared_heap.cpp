#include "memory/shared_heap.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

#include "base/fork.h"
#include "memory/free_list.h"
#include "memory/segment_table.h"
#include "memory/shared_segment.h"

namespace collective_ops {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kSegmentSize = 32 * kMiB;  // for many small buffers
constexpr size_t kOwnSegment = 16 * kMiB;   // from here on a buffer gets a segment of its own
constexpr size_t kKeepAtLeast = 64 * kMiB;  // of empty segments
constexpr size_t kCacheLine = 64;
constexpr size_t kLargeAlignment = 4096;

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

std::atomic<SharedHeap*> process_heap{nullptr};

}  // namespace

struct SharedHeap::Impl {
  struct Segment {
    uint32_t id;
    SharedSegment memory;
    FreeList free;
    bool alone;               // of one buffer, and gone with it
    size_t used = 0;          // bytes in live buffers
    size_t populated = 0;     // pages of [0, populated) are taken
    uint64_t emptied_at = 0;  // order of becoming empty

    Segment(uint32_t number, SharedSegment segment, bool of_one)
        : id(number), memory(std::move(segment)), free(memory.size()), alone(of_one) {}
  };
  struct Place {
    std::byte* data = nullptr;
    uint32_t segment_id = 0;
    size_t offset = 0;
    size_t bytes = 0;  // as taken from the free list
  };

  const uint32_t generation = fork_generation();
  mutable std::mutex mutex;
  std::vector<std::unique_ptr<Segment>> segments;  // by id, ascending
  uint32_t next_id = 1;
  size_t live = 0;
  size_t peak = 0;
  uint64_t clock = 0;
  SegmentTable table;

  bool forked() const { return generation != fork_generation(); }

  Segment* segment_of(uint32_t id) const {
    const auto it =
        std::lower_bound(segments.begin(), segments.end(), id,
                         [](const auto& segment, uint32_t wanted) { return segment->id < wanted; });
    return it != segments.end() && (*it)->id == id ? it->get() : nullptr;
  }

  void publish_table() {
    std::vector<SegmentRange> ranges;
    for (const auto& segment : segments) {
      const auto begin = reinterpret_cast<uintptr_t>(segment->memory.data());
      ranges.push_back({begin, begin + segment->memory.size(), segment->id});
    }
    std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    table.assign(ranges);
  }

  // The smallest segment with room, so that small buffers leave large empty segments whole.
  std::optional<Place> take_from_existing(size_t bytes, size_t alignment) {
    std::vector<Segment*> by_size;
    for (const auto& segment : segments) {
      if (!segment->alone) by_size.push_back(segment.get());
    }
    std::stable_sort(by_size.begin(), by_size.end(),
                     [](const auto* a, const auto* b) { return a->memory.size() < b->memory.size(); });
    for (Segment* segment : by_size) {
      // A much larger empty one would be held whole by a small buffer.
      if (segment->used == 0 && segment->memory.size() > std::max(kSegmentSize, 2 * bytes)) continue;
      if (const auto offset = segment->free.take(bytes, alignment)) {
        return Place{segment->memory.data() + *offset, segment->id, *offset, bytes};
      }
    }
    return std::nullopt;
  }

  Status add_segment(size_t bytes, bool alone) {
    if (segments.size() == SegmentTable::kCapacity) {
      return Status(
          ErrorCode::kOutOfMemory,
          fmt::format("shared memory: {} segments are in use; free buffers, or make fewer, larger ones",
                      segments.size()));
    }
    const size_t exact = alone ? bytes : round_up(bytes, 2 * kMiB);
    auto memory = SharedSegment::create(alone || bytes >= kOwnSegment ? exact : kSegmentSize,
                                        "shared memory for buffers");
    if (!memory.ok() && memory.status().code() == ErrorCode::kOutOfMemory && exact < kSegmentSize) {
      memory = SharedSegment::create(exact, "shared memory for buffers");
    }
    if (!memory.ok()) return memory.status();
    segments.push_back(std::make_unique<Segment>(next_id++, std::move(*memory), alone));
    publish_table();
    return Status();
  }

  Result<Place> take(size_t bytes, size_t alignment, bool alone) {
    auto place = alone ? std::nullopt : take_from_existing(bytes, alignment);
    if (!place) {
      if (Status status = add_segment(bytes, alone); !status.ok()) return status;
      Segment& fresh = *segments.back();
      place = Place{fresh.memory.data() + *fresh.free.take(bytes, alignment), fresh.id, 0, bytes};
    }
    Segment& segment = *segment_of(place->segment_id);
    segment.used += bytes;
    live += bytes;
    // Whole huge pages: a buffer that ends within one takes all of it.
    const size_t end = std::min(round_up(place->offset + bytes, 2 * kMiB), segment.memory.size());
    if (end > segment.populated) {
      const size_t begin = round_up(segment.populated, kLargeAlignment);
      Status status = end > begin ? segment.memory.populate(begin, end - begin) : Status();
      if (!status.ok()) {
        segment.memory.discard(begin, segment.memory.size() - begin);
        give_back(*place);
        return status;
      }
      segment.populated = end;
    }
    peak = std::max(peak, live);
    return *place;
  }

  void give_back(const Place& place) {
    Segment* segment = segment_of(place.segment_id);
    segment->free.give(place.offset, place.bytes);
    segment->used -= place.bytes;
    live -= place.bytes;
    if (segment->used > 0) return;
    if (segment->alone) {
      const auto at = std::find_if(segments.begin(), segments.end(),
                                   [&](const auto& known) { return known.get() == segment; });
      const std::unique_ptr<Segment> gone = std::move(*at);
      segments.erase(at);
      publish_table();  // before it is unmapped
      return;
    }
    segment->emptied_at = ++clock;
    release_empty(std::max(kKeepAtLeast, peak));
  }

  // Until at most `keep` bytes of empty segments are left, the one that is empty longest first.
  void release_empty(size_t keep) {
    std::vector<Segment*> empty;
    size_t total = 0;
    for (const auto& segment : segments) {
      if (segment->used > 0 || segment->alone) continue;
      empty.push_back(segment.get());
      total += segment->memory.size();
    }
    std::sort(empty.begin(), empty.end(),
              [](const auto* a, const auto* b) { return a->emptied_at < b->emptied_at; });
    size_t dropped = 0;
    while (dropped < empty.size() && total > keep) total -= empty[dropped++]->memory.size();
    if (dropped == 0) return;
    empty.resize(dropped);
    std::vector<std::unique_ptr<Segment>> gone;
    std::erase_if(segments, [&](auto& segment) {
      if (std::find(empty.begin(), empty.end(), segment.get()) == empty.end()) return false;
      gone.push_back(std::move(segment));
      return true;
    });
    publish_table();  // first: nobody finds what is about to be unmapped
    for (auto& segment : gone) segment->memory.discard(0, segment->memory.size());
  }
};

class HeapBuffer final : public SharedBuffer {
 public:
  HeapBuffer(std::shared_ptr<SharedHeap::Impl> heap, SharedHeap::Impl::Place place, size_t size)
      : heap_(std::move(heap)), place_(place), size_(size) {}
  ~HeapBuffer() override {
    if (heap_->forked()) return;  // the place belongs to the parent
    const std::lock_guard lock(heap_->mutex);
    heap_->give_back(place_);
  }
  HeapBuffer(const HeapBuffer&) = delete;
  HeapBuffer& operator=(const HeapBuffer&) = delete;

  void* data() const override { return place_.data; }
  size_t size() const override { return size_; }

 private:
  std::shared_ptr<SharedHeap::Impl> heap_;
  SharedHeap::Impl::Place place_;
  size_t size_;
};

SharedHeap& SharedHeap::instance() {
  SharedHeap* heap = process_heap.load(std::memory_order_acquire);
  if (heap != nullptr && !heap->forked()) return *heap;
  // A parent's heap stays where it is: its buffers may still be used. No lock: one that another thread
  // held at the fork would never open in the child.
  auto fresh = std::make_unique<SharedHeap>();
  if (process_heap.compare_exchange_strong(heap, fresh.get(), std::memory_order_acq_rel))
    return *fresh.release();
  return *heap;
}

SharedHeap::SharedHeap() : impl_(std::make_shared<Impl>()) {}

SharedHeap::~SharedHeap() = default;

Result<std::shared_ptr<SharedBuffer>> SharedHeap::allocate(size_t bytes, bool alone) {
  if (forked()) {
    return Status(
        ErrorCode::kNotInitialized,
        "shared memory: this process was forked from the one that owns it; call init_hccl in the child");
  }
  if (bytes > SIZE_MAX / 4) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("shared memory: {} bytes is no size", bytes));
  }
  const size_t alignment = alone || bytes >= 2 * kMiB ? kLargeAlignment : kCacheLine;
  const size_t taken = round_up(std::max<size_t>(bytes, 1), alignment);
  const std::lock_guard lock(impl_->mutex);
  auto place = impl_->take(taken, alignment, alone);
  if (!place.ok() && place.status().code() == ErrorCode::kOutOfMemory) {
    impl_->release_empty(0);
    place = impl_->take(taken, alignment, alone);
  }
  if (!place.ok()) return place.status();
  return std::shared_ptr<SharedBuffer>(std::make_shared<HeapBuffer>(impl_, *place, bytes));
}

std::optional<SegmentOffset> SharedHeap::find(const void* pointer, size_t bytes) const {
  if (forked()) return std::nullopt;
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  SegmentRange range;
  if (!impl_->table.find(address, range) || bytes > range.end - address) return std::nullopt;
  return SegmentOffset{range.id, address - range.begin};
}

// In a child the mutex may be one that no thread will ever open: forked() is asked before it.
Result<Descriptor> SharedHeap::segment_fd(uint32_t id) const {
  std::unique_lock<std::mutex> lock;
  if (!forked()) lock = std::unique_lock(impl_->mutex);
  const auto* segment = lock.owns_lock() ? impl_->segment_of(id) : nullptr;
  if (segment == nullptr) {
    return Status(ErrorCode::kInvalidArgument, fmt::format("shared memory: there is no segment {}", id));
  }
  Descriptor copy(::fcntl(segment->memory.fd(), F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) {
    return Status(ErrorCode::kSystem,
                  fmt::format("shared memory: no descriptor for segment {}: {}; raise ulimit -n", id,
                              std::strerror(errno)));
  }
  return copy;
}

std::byte* SharedHeap::segment_data(uint32_t id) const {
  if (forked()) return nullptr;
  const std::lock_guard lock(impl_->mutex);
  const auto* segment = impl_->segment_of(id);
  return segment != nullptr ? segment->memory.data() : nullptr;
}

std::vector<uint32_t> SharedHeap::live_segments() const {
  std::vector<uint32_t> ids;
  for_each_segment([&](const SegmentInfo& segment) { ids.push_back(segment.id); });
  return ids;
}

void SharedHeap::for_each_segment(const std::function<void(const SegmentInfo&)>& visit) const {
  if (forked()) return;
  std::vector<SegmentInfo> all;
  {
    const std::lock_guard lock(impl_->mutex);
    for (const auto& segment : impl_->segments) {
      all.push_back({segment->id, segment->memory.data(), segment->memory.size(), segment->used});
    }
  }
  for (const SegmentInfo& segment : all) visit(segment);
}

HeapUsage SharedHeap::usage() const {
  HeapUsage usage;
  for_each_segment([&](const SegmentInfo& segment) {
    ++usage.segments;
    usage.mapped += segment.size;
    usage.used += segment.used;
  });
  return usage;
}

void SharedHeap::trim() {
  if (forked()) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->release_empty(0);
}

bool SharedHeap::forked() const { return impl_->forked(); }

}  // namespace collective_ops
