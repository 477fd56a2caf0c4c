// A kernel is reduce<Codec, Op>: the codec says how elements become vectors, the operation how vectors are
// combined, and the loops here walk over elements, sources and destinations.
//
// Every element takes the same arithmetic wherever it stands (block, single vector or tail), so the result
// depends neither on the count nor on how a caller cuts a buffer into chunks. All sources of a step are
// read before any destination is written, which makes working in place right.
#if defined(COLLECTIVE_OPS_KERNELS_REDUCE_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COLLECTIVE_OPS_KERNELS_REDUCE_LOOPS_INL_H_
#undef COLLECTIVE_OPS_KERNELS_REDUCE_LOOPS_INL_H_
#else
#define COLLECTIVE_OPS_KERNELS_REDUCE_LOOPS_INL_H_
#endif

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/codecs-inl.h"
#include "kernels/operations-inl.h"
#include "kernels/reduce.h"

HWY_BEFORE_NAMESPACE();
namespace collective_ops {
namespace HWY_NAMESPACE {

// Results of kSteps vectors of elements at `offset`, in registers until every source was added.
template <class Codec, class Op, size_t kSteps, class SourceAt>
HWY_INLINE void combine_sources(const Op& op, size_t source_count, SourceAt source_at, size_t offset,
                                typename Codec::Raw* results) {
  using V = typename Codec::V;
  constexpr size_t kVectors = kSteps * Codec::kParts;
  V sum[kVectors], next[kVectors];
  for (size_t k = 0; k < kSteps; ++k) {
    Codec::load(source_at(0) + offset + k * Codec::kElements, sum + k * Codec::kParts);
  }
  for (size_t v = 0; v < kVectors; ++v) sum[v] = op.first(sum[v]);
  for (size_t s = 1; s < source_count; ++s) {
    for (size_t k = 0; k < kSteps; ++k) {
      Codec::load(source_at(s) + offset + k * Codec::kElements, next + k * Codec::kParts);
    }
    for (size_t v = 0; v < kVectors; ++v) sum[v] = op.combine(sum[v], next[v], s);
  }
  for (size_t v = 0; v < kVectors; ++v) sum[v] = op.finish(sum[v]);
  for (size_t k = 0; k < kSteps; ++k) results[k] = Codec::pack(sum + k * Codec::kParts);
}

template <class Codec, class Op, size_t kSteps>
HWY_INLINE void reduce_step(const Op& op, const ReduceArguments& arguments, size_t offset) {
  using Element = typename Codec::Element;
  const auto source_at = [&](size_t s) { return static_cast<const Element*>(arguments.sources[s]); };
  typename Codec::Raw results[kSteps];
  combine_sources<Codec, Op, kSteps>(op, arguments.sources.size(), source_at, offset, results);
  for (void* destination : arguments.destinations) {
    Element* to = static_cast<Element*>(destination) + offset;
    for (size_t k = 0; k < kSteps; ++k) Codec::store(results[k], to + k * Codec::kElements);
  }
}

template <class Codec, class Op>
HWY_NOINLINE void reduce_few(const Op& op, const ReduceArguments& arguments, size_t offset, size_t count) {
  using Element = typename Codec::Element;
  using V = typename Codec::V;
  V sum[Codec::kParts], next[Codec::kParts];
  Codec::load_few(static_cast<const Element*>(arguments.sources[0]) + offset, count, sum);
  for (V& part : sum) part = op.first(part);
  for (size_t s = 1; s < arguments.sources.size(); ++s) {
    Codec::load_few(static_cast<const Element*>(arguments.sources[s]) + offset, count, next);
    for (size_t p = 0; p < Codec::kParts; ++p) sum[p] = op.combine(sum[p], next[p], s);
  }
  for (V& part : sum) part = op.finish(part);
  const typename Codec::Raw result = Codec::pack(sum);
  for (void* destination : arguments.destinations) {
    Codec::store_few(result, static_cast<Element*>(destination) + offset, count);
  }
}

// From `offset` to the end, one vector at a time.
template <class Codec, class Op>
HWY_NOINLINE void reduce_rest(const Op& op, const ReduceArguments& arguments, size_t offset) {
  for (; offset + Codec::kElements <= arguments.count; offset += Codec::kElements) {
    reduce_step<Codec, Op, 1>(op, arguments, offset);
  }
  if (offset < arguments.count) reduce_few<Codec, Op>(op, arguments, offset, arguments.count - offset);
}

// How far ahead memory is asked for. Processors stop at the end of a page, which in 4 KiB pages costs a
// quarter of the throughput of large buffers in place; 512 bytes do nearly as well, twice as many no better.
// Out of place it gained nothing.
inline constexpr size_t kPrefetchBytes = 1024;

// Asks for the lines of the step that lies kPrefetchBytes after `offset`, but for none beyond the end of the
// buffer: those are another rank's, which may be writing them.
template <size_t kStep, typename Element>
HWY_INLINE void prefetch_ahead(const Element* buffer, size_t offset, size_t count) {
  const size_t ahead = HWY_MIN(offset + kPrefetchBytes / sizeof(Element), count - kStep);
  for (size_t i = 0; i < kStep; i += 64 / sizeof(Element)) hwy::Prefetch(buffer + ahead + i);
}

// Four vectors computed with at a time: enough to hide the latency of an addition and of reading the
// pointers, few enough for sixteen registers.
inline constexpr size_t kVectorsPerStep = 4;

template <class Codec, class Op>
void reduce(const ReduceArguments& arguments) {
  if (arguments.sources.empty()) return;
  constexpr size_t kSteps = kVectorsPerStep / Codec::kParts;
  constexpr size_t kStep = kSteps * Codec::kElements;
  const Op op(arguments);
  size_t offset = 0;
  for (; offset + kStep <= arguments.count; offset += kStep) {
    reduce_step<Codec, Op, kSteps>(op, arguments, offset);
  }
  reduce_rest<Codec, Op>(op, arguments, offset);
}

// kRanks buffers, each both source and destination, whose addresses stay in registers.
template <class Codec, class Op, size_t kRanks>
HWY_NOINLINE void reduce_in_place(const ReduceArguments& arguments) {
  using Element = typename Codec::Element;
  constexpr size_t kSteps = kVectorsPerStep / Codec::kParts;
  const Op op(arguments);
  Element* buffers[kRanks];
  for (size_t r = 0; r < kRanks; ++r) buffers[r] = static_cast<Element*>(arguments.destinations[r]);
  const auto source_at = [&](size_t s) { return buffers[s]; };
  const size_t count = arguments.count;
  constexpr size_t kStep = kSteps * Codec::kElements;
  size_t offset = 0;
  for (; offset + kStep <= count; offset += kStep) {
    typename Codec::Raw results[kSteps];
    combine_sources<Codec, Op, kSteps>(op, kRanks, source_at, offset, results);
    for (size_t r = 0; r < kRanks; ++r) prefetch_ahead<kStep>(buffers[r], offset, count);
    for (size_t r = 0; r < kRanks; ++r) {
      for (size_t k = 0; k < kSteps; ++k)
        Codec::store(results[k], buffers[r] + offset + k * Codec::kElements);
    }
  }
  reduce_rest<Codec, Op>(op, arguments, offset);
}

inline bool is_in_place(const ReduceArguments& arguments) {
  if (arguments.destinations.size() != arguments.sources.size()) return false;
  for (size_t r = 0; r < arguments.sources.size(); ++r) {
    if (arguments.destinations[r] != arguments.sources[r]) return false;
  }
  return true;
}

// reduce() with a fast path for the all-reduce of 2, 4 and 8 ranks.
template <class Codec, class Op>
void reduce_ranks(const ReduceArguments& arguments) {
  if (is_in_place(arguments)) {
    switch (arguments.sources.size()) {
      case 2:
        return reduce_in_place<Codec, Op, 2>(arguments);
      case 4:
        return reduce_in_place<Codec, Op, 4>(arguments);
      case 8:
        return reduce_in_place<Codec, Op, 8>(arguments);
      default:
        break;
    }
  }
  reduce<Codec, Op>(arguments);
}

}  // namespace HWY_NAMESPACE
}  // namespace collective_ops
HWY_AFTER_NAMESPACE();

#endif
