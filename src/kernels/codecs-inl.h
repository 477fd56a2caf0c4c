// How elements in memory become vectors to compute with ("parts"), and go back.
//
// A codec has: Element (in memory), D (the lanes computed with), kParts (vectors of D per vector of
// elements), kElements (elements per step), Raw (what is stored), and
//   load(from, parts), pack(parts) -> Raw, store(raw, to): kElements at any alignment;
//   load_few(from, count, parts), store_few(raw, to, count): the first `count` < kElements, touching no
//   other byte, since memory beyond may belong to another rank.
#if defined(COLLECTIVE_OPS_KERNELS_CODECS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COLLECTIVE_OPS_KERNELS_CODECS_INL_H_
#undef COLLECTIVE_OPS_KERNELS_CODECS_INL_H_
#else
#define COLLECTIVE_OPS_KERNELS_CODECS_INL_H_
#endif

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "hwy/highway.h"
#include "kernels/convert.h"

HWY_BEFORE_NAMESPACE();
namespace collective_ops {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Copies fewer than kLimit (at most 64) bytes by two copies of a fixed size that may overlap, not a call of
// memcpy.
template <size_t kLimit>
HWY_INLINE void copy_few(void* to, const void* from, size_t bytes) {
  const auto both_ends = [&]<size_t kSize>(std::integral_constant<size_t, kSize>) {
    char head[kSize], tail[kSize];
    std::memcpy(head, from, kSize);
    std::memcpy(tail, static_cast<const char*>(from) + bytes - kSize, kSize);
    std::memcpy(to, head, kSize);
    std::memcpy(static_cast<char*>(to) + bytes - kSize, tail, kSize);
  };
  if constexpr (kLimit > 32) {
    if (bytes >= 32) return both_ends(std::integral_constant<size_t, 32>());
  }
  if constexpr (kLimit > 16) {
    if (bytes >= 16) return both_ends(std::integral_constant<size_t, 16>());
  }
  if (bytes >= 8) return both_ends(std::integral_constant<size_t, 8>());
  if (bytes >= 4) return both_ends(std::integral_constant<size_t, 4>());
  if (bytes >= 2) return both_ends(std::integral_constant<size_t, 2>());
  if (bytes == 1) std::memcpy(to, from, 1);
}

// A vector of the first `count` elements, the others zero. D is of unsigned integers.
template <class D>
HWY_INLINE hn::Vec<D> load_few(D d, const hn::TFromD<D>* from, size_t count) {
#if HWY_TARGET == HWY_AVX3
  return hn::MaskedLoad(hn::FirstN(d, count), d, from);
#else
  alignas(64) hn::TFromD<D> buffer[hn::MaxLanes(d)] = {};
  copy_few<sizeof(buffer)>(buffer, from, count * sizeof(hn::TFromD<D>));
  return hn::Load(d, buffer);
#endif
}

template <class D>
HWY_INLINE void store_few(D d, hn::Vec<D> value, hn::TFromD<D>* to, size_t count) {
#if HWY_TARGET == HWY_AVX3
  hn::BlendedStore(value, hn::FirstN(d, count), d, to);
#else
  alignas(64) hn::TFromD<D> buffer[hn::MaxLanes(d)];
  hn::Store(value, d, buffer);
  copy_few<sizeof(buffer)>(to, buffer, count * sizeof(hn::TFromD<D>));
#endif
}

// Elements that are computed with as they are.
template <typename T>
struct PlainCodec {
  using Element = T;
  using D = hn::ScalableTag<T>;
  using Bits = hn::RebindToUnsigned<D>;
  using V = hn::Vec<D>;
  using Raw = V;
  static constexpr size_t kParts = 1;
  static constexpr size_t kElements = hn::MaxLanes(D());

  static HWY_INLINE void load(const T* from, V* parts) { parts[0] = hn::LoadU(D(), from); }
  static HWY_INLINE Raw pack(const V* parts) { return parts[0]; }
  static HWY_INLINE void store(Raw raw, T* to) { hn::StoreU(raw, D(), to); }
  static HWY_INLINE void load_few(const T* from, size_t count, V* parts) {
    using Bit = hn::TFromD<Bits>;
    parts[0] = hn::BitCast(D(), HWY_NAMESPACE::load_few(Bits(), reinterpret_cast<const Bit*>(from), count));
  }
  static HWY_INLINE void store_few(Raw raw, T* to, size_t count) {
    using Bit = hn::TFromD<Bits>;
    HWY_NAMESPACE::store_few(Bits(), hn::BitCast(Bits(), raw), reinterpret_cast<Bit*>(to), count);
  }
};

// One byte each; whatever is not zero counts as one.
struct BoolCodec : PlainCodec<uint8_t> {
  static HWY_INLINE void load(const uint8_t* from, V* parts) {
    PlainCodec::load(from, parts);
    parts[0] = hn::Min(parts[0], hn::Set(D(), 1));
  }
  static HWY_INLINE void load_few(const uint8_t* from, size_t count, V* parts) {
    PlainCodec::load_few(from, count, parts);
    parts[0] = hn::Min(parts[0], hn::Set(D(), 1));
  }
};

// bfloat16 is the upper half of a float32. Elements at even and at odd places become one part each, so no
// lane moves: a shift or a mask makes a float32.
struct BFloat16Codec {
  using Element = uint16_t;
  using D = hn::ScalableTag<float>;
  using Bits32 = hn::ScalableTag<uint32_t>;
  using Bits16 = hn::ScalableTag<uint16_t>;
  using V = hn::Vec<D>;
  using Raw = hn::Vec<Bits16>;
  static constexpr size_t kParts = 2;
  static constexpr size_t kElements = hn::MaxLanes(Bits16());

  static HWY_INLINE void unpack(Raw raw, V* parts) {
    const auto pairs = hn::BitCast(Bits32(), raw);
    parts[0] = hn::BitCast(D(), hn::ShiftLeft<16>(pairs));
    parts[1] = hn::BitCast(D(), hn::And(pairs, hn::Set(Bits32(), 0xFFFF0000U)));
  }

  // Round to nearest even: the upper half, plus the carry of lower half + 0x7FFF + (lowest bit of the upper
  // half). The rounding average of 16-bit lanes holds that carry in its highest bit.
  // NaN needs no care: every NaN that computing with bfloat16 can give has a lower half of zero
  // (see PreMultipliedSum::factor), and such values pass unchanged.
  static HWY_INLINE Raw pack(const V* parts) {
    const Bits16 d;
    const auto even = hn::BitCast(Bits32(), parts[0]);
    const auto odd = hn::BitCast(Bits32(), parts[1]);
    const Raw upper = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<16>(even)));
    const Raw lower = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<16>(odd)), hn::BitCast(d, even));
    const Raw bias = hn::OrAnd(hn::Set(d, 0x7FFE), upper, hn::Set(d, 1));
    return hn::Add(upper, hn::ShiftRight<15>(hn::AverageRound(lower, bias)));
  }

  static HWY_INLINE void load(const Element* from, V* parts) { unpack(hn::LoadU(Bits16(), from), parts); }
  static HWY_INLINE void store(Raw raw, Element* to) { hn::StoreU(raw, Bits16(), to); }
  static HWY_INLINE void load_few(const Element* from, size_t count, V* parts) {
    unpack(HWY_NAMESPACE::load_few(Bits16(), from, count), parts);
  }
  static HWY_INLINE void store_few(Raw raw, Element* to, size_t count) {
    HWY_NAMESPACE::store_few(Bits16(), raw, to, count);
  }
};

// float16: the first and the second half of the elements are one part each.
struct Float16Codec {
  using Element = uint16_t;
  using D = hn::ScalableTag<float>;
  using Half = hn::Rebind<uint16_t, D>;
  using Bits16 = hn::ScalableTag<uint16_t>;
  using V = hn::Vec<D>;
  static constexpr size_t kParts = 2;
  static constexpr size_t kLanes = hn::MaxLanes(D());
  static constexpr size_t kElements = 2 * kLanes;
  struct Raw {
    hn::Vec<Half> first, second;
  };

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_NEON
  static HWY_INLINE V widen(hn::Vec<Half> half) {
    return hn::PromoteTo(D(), hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
  }
  static HWY_INLINE hn::Vec<Half> narrow(V wide) {
    return hn::BitCast(Half(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), wide));
  }
#else
  // Without conversion instructions: one by one. Highway's own emulation does not round to nearest even.
  static HWY_INLINE V widen(hn::Vec<Half> half) {
    HWY_ALIGN uint16_t from[kLanes];
    HWY_ALIGN float to[kLanes];
    hn::Store(half, Half(), from);
    for (size_t i = 0; i < kLanes; ++i) to[i] = float_from_float16(from[i]);
    return hn::Load(D(), to);
  }
  static HWY_INLINE hn::Vec<Half> narrow(V wide) {
    HWY_ALIGN float from[kLanes];
    HWY_ALIGN uint16_t to[kLanes];
    hn::Store(wide, D(), from);
    for (size_t i = 0; i < kLanes; ++i) to[i] = float16_from_float(from[i]);
    return hn::Load(Half(), to);
  }
#endif

  static HWY_INLINE Raw pack(const V* parts) { return {narrow(parts[0]), narrow(parts[1])}; }
  static HWY_INLINE void load(const Element* from, V* parts) {
    parts[0] = widen(hn::LoadU(Half(), from));
    parts[1] = widen(hn::LoadU(Half(), from + kLanes));
  }
  static HWY_INLINE void store(Raw raw, Element* to) {
    hn::StoreU(raw.first, Half(), to);
    hn::StoreU(raw.second, Half(), to + kLanes);
  }
  static HWY_INLINE void load_few(const Element* from, size_t count, V* parts) {
    const auto raw = HWY_NAMESPACE::load_few(Bits16(), from, count);
    parts[0] = widen(hn::LowerHalf(Half(), raw));
    parts[1] = widen(hn::UpperHalf(Half(), raw));
  }
  static HWY_INLINE void store_few(Raw raw, Element* to, size_t count) {
    HWY_NAMESPACE::store_few(Bits16(), hn::Combine(Bits16(), raw.second, raw.first), to, count);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace collective_ops
HWY_AFTER_NAMESPACE();

#endif
