"""A switch with slow lines, for tests and benchmarks: what netem does, where the kernel has none.

    python slow_link.py COUNT BITS_PER_SECOND DELAY_NS    in the network namespace that the lines begin in

Makes COUNT interfaces, line0 line1 ..., to be moved to the hosts, says "ready", and carries their frames
until its input ends. Each line takes so many bits per second into it and out of it, and a frame comes
DELAY_NS after it has left its line. What would wait long for its line is dropped, as in a router.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import select
import struct
import sys
import time

TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
TAP, NO_PACKET_INFORMATION, WITH_OFFLOADS = 0x2, 0x1000, 0x4000
CHECKSUM, SEGMENTS_OF_IPV4, SEGMENTS_OF_IPV6 = 0x1, 0x2, 0x4
HEADER = 10  # bytes before a frame: which of its sums the receiver's kernel has to make
MOST_BYTES = HEADER + (1 << 16) + 100
QUEUE_NS = 100_000_000
BROADCAST = 1  # the bit of an address's first byte


def open_line(number: int) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    flags = TAP | NO_PACKET_INFORMATION | WITH_OFFLOADS
    fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH22x", f"line{number}".encode(), flags))
    fcntl.ioctl(descriptor, TUNSETVNETHDRSZ, struct.pack("i", HEADER))
    fcntl.ioctl(descriptor, TUNSETOFFLOAD, CHECKSUM | SEGMENTS_OF_IPV4 | SEGMENTS_OF_IPV6)
    return descriptor


class Switch:
    def __init__(self, lines: list[int], bits_per_second: float, delay_ns: int) -> None:
        self.lines = lines
        self.ns_per_byte = 8e9 / bits_per_second
        self.delay_ns = delay_ns
        self.free_into = [0.0] * len(lines)  # when a host's line into the switch, and out of it, is free
        self.free_out = [0.0] * len(lines)
        self.places: dict[bytes, int] = {}
        self.waiting: list[tuple[float, int, int, bytes]] = []  # when, which, for which line, the frame
        self.number = 0

    def take(self, source: int, frame: bytes, now: float) -> None:
        target, sender = frame[HEADER : HEADER + 6], frame[HEADER + 6 : HEADER + 12]
        self.places[sender] = source
        known = self.places.get(target)
        others = [line for line in range(len(self.lines)) if line != source]
        length = (len(frame) - HEADER) * self.ns_per_byte
        into = max(now, self.free_into[source])
        if into - now > QUEUE_NS:
            return
        self.free_into[source] = into + length
        for line in [known] if known is not None and not target[0] & BROADCAST else others:
            # Bit by bit: it goes out while it still comes in.
            out = max(into, self.free_out[line])
            self.free_out[line] = out + length
            self.number += 1
            heapq.heappush(self.waiting, (out + length + self.delay_ns, self.number, line, frame))

    def hand_over(self, now: float) -> float | None:
        """Gives out the frames whose time has come; nanoseconds until the next one."""
        while self.waiting and self.waiting[0][0] <= now:
            _, _, line, frame = heapq.heappop(self.waiting)
            with contextlib.suppress(OSError):  # the interface is down
                os.write(self.lines[line], frame)
        return self.waiting[0][0] - now if self.waiting else None

    def carry(self, end: int) -> None:
        numbers = {descriptor: number for number, descriptor in enumerate(self.lines)}
        while True:
            left = self.hand_over(time.monotonic_ns())
            seconds = None if left is None else max(left, 0.0) / 1e9
            for descriptor in select.select([*self.lines, end], [], [], seconds)[0]:
                if descriptor == end:
                    return
                for _ in range(64):
                    try:
                        frame = os.read(descriptor, MOST_BYTES)
                    except OSError:
                        break
                    self.take(numbers[descriptor], frame, time.monotonic_ns())


def main() -> None:
    count, bits_per_second, delay_ns = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    switch = Switch([open_line(number) for number in range(count)], bits_per_second, delay_ns)
    # Its delay is to be that of the line, whatever else the machine does.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(2))
    print("ready", flush=True)
    switch.carry(sys.stdin.fileno())


if __name__ == "__main__":
    main()
