#include "plan/printer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace collective_ops {
namespace {

std::string_view name_of(Layout layout) {
  switch (layout) {
    case Layout::kSlices:
      return "a vector in n slices";
    case Layout::kOwn:
      return "one block";
    case Layout::kConcatenated:
      return "n blocks";
    case Layout::kByDestination:
      return "n blocks by destination";
    case Layout::kBySource:
      return "n blocks by source";
    case Layout::kNone:
      return "none";
  }
  return "?";
}

std::string text_of(const RankTerm& term) {
  constexpr std::string_view kBases[] = {"0", "me", "root", "q"};
  const std::string base(kBases[static_cast<int>(term.base)]);
  std::string text = base;
  if (term.offset != 0) text += fmt::format("{:+}", term.offset);
  if (term.step_factor == 1 || term.step_factor == -1) {
    text += term.step_factor > 0 ? "+step" : "-step";
  } else if (term.step_factor != 0) {
    text += fmt::format("{:+}*step", term.step_factor);
  }
  return text;
}

// The term as a person: "rank me+1", "the root".
std::string who(const RankTerm& term) {
  if (term.xor_step) {
    return term.base == RankTerm::Base::kRoot ? "my partner in the root's tree"
                                              : "my partner in rank 0's tree";
  }
  return term == kTheRoot ? "the root" : "rank " + text_of(term);
}

std::string text_of(const Ref& ref, const Plan& plan, bool of_all) {
  std::string text(name_of(ref.space));
  if (ref.space == Space::kScratch && plan.scratch.size() > 1) text += "." + plan.scratch[ref.region].name;
  if (!ref.whole) text += fmt::format("[{}]", text_of(ref.block));
  if (of_all && ref.owner.base == RankTerm::Base::kEach) {
    return text + " of ranks 0..n-1" + (ref.own_is_input ? ", mine from my input" : "");
  }
  if (ref.owner == kMyself) return "my " + text;
  return fmt::format("{} of {}", text, who(ref.owner));
}

std::string text_of(const std::vector<Ref>& refs, const Plan& plan, bool of_all) {
  std::vector<std::string> texts;
  for (const Ref& ref : refs) texts.push_back(text_of(ref, plan, of_all));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string action_of(const Statement& s, const Plan& plan) {
  const bool reduces = s.action == Action::kReduce;
  const std::string to = text_of(s.destinations, plan, reduces);
  const std::string from = text_of(s.sources, plan, reduces);
  switch (s.action) {
    case Action::kCopy:
      return fmt::format("copy {} <- {}", to, from);
    case Action::kReduce:
      return fmt::format("reduce {} <- {}", to, from);
    case Action::kArrive:
      return "arrive";
    case Action::kAwait:
      return fmt::format("await arrival of {}", who(s.peer));
    case Action::kSignal:
      return s.signal == 0 ? "signal" : fmt::format("signal {}", s.signal);
    case Action::kWait: {
      const std::string signal = s.signal == 0 ? "signal" : fmt::format("signal {}", s.signal);
      return fmt::format("wait for {} of {}", signal, who(s.peer));
    }
    case Action::kSend:
      return fmt::format("send {} to {}", from, who(s.peer));
    case Action::kReceive:
      return fmt::format("receive {} from {}", to, who(s.peer));
  }
  return "?";
}

std::string text_of(const Statement& s, const Plan& plan) {
  std::string text;
  if (s.guard == Guard::kRoot) text += "root: ";
  if (s.guard == Guard::kOthers) text += "others: ";
  if (s.only == Statement::Only::kChild) text += "child: ";
  if (s.only == Statement::Only::kParent) text += "parent: ";
  if (s.each == Each::kAll) text += "for all ranks q: ";
  if (s.each == Each::kOthers) text += "for all other ranks q: ";
  text += action_of(s, plan);
  if (s.lag > 0) text += fmt::format("  (of {} iteration{} before)", s.lag, s.lag == 1 ? "" : "s");
  return text;
}

std::string_view head_of(const Loop& loop) {
  switch (loop.over) {
    case Loop::Over::kOnce:
      return "once";
    case Loop::Over::kChunks:
      return "for each chunk";
    case Loop::Over::kSteps:
      break;
  }
  if (loop.steps == Loop::Steps::kRing) return loop.descending ? "for step n-2 .. 0" : "for step 0 .. n-2";
  return loop.descending ? "for step ceil(log2 n)-1 .. 0" : "for step 0 .. ceil(log2 n)-1";
}

std::string text_of(const ScratchRegion& region) {
  const std::string_view pieces = region.per_rank ? "n pieces" : "one piece";
  if (region.piece == ScratchRegion::Piece::kExtent) {
    return fmt::format("{} ({} of a whole extent)", region.name, pieces);
  }
  return fmt::format("{} ({} of {} chunk{})", region.name, pieces, region.depth,
                     region.depth == 1 ? "" : "s");
}

}  // namespace

std::string_view name_of(Space space) {
  switch (space) {
    case Space::kInput:
      return "input";
    case Space::kOutput:
      return "output";
    case Space::kScratch:
      return "scratch";
  }
  return "?";
}

std::string print(const Plan& plan) {
  std::string text = fmt::format("{} {}\n", name_of(plan.collective), plan.name);
  text += fmt::format("  input{}: {}; output{}: {}\n", plan.input_at_root ? " of the root" : "",
                      name_of(plan.input), plan.output_at_root ? " of the root" : "", name_of(plan.output));
  for (const ScratchRegion& region : plan.scratch) {
    text += fmt::format("  {}: {}\n", plan.eager ? "slot" : "scratch", text_of(region));
  }
  if (plan.reads_peer_input) {
    text += plan.reads_only_root_input ? "  peers see the root's input\n" : "  peers see all inputs\n";
  }
  if (plan.reads_peer_output) text += "  peers read all outputs\n";
  if (plan.writes_peer_output) {
    text += plan.writes_only_root_output ? "  peers see the root's output\n" : "  peers see all outputs\n";
  }
  if (!plan.rank_ordered) text += "  reduces partial results, not in the order of ranks\n";
  for (const Loop& loop : plan.loops) {
    text += fmt::format("{}:\n", head_of(loop));
    for (const Statement& statement : loop.body) text += fmt::format("  {}\n", text_of(statement, plan));
  }
  return text;
}

}  // namespace collective_ops
