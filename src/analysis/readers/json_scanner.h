// Reads JSON text from front to back without building anything: the caller pulls values and skips what it
// does not need. It takes what profilers really write (control characters in strings, NaN, numbers in
// quotes) and stops, at a known place, where the text is broken or ends. Our own rather than a library's
// because a damaged byte must cost one event and not the file, and text must not be in memory as a whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace collective_ops {

class JsonScanner {
 public:
  explicit JsonScanner(std::string_view text)
      : begin_(text.data()), at_(text.data()), end_(text.data() + text.size()) {}

  enum class State : uint8_t { kGood, kEnded, kBroken };  // kEnded: the text stops inside a value
  State state() const { return state_; }
  bool good() const { return state_ == State::kGood; }
  size_t position() const { return static_cast<size_t>(at_ - begin_); }
  void seek(size_t position) { at_ = begin_ + position, state_ = State::kGood; }

  // The first character of the next value or punctuation, blanks skipped; 0 where the text ends.
  char peek() { return at_<end_&& * at_> ' ' ? *at_ : peek_further(); }
  // `{` or `[`; else the scanner breaks.
  bool enter(char bracket);
  // The next key of an object, raw and without quotes; false at its end (which is passed) or when not good.
  bool next_key(std::string_view* key);
  // Whether another element of an array follows; false at its end (which is passed) or when not good.
  bool next_element();
  bool string(std::string_view* raw);   // contents of a string, escapes left as they are
  bool scalar(std::string_view* text);  // string (without quotes), number, true, false, null, NaN
  bool skip();                          // any value
  bool raw(std::string_view* text);     // any value, as its text
  // Numbers, also in quotes; 0 for what is no number.
  double number();
  int64_t integer();

 private:
  bool fail(State state) {
    state_ = state;
    return false;
  }
  char peek_further();
  bool skip_string();  // at_ stands on the opening quote
  bool skip_nested();  // on the opening bracket
  bool separator(char closing, bool* closed);

  const char* begin_;
  const char* at_;
  const char* end_;
  State state_ = State::kGood;
};

// A list of ranks, ascending, each once; also one in quotes, "[0, 1]". Empty for anything else.
std::vector<int> rank_list(JsonScanner* scanner);

// "1736408883688177.930" microseconds -> nanoseconds, exactly; further digits are cut off. Exponents are
// taken too. Nothing for what is no finite number or does not fit.
std::optional<int64_t> nanoseconds_of(std::string_view microseconds);

double double_of(std::string_view text);  // 0 for what is no finite number; blanks and TAB around are skipped
std::optional<int64_t> integer_of(std::string_view text);
std::string unescaped(std::string_view raw);  // \n, A ... become characters

}  // namespace collective_ops
