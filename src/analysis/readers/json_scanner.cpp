#include "analysis/readers/json_scanner.h"

#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>

namespace collective_ops {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

enum Role : uint8_t { kOther, kScalar, kStructure };  // kStructure: quotes and brackets
constexpr std::array<Role, 256> kRoles = [] {
  std::array<Role, 256> roles{};
  for (int c = 0; c < 128; ++c) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    const bool number = (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.';
    if (letter || number) roles[static_cast<size_t>(c)] = kScalar;
  }
  for (const unsigned char c : {'"', '{', '}', '[', ']'}) roles[c] = kStructure;
  return roles;
}();

// A bit in each byte that is '"' or '\\'.
uint64_t quotes_in(uint64_t word) {
  constexpr uint64_t kOnes = 0x0101010101010101, kHigh = 0x8080808080808080;
  const uint64_t quote = word ^ (kOnes * '"'), escape = word ^ (kOnes * '\\');
  return ((quote - kOnes) & ~quote & kHigh) | ((escape - kOnes) & ~escape & kHigh);
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

char JsonScanner::peek() {
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

bool JsonScanner::skip_string() {
  const char* p = at_ + 1;
  while (true) {
    uint64_t word = 0;
    while (end_ - p >= 8) {
      std::memcpy(&word, p, 8);
      const uint64_t hits = quotes_in(word);
      if (hits != 0) {
        // Bits above a true hit may be false; the lowest one is exact. Bytes are in memory order.
        if constexpr (std::endian::native == std::endian::little) p += std::countr_zero(hits) / 8;
        break;
      }
      p += 8;
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
  while (at_ < end_ && kRoles[static_cast<unsigned char>(*at_)] == kScalar) ++at_;
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
  // Brackets are counted, not matched. What may follow a string is checked, or one stray quote would make
  // text of all that follows.
  int64_t depth = 0;
  while (true) {
    while (at_ < end_ && kRoles[static_cast<unsigned char>(*at_)] != kStructure) ++at_;
    if (at_ == end_) return fail(State::kEnded);
    const char here = *at_;
    if (here == '"') {
      if (!skip_string()) return false;
      const char next = peek();
      if (!good()) return false;
      if (next != ',' && next != ':' && next != '}' && next != ']') return fail(State::kBroken);
      continue;
    }
    ++at_;
    if (here == '{' || here == '[') {
      ++depth;
    } else if (--depth == 0) {
      return true;
    }
  }
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
