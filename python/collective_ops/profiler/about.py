"""What a profile says about itself: profiler_info_<rank>.json and profiler_metadata.json."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from . import runs
from .arguments import ProfileConfig
from .model import Group

# Prefixes of variables that decide how fast a job is; no other value of the environment is written down.
_PREFIXES = ("COLLECTIVE_OPS_", "HCCL_", "NCCL_", "GLOO_", "OMP_", "MKL_", "KMP_", "TORCH_", "ASCEND_")
_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "DEVICE_ID", "PYTORCH_NPU_ALLOC_CONF")
_SIZES = {
    "tensor_model_parallel_size": ("tensor_model_parallel_size", "tp"),
    "pipeline_model_parallel_size": ("pipeline_model_parallel_size", "pp"),
    "data_parallel_size": ("data_parallel_size", "dp"),
    "context_parallel_size": ("context_parallel_size", "cp"),
    "expert_model_parallel_size": ("expert_model_parallel_size", "ep"),
    "sequence_parallel": ("sequence_parallel",),
}


def info(
    config: ProfileConfig, rank: int, world_size: int, run: str, recorder: bool, steps: Iterable[int] = ()
) -> dict[str, Any]:
    """The content of profiler_info; under `collective_ops` what the Ascend profiler has no place for."""
    end = -1 if config.step_end is None else config.step_end
    active = 0 if config.step_end is None else config.step_end - config.step_start
    return {
        "config": {
            "common_config": {
                "activities": ["ProfilerActivity.CPU"],
                "schedule": {
                    "wait": 0,
                    "active": active,
                    "warmup": 0,
                    "repeat": 1,
                    "skip_first": config.step_start,
                },
                "record_shapes": shapes_on(config),
                "profile_memory": config.with_memory,
                "with_stack": config.with_stack,
                "with_flops": False,
                "with_modules": False,
            },
            "experimental_config": {
                "_profiler_level": config.level.capitalize(),
                "_aic_metrics": "",
                "_l2_cache": False,
                "_msprof_tx": False,
                "_data_simplification": False,
                "record_op_args": False,
                "_export_type": [config.export_type],
            },
        },
        "start_info": {"syscnt_enable": False, "start_monotonic": time.monotonic_ns()},
        "end_info": {"collectionTimeEnd": time.time_ns(), "MonotonicTimeEnd": time.monotonic_ns()},
        "rank_id": rank,
        runs.MARK: {
            "run": run,
            "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "world_size": world_size,
            "local_world_size": int(os.environ.get("LOCAL_WORLD_SIZE") or 0),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "recorder": recorder,
            "steps": list(steps),
            "step_end": end,
            "options": {
                **asdict(config),
                "ranks": list(config.ranks),
                "profiling_dir": str(config.profiling_dir),
            },
        },
    }


def shapes_on(config: ProfileConfig) -> bool:
    return config.record_shapes or config.level == "level2"


def metadata(
    groups: Iterable[Group], distributed_args: dict[str, Any], rank: int, world_size: int
) -> dict[str, Any]:
    """The content of profiler_metadata.json."""
    sizes = {}
    if distributed_args:  # where none are known, none are claimed: the groups say what there is
        sizes = {"distributed_args": {**distributed_args, "rank": rank, "world_size": world_size}}
    return {
        **sizes,
        "parallel_group_info": {
            group.id: {
                "group_name": group.name,
                "group_rank": group.local(rank),
                "global_ranks": list(group.ranks),
            }
            for group in groups
            if group.id
        },
        "ENV_VARIABLES": {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_PREFIXES) or name in _NAMES
        },
        "environment": environment(),
    }


def environment() -> dict[str, str]:
    """Versions and machine, the same keys on every rank."""
    from collective_ops import __version__

    torch = sys.modules.get("torch")
    return {
        "collective_ops": __version__,
        "torch": getattr(torch, "__version__", ""),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "host": socket.gethostname(),
        "machine": platform.machine(),
        "cores": str(len(os.sched_getaffinity(0))),
        "threads": str(torch.get_num_threads()) if torch is not None else "",
    }


def parallel_sizes(args: Any, world_size: int) -> dict[str, Any]:
    """The sizes of parallelism that a program's own arguments hold, under the names of Megatron."""
    found: dict[str, Any] = {}
    for name, attributes in _SIZES.items():
        for attribute in attributes:
            value = getattr(args, attribute, None)
            if isinstance(value, bool | int):
                found[name] = value
                break
    if found and "data_parallel_size" not in found:  # what tensors and pipeline leave of the world
        split = found.get("tensor_model_parallel_size", 1) * found.get("pipeline_model_parallel_size", 1)
        if split > 0 and world_size % split == 0:
            found["data_parallel_size"] = world_size // split
    return found
