#include <array>
#include <cstring>
#include <utility>

#include "array.h"

namespace collective_ops::python {
namespace {

using Element16 = std::array<uint64_t, 2>;

// Both sides' strides in elements; dimensions that lie one after the other on both sides are merged.
struct Dimension {
  int64_t extent;
  int64_t stride;
};

std::vector<Dimension> merged(const Array& array) {
  std::vector<Dimension> result;
  for (size_t i = 0; i < array.shape.size(); ++i) {
    if (array.shape[i] == 1) continue;
    if (!result.empty() && result.back().stride == array.shape[i] * array.strides[i]) {
      result.back() = {result.back().extent * array.shape[i], array.strides[i]};
    } else {
      result.push_back({array.shape[i], array.strides[i]});
    }
  }
  return result;
}

template <typename T, bool kPack>
void copy_row(T* strided, T* packed, const Dimension& row) {
  if (row.stride == 1) {
    const auto bytes = static_cast<size_t>(row.extent) * sizeof(T);
    if constexpr (kPack) {
      std::memcpy(packed, strided, bytes);
    } else {
      std::memcpy(strided, packed, bytes);
    }
    return;
  }
  for (int64_t i = 0; i < row.extent; ++i) {
    T& there = strided[i * row.stride];
    if constexpr (kPack) {
      std::memcpy(packed + i, &there, sizeof(T));
    } else {
      std::memcpy(&there, packed + i, sizeof(T));
    }
  }
}

template <typename T, bool kPack>
void copy(const Array& array, std::byte* packed_bytes) {
  auto* strided = reinterpret_cast<T*>(array.data);
  auto* packed = reinterpret_cast<T*>(packed_bytes);
  const std::vector<Dimension> dimensions = merged(array);
  if (dimensions.empty()) {
    copy_row<T, kPack>(strided, packed, {1, 1});
    return;
  }
  const Dimension row = dimensions.back();
  std::vector<int64_t> index(dimensions.size() - 1, 0);
  for (size_t done = 0; done < array.count; done += static_cast<size_t>(row.extent)) {
    copy_row<T, kPack>(strided, packed + done, row);
    for (size_t i = index.size(); i-- > 0;) {
      strided += dimensions[i].stride;
      if (++index[i] < dimensions[i].extent) break;
      strided -= dimensions[i].extent * dimensions[i].stride;
      index[i] = 0;
    }
  }
}

template <bool kPack>
void copy_any(const Array& array, std::byte* packed) {
  if (array.count == 0) return;
  if (array.contiguous) {
    std::memcpy(kPack ? packed : array.data, kPack ? array.data : packed, array.bytes());
    return;
  }
  switch (size_of(array.type)) {
    case 1:
      return copy<uint8_t, kPack>(array, packed);
    case 2:
      return copy<uint16_t, kPack>(array, packed);
    case 4:
      return copy<uint32_t, kPack>(array, packed);
    case 8:
      return copy<uint64_t, kPack>(array, packed);
    default:
      return copy<Element16, kPack>(array, packed);
  }
}

}  // namespace

void pack(const Array& array, std::byte* packed) { copy_any<true>(array, packed); }
void unpack(const std::byte* packed, const Array& array) {
  copy_any<false>(array, const_cast<std::byte*>(packed));
}

}  // namespace collective_ops::python
