#include "options.h"

#include <getopt.h>

#include <array>
#include <cctype>
#include <charconv>
#include <limits>

#include <fmt/format.h>

namespace collective_ops::perf {
namespace {

constexpr std::string_view kUsage = R"(usage: collective-ops perf COLLECTIVE [options]

Measures a collective between ranks, and checks its results. The ranks are started here (-p), or by collective-ops
run, torchrun, mpirun or srun, also on several hosts: each then runs this command.

COLLECTIVE is all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter, alltoall or barrier.

  -p, --npus N            ranks to start; under a launcher as many as it has started, in all or on each host, and may
                          be left out
  -b, --minbytes SIZE     smallest size, such as 8K, 64M or 1G (default 64M)
  -e, --maxbytes SIZE     largest size (default: 64M, or -b where that is larger)
  -i, --stepbytes SIZE    from one size to the next (default: a tenth of the range); 0 measures -b until Ctrl-C
  -f, --stepfactor N      instead: each size is N times the one before
  -o, --op OP             sum, prod, max or min (default sum)
  -r, --root RANK         (default 0)
  -d, --datatype TYPE     int8, int16, int32, int64, uint8, uint16, uint32, uint64, fp16, fp32, fp64 or bfp16
                          (default fp32)
  -n, --iters N           calls per size (default 20)
  -w, --warmup_iters N    calls before them (default 5)
  -c, --check 0|1         check the results (default 1)
  -z, --zero_copy 0|1     1: buffers that the ranks share, where nothing is copied twice; 0: private ones (default 1)
      --format FORMAT     hccl-test or nccl-tests (default hccl-test)
      --json              one JSON document
  -h, --help

A size is that of the whole vector: of all ranks' parts where the collective has parts. The time of a size is the mean
over its calls on the slowest rank.
exit code: 0; 1 where a result was wrong or a call failed; 2 where the command line cannot be used.
)";

Status invalid(std::string text) { return Status(ErrorCode::kInvalidArgument, std::move(text)); }

std::optional<size_t> size_from(std::string_view text) {
  size_t shift = 0;
  if (!text.empty()) {
    const char unit = text.back();
    shift = unit == 'k' || unit == 'K'   ? 10
            : unit == 'm' || unit == 'M' ? 20
            : unit == 'g' || unit == 'G' ? 30
                                         : 0;
  }
  if (shift > 0) text.remove_suffix(1);
  size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (value > (std::numeric_limits<size_t>::max() >> 1 >> shift)) return std::nullopt;
  return value << shift;
}

std::optional<int64_t> number_from(std::string_view text, int64_t low, int64_t high) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return std::nullopt;
  }
  return value;
}

struct Name {
  std::string_view given, ours;
};

// Names of hccl_test and nccl-tests.
constexpr std::array kTypes = {Name{"fp16", "float16"},   Name{"half", "float16"}, Name{"fp32", "float32"},
                               Name{"float", "float32"},  Name{"fp64", "float64"}, Name{"double", "float64"},
                               Name{"bfp16", "bfloat16"}, Name{"bf16", "bfloat16"}};

template <size_t n>
std::string_view ours(const std::array<Name, n>& names, std::string_view given) {
  for (const Name& name : names) {
    if (name.given == given) return name.ours;
  }
  return given;
}

// Letters alone: all_reduce, allreduce, all-reduce and AllReduce are one.
std::string letters_of(std::string_view name) {
  std::string letters;
  for (const char c : name) {
    if (c != '_' && c != '-') letters += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return letters;
}

std::optional<Collective> collective_named(std::string_view name) {
  for (const std::string_view suffix : {"_test", "_perf"}) {
    if (name.ends_with(suffix)) name.remove_suffix(suffix.size());
  }
  const std::string wanted = letters_of(name);
  for (int i = 0; i <= static_cast<int>(Collective::kAllToAll); ++i) {
    const auto collective = static_cast<Collective>(i);
    if (letters_of(name_of(collective)) == wanted) return collective;
  }
  return std::nullopt;
}

Status set_size(size_t& target, std::string_view option, std::string_view text) {
  const auto value = size_from(text);
  if (!value) return invalid(fmt::format("{} \"{}\": expected a size such as 8K, 64M or 1G", option, text));
  target = *value;
  return {};
}

template <typename T>
Status set_number(T& target, std::string_view option, std::string_view text, int64_t low, int64_t high) {
  const auto value = number_from(text, low, high);
  if (!value) {
    return invalid(fmt::format("{} \"{}\": expected a whole number from {} to {}", option, text, low, high));
  }
  target = static_cast<T>(*value);
  return {};
}

Status set_op(Options& options, std::string_view text) {
  const auto op = reduce_op_from(text);
  if (!op ||
      (*op != ReduceOp::kSum && *op != ReduceOp::kProd && *op != ReduceOp::kMax && *op != ReduceOp::kMin)) {
    return invalid(fmt::format("-o \"{}\": expected sum, prod, max or min", text));
  }
  options.op = *op;
  options.op_given = true;
  return {};
}

Status set_type(Options& options, std::string_view text) {
  const auto type = data_type_from(ours(kTypes, text));
  if (!type || *type > DataType::kFloat64) {
    return invalid(
        fmt::format("-d \"{}\": expected int8, int16, int32, int64, uint8, uint16, uint32, uint64, "
                    "fp16, fp32, fp64 or bfp16",
                    text));
  }
  options.type = *type;
  return {};
}

Status set_format(Options& options, std::string_view text) {
  if (text != "hccl-test" && text != "nccl-tests") {
    return invalid(fmt::format("--format \"{}\": expected hccl-test or nccl-tests", text));
  }
  options.format = text == "nccl-tests" ? Format::kNccl : Format::kHccl;
  return {};
}

constexpr int kFormatOption = 256;
constexpr int kJsonOption = 257;
constexpr int64_t kMost = 1'000'000'000;

Status apply(Options& options, int option, std::string_view text) {
  switch (option) {
    case 'p':
      return set_number(options.ranks, "-p", text, 1, 1024);
    case 'b':
      return set_size(options.begin, "-b", text);
    case 'e':
      return set_size(options.end, "-e", text);
    case 'i':
      return set_size(options.step.emplace(), "-i", text);
    case 'f':
      return set_number(options.factor, "-f", text, 2, kMost);
    case 'o':
      return set_op(options, text);
    case 'r':
      return set_number(options.root, "-r", text, 0, 1023);
    case 'd':
      return set_type(options, text);
    case 'n':
      return set_number(options.iterations, "-n", text, 1, kMost);
    case 'w':
      return set_number(options.warmup, "-w", text, 0, kMost);
    case 'c':
      return set_number(options.check, "-c", text, 0, 1);
    case 'z':
      return set_number(options.shared, "-z", text, 0, 1);
    case kFormatOption:
      return set_format(options, text);
    case kJsonOption:
      options.format = Format::kJson;
      return {};
    default:
      options.help = true;
      return {};
  }
}

constexpr std::array kLongOptions = {option{"npus", required_argument, nullptr, 'p'},
                                     option{"minbytes", required_argument, nullptr, 'b'},
                                     option{"maxbytes", required_argument, nullptr, 'e'},
                                     option{"stepbytes", required_argument, nullptr, 'i'},
                                     option{"stepfactor", required_argument, nullptr, 'f'},
                                     option{"op", required_argument, nullptr, 'o'},
                                     option{"root", required_argument, nullptr, 'r'},
                                     option{"datatype", required_argument, nullptr, 'd'},
                                     option{"iters", required_argument, nullptr, 'n'},
                                     option{"warmup_iters", required_argument, nullptr, 'w'},
                                     option{"check", required_argument, nullptr, 'c'},
                                     option{"zero_copy", required_argument, nullptr, 'z'},
                                     option{"format", required_argument, nullptr, kFormatOption},
                                     option{"json", no_argument, nullptr, kJsonOption},
                                     option{"help", no_argument, nullptr, 'h'},
                                     option{nullptr, 0, nullptr, 0}};

}  // namespace

std::string_view usage() { return kUsage; }

Result<Options> parse_options(int argc, char** argv) {
  Options options;
  bool end_given = false;
  optind = 0;  // getopt keeps its place between calls
  opterr = 0;
  int option = 0;
  while ((option = getopt_long(argc, argv, "p:b:e:i:f:o:r:d:n:w:c:z:h", kLongOptions.data(), nullptr)) !=
         -1) {
    if (option == '?') return invalid(fmt::format("{}: unknown, or without its value", argv[optind - 1]));
    if (Status status = apply(options, option, optarg != nullptr ? optarg : ""); !status.ok()) return status;
    end_given = end_given || option == 'e';
  }
  if (options.help) return options;
  if (argc - optind != 1) {
    return invalid(optind == argc ? "no collective is named"
                                  : fmt::format("{}: one too many", argv[optind + 1]));
  }
  const auto collective = collective_named(argv[optind]);
  if (!collective) {
    return invalid(
        fmt::format("\"{}\": expected all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, "
                    "scatter, alltoall or barrier",
                    argv[optind]));
  }
  options.collective = *collective;
  if (!end_given && options.end < options.begin) options.end = options.begin;
  if (options.begin > options.end) {
    return invalid(fmt::format("-b {} is more than -e {}", options.begin, options.end));
  }
  if (options.factor > 1 && options.begin == 0 && options.end > 0) {
    return invalid("-f multiplies, and cannot start from -b 0");
  }
  return options;
}

std::vector<size_t> sizes(const Options& options) {
  if (options.collective == Collective::kBarrier) return {0};
  if (options.repeats()) return {options.begin};
  std::vector<size_t> result;
  for (size_t size = options.begin; size <= options.end;) {
    result.push_back(size);
    const size_t next = options.factor > 1 ? size * options.factor : size + options.step_bytes();
    if (next <= size) break;
    size = next;
  }
  return result;
}

bool has_parts(Collective collective) {
  switch (collective) {
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
      return true;
    default:
      return false;
  }
}

size_t element_count(const Options& options, size_t bytes, int ranks) {
  const size_t item = size_of(options.type);
  const size_t elements = bytes / item + (bytes % item != 0);
  if (!has_parts(options.collective)) return elements;
  const auto n = static_cast<size_t>(ranks);
  return elements / n + (elements % n != 0);
}

}  // namespace collective_ops::perf
