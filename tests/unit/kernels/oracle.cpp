#include "oracle.h"

#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>

#include <fmt/format.h>

namespace collective_ops::testing {
namespace {

template <typename T>
T element(const Bytes& bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void set_element(Bytes& bytes, size_t i, T value) {
  std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
}

template <typename T>
Bytes reduce_integers(ReduceOp op, const std::vector<Bytes>& sources, size_t count, int divisor) {
  Bytes result(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    __int128 exact = element<T>(sources[0], i);
    for (size_t s = 1; s < sources.size(); ++s) {
      const __int128 next = element<T>(sources[s], i);
      if (op == ReduceOp::kSum || op == ReduceOp::kAvg) exact += next;
      if (op == ReduceOp::kProd) exact = static_cast<T>(static_cast<unsigned __int128>(exact) * next);
      if (op == ReduceOp::kMin) exact = std::min(exact, next);
      if (op == ReduceOp::kMax) exact = std::max(exact, next);
      if (op == ReduceOp::kBitAnd) exact &= next;
      if (op == ReduceOp::kBitOr) exact |= next;
      if (op == ReduceOp::kBitXor) exact ^= next;
    }
    if (op == ReduceOp::kAvg) {
      const __int128 in_64_bits = std::is_signed_v<T> ? __int128{static_cast<int64_t>(exact)}
                                                      : __int128{static_cast<uint64_t>(exact)};
      exact = in_64_bits / divisor;
    }
    set_element(result, i, static_cast<T>(exact));
  }
  return result;
}

Bytes reduce_bools(ReduceOp op, const std::vector<Bytes>& sources, size_t count) {
  Bytes result(count);
  for (size_t i = 0; i < count; ++i) {
    size_t ones = 0;
    for (const Bytes& source : sources) ones += source[i] != 0;
    const bool all = op == ReduceOp::kProd || op == ReduceOp::kMin || op == ReduceOp::kBitAnd;
    result[i] = all ? ones == sources.size() : op == ReduceOp::kBitXor ? ones % 2 : ones > 0;
  }
  return result;
}

template <typename T>
T combine_floats(ReduceOp op, T sum, T next) {
  switch (op) {
    case ReduceOp::kProd:
      return sum * next;
    case ReduceOp::kMin:
      return std::isnan(sum) ? sum : sum < next ? sum : next;
    case ReduceOp::kMax:
      return std::isnan(sum) ? sum : sum > next ? sum : next;
    default:
      return sum + next;
  }
}

// T is stored, Wide computed with; `widen` and `narrow` go between them.
template <typename T, typename Wide, typename Widen, typename Narrow>
Bytes reduce_floats(ReduceOp op, const std::vector<Bytes>& sources, size_t count, int divisor,
                    const std::vector<double>& factors, Widen widen, Narrow narrow) {
  Bytes result(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    const auto term = [&](size_t s) {
      const Wide value = widen(element<T>(sources[s], i));
      return op == ReduceOp::kPreMulSum ? static_cast<Wide>(value * static_cast<Wide>(factors[s])) : value;
    };
    Wide sum = term(0);
    for (size_t s = 1; s < sources.size(); ++s) sum = combine_floats(op, sum, term(s));
    if (op == ReduceOp::kAvg) sum /= static_cast<Wide>(divisor);
    set_element(result, i, static_cast<T>(narrow(sum)));
  }
  return result;
}

template <typename T>
Bytes reduce_plain_floats(ReduceOp op, const std::vector<Bytes>& sources, size_t count, int divisor,
                          const std::vector<double>& factors) {
  const auto same = [](T value) { return value; };
  return reduce_floats<T, T>(op, sources, count, divisor, factors, same, same);
}

template <typename T>
Bytes reduce_complex(ReduceOp op, const std::vector<Bytes>& sources, size_t count, int divisor,
                     const std::vector<double>& factors) {
  if (op != ReduceOp::kProd) return reduce_plain_floats<T>(op, sources, 2 * count, divisor, factors);
  Bytes result(count * 2 * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    T real = element<T>(sources[0], 2 * i), imaginary = element<T>(sources[0], 2 * i + 1);
    for (size_t s = 1; s < sources.size(); ++s) {
      const T a = element<T>(sources[s], 2 * i), b = element<T>(sources[s], 2 * i + 1);
      const T next = real * a - imaginary * b;
      imaginary = real * b + imaginary * a;
      real = next;
    }
    set_element(result, 2 * i, real);
    set_element(result, 2 * i + 1, imaginary);
  }
  return result;
}

template <typename T>
Bytes random_floats(size_t count, std::mt19937_64& random, bool special) {
  using Limits = std::numeric_limits<T>;
  const T specials[] = {Limits::quiet_NaN(),
                        -Limits::quiet_NaN(),
                        Limits::infinity(),
                        -Limits::infinity(),
                        T{0},
                        -T{0},
                        Limits::max(),
                        Limits::lowest(),
                        Limits::denorm_min(),
                        -Limits::denorm_min(),
                        Limits::min(),
                        T{1}};
  std::uniform_real_distribution<T> ordinary(-3, 3);
  Bytes bytes(count * sizeof(T));
  for (size_t i = 0; i < count; ++i) {
    const bool pick = special && random() % 2 == 0;
    set_element(bytes, i, pick ? specials[random() % std::size(specials)] : ordinary(random));
  }
  return bytes;
}

template <typename T>
bool is_nan_at(const unsigned char* bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return std::isnan(value);
}

bool is_nan(DataType type, const unsigned char* bytes, size_t i) {
  uint16_t half = 0;
  switch (type) {
    case DataType::kFloat32:
    case DataType::kComplex64:
      return is_nan_at<float>(bytes, i);
    case DataType::kFloat64:
    case DataType::kComplex128:
      return is_nan_at<double>(bytes, i);
    case DataType::kFloat16:
      std::memcpy(&half, bytes + 2 * i, 2);
      return (half & 0x7FFF) > 0x7C00;
    case DataType::kBFloat16:
      std::memcpy(&half, bytes + 2 * i, 2);
      return (half & 0x7FFF) > 0x7F80;
    default:
      return false;
  }
}

}  // namespace

float oracle_float_from_float16(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
uint16_t oracle_float16_from_float(float value) {
  return std::bit_cast<uint16_t>(static_cast<_Float16>(value));
}

float oracle_float_from_bfloat16(uint16_t bits) {
  const int exponent = (bits >> 7) & 0xFF;
  const int mantissa = bits & 0x7F;
  const float sign = bits & 0x8000 ? -1.0F : 1.0F;
  if (exponent == 0xFF) return mantissa ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -133);
  return sign * std::ldexp(static_cast<float>(mantissa | 0x80), exponent - 134);
}

// In units of the last place, exact in float64, rounded by the processor's own nearest-even mode.
uint16_t oracle_bfloat16_from_float(float value) {
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::isnan(value)) return sign | 0x7FC0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(magnitude)) return sign | 0x7F80;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), -126);
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 7 - exponent)));  // 0 to 256
  const int encoded = ((exponent + 126) << 7) + units;  // a hidden bit, or a carry, raises the exponent
  return static_cast<uint16_t>(sign | std::min(encoded, 0x7F80));
}

Bytes oracle_reduce(DataType type, ReduceOp op, const std::vector<Bytes>& sources, size_t count, int divisor,
                    const std::vector<double>& factors) {
  switch (type) {
    case DataType::kInt8:
      return reduce_integers<int8_t>(op, sources, count, divisor);
    case DataType::kInt16:
      return reduce_integers<int16_t>(op, sources, count, divisor);
    case DataType::kInt32:
      return reduce_integers<int32_t>(op, sources, count, divisor);
    case DataType::kInt64:
      return reduce_integers<int64_t>(op, sources, count, divisor);
    case DataType::kUInt8:
      return reduce_integers<uint8_t>(op, sources, count, divisor);
    case DataType::kUInt16:
      return reduce_integers<uint16_t>(op, sources, count, divisor);
    case DataType::kUInt32:
      return reduce_integers<uint32_t>(op, sources, count, divisor);
    case DataType::kUInt64:
      return reduce_integers<uint64_t>(op, sources, count, divisor);
    case DataType::kBool:
      return reduce_bools(op, sources, count);
    case DataType::kFloat16:
      return reduce_floats<uint16_t, float>(op, sources, count, divisor, factors, oracle_float_from_float16,
                                            oracle_float16_from_float);
    case DataType::kBFloat16:
      return reduce_floats<uint16_t, float>(op, sources, count, divisor, factors, oracle_float_from_bfloat16,
                                            oracle_bfloat16_from_float);
    case DataType::kFloat32:
      return reduce_plain_floats<float>(op, sources, count, divisor, factors);
    case DataType::kFloat64:
      return reduce_plain_floats<double>(op, sources, count, divisor, factors);
    case DataType::kComplex64:
      return reduce_complex<float>(op, sources, count, divisor, factors);
    case DataType::kComplex128:
      return reduce_complex<double>(op, sources, count, divisor, factors);
    default:
      return {};
  }
}

Bytes random_elements(DataType type, size_t count, uint64_t seed, bool special) {
  std::mt19937_64 random(seed);
  Bytes bytes(count * size_of(type));
  switch (type) {
    case DataType::kFloat32:
      return random_floats<float>(count, random, special);
    case DataType::kFloat64:
      return random_floats<double>(count, random, special);
    case DataType::kComplex64:
      return random_floats<float>(2 * count, random, special);
    case DataType::kComplex128:
      return random_floats<double>(2 * count, random, special);
    case DataType::kFloat16:
    case DataType::kBFloat16: {
      // Special: any bits at all, so every exponent, and NaNs of every kind.
      const Bytes wide = random_floats<float>(count, random, false);
      const auto narrow = type == DataType::kFloat16 ? oracle_float16_from_float : oracle_bfloat16_from_float;
      for (size_t i = 0; i < count; ++i) {
        set_element(bytes, i, special ? static_cast<uint16_t>(random()) : narrow(element<float>(wide, i)));
      }
      return bytes;
    }
    case DataType::kBool:
      for (auto& byte : bytes) byte = random() % 4 == 0 ? (special ? 2 : 0) : 1;
      return bytes;
    default:
      // Any bits: sums and products wrap.
      for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
      return bytes;
  }
}

std::string difference(DataType type, const unsigned char* actual, const Bytes& expected) {
  const bool complex = type == DataType::kComplex64 || type == DataType::kComplex128;
  const size_t width = size_of(type) / (complex ? 2 : 1);
  for (size_t i = 0; i < expected.size() / width; ++i) {
    if (std::memcmp(actual + i * width, expected.data() + i * width, width) == 0) continue;
    if (is_nan(type, actual, i) && is_nan(type, expected.data(), i)) continue;
    std::string text = fmt::format("{} {}: bytes", name_of(type), i);
    for (size_t b = width; b-- > 0;) text += fmt::format(" {:02x}", actual[i * width + b]);
    text += ", expected";
    for (size_t b = width; b-- > 0;) text += fmt::format(" {:02x}", expected[i * width + b]);
    return text;
  }
  return {};
}

}  // namespace collective_ops::testing
