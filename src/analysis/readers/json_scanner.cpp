#include "analysis/readers/json_scanner.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace collective_ops {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

// Characters of numbers, true, false, null, NaN.
constexpr std::array<bool, 256> kScalar = [] {
  std::array<bool, 256> scalar{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool number = (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.';
    scalar[static_cast<size_t>(c)] = letter || number;
  }
  return scalar;
}();

constexpr size_t kVector = 16, kBlock = 64;

// Of 16 characters, one bit each.
struct Classes {
  uint64_t quotes = 0, escapes = 0, opening = 0, closing = 0;
  uint64_t after_string = 0;  // what may stand behind a string: , : } ] and blanks
};

#ifdef __SSE2__
__m128i bytes_at(const char* text) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(text)); }
__m128i equal(__m128i bytes, char c) { return _mm_cmpeq_epi8(bytes, _mm_set1_epi8(c)); }
uint64_t bits_of(__m128i mask) { return static_cast<uint64_t>(_mm_movemask_epi8(mask)); }

uint64_t quotes_and_escapes(const char* text) {
  const __m128i bytes = bytes_at(text);
  return bits_of(_mm_or_si128(equal(bytes, '"'), equal(bytes, '\\')));
}

Classes classes_of(const char* text) {
  const __m128i bytes = bytes_at(text), space = _mm_set1_epi8(' ');
  const __m128i folded = _mm_or_si128(bytes, space);  // '[' and '{', ']' and '}' differ in this one bit
  const __m128i closing = equal(folded, '}');
  const __m128i blank = _mm_cmpeq_epi8(_mm_min_epu8(bytes, space), bytes);
  const __m128i separator = _mm_or_si128(equal(bytes, ','), equal(bytes, ':'));
  return {bits_of(equal(bytes, '"')), bits_of(equal(bytes, '\\')), bits_of(equal(folded, '{')),
          bits_of(closing), bits_of(_mm_or_si128(_mm_or_si128(closing, blank), separator))};
}
#else
Classes classes_of(const char* text) {
  Classes classes;
  for (size_t i = 0; i < kVector; ++i) {
    const char c = text[i];
    const uint64_t bit = uint64_t{1} << i;
    if (c == '"') classes.quotes |= bit;
    if (c == '\\') classes.escapes |= bit;
    if (c == '{' || c == '[') classes.opening |= bit;
    if (c == '}' || c == ']') classes.closing |= bit;
    const bool blank = static_cast<unsigned char>(c) <= ' ';
    if (c == '}' || c == ']' || c == ',' || c == ':' || blank) classes.after_string |= bit;
  }
  return classes;
}

uint64_t quotes_and_escapes(const char* text) {
  const Classes classes = classes_of(text);
  return classes.quotes | classes.escapes;
}
#endif

// The same of 64.
Classes block_at(const char* text) {
  Classes block;
  for (size_t i = 0; i < kBlock; i += kVector) {
    const Classes part = classes_of(text + i);
    block.quotes |= part.quotes << i;
    block.escapes |= part.escapes << i;
    block.opening |= part.opening << i;
    block.closing |= part.closing << i;
    block.after_string |= part.after_string << i;
  }
  return block;
}

// Characters behind an odd number of backslashes. `carry`: the first is one, set for the next block.
uint64_t escaped_by(uint64_t backslashes, uint64_t* carry) {
  uint64_t escaped = 0, at = *carry;
  if (backslashes == 0) {
    *carry = 0;
    return at;
  }
  // A backslash that is not escaped itself escapes what follows; runs of them are short.
  escaped = at;
  *carry = 0;
  uint64_t open = backslashes & ~escaped;
  while (open != 0) {
    const int first = std::countr_zero(open);
    if (first == 63) {
      *carry = 1;
      break;
    }
    escaped |= uint64_t{2} << first;
    open &= ~(uint64_t{3} << first);
  }
  return escaped;
}

// Bit i: whether an odd number of the bits 0 to i is set.
uint64_t parity(uint64_t bits) {
  for (int shift = 1; shift < 64; shift *= 2) bits ^= bits << shift;
  return bits;
}

void append_utf8(std::string* out, uint32_t code) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    out->push_back(static_cast<char>(0xC0 | code >> 6));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else if (code < 0x10000) {
    out->push_back(static_cast<char>(0xE0 | code >> 12));
    out->push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  } else {
    out->push_back(static_cast<char>(0xF0 | code >> 18));
    out->push_back(static_cast<char>(0x80 | (code >> 12 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
    out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
  }
}

std::optional<uint32_t> hex4(std::string_view text) {
  uint32_t code = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), code, 16);
  if (error != std::errc() || stop != text.data() + 4) return {};
  return code;
}

}  // namespace

char JsonScanner::peek_further() {
  while (at_ < end_) {
    if (!is_blank(*at_)) return *at_;
    ++at_;
    // Indentation, eight spaces at a time.
    for (uint64_t word = 0; end_ - at_ >= 8; at_ += 8) {
      std::memcpy(&word, at_, 8);
      if (word != 0x2020202020202020) break;
    }
  }
  if (good()) state_ = State::kEnded;
  return 0;
}

// Most strings end within the first 16 characters or two: worth having in line at each of its three callers.
[[gnu::always_inline]] inline bool JsonScanner::skip_string() {
  const char* p = at_ + 1;
  while (true) {
    for (; end_ - p >= static_cast<ptrdiff_t>(kVector); p += kVector) {
      const uint64_t hits = quotes_and_escapes(p);
      if (hits == 0) continue;
      p += std::countr_zero(hits);
      break;
    }
    while (p < end_ && *p != '"' && *p != '\\') ++p;
    if (p >= end_) return fail(State::kEnded);
    if (*p == '"') break;
    if (end_ - p < 2) return fail(State::kEnded);
    p += 2;
  }
  at_ = p + 1;
  return true;
}

bool JsonScanner::enter(char bracket) {
  const char c = peek();
  if (!good()) return false;
  if (c != bracket) return fail(State::kBroken);
  ++at_;
  return true;
}

// What stands between two members: a comma (or, at the first, nothing), or the end.
bool JsonScanner::separator(char closing, bool* closed) {
  char c = peek();
  *closed = false;
  if (!good()) return false;
  if (c == ',') {
    ++at_;
    c = peek();
    if (!good()) return false;
  }
  if (c == closing) {
    ++at_;
    *closed = true;
  }
  return true;
}

bool JsonScanner::next_key(std::string_view* key) {
  bool closed = false;
  if (!separator('}', &closed) || closed) return false;
  if (*at_ != '"') return fail(State::kBroken);
  const char* const open = at_ + 1;
  if (!skip_string()) return false;
  *key = {open, static_cast<size_t>(at_ - open - 1)};
  const char colon = peek();
  if (!good()) return false;
  if (colon != ':') return fail(State::kBroken);
  ++at_;
  return true;
}

bool JsonScanner::next_element() {
  bool closed = false;
  return separator(']', &closed) && !closed;
}

bool JsonScanner::string(std::string_view* raw_text) {
  const char c = peek();
  if (!good()) return false;
  if (c != '"') return fail(State::kBroken);
  const char* const open = at_ + 1;
  if (!skip_string()) return false;
  *raw_text = {open, static_cast<size_t>(at_ - open - 1)};
  return true;
}

bool JsonScanner::scalar(std::string_view* text) {
  const char c = peek();
  if (!good()) return false;
  if (c == '"') return string(text);
  const char* const from = at_;
  while (at_ < end_ && kScalar[static_cast<unsigned char>(*at_)]) ++at_;
  if (at_ == end_) return fail(State::kEnded);
  if (at_ == from) return fail(State::kBroken);
  *text = {from, static_cast<size_t>(at_ - from)};
  return true;
}

bool JsonScanner::skip() {
  const char c = peek();
  if (!good()) return false;
  if (c == '"') return skip_string();
  if (c != '{' && c != '[') {
    std::string_view ignored;
    return scalar(&ignored);
  }
  return skip_nested();
}

// Brackets are counted, not matched. What may follow a string is checked, or one stray quote would make
// text of all that follows.
bool JsonScanner::skip_nested() {
  std::array<char, kBlock> padded{};
  int64_t depth = 0;
  uint64_t in_string = 0, escaped = 0, string_ended = 0;  // carried from block to block
  for (const char* p = at_; p < end_; p += kBlock) {
    const auto left = static_cast<size_t>(end_ - p);
    if (left < kBlock) {
      padded.fill(' ');
      std::memcpy(padded.data(), p, left);
    }
    const Classes block = block_at(left < kBlock ? padded.data() : p);
    const uint64_t quotes = block.quotes & ~escaped_by(block.escapes, &escaped);
    const uint64_t strings = parity(quotes) ^ in_string;  // with the opening quote, without the closing one
    const uint64_t ends = quotes & ~strings;
    uint64_t broken = (ends << 1 | string_ended) & ~block.after_string;
    const uint64_t closing = block.closing & ~strings;
    uint64_t brackets = (block.opening & ~strings) | closing;
    for (; brackets != 0; brackets &= brackets - 1) {
      const int bit = std::countr_zero(brackets);
      depth += (closing >> bit & 1) != 0 ? -1 : 1;
      if (depth > 0) continue;
      broken &= (uint64_t{1} << bit) - 1;
      if (broken != 0) break;
      at_ = p + bit + 1;
      return true;
    }
    if (broken != 0) {
      at_ = p + std::countr_zero(broken);
      return fail(State::kBroken);
    }
    in_string = uint64_t{0} - (strings >> 63);
    string_ended = ends >> 63;
  }
  at_ = end_;
  return fail(State::kEnded);
}

bool JsonScanner::raw(std::string_view* text) {
  peek();
  const char* const from = at_;
  if (!skip()) return false;
  *text = {from, static_cast<size_t>(at_ - from)};
  return true;
}

double JsonScanner::number() {
  std::string_view text;
  const char c = peek();
  if (c == '{' || c == '[') {
    skip();
    return 0;
  }
  return scalar(&text) ? double_of(text) : 0;
}

int64_t JsonScanner::integer() {
  std::string_view text;
  const char c = peek();
  if (c == '{' || c == '[') {
    skip();
    return 0;
  }
  return scalar(&text) ? integer_of(text).value_or(0) : 0;
}

std::vector<int> rank_list(JsonScanner* scanner) {
  std::vector<int> ranks;
  std::string_view text;
  if (!(scanner->peek() == '"' ? scanner->string(&text) : scanner->raw(&text))) return ranks;
  JsonScanner list(text);
  if (!list.enter('[')) return ranks;
  while (list.next_element()) {
    const int64_t rank = list.integer();
    if (rank >= 0 && rank <= INT32_MAX) ranks.push_back(static_cast<int>(rank));
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::optional<int64_t> nanoseconds_of(std::string_view microseconds) {
  std::string_view text = trimmed(microseconds);
  const bool negative = !text.empty() && text.front() == '-';
  if (negative) text.remove_prefix(1);
  int64_t value = 0;
  size_t i = 0;
  for (; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    if (value > INT64_MAX / 10'000 - 1) return {};  // one more digit, then three of a fraction
    value = value * 10 + (text[i] - '0');
  }
  if (i == 0 || (i < text.size() && text[i] != '.')) {  // an exponent, or no number
    const double other = double_of(text);
    if (i == 0 || other == 0 || std::abs(other) > 9e15) return {};
    return static_cast<int64_t>(std::llround(negative ? -other * 1000 : other * 1000));
  }
  int digits = 0;
  for (++i; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) {
    if (digits < 3) value = value * 10 + (text[i] - '0'), ++digits;
  }
  if (i < text.size()) {
    const double other = double_of(text);
    if (std::abs(other) > 9e15) return {};
    return static_cast<int64_t>(std::llround(negative ? -other * 1000 : other * 1000));
  }
  for (; digits < 3; ++digits) value *= 10;
  return negative ? -value : value;
}

double double_of(std::string_view text) {
  text = trimmed(text);
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || !std::isfinite(value)) return 0;
  return value;
}

std::optional<int64_t> integer_of(std::string_view text) {
  text = trimmed(text);
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size()) return {};
  return value;
}

std::string unescaped(std::string_view raw) {
  std::string out;
  out.reserve(raw.size());
  for (size_t i = 0; i < raw.size(); ++i) {
    if (raw[i] != '\\' || i + 1 == raw.size()) {
      out.push_back(raw[i]);
      continue;
    }
    const char c = raw[++i];
    static constexpr std::string_view kFrom = "bfnrt", kTo = "\b\f\n\r\t";
    if (c != 'u') {
      const size_t known = kFrom.find(c);
      out.push_back(known == std::string_view::npos ? c : kTo[known]);
      continue;
    }
    auto code = hex4(raw.substr(i + 1, 4));
    if (!code) continue;
    i += 4;
    if (*code >= 0xD800 && *code < 0xDC00 && raw.substr(i + 1, 2) == "\\u") {  // half of a pair
      if (const auto low = hex4(raw.substr(i + 3, 4)); low && *low >= 0xDC00 && *low < 0xE000) {
        code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
        i += 6;
      }
    }
    append_utf8(&out, *code);
  }
  return out;
}

}  // namespace collective_ops
