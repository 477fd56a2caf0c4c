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

// factor * what, as a term of a sum; "" for none of it.
std::string times(int factor, std::string_view what) {
  if (factor == 0) return "";
  if (factor == 1 || factor == -1) return fmt::format("{}{}", factor > 0 ? "+" : "-", what);
  return fmt::format("{:+}*{}", factor, what);
}

std::string_view name_of(RankTerm::Base base) {
  constexpr std::string_view kBases[] = {"0", "me", "root", "q", "parent", "left child", "right child"};
  return kBases[static_cast<int>(base)];
}

std::string text_of(const RankTerm& term) {
  std::string base(name_of(term.base));
  if (term.xor_step) base = "partner";
  if (term.base >= RankTerm::Base::kParent) base += fmt::format(" in tree {}", term.tree);
  if (term.offset != 0) base += fmt::format("{:+}", term.offset);
  base += times(term.step_factor, "step") + times(term.power, "2^step") + times(term.distance, "d") +
          times(term.low_bits, "(d mod 2^step)");
  // Without a 0 before what is positive.
  return base.starts_with("0+") ? base.substr(2) : base;
}

// The term as a person: "rank me+1", "the root".
std::string who(const RankTerm& term) {
  if (term.xor_step) {
    return term.base == RankTerm::Base::kRoot ? "my partner in the root's tree"
                                              : "my partner in rank 0's tree";
  }
  if (term.base >= RankTerm::Base::kParent) return "my " + text_of(term);
  return term == kTheRoot ? "the root" : "rank " + text_of(term);
}

std::string text_of(const Ref& ref, const Plan& plan, bool of_all, bool is_source) {
  std::string text(name_of(ref.space));
  if (ref.space == Space::kScratch && plan.scratch.size() > 1) text += "." + plan.scratch[ref.region].name;
  if (ref.half > 0) text += ref.half == 1 ? "[first half]" : "[second half]";
  const bool in_piles =
      ref.space == Space::kScratch && plan.scratch[ref.region].piece == ScratchRegion::Piece::kPiles;
  if (in_piles) {
    text +=
        fmt::format("[pile {}: from {} for {}]", text_of(ref.pile), text_of(ref.sender), text_of(ref.block));
  } else if (!ref.whole) {
    text += fmt::format("[{}]", text_of(ref.block));
  }
  if (of_all && ref.owner.base == RankTerm::Base::kEach) {
    const std::string_view mine = is_source ? ", mine from my input" : ", mine to my output";
    return fmt::format("{} of ranks 0..n-1{}", text, ref.own_is_callers ? mine : "");
  }
  if (ref.owner == kMyself) return "my " + text;
  return fmt::format("{} of {}", text, who(ref.owner));
}

std::string text_of(const std::vector<Ref>& refs, const Plan& plan, bool of_all, bool are_sources) {
  std::vector<std::string> texts;
  for (const Ref& ref : refs) texts.push_back(text_of(ref, plan, of_all, are_sources));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string action_of(const Statement& s, const Plan& plan) {
  const bool reduces = s.action == Action::kReduce;
  const std::string to = text_of(s.destinations, plan, reduces, false);
  const std::string from = text_of(s.sources, plan, reduces, true);
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

std::string_view each_of(Each each) {
  switch (each) {
    case Each::kNone:
      return "";
    case Each::kAll:
      return "for all ranks q: ";
    case Each::kOthers:
      return "for all other ranks q: ";
    case Each::kMyShare:
      return "for ranks q of my share: ";
    case Each::kPartnersShare:
      return "for ranks q of my partner's share: ";
    case Each::kDistances:
      return "for distances d = 1 .. n-1: ";
    case Each::kLowestBit:
      return "for distances d with lowest bit 2^step: ";
    case Each::kHighestBit:
      return "for distances d with highest bit 2^step: ";
    case Each::kBit:
      return "for distances d with bit 2^step: ";
    case Each::kSubtree:
      return "for ranks below, at distances d = 0 .. 2^step-1: ";
  }
  return "?";
}

std::string text_of(const Statement& s, const Plan& plan) {
  std::string text;
  if (s.guard == Guard::kRoot) text += "root: ";
  if (s.guard == Guard::kOthers) text += "others: ";
  if (s.only == Statement::Only::kChild) text += "child: ";
  if (s.only == Statement::Only::kParent) text += "parent: ";
  if (s.only == Statement::Only::kUpper) text += "upper: ";
  if (s.only == Statement::Only::kLower) text += "lower: ";
  text += each_of(s.each);
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
  if (loop.steps == Loop::Steps::kFold) return "for step log2 p, where p < n";
  if (loop.steps == Loop::Steps::kDoubling) {
    return loop.descending ? "ranks below p, for step log2(p)-1 .. 0"
                           : "ranks below p, for step 0 .. log2(p)-1";
  }
  if (loop.steps == Loop::Steps::kRing) return loop.descending ? "for step n-2 .. 0" : "for step 0 .. n-2";
  return loop.descending ? "for step ceil(log2 n)-1 .. 0" : "for step 0 .. ceil(log2 n)-1";
}

std::string text_of(const ScratchRegion& region) {
  if (region.piece == ScratchRegion::Piece::kPiles) return region.name + " (n piles of any block)";
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
