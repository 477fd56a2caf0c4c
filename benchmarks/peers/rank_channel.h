// How a benchmark's rank takes orders: a line each way over a Unix socket, so that a rank that has nothing to
// do sleeps in read(2), whatever its library does while waiting. C, for programs in C and in C++.
//
//   rank      hello RANK PID
//   parent    case COLLECTIVE TYPE MEMORY BYTES    buffers are made and touched; one case per MEMORY is held
//   parent    check MEMORY                         one call on known values, compared
//   parent    run MEMORY CALLS                     a barrier, then that many calls; answer: ok SECONDS
//   parent    drop MEMORY                          buffers are freed
//   rank      ok NUMBER | error TEXT
//
// The parent's end closing is the order to leave.
#ifndef COLLECTIVE_OPS_BENCHMARKS_RANK_CHANNEL_H
#define COLLECTIVE_OPS_BENCHMARKS_RANK_CHANNEL_H

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

// Longest a command may take; the alarm's default action then ends the process.
enum { kChannelLimitSeconds = 300, kChannelLine = 512 };

static inline void channel_reply(int channel, const char* format, ...) {
  char line[kChannelLine];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof(line) - 1, format, arguments);
  va_end(arguments);
  if (length > (int)sizeof(line) - 2) length = (int)sizeof(line) - 2;
  line[length] = '\n';
  if (send(channel, line, (size_t)length + 1, MSG_NOSIGNAL) < 0) _exit(1);
}

// Connects and says hello. Negative where nobody listens at `path`.
static inline int channel_open(const char* path, int rank) {
  struct sockaddr_un address;
  memset(&address, 0, sizeof(address));
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int channel = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (channel < 0 || connect(channel, (const struct sockaddr*)&address, sizeof(address)) != 0) {
    fprintf(stderr, "rank %d: nobody listens at %s; the benchmark starts this program itself\n", rank, path);
    return -1;
  }
  channel_reply(channel, "hello %d %d", rank, (int)getpid());
  return channel;
}

// Next command without its newline, or 0 once the parent has closed. Until the next one the alarm runs.
static inline int channel_next(int channel, char line[kChannelLine]) {
  int length = 0;
  alarm(0);
  while (length < kChannelLine - 1) {
    const ssize_t got = read(channel, line + length, 1);
    if (got <= 0) return 0;
    if (line[length] == '\n') break;
    ++length;
  }
  line[length] = '\0';
  alarm(kChannelLimitSeconds);
  return 1;
}

#endif  // COLLECTIVE_OPS_BENCHMARKS_RANK_CHANNEL_H
