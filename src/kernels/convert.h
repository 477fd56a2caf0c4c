// float16 and bfloat16 from and to float32, one value at a time: rounded to nearest even, NaN stays NaN
// (made quiet, as processors do), overflow gives infinity, subnormals are kept.
#pragma once

#include <bit>
#include <cstdint>

namespace collective_ops {

inline float float_from_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t bfloat16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

inline float float_from_float16(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 31;
  const uint32_t mantissa = half & 0x3FF;
  if (exponent == 31) {
    const uint32_t quiet = mantissa != 0 ? 0x400000 : 0;
    return std::bit_cast<float>(sign | 0x7F800000 | (mantissa << 13) | quiet);
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;  // exact
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

inline uint16_t float16_from_float(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return static_cast<uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x3FF));
  if (magnitude >= 0x477FF000)
    return static_cast<uint16_t>(sign | 0x7C00);  // from 65520, halfway past the largest
  if (magnitude >= 0x38800000) {                  // from 2^-14: a normal number
    const uint32_t rebased = magnitude - (112U << 23);
    return static_cast<uint16_t>(sign | ((rebased + 0xFFF + ((rebased >> 13) & 1)) >> 13));
  }
  if (magnitude < 0x33000000) return static_cast<uint16_t>(sign);  // below 2^-25, half the smallest
  // A multiple of 2^-24, rounded; what carries out of the mantissa is the smallest normal number.
  const uint32_t shift = 126 - (magnitude >> 23);
  const uint32_t mantissa = (magnitude & 0x7FFFFF) | 0x800000;
  const uint32_t nearly_half = (1U << (shift - 1)) - 1;
  return static_cast<uint16_t>(sign | ((mantissa + nearly_half + ((mantissa >> shift) & 1)) >> shift));
}

}  // namespace collective_ops
