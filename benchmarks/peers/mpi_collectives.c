// Times one MPI's collectives for allreduce_benchmark.py, which starts it by that MPI's mpiexec:
//   mpiexec -n RANKS mpi_collectives SOCKET
// Orders come over SOCKET (rank_channel.h). The work is what our own ranks do: in place wherever MPI has
// that, root 0, sum. `make bench-peers` compiles it once for each MPI.
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>

#include "rank_channel.h"

enum Kind {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kBarrier
};
static const char* const kKinds[] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce",
                                     "gather",     "scatter",    "all_to_all",     "barrier"};
enum { kKindCount = sizeof(kKinds) / sizeof(kKinds[0]), kAlignment = 64 };
static const char* const kTypes[] = {"float32", "float64", "int32", "int64"};
enum { kTypeCount = sizeof(kTypes) / sizeof(kTypes[0]) };

static int rank, ranks;

struct Case {
  enum Kind kind;
  int type;
  size_t size;   // of an element
  size_t total;  // elements of the whole vector
  size_t part;   // elements of one rank's part
  void* data;    // the whole; of gather and scatter the part, but on the root
  void* other;   // all_to_all receives here
};

static MPI_Datatype datatype(int type) {
  const MPI_Datatype types[] = {MPI_FLOAT, MPI_DOUBLE, MPI_INT32_T, MPI_INT64_T};
  return types[type];
}

static void store(const struct Case* c, void* buffer, size_t at, int64_t value) {
  if (c->type == 0) ((float*)buffer)[at] = (float)value;
  if (c->type == 1) ((double*)buffer)[at] = (double)value;
  if (c->type == 2) ((int32_t*)buffer)[at] = (int32_t)value;
  if (c->type == 3) ((int64_t*)buffer)[at] = value;
}

static int64_t load(const struct Case* c, const void* buffer, size_t at) {
  if (c->type == 0) return (int64_t)((const float*)buffer)[at];
  if (c->type == 1) return (int64_t)((const double*)buffer)[at];
  if (c->type == 2) return ((const int32_t*)buffer)[at];
  return ((const int64_t*)buffer)[at];
}

// What rank r's element i is before a check; small, so that every type holds the sums.
static int64_t value(int r, size_t i) { return (int64_t)(i % 7) + r + 1; }
static int64_t sum(size_t i) { return ranks * (int64_t)(i % 7 + 1) + ranks * (ranks - 1) / 2; }

static int holds_whole(const struct Case* c) {
  return rank == 0 || (c->kind != kGather && c->kind != kScatter);
}

static void drop(struct Case* c) {
  free(c->data);
  free(c->other);
  c->data = c->other = NULL;
}

static const char* prepare(struct Case* c, const char* line) {
  char kind[32], type[32], memory[32];
  size_t bytes = 0;
  drop(c);
  if (sscanf(line, "case %31s %31s %31s %zu", kind, type, memory, &bytes) != 4) return "not understood";
  int k = 0;
  while (k < kKindCount && strcmp(kKinds[k], kind) != 0) ++k;
  c->type = 0;
  while (c->type < kTypeCount && strcmp(kTypes[c->type], type) != 0) ++c->type;
  if (k == kKindCount || c->type == kTypeCount) return "no such collective or type here";
  c->kind = (enum Kind)k;
  c->size = c->type % 2 == 0 ? 4 : 8;
  c->total = bytes / c->size;
  c->part = c->total / (size_t)ranks;
  const size_t held = ((holds_whole(c) ? c->total : c->part) * c->size / kAlignment + 1) * kAlignment;
  c->data = aligned_alloc(kAlignment, held);
  c->other = aligned_alloc(kAlignment, c->kind == kAllToAll ? held : kAlignment);
  if (c->data == NULL || c->other == NULL) return "no memory";
  memset(c->data, 0, held);
  memset(c->other, 0, c->kind == kAllToAll ? held : kAlignment);
  return NULL;
}

static void call(const struct Case* c) {
  const MPI_Datatype type = datatype(c->type);
  const int total = (int)c->total, part = (int)c->part;
  void* in_place = MPI_IN_PLACE;
  switch (c->kind) {
    case kAllReduce:
      MPI_Allreduce(in_place, c->data, total, type, MPI_SUM, MPI_COMM_WORLD);
      break;
    case kAllGather:
      MPI_Allgather(in_place, 0, type, c->data, part, type, MPI_COMM_WORLD);
      break;
    case kReduceScatter:
      MPI_Reduce_scatter_block(in_place, c->data, part, type, MPI_SUM, MPI_COMM_WORLD);
      break;
    case kBroadcast:
      MPI_Bcast(c->data, total, type, 0, MPI_COMM_WORLD);
      break;
    case kReduce:
      MPI_Reduce(rank == 0 ? in_place : c->data, c->data, total, type, MPI_SUM, 0, MPI_COMM_WORLD);
      break;
    case kGather:
      MPI_Gather(rank == 0 ? in_place : c->data, part, type, c->data, part, type, 0, MPI_COMM_WORLD);
      break;
    case kScatter:
      MPI_Scatter(c->data, part, type, rank == 0 ? in_place : c->data, part, type, 0, MPI_COMM_WORLD);
      break;
    case kAllToAll:
      MPI_Alltoall(c->data, part, type, c->other, part, type, MPI_COMM_WORLD);
      break;
    case kBarrier:
      MPI_Barrier(MPI_COMM_WORLD);
      break;
  }
}

static void fill(const struct Case* c) {
  const size_t held = holds_whole(c) ? c->total : c->part;
  for (size_t i = 0; i < held; ++i) {
    const size_t owner = c->part == 0 ? 0 : i / c->part;
    int64_t v = value(rank, i);
    if (c->kind == kAllGather || (c->kind == kGather && rank == 0)) {
      v = owner == (size_t)rank ? value(rank, i % c->part) : 0;
    }
    if (c->kind == kScatter && rank == 0) v = value((int)owner, i % c->part);
    if (c->kind == kScatter && rank != 0) v = 0;
    if (c->kind == kBroadcast && rank != 0) v = 0;
    store(c, c->data, i, v);
  }
}

// Elements of the result that are wrong.
static size_t wrong(const struct Case* c) {
  const int everywhere =
      c->kind == kAllReduce || c->kind == kAllGather || c->kind == kBroadcast || c->kind == kAllToAll;
  const int one_part = c->kind == kReduceScatter || c->kind == kScatter;
  if (c->kind == kBarrier || (!everywhere && !one_part && rank != 0)) return 0;
  size_t count = 0;
  for (size_t i = 0; i < (one_part ? c->part : c->total); ++i) {
    int64_t expected = 0;
    switch (c->kind) {
      case kAllReduce:
      case kReduce:
        expected = sum(i);
        break;
      case kReduceScatter:
        expected = sum((size_t)rank * c->part + i);
        break;
      case kBroadcast:
        expected = value(0, i);
        break;
      case kAllToAll:
        expected = value((int)(i / c->part), (size_t)rank * c->part + i % c->part);
        break;
      case kScatter:
        expected = value(rank, i);
        break;
      default:
        expected = value((int)(i / c->part), i % c->part);
        break;
    }
    count += load(c, c->kind == kAllToAll ? c->other : c->data, i) != expected;
  }
  return count;
}

static void check(struct Case* c, int channel) {
  fill(c);
  call(c);
  const size_t count = wrong(c);
  memset(c->data, 0, (holds_whole(c) ? c->total : c->part) * c->size);
  if (count == 0) {
    channel_reply(channel, "ok 0");
  } else {
    channel_reply(channel, "error %s: %zu wrong elements", kKinds[c->kind], count);
  }
}

static double run(const struct Case* c, long calls) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double begin = MPI_Wtime();
  for (long i = 0; i < calls; ++i) call(c);
  return MPI_Wtime() - begin;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int channel = argc == 2 ? channel_open(argv[1], rank) : -1;
  if (channel < 0) MPI_Abort(MPI_COMM_WORLD, 2);
  struct Case c;
  memset(&c, 0, sizeof(c));
  char line[kChannelLine];
  while (channel_next(channel, line)) {
    long calls = 0;
    if (strncmp(line, "case ", 5) == 0) {
      const char* problem = prepare(&c, line);
      channel_reply(channel, problem == NULL ? "ok 0" : "error %s", problem);
    } else if (strncmp(line, "check ", 6) == 0 && c.data != NULL) {
      check(&c, channel);
    } else if (sscanf(line, "run %*31s %ld", &calls) == 1 && c.data != NULL) {
      channel_reply(channel, "ok %.9f", run(&c, calls));
    } else if (strncmp(line, "drop ", 5) == 0) {
      drop(&c);
      channel_reply(channel, "ok 0");
    } else {
      channel_reply(channel, "error not understood: %.100s", line);
    }
  }
  // The parent has closed: the other ranks leave too, but one that died must not hold this one up.
  alarm(10);
  MPI_Finalize();
  return 0;
}
