// What a reduction must give, computed one element at a time from the contract in kernels/reduce.h, and
// without the code under test: half types are converted by the compiler and through float64.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <collective_ops/types.h>

namespace collective_ops::testing {

using Bytes = std::vector<unsigned char>;

float oracle_float_from_float16(uint16_t bits);
uint16_t oracle_float16_from_float(float value);
float oracle_float_from_bfloat16(uint16_t bits);
uint16_t oracle_bfloat16_from_float(float value);

// The result for `count` elements; each source holds at least that many.
Bytes oracle_reduce(DataType type, ReduceOp op, const std::vector<Bytes>& sources, size_t count, int divisor,
                    const std::vector<double>& factors);

// Random elements. Ordinary ones are of moderate size; special ones are often NaN, infinite, subnormal,
// zero of either sign, or extreme.
Bytes random_elements(DataType type, size_t count, uint64_t seed, bool special);

// Empty where both hold the same bits, any NaN being equal to any other; else says where they differ.
std::string difference(DataType type, const unsigned char* actual, const Bytes& expected);

}  // namespace collective_ops::testing
