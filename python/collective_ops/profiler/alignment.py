"""Profiles of one run from several hosts onto one clock: what is estimated is written into each profile's
information, and all files that are made from then on are on the clock of the lowest rank's host."""

from __future__ import annotations

import json
from collections.abc import Iterable

from . import clocks, rawdata, runs


def align(profiles: Iterable[runs.Found]) -> tuple[list[runs.Found], list[str]]:
    """Of profiles that lie on this host; of each run that has several hosts. Returns those whose files are to
    be made anew, and what is to be told. Raises OSError where a profile cannot be written."""
    changed: list[runs.Found] = []
    told: list[str] = []
    by_run: dict[str, list[runs.Found]] = {}
    for profile in sorted(profiles, key=lambda profile: profile.rank):
        by_run.setdefault(profile.run, []).append(profile)
    for members in by_run.values():
        hosts = {profile.path: _host(profile) for profile in members}
        if len(set(hosts.values())) > 1:
            _align_run(members, [hosts[profile.path] for profile in members], changed, told)
    return changed, told


def _align_run(
    members: list[runs.Found], hosts: list[str], changed: list[runs.Found], told: list[str]
) -> None:
    calls = []
    for profile in members:
        try:
            calls.append(rawdata.calls_of(profile.path))
        except ValueError:  # told when its files are made
            calls.append([])
    found = clocks.align(list(zip(hosts, calls, strict=True)))
    for host in sorted(set(hosts) - {hosts[0]}):
        if host not in found:
            told.append(f"clock of host {host}: taken as it is, there are no calls by which to align it")
            continue
        clock = found[host]
        told.append(
            f"clock of host {host}: {clock.offset_ns / 1e6:+.3f} ms from that of {hosts[0]}, drift "
            f"{clock.drift * 1e6:+.1f} ppm, to {clock.error_ns / 1e3:.1f} us, by {clock.calls} calls"
        )
    for profile, host in zip(members, hosts, strict=True):
        path = next(profile.path.glob("profiler_info*.json"))
        info = runs.info_of(profile.path)
        known = found[host].as_dict() if host in found else None
        clock_host = hosts[0] if known else None  # the reference's own files stay as they came
        if (info[runs.MARK].get("clock"), info[runs.MARK].get("clock_host")) != (known, clock_host):
            info[runs.MARK] |= {"clock": known, "clock_host": clock_host}
            runs.write_whole(path, json.dumps(info, indent=1))
            changed.append(profile)


def _host(profile: runs.Found) -> str:
    return str(runs.info_of(profile.path).get(runs.MARK, {}).get("host", ""))
