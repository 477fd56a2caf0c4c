// Copies between the caller's memory and memory that other cores have just read or written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define COLLECTIVE_OPS_STRING_MOVES 1
#include <cpuid.h>
#endif

namespace collective_ops::shm {

#ifdef COLLECTIVE_OPS_STRING_MOVES
// The processor's own copy asks for whole lines at once, without reading what it overwrites first: where another
// core holds those lines that takes a third to a half less time from about 768 bytes on. The C library uses it
// from 2 KiB on, which is right for lines that are near.
inline constexpr size_t kStringMovesFrom = 768;
inline constexpr size_t kLibraryMovesFrom = 2112;

inline bool has_fast_string_moves() {
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & 1u << 4) != 0;  // FSRM
  }();
  return has;
}
#endif

// The two do not overlap.
inline void copy_across(void* to, const void* from, size_t bytes) {
#ifdef COLLECTIVE_OPS_STRING_MOVES
  if (bytes >= kStringMovesFrom && bytes <= kLibraryMovesFrom && has_fast_string_moves()) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
    return;
  }
#endif
  if (bytes > 0) std::memcpy(to, from, bytes);
}

// For so many bytes that what is written is out of the caches before anybody reads it: written past them, without
// reading first what is overwritten. Over before anything that is stored later. The two do not overlap.
inline void copy_away(void* to, const void* from, size_t bytes) {
#if defined(__x86_64__)
  constexpr size_t kLine = 64, kLeast = 4096;
  if (bytes >= kLeast) {
    auto* out = static_cast<std::byte*>(to);
    auto* in = static_cast<const std::byte*>(from);
    const size_t head = -reinterpret_cast<uintptr_t>(out) % kLine;
    std::memcpy(out, in, head);
    const size_t lines = (bytes - head) / kLine;
    out += head, in += head;
    for (size_t line = 0; line < lines; ++line, out += kLine, in += kLine) {
      __m128i parts[4];
      for (int i = 0; i < 4; ++i) parts[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in) + i);
      for (int i = 0; i < 4; ++i) _mm_stream_si128(reinterpret_cast<__m128i*>(out) + i, parts[i]);
    }
    std::memcpy(out, in, bytes - head - lines * kLine);
    _mm_sfence();
    return;
  }
#endif
  copy_across(to, from, bytes);
}

}  // namespace collective_ops::shm
