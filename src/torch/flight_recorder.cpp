#include "torch/flight_recorder.h"

#include <cstdlib>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>

#include <c10/util/ApproximateClock.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include "base/environment.h"

namespace collective_ops::pytorch {
namespace {

using Dict = c10::Dict<c10::IValue, c10::IValue>;

constexpr uint64_t kDefaultSize = 2000;
constexpr size_t kFewGroups = 64;
constexpr const char* kVersion = "2.10";  // of the schema

Dict new_dict() { return Dict(c10::AnyType::get(), c10::AnyType::get()); }

uint64_t wanted_size() {
  const std::string text = environment_text("TORCH_FR_BUFFER_SIZE");
  if (text.empty()) return kDefaultSize;
  char* end = nullptr;
  const auto size = std::strtoull(text.c_str(), &end, 10);
  return *end == '\0' ? size : kDefaultSize;
}

void describe(const std::vector<at::Tensor>& tensors, std::vector<std::vector<int64_t>>& sizes,
              std::vector<std::string>& types) {
  for (const at::Tensor& tensor : tensors) {
    sizes.push_back(tensor.sizes().vec());
    types.emplace_back(c10::toString(tensor.scalar_type()));
  }
}

c10::IValue list_of(const std::vector<std::vector<int64_t>>& sizes) {
  c10::List<c10::IValue> list(c10::AnyType::get());
  for (const auto& one : sizes) {
    c10::List<c10::IValue> inner(c10::AnyType::get());
    for (const int64_t extent : one) inner.push_back(extent);
    list.push_back(inner);
  }
  return list;
}

std::string text_of(const std::vector<uint64_t>& ranks) {
  std::string text;
  for (const uint64_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return "[" + text + "]";
}

// As readers expect it, who know the backends and calls of PyTorch's own tree alone.
std::string name_of_call(const Kind& kind, int rank, int peer) {
  switch (kind.type) {
    case c10d::OpType::SEND:
      return c10::str("gloo:send ", rank, "->", peer);
    case c10d::OpType::RECV:
    case c10d::OpType::RECVANYSOURCE:
      return c10::str("gloo:recv ", rank, "<-", peer);
    case c10d::OpType::_ALLREDUCE_SPARSE:
      return "gloo:all_reduce";
    default:
      return c10::str("gloo:", kind.title);
  }
}

std::string pickled(const c10::IValue& value) {
  std::string bytes;
  torch::jit::Pickler pickler([&](const char* data, size_t size) { bytes.append(data, size); }, nullptr,
                              nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(value);
  pickler.stop();
  return bytes;
}

}  // namespace

FlightRecorder& FlightRecorder::instance() {
  static auto* recorder = new FlightRecorder();  // never destroyed: calls may end while the process does
  return *recorder;
}

FlightRecorder::FlightRecorder() : entries_(wanted_size()), forget_at_(kFewGroups) {}

uint64_t FlightRecorder::issued(const c10d::Backend& group, const std::vector<uint64_t>& global_ranks,
                                const Task& task, std::chrono::milliseconds timeout, int peer) {
  if (entries_.empty()) return 0;
  Entry entry;
  entry.group = group.getGroupUid();
  entry.description = group.getGroupDesc();
  entry.sequence = task.sequence;
  entry.message = c10d::isP2POp(task.kind.type);
  entry.name = name_of_call(task.kind, group.getRank(), peer);
  describe(task.inputs, entry.input_sizes, entry.input_types);
  describe(task.outputs, entry.output_sizes, entry.output_types);
  entry.created_ns = c10::getTime();
  entry.timeout_ms = timeout.count();
  const std::lock_guard lock(mutex_);
  Group& known = groups_[entry.group];
  if (known.ranks.empty()) {
    known.description = entry.description;
    known.ranks = global_ranks;
    if (groups_.size() >= forget_at_) forget_groups(entry.group);
  }
  if (!entry.message) known.issued = static_cast<int64_t>(entry.sequence);
  entry.number = ++last_;
  entries_[last_ % entries_.size()] = std::move(entry);
  return last_;
}

// A program may make and destroy groups without end. With mutex_ held.
void FlightRecorder::forget_groups(const std::string& newest) {
  std::set<std::string_view> recorded{newest};
  for (const Entry& entry : entries_) recorded.insert(entry.group);
  std::erase_if(groups_, [&](const auto& group) { return !recorded.contains(group.first); });
  forget_at_ = 2 * groups_.size() + kFewGroups;
}

FlightRecorder::Entry* FlightRecorder::find(uint64_t number) {
  if (number == 0) return nullptr;
  Entry& entry = entries_[number % entries_.size()];
  return entry.number == number ? &entry : nullptr;
}

void FlightRecorder::started(uint64_t number) {
  const std::lock_guard lock(mutex_);
  Entry* entry = find(number);
  if (entry == nullptr) return;
  entry->started_ns = c10::getTime();
  if (!entry->message) groups_[entry->group].started = static_cast<int64_t>(entry->sequence);
}

void FlightRecorder::ended(uint64_t number) {
  const std::lock_guard lock(mutex_);
  Entry* entry = find(number);
  if (entry == nullptr) return;
  entry->ended_ns = c10::getTime();
  if (!entry->message) groups_[entry->group].ended = static_cast<int64_t>(entry->sequence);
}

c10::IValue FlightRecorder::entry_value(const Entry& entry) const {
  const auto time = [](int64_t ns) { return ns == 0 ? c10::IValue() : c10::IValue(ns); };
  const auto sequence = static_cast<int64_t>(entry.sequence);
  Dict dict = new_dict();
  dict.insert("record_id", static_cast<int64_t>(entry.number - 1));
  dict.insert("pg_id", static_cast<int64_t>(std::distance(groups_.begin(), groups_.find(entry.group))));
  dict.insert("process_group", std::make_tuple(entry.group, entry.description));
  dict.insert("collective_seq_id", entry.message ? int64_t{0} : sequence);
  dict.insert("p2p_seq_id", entry.message ? sequence : int64_t{0});
  dict.insert("op_id", sequence);
  dict.insert("profiling_name", entry.name);
  dict.insert("time_created_ns", entry.created_ns);
  if (entry.ended_ns != 0)
    dict.insert("duration_ms", static_cast<double>(entry.ended_ns - entry.started_ns) / 1e6);
  dict.insert("input_sizes", list_of(entry.input_sizes));
  dict.insert("input_dtypes", entry.input_types);
  dict.insert("output_sizes", list_of(entry.output_sizes));
  dict.insert("output_dtypes", entry.output_types);
  dict.insert("state", entry.ended_ns != 0 ? "completed" : entry.started_ns != 0 ? "started" : "scheduled");
  dict.insert("time_discovered_started_ns", time(entry.started_ns));
  dict.insert("time_discovered_completed_ns", time(entry.ended_ns));
  dict.insert("retired", entry.ended_ns != 0);
  dict.insert("timeout_ms", entry.timeout_ms);
  dict.insert("is_p2p", entry.message);
  dict.insert("frames", c10::List<c10::IValue>(c10::AnyType::get()));
  return dict;
}

std::string FlightRecorder::dump(bool only_active) {
  const std::lock_guard lock(mutex_);
  c10::List<c10::IValue> entries(c10::AnyType::get());
  const uint64_t size = entries_.size();
  for (uint64_t number = last_ > size ? last_ - size + 1 : 1; number <= last_; ++number) {
    const Entry* entry = find(number);
    if (entry != nullptr && !(only_active && entry->ended_ns != 0)) entries.push_back(entry_value(*entry));
  }
  Dict config = new_dict(), status = new_dict();
  int64_t id = 0;
  for (const auto& [name, group] : groups_) {
    Dict one = new_dict();
    one.insert("name", name);
    one.insert("desc", group.description);
    one.insert("ranks", text_of(group.ranks));
    config.insert(name, one);
    Dict last = new_dict();
    last.insert("last_enqueued_collective", group.issued);
    last.insert("last_started_collective", group.started);
    last.insert("last_completed_collective", group.ended);
    status.insert(std::to_string(id++), last);
  }
  Dict result = new_dict();
  result.insert("version", kVersion);
  result.insert("pg_config", config);
  result.insert("pg_status", status);
  result.insert("entries", entries);
  return pickled(result);
}

void FlightRecorder::dump_failure(int rank) {
  const std::string prefix = environment_text("TORCH_FR_DUMP_TEMP_FILE");
  {
    const std::lock_guard lock(mutex_);
    if (prefix.empty() || entries_.empty() || std::exchange(dumped_, true)) return;
  }
  const std::string bytes = dump();
  std::ofstream(prefix + std::to_string(rank), std::ios::binary)
      .write(bytes.data(), static_cast<int64_t>(bytes.size()));
}

}  // namespace collective_ops::pytorch
