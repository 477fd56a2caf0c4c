#include "report.h"

#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace collective_ops::perf {
namespace {

// As nccl-tests call them; int16 and uint16 it does not know.
std::string_view nccl_name(DataType type) {
  switch (type) {
    case DataType::kFloat16:
      return "half";
    case DataType::kFloat32:
      return "float";
    case DataType::kFloat64:
      return "double";
    default:
      return name_of(type);
  }
}

std::string nccl_time(double microseconds) {
  if (microseconds >= 10000) return fmt::format("{:7.0f}", microseconds);
  if (microseconds >= 100) return fmt::format("{:7.1f}", microseconds);
  return fmt::format("{:7.2f}", microseconds);
}

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return result + '"';
}

}  // namespace

double algorithm_bandwidth(size_t bytes, double microseconds) {
  return microseconds > 0 ? static_cast<double>(bytes) / microseconds * 1e-3 : 0.0;
}

double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case Collective::kAllReduce:
      return 2 * (n - 1) / n;
    case Collective::kBroadcast:
    case Collective::kReduce:
      return 1;
    default:
      return (n - 1) / n;
  }
}

// A broadcast has one buffer. hccl_test has two for all others.
bool measures_apart(Collective collective) { return collective != Collective::kBroadcast; }

bool measures_in_place(Format format, Collective collective) {
  if (collective == Collective::kBroadcast) return true;
  const bool possible = collective != Collective::kAllToAll && collective != Collective::kBarrier;
  return possible && format != Format::kHccl;
}

Report::Report(Options options, Machine machine)
    : options_(std::move(options)), machine_(std::move(machine)) {}

std::string Report::op_text() const {
  return reduces(options_.collective) ? std::string(name_of(options_.op)) : "none";
}

std::string Report::head() const {
  if (options_.format == Format::kJson) return "";
  if (options_.format == Format::kHccl) {
    std::string text;
    if (options_.op_given && !reduces(options_.collective)) {
      text =
          "Warning: The -o,--op <sum/prod/min/max> option does not take effect. Check the cmd parameter.\n";
    }
    return text +
           fmt::format(
               "the minbytes is {}, maxbytes is {}, iters is {}, warmup_iters is {}\n{:<15} | {:<12} | "
               "{:<18} | {}\n",
               options_.begin, options_.end, options_.iterations, options_.warmup,
               "data_size(Bytes):", "aveg_time(us):", "alg_bandwidth(GB/s):", "check_result:");
  }
  std::string text = fmt::format(
      "# nThread 1 nGpus 1 minBytes {} maxBytes {} step: {}({}) warmup iters: {} iters: {} agg iters: 1 "
      "validation: {} "
      "graph: 0\n#\n# Using devices\n",
      options_.begin, options_.end, options_.factor > 1 ? options_.factor : options_.step_bytes(),
      options_.factor > 1 ? "factor" : "bytes", options_.warmup, options_.iterations, options_.check ? 1 : 0);
  for (int rank = 0; rank < ranks(); ++rank) {
    text += fmt::format("#  Rank {:2} Group {:2} Pid {:6} on {:>10} device {:2} [0x00] {}\n", rank, 0,
                        machine_.processes[static_cast<size_t>(rank)],
                        machine_.hosts[static_cast<size_t>(rank)], rank, machine_.processor);
  }
  constexpr auto kColumns =
      "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}  {:>7}  {:>6}  {:>6} {:>6}  {:>7}  {:>6}  {:>6} {:>6}\n";
  text += fmt::format(
      "#\n# {:10}  {:12}  {:8}  {:6}  {:6}           out-of-place                       in-place          \n",
      "", "", "", "", "");
  text += fmt::format(kColumns, "size", "count", "type", "redop", "root", "time", "algbw", "busbw", "#wrong",
                      "time", "algbw", "busbw", "#wrong");
  return text + fmt::format(kColumns, "(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", "(us)",
                            "(GB/s)", "(GB/s)", "");
}

std::string Report::row(const Row& row) {
  for (const auto& measured : {row.apart, row.in_place}) {
    if (measured && measured->wrong.value_or(0) > 0) ++wrong_sizes_;
  }
  if (options_.format == Format::kHccl) return hccl_row(row);
  if (options_.format == Format::kNccl) return nccl_row(row);
  if (row.apart) json_.push_back(json_row(row, *row.apart, false));
  if (row.in_place) json_.push_back(json_row(row, *row.in_place, true));
  return "";
}

std::string Report::hccl_row(const Row& row) const {
  const Measurement measured = row.apart ? *row.apart : row.in_place.value_or(Measurement{});
  const char* result = !measured.wrong ? "NULL" : *measured.wrong == 0 ? "success" : "failed";
  return fmt::format("{:<17} | {:<14.2f} | {:<20.5f} | {}\n", row.bytes, measured.microseconds,
                     algorithm_bandwidth(row.moved_bytes, measured.microseconds), result);
}

std::string Report::nccl_row(const Row& row) {
  const bool rooted = has_root(options_.collective);
  std::string text = fmt::format("{:12}  {:12}  {:>8}  {:>6}  {:>6}", row.moved_bytes, row.count,
                                 nccl_name(options_.type), op_text(), rooted ? options_.root : -1);
  text += nccl_half(row, row.apart);
  return text + nccl_half(row, row.in_place) + "\n";
}

std::string Report::nccl_half(const Row& row, const std::optional<Measurement>& measured) {
  if (!measured) return fmt::format("  {:>7}  {:>6}  {:>6}  {:>5}", "N/A", "N/A", "N/A", "N/A");
  const double algorithm = algorithm_bandwidth(row.moved_bytes, measured->microseconds);
  const double bus = algorithm * bus_factor(options_.collective, ranks());
  bus_sum_ += bus;
  ++bus_count_;
  return fmt::format("  {}  {:6.2f}  {:6.2f}  {:>5}", nccl_time(measured->microseconds), algorithm, bus,
                     measured->wrong ? fmt::format("{:g}", static_cast<double>(*measured->wrong)) : "N/A");
}

std::string Report::json_row(const Row& row, const Measurement& measured, bool in_place) const {
  const double algorithm = algorithm_bandwidth(row.moved_bytes, measured.microseconds);
  return fmt::format(
      "{{\"bytes\": {}, \"count\": {}, \"in_place\": {}, \"time_us\": {:.3f}, \"algbw_gbs\": {:.6g}, "
      "\"busbw_gbs\": "
      "{:.6g}, \"wrong\": {}}}",
      row.moved_bytes, row.count, in_place, measured.microseconds, algorithm,
      algorithm * bus_factor(options_.collective, ranks()),
      measured.wrong ? fmt::to_string(*measured.wrong) : "null");
}

std::string Report::tail() {
  if (options_.format == Format::kHccl) return "";
  if (options_.format == Format::kNccl) {
    return fmt::format("# Out of bounds values : {} {}\n# Avg bus bandwidth    : {:g} \n#\n", wrong_sizes_,
                       wrong_sizes_ > 0 ? "FAILED" : "OK", bus_count_ > 0 ? bus_sum_ / bus_count_ : 0.0);
  }
  const std::set<std::string> hosts(machine_.hosts.begin(), machine_.hosts.end());
  return fmt::format(
      "{{\"collective\": {}, \"type\": {}, \"op\": {}, \"root\": {}, \"ranks\": {}, \"memory\": {}, "
      "\"iterations\": {}, "
      "\"warmup\": {}, \"host\": {}, \"processor\": {},\n \"rows\": [\n  {}]}}\n",
      quoted(name_of(options_.collective)), quoted(name_of(options_.type)), quoted(op_text()), options_.root,
      ranks(), options_.shared ? "\"shared\"" : "\"private\"", options_.iterations, options_.warmup,
      quoted(fmt::to_string(fmt::join(hosts, ", "))), quoted(machine_.processor), fmt::join(json_, ",\n  "));
}

}  // namespace collective_ops::perf
