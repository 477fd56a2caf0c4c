"""Recording: `with profile(args) as profiler: ... profiler.step()`.

One recorded step is one window of torch.profiler, written to disk when the step ends: memory is bounded by a
step, and what a job recorded before it died is there. Whatever fails here is reported once; training goes on.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import about, rawdata, recorder, runs
from .arguments import ProfileConfig, check_ranks, check_writable, config_of
from .entries import Chunk
from .recorder import CallReader

_log = logging.getLogger("collective_ops.profiler")
_SKIP_EVERY = 32  # steps between two looks at the recorder while nothing is recorded


def profile(
    args: Any,
    *,
    first_step: int = 0,
    distributed_args: dict[str, Any] | None = None,
    worker_name: str = "",
) -> Profiler:
    """A context that records the steps and ranks that `args` select.

    Args:
        args: what a parser with `add_profile_args` gave, a ProfileConfig, or any object with such attributes.
        first_step: number of the step that begins with the context (a resumed run's).
        distributed_args: sizes of the parallelism for the metadata; default: those that `args` holds.
        worker_name: begin of the directory's name; default: host and process id.

    Raises ValueError at once where a value cannot be: end before start, no such rank, an unwritable path.
    """
    config = config_of(args)
    rank, world_size = _rank_and_world()
    if config.enable_profiling:
        warning = check_ranks(config, world_size)
        if warning and rank == 0:
            _log.warning("%s", warning)
        if config.step_end is not None and first_step >= config.step_end:
            raise ValueError(
                f"--profile-step-end {config.step_end}: this run begins with step {first_step}; "
                "nothing would be recorded"
            )
        if config.selects(rank):
            check_writable(Path(config.profiling_dir))
    sizes = distributed_args if distributed_args is not None else about.parallel_sizes(args, world_size)
    return Profiler(config, rank, world_size, first_step, sizes, worker_name)


class Profiler:
    """What `profile` returns. `step()` belongs at the end of every step; `directory` is this rank's profile
    once recording has begun, None on ranks that do not record."""

    def __init__(
        self,
        config: ProfileConfig,
        rank: int,
        world_size: int,
        first_step: int = 0,
        distributed_args: dict[str, Any] | None = None,
        worker_name: str = "",
    ) -> None:
        self.config, self.rank, self.world_size = config, rank, world_size
        self.current_step = first_step
        self.directory: Path | None = None
        self.recorded: list[int] = []
        self.failure = ""  # what ended recording before its time
        self._worker_name, self._distributed_args = worker_name, dict(distributed_args or {})
        self._active = config.enable_profiling and config.selects(rank)
        self._reader: CallReader | None = None
        self._window: _TorchWindow | _ActivityWindow | None = None
        self._run = ""
        self._bytes = self._largest = 0
        self._late: list[Chunk] = []  # calls of recorded steps that ended after them
        self._last_end = 0  # of the last recorded step, monotonic ns
        self._finished = False
        self._process = os.getpid()  # a process forked from it does not record
        self._thread = threading.get_ident()

    def __enter__(self) -> Profiler:
        self._thread = threading.get_ident()
        if self.config.enable_profiling:
            self._guarded("starting", self._start)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.config.enable_profiling or self._process != os.getpid():
            return
        if self._window is not None:
            # After the loop's last step() one has begun that never was; after an error it is what there is.
            end = self._drop_window if kind is None or self.failure else self._end_window
            self._guarded("ending a step", end)
        self._guarded("writing", self._finish)
        if self._reader is not None:
            self._guarded("closing", self._reader.close)
            self._reader = None

    def step(self) -> None:
        """A step has ended, and the next begins."""
        if not self.config.enable_profiling or self._process != os.getpid():
            return
        if self._window is not None:
            self._guarded("ending a step", self._drop_window if self.failure else self._end_window)
        self.current_step += 1
        if self.config.is_over(self.current_step):
            self._guarded("writing", self._finish)
        elif self._active and self.config.records(self.current_step):
            self._guarded("beginning a step", self._begin_window)
            return
        if self._reader is not None and self.current_step % _SKIP_EVERY == 0:
            self._guarded("following the recorder", self._pass_over)

    def _guarded(self, doing: str, action: Callable[[], None]) -> None:
        """Training goes on, whatever the profile runs into; the first reason is told."""
        try:
            action()
        except Exception as error:  # noqa: BLE001
            if not self.failure:
                self.failure = f"{doing}: {error or type(error).__name__}"
                _log.warning(
                    "rank %d: profile: %s; nothing more is recorded, training goes on",
                    self.rank,
                    self.failure,
                    exc_info=_log.isEnabledFor(logging.DEBUG),
                )
            self._active = False
            if self._window is not None:
                with contextlib.suppress(Exception):
                    self._drop_window()

    def _start(self) -> None:
        self._run = runs.run_id(recorder.run_of_job())
        if not self._active:
            return
        root = self._save_path()
        self.directory = root / str(self.rank) / runs.directory_name(self._worker_name)
        (self.directory / runs.RAW).mkdir(parents=True)
        self._write_about()
        _warm_up(_window_of(self.config))
        if self.config.records(self.current_step):
            self._begin_window()

    def _save_path(self) -> Path:
        """The save path, or a folder of this run in it where another run's profiles lie."""
        root = Path(self.config.profiling_dir).absolute()
        config = self.config
        first = self.rank == next(rank for rank in range(self.world_size) if config.selects(rank))
        if config.clean:
            removed = runs.remove_other_runs(
                root,
                self._run,
                # Its own; and the first those of ranks that this run does not record.
                lambda rank: (
                    rank == self.rank
                    or (first and not (config.selects(rank) and 0 <= rank < self.world_size))
                ),
            )
            if removed:
                _log.info("rank %d: removed %d profiles of earlier runs", self.rank, len(removed))
            return root
        others = [found for found in runs.find_profiles(root) if found.run != self._run]
        if not others:
            return root
        own = root / f"run_{self._run}"
        if first:
            _log.warning(
                "%s holds profiles of another run (%s, started %s): this run's go to %s, so that nothing is "
                "mixed; --profile-clean removes the old ones",
                root,
                others[0].run,
                others[0].started,
                own,
            )
        return own

    def _begin_window(self) -> None:
        if self._bytes and self._bytes + self._largest > self.config.max_size:
            self._active = False
            _log.warning(
                "rank %d: profile: %d steps took %.1f MB; with one more --profile-max-size %.1f MB would be "
                "passed: nothing more is recorded",
                self.rank,
                len(self.recorded),
                self._bytes / 1e6,
                self.config.max_size / 1e6,
            )
            return
        if self._reader is None:
            self._reader = CallReader(self.config.level == "level2", _process_groups())
            self._reader.start()
            self._write_about()
        self._pass_over()
        window = _window_of(self.config)
        self._check_thread(window)
        self._window = window(self.config, self.current_step)

    def _check_thread(self, window: type[_TorchWindow] | type[_ActivityWindow]) -> None:
        """torch.profiler crashes where a thread ends what another began, or one that began it is gone."""
        if window is _TorchWindow and threading.get_ident() != self._thread:
            raise RuntimeError("step() was called in another thread than the one that entered profile()")

    def _pass_over(self) -> None:
        """Passes over calls between recorded steps, but for those that began in one."""
        if self._reader is not None:
            self._late += self._reader.skip(self._last_end)

    def _end_window(self) -> None:
        self._check_thread(type(self._window))
        window, self._window = self._window, None
        assert window is not None and self.directory is not None and self._reader is not None
        record, size = window.close(self.directory)
        self._last_end = time.monotonic_ns()
        record |= {"step": window.step, "offset": clock_offset()}
        size += rawdata.write_flush(
            self.directory, str(window.step), record, self._late + self._reader.take()
        )
        self._late = []
        self.recorded.append(window.step)
        self._bytes += size
        self._largest = max(self._largest, size)
        self._warn_of_size(size)

    def _warn_of_size(self, size: int) -> None:
        """After the first step it is known what the range will take."""
        config = self.config
        if len(self.recorded) != 1 or config.step_end is None:
            return
        steps = -(-(config.step_end - config.step_start) // config.steps_interval)
        if size * steps > config.max_size:
            _log.warning(
                "rank %d: profile: a step takes %.1f MB, so %d steps take more than --profile-max-size "
                "%.1f MB; recording will stop before that",
                self.rank,
                size / 1e6,
                steps,
                config.max_size / 1e6,
            )

    def _drop_window(self) -> None:
        if self._window is not None:
            self._window.close(None)
        self._window = None

    def _finish(self) -> None:
        """Writes the output files, once."""
        if self._finished:
            return
        self._finished = True
        reader, self._reader = self._reader, None
        if reader is not None and self.directory is not None:
            try:
                late = self._late + reader.take()
                rawdata.write_flush(self.directory, "late", {"offset": clock_offset()}, late)
                if lost := reader.lost():
                    _log.warning("rank %d: profile: the recorder had no room for %d calls", self.rank, lost)
            finally:
                reader.close()
        if self.directory is not None:
            self._active = False
            self._write_about(reader is not None and reader.was_on)
            self._tell_of_missing_steps()
            if self.recorded:
                from . import outputs

                outputs.write(self.directory)
        if self.config.gather:
            from . import gather

            gather.in_job(Path(self.config.profiling_dir), self.rank, self.world_size, self._run)

    def _tell_of_missing_steps(self) -> None:
        config, last = self.config, self.current_step - 1
        if self.recorded and (config.step_end is None or last >= config.step_end - 1):
            return
        if self.failure:
            return
        ending = f"the loop ended after step {last}" if last >= 0 else "the loop made no step"
        if not self.recorded:
            _log.warning(
                "rank %d: profile: nothing was recorded: %s, and --profile-step-start is %d",
                self.rank, ending, config.step_start,
            )  # fmt: skip
        else:
            _log.warning(
                "rank %d: profile: %s, before --profile-step-end %s; recorded are steps %d to %d",
                self.rank, ending, config.step_end, self.recorded[0], self.recorded[-1],
            )  # fmt: skip

    def _write_about(self, recorder_on: bool | None = None) -> None:
        assert self.directory is not None
        path = self.directory / f"profiler_info_{self.rank}.json"
        if recorder_on is None:
            recorder_on = self._reader is not None and self._reader.was_on
        content = about.info(self.config, self.rank, self.world_size, self._run, recorder_on, self.recorded)
        before = runs.info_of(self.directory)
        if before:  # when and how it began stays
            content["start_info"] = before["start_info"]
            content[runs.MARK]["started"] = before[runs.MARK]["started"]
        runs.write_whole(path, json.dumps(content, indent=1))
        metadata = about.metadata((), self._distributed_args, self.rank, self.world_size)
        runs.write_whole(self.directory / "profiler_metadata.json", json.dumps(metadata, indent=1))


class _TorchWindow:
    """One step of torch.profiler, from its construction to `close`."""

    _open = False  # in this process

    def __init__(self, config: ProfileConfig, step: int) -> None:
        from torch.autograd import _profiler_enabled
        from torch.profiler import record_function

        # It has one state for all of a process: a second one takes the first one's events, or crashes.
        if _TorchWindow._open or _profiler_enabled():
            raise RuntimeError("torch.profiler records already, and can do so once at a time in a process")
        self.step = step
        self._thread = threading.get_ident()
        self._resident = [_resident()]
        self._profiler = _torch_profiler(config)
        self._profiler.start()
        self._mark = record_function(f"ProfilerStep#{step}")
        self._mark.__enter__()
        _TorchWindow._open = True

    def close(self, directory: Path | None) -> tuple[dict[str, Any], int]:
        """Ends it; the trace goes to `directory`, or nowhere. What is known besides; bytes written."""
        if threading.get_ident() != self._thread:  # torch.profiler crashes then
            raise RuntimeError("a step was begun in another thread")
        from torch.autograd import _profiler_enabled

        _TorchWindow._open = False
        if not _profiler_enabled():
            raise RuntimeError("another torch.profiler ended the recording of this step")
        self._mark.__exit__(None, None, None)
        self._profiler.stop()
        if directory is None:
            return {}, 0
        path = rawdata.trace_file(directory, self.step)
        beside = path.with_name(f".{path.name}.{os.getpid()}.json")
        self._profiler.export_chrome_trace(str(beside))
        os.replace(beside, path)
        return {"resident": [*self._resident, _resident()]}, path.stat().st_size


class _ActivityWindow:
    """One step of which only is known when threads were in operators: a hundredth of torch.profiler's
    cost."""

    def __init__(self, _config: ProfileConfig, step: int) -> None:
        self.step = step
        self._native = _activity()
        self._begin = time.time_ns()
        self._native.start_activity()

    def close(self, directory: Path | None) -> tuple[dict[str, Any], int]:
        rows = self._native.stop_activity()
        window = self._begin, time.time_ns()
        if directory is not None:
            runs.write_whole(rawdata.activity_file(directory, self.step), rows)
        return {"window": window}, len(rows)


def _activity() -> Any:
    """The module of the PyTorch backend; None where it is not built or does not fit."""
    try:
        import collective_ops_torch

        native = collective_ops_torch._load()._torch
    except ImportError:
        return None
    return native if hasattr(native, "start_activity") else None


def _window_of(config: ProfileConfig) -> type[_TorchWindow] | type[_ActivityWindow]:
    """At level0 nothing needs names of operators, and calls of our own backend need no ranges either."""
    needs_operators = config.level != "level0" or config.with_cpu or config.with_stack or config.with_memory
    if needs_operators or _other_backends() or _activity() is None:
        return _TorchWindow
    return _ActivityWindow


def _other_backends() -> bool:
    """Whether torch.distributed has groups whose calls only torch.profiler sees."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return False
    names = dist.distributed_c10d._world.pg_map.values()
    return any("collective_ops" not in str(backend) for backend, _store in names)


def _torch_profiler(config: ProfileConfig) -> Any:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as torch_profile

    return torch_profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=about.shapes_on(config),
        profile_memory=config.with_memory,
        with_stack=config.with_stack,
    )


def _warm_up(window: type[_TorchWindow] | type[_ActivityWindow]) -> None:
    """The first window of a process takes seconds to begin; not within a step."""
    window(ProfileConfig(), -1).close(None)


def clock_offset() -> int:
    """Real minus monotonic time, ns, from the tightest of a few pairs of readings."""
    pairs = []
    for _ in range(9):
        before = time.monotonic_ns()
        real = time.time_ns()
        after = time.monotonic_ns()
        pairs.append((after - before, real - (before + after) // 2))
    return min(pairs)[1]


def _resident() -> tuple[int, int]:
    """Now, and the bytes that the process holds."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        pages = 0
    return time.time_ns(), pages * os.sysconf("SC_PAGE_SIZE")


def _rank_and_world() -> tuple[int, int]:
    """Of the job: PyTorch's, else ours, else the environment's."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    import collective_ops

    if collective_ops.is_initialized():
        return collective_ops.rank(), collective_ops.world_size()
    return int(os.environ.get("RANK") or 0), int(os.environ.get("WORLD_SIZE") or 1)


def _process_groups() -> dict[str, tuple[int, ...]]:
    """PyTorch's process groups that this rank is in: their ranks of the world, by name."""
    dist = sys.modules.get("torch.distributed")
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return {}
    world = dist.distributed_c10d._world
    return {
        str(world.pg_names.get(group, "")): tuple(sorted(ranks, key=ranks.get))
        for group, ranks in world.pg_group_ranks.items()
    }
