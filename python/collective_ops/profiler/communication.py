"""communication.json and communication_matrix.json: what each call cost, per kind of link and per link. The
figures are what our communicator measured; docs/profiling.md says how the Ascend profiler's differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .model import Call, Peer, PlanStep, RankData, Step

_LINKS = ("RDMA", "HCCS", "PCIE", "SDMA", "SIO")
# From which size a packet counts as large. Where the Ascend profiler draws the line is not known; what it
# calls large and not large in published profiles lies on these sides.
_LARGE_MB = {"RDMA": 1.0, "HCCS": 32.0}


def milliseconds(ns: int) -> float:
    return ns / 1e6


def microseconds(ns: int) -> str:
    """Exact decimal text."""
    sign, ns = ("-", -ns) if ns < 0 else ("", ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def _ratio(part: float, other: float) -> float:
    return round(part / (part + other), 4) if part + other else 0


def waits(call: Call) -> tuple[int, int, int, int]:
    """(transit, wait, synchronization, idle) in ns; transit + wait + idle is the call's length.

    Idle is what no other part explains: all of a call that nobody measured, else nothing.
    """
    length = call.end - call.start
    if call.waited is None:
        return length, 0, 0, 0
    return call.moved, call.waited, call.longest_wait, length - call.moved - call.waited


# How the Ascend profiler calls what a plan's step does.
TASKS = {"wait": "Notify_Wait", "reduce": "Reduce_Inline"}
TASKS |= dict.fromkeys(("copy", "send", "receive"), "Memcpy")


def tasks_of(call: Call) -> list[PlanStep]:
    """What the rank did in the call. Where the steps of its plan were not recorded: for each peer its waiting
    and its moving, whose order is not known; the wait comes first."""
    if call.steps:
        return call.steps
    tasks = []
    move = "reduce" if "educe" in call.kind else "copy"
    for peer in call.peers:
        wait_end = min(call.start + peer.waited, call.end)
        move_end = min(wait_end + peer.moved, call.end)
        tasks.append(PlanStep("wait", peer.rank, call.start, wait_end - call.start, 0))
        tasks.append(PlanStep(move, peer.rank, wait_end, move_end - wait_end, peer.read + peer.written))
    return [task for task in tasks if task.length > 0]


def _time_info(start: str, parts: tuple[int, int, int, int], elapse: int) -> dict[str, Any]:
    transit, wait, synchronization, idle = parts
    return {
        "Start Timestamp(us)": float(start),
        "Elapse Time(ms)": milliseconds(elapse),
        "Transit Time(ms)": milliseconds(transit),
        "Wait Time(ms)": milliseconds(wait),
        "Synchronization Time(ms)": milliseconds(synchronization),
        "Idle Time(ms)": milliseconds(idle),
        "Wait Time Ratio": _ratio(wait, transit),
        "Synchronization Time Ratio": _ratio(synchronization, transit),
    }


def _empty_links() -> dict[str, dict[str, Any]]:
    return {
        link: {
            "Transit Size(MB)": 0.0,
            "Transit Time(ms)": 0.0,
            "Bandwidth(GB/s)": 0.0,
            "Large Packet Ratio": 0.0,
            "Size Distribution": {},
        }
        for link in _LINKS
    }


def _traffic(data: RankData, call: Call) -> Iterator[tuple[str, Peer]]:
    for peer in call.peers:
        if peer.read or peer.written:
            yield data.transport(peer.rank), peer


def _bandwidth_info(data: RankData, calls: list[Call]) -> dict[str, dict[str, Any]]:
    links = _empty_links()
    large = dict.fromkeys(_LINKS, 0.0)
    for call in calls:
        for link, peer in _traffic(data, call):
            if link == "LOCAL":
                continue
            megabytes, time = (peer.read + peer.written) / 1e6, milliseconds(peer.moved)
            row = links[link]
            row["Transit Size(MB)"] += megabytes
            row["Transit Time(ms)"] += time
            packet = row["Size Distribution"].setdefault(str(megabytes), [0, 0.0])
            packet[0] += 1
            packet[1] += time
            if megabytes >= _LARGE_MB[link]:
                large[link] += megabytes
    inside = links["HCCS"]
    for name in ("Transit Size(MB)", "Transit Time(ms)"):
        links["SDMA"][name] = inside[name]
    for link, row in links.items():
        if row["Transit Time(ms)"]:
            row["Bandwidth(GB/s)"] = round(row["Transit Size(MB)"] / row["Transit Time(ms)"], 4)
        if row["Transit Size(MB)"] and link in _LARGE_MB:
            row["Large Packet Ratio"] = round(large[link] / row["Transit Size(MB)"], 4)
    return links


def times_of_step(data: RankData, step: Step) -> dict[str, dict[str, Any]]:
    """`p2p` and `collective`, each operator by its name and group, and their sums."""
    result: dict[str, dict[str, Any]] = {"p2p": {}, "collective": {}}
    by_kind: dict[str, list[Call]] = {"p2p": [], "collective": []}
    for call in step.own_calls():
        part = "p2p" if call.point_to_point else "collective"
        by_kind[part].append(call)
        key = key_of(data, call, result[part])
        result[part][key] = {
            "Communication Time Info": _time_info(
                microseconds(call.start), waits(call), call.end - call.start
            ),
            "Communication Bandwidth Info": _bandwidth_info(data, [call]),
        }
    for part, calls in by_kind.items():
        if not calls:
            continue
        sums = tuple(sum(values) for values in zip(*(waits(call) for call in calls), strict=True))
        result[part]["Total Op Info"] = {
            "Communication Time Info": _time_info("0", sums, sum(call.end - call.start for call in calls)),  # type: ignore[arg-type]
            "Communication Bandwidth Info": _bandwidth_info(data, calls),
        }
    return result


def key_of(data: RankData, call: Call, taken: dict[str, Any]) -> str:
    """`<operator>@<group>`; a number more where two calls of one step would be called the same."""
    hash_text = data.groups[call.group].hash if call.group in data.groups else ""
    name = call.name(hash_text)
    key = f"{name}@{hash_text}"
    number = 2
    while key in taken:
        key = f"{name[: name.rindex('_')]}_{number}@{hash_text}"
        number += 1
    return key


def matrix_of_step(data: RankData, step: Step) -> dict[str, dict[str, Any]]:
    """Per operator and link (ranks of the group): fastest, middle, the slowest three, and all together."""
    result: dict[str, dict[str, Any]] = {"p2p": {}, "collective": {}}
    collected: dict[tuple[str, str], dict[str, list[dict[str, Any]]]] = {}
    taken: dict[str, Any] = {}
    for call in step.own_calls():
        key = key_of(data, call, taken)
        taken[key] = True
        links = _links_of(data, call, key)
        if call.point_to_point:
            if links:
                result["p2p"][key] = links
            continue
        hash_text = key.rpartition("@")[2]
        for link, row in links.items():
            collected.setdefault((call.kind.lower(), hash_text), {}).setdefault(link, []).append(row)
    for (kind, hash_text), links_of_kind in collected.items():
        for link, rows in links_of_kind.items():
            rows.sort(key=lambda row: -row["Bandwidth(GB/s)"])
            for which, row in _chosen(rows):
                result["collective"].setdefault(f"{kind}-{which}@{hash_text}", {})[link] = row
    return result


def _links_of(data: RankData, call: Call, key: str) -> dict[str, dict[str, Any]]:
    """Of one call: bytes read came from the peer, bytes written went to it."""
    group = data.groups.get(call.group)
    own = group.local(data.rank) if group else data.rank
    links: dict[str, dict[str, Any]] = {}
    for transport, peer in _traffic(data, call):
        other = group.local(peer.rank) if group else peer.rank
        total = peer.read + peer.written
        for size, link in ((peer.read, f"{other}-{own}"), (peer.written, f"{own}-{other}")):
            if not size:
                continue
            megabytes, time = size / 1e6, milliseconds(peer.moved) * size / total
            row = links.setdefault(
                link,
                {"Transport Type": transport, "Transit Size(MB)": 0.0, "Transit Time(ms)": 0.0},
            )
            row["Transit Size(MB)"] += megabytes
            row["Transit Time(ms)"] += time
    if not call.point_to_point:
        # The existing tools take the group's ranks from links of a rank to itself. Nobody measured those.
        own_link = {"Transport Type": "LOCAL", "Transit Size(MB)": 0.0, "Transit Time(ms)": 0.0}
        links[f"{own}-{own}"] = own_link
    for row in links.values():
        row["Bandwidth(GB/s)"] = _speed(row)
        row["Op Name"] = key
    return links


def _speed(row: dict[str, Any]) -> float:
    time = row["Transit Time(ms)"]
    return round(row["Transit Size(MB)"] / time, 4) if time else 0.0


def _chosen(rows: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """`rows` are one link's, the fastest first."""
    yield "top1", rows[0]
    yield "middle", rows[len(rows) // 2]
    for number, row in enumerate(reversed(rows[-3:]), 1):
        yield f"bottom{number}", row
    total = {
        "Transport Type": rows[0]["Transport Type"],
        "Transit Size(MB)": sum(row["Transit Size(MB)"] for row in rows),
        "Transit Time(ms)": sum(row["Transit Time(ms)"] for row in rows),
    }
    yield "total", {**total, "Bandwidth(GB/s)": _speed(total)}


def by_step(data: RankData, of_step: Callable[[RankData, Step], Any]) -> dict[str, Any]:
    return {f"step{step.number}": of_step(data, step) for step in data.steps}
