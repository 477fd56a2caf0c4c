#include "analysis/readers/flight_recorder.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "analysis/readers/json_scanner.h"

namespace collective_ops {
namespace {

// One entry as it stands in the dump.
struct Entry {
  std::string_view name, group, description, state, type;
  int64_t created = 0, started = 0, completed = 0;
  int64_t sequence = -1, elements = -1;
  bool message = false;
};

// The first string of a list, or the string itself.
std::string_view first_text(JsonScanner* scanner, std::string_view* second = nullptr) {
  std::string_view first, text;
  if (scanner->peek() != '[') {
    if (scanner->peek() == '{' || !scanner->scalar(&first)) scanner->skip();
    return first;
  }
  scanner->enter('[');
  for (int i = 0; scanner->next_element(); ++i) {
    if (scanner->peek() == '[' || scanner->peek() == '{') {
      scanner->skip();
    } else if (scanner->scalar(&text)) {
      if (i == 0) first = text;
      if (i == 1 && second != nullptr) *second = text;
    }
  }
  return first;
}

// Elements of all tensors: [[2, 3], [4]] -> 10.
int64_t elements_of(JsonScanner* scanner) {
  if (scanner->peek() != '[') {
    scanner->skip();
    return -1;
  }
  int64_t sum = 0;
  scanner->enter('[');
  while (scanner->next_element()) {
    if (scanner->peek() != '[') {
      scanner->skip();
      continue;
    }
    int64_t product = 1;
    scanner->enter('[');
    while (scanner->next_element()) {
      if (__builtin_mul_overflow(product, scanner->integer(), &product)) product = 0;
    }
    if (__builtin_add_overflow(sum, product, &sum)) sum = 0;
  }
  return sum;
}

bool read_entry(JsonScanner* scanner, Entry* entry) {
  *entry = {};
  int64_t collective = -1, message = -1;
  std::string_view key, text;
  if (!scanner->enter('{')) return false;
  while (scanner->next_key(&key)) {
    if (key == "profiling_name") {
      entry->name = first_text(scanner);
    } else if (key == "process_group") {
      entry->group = first_text(scanner, &entry->description);
    } else if (key == "state") {
      entry->state = first_text(scanner);
    } else if (key == "input_dtypes") {
      entry->type = first_text(scanner);
    } else if (key == "time_created_ns") {
      entry->created = scanner->integer();
    } else if (key == "time_discovered_started_ns") {
      entry->started = scanner->integer();
    } else if (key == "time_discovered_completed_ns") {
      entry->completed = scanner->integer();
    } else if (key == "collective_seq_id") {
      collective = scanner->integer();
    } else if (key == "p2p_seq_id") {
      message = scanner->integer();
    } else if (key == "is_p2p") {
      if (scanner->scalar(&text)) entry->message = text == "true" || text == "True" || text == "1";
    } else if (key == "input_sizes" || key == "output_sizes") {
      entry->elements = std::max(entry->elements, elements_of(scanner));
    } else {
      scanner->skip();
    }
  }
  entry->sequence = entry->message ? message : collective;
  return scanner->good();
}

// "nccl:send 1->2", "nccl:recv 3<-0": the other rank, numbered within the group.
int peer_in(std::string_view name) {
  const size_t arrow = std::min(name.find("->"), name.find("<-"));
  int peer = -1;
  if (arrow != std::string_view::npos) {
    std::from_chars(name.data() + arrow + 2, name.data() + name.size(), peer);
  }
  return peer;
}

ProfiledCall call_of(const Entry& entry, RankProfile* profile) {
  ProfiledCall call;
  const std::string name = unescaped(entry.name.substr(0, entry.name.find(' ')));
  const size_t colon = name.find(':');  // nccl:all_reduce
  const std::string_view collective =
      std::string_view(name).substr(colon == std::string::npos ? 0 : colon + 1);
  call.collective = profile->names.intern(collective);
  call.group = profile->names.intern(unescaped(entry.group));
  if (!entry.type.empty()) call.type = profile->names.intern(unescaped(entry.type));
  call.elements = entry.elements;
  call.sequence = entry.sequence;
  call.point_to_point = entry.message || collective == "send" || collective == "recv";
  call.sends = collective == "send";
  call.start_ns = entry.started > 0 ? entry.started : entry.created;
  call.end_ns = std::max(call.start_ns, entry.completed);
  if (entry.state != "completed") {
    call.state = entry.state == "started" ? CallState::kStarted : CallState::kScheduled;
  }
  if (call.point_to_point) {
    const int local = peer_in(entry.name);
    const auto known =
        std::find_if(profile->groups.begin(), profile->groups.end(),
                     [&](const ProfiledGroup& group) { return group.hash == profile->names[call.group]; });
    const bool member =
        local >= 0 && known != profile->groups.end() && local < static_cast<int>(known->ranks.size());
    call.peer = member ? known->ranks[static_cast<size_t>(local)] : local;
  }
  return call;
}

// {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
void read_groups(JsonScanner* scanner, RankProfile* profile) {
  std::string_view name, key, text;
  if (scanner->peek() != '{' || !scanner->enter('{')) {
    scanner->skip();
    return;
  }
  while (scanner->next_key(&name)) {
    ProfiledGroup group{unescaped(name), "", "", {}};
    if (!scanner->enter('{')) return;
    while (scanner->next_key(&key)) {
      if (key == "desc" && scanner->peek() == '"') {
        if (scanner->string(&text)) group.description = unescaped(text);
      } else if (key == "ranks") {
        group.ranks = rank_list(scanner);
      } else {
        scanner->skip();
      }
    }
    profile->groups.push_back(std::move(group));
  }
}

}  // namespace

Result<RankProfile> read_flight_recorder(std::string_view text, int rank) {
  RankProfile profile;
  profile.rank = rank;
  profile.format = "flight_recorder";
  profile.on_host = true;  // times are those at which a watchdog noticed
  profile.bytes = text.size();
  JsonScanner scanner(text);
  std::string_view key, entries;
  if (!scanner.enter('{')) return Status(ErrorCode::kInvalidArgument, "it is no dump of a flight recorder");
  size_t begin = 0;
  while (scanner.next_key(&key)) {
    if (key == "pg_config") {
      read_groups(&scanner, &profile);
    } else if (key == "entries" && scanner.peek() == '[') {
      begin = scanner.position();
      if (!scanner.skip()) break;
    } else {
      scanner.skip();
    }
  }
  if (begin == 0) return Status(ErrorCode::kInvalidArgument, "it has no entries of a flight recorder");
  const bool whole = scanner.good();
  scanner.seek(begin);
  scanner.enter('[');
  Entry entry;
  while (scanner.next_element() && read_entry(&scanner, &entry)) {
    ++profile.events;
    if (!entry.name.empty()) profile.calls.push_back(call_of(entry, &profile));
  }
  if (!whole) {
    profile.notes.push_back(
        fmt::format("broken or cut off at byte {} of its text; what precedes is used", scanner.position()));
  }
  for (const ProfiledGroup& group : profile.groups) {
    if (group.description == "default_pg" && !group.ranks.empty()) {
      profile.world_size = group.ranks.back() + 1;
    }
  }
  std::stable_sort(profile.calls.begin(), profile.calls.end(),
                   [](const ProfiledCall& a, const ProfiledCall& b) { return a.start_ns < b.start_ns; });
  return profile;
}

}  // namespace collective_ops
