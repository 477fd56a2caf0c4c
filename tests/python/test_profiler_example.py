"""The documents' example of a profile, to the letter: steps 10 to 14 of ranks 0 and 1 of eight that train the
ResNet example; and the example script that does this and says where the time went."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

from profiled_runs import names, ns, output, parts_by_overlap, spans, table  # noqa: E402
from rank_pool import RankPool  # noqa: E402

FLAGS = (
    "--profile --profile-step-start 10 --profile-step-end 15 --profile-level level2 --profile-ranks 0,1 "
    "--profile-with-cpu --profile-with-memory --profile-save-path ./profiling_result/"
).split()
STEPS = ["10", "11", "12", "13", "14"]
FILES = {
    "api_statistic.csv",
    "communication.json",
    "communication_matrix.json",
    "kernel_details.csv",
    "memory_record.csv",
    "op_statistic.csv",
    "operator_details.csv",
    "operator_memory.csv",
    "step_trace_time.csv",
    "trace_view.json",
}


def train(folder: str) -> int:
    """17 steps of 2 images on each of 8 ranks."""
    os.chdir(folder)
    import train_resnet

    small = ["--epochs", "1", "--images", "272", "--batch-size", "2", "--threads", "1"]
    return train_resnet.main([*small, *FLAGS])


@pytest.fixture(scope="module")
def root(rank_pool: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("resnet")
    assert rank_pool.run(train, 8, (str(folder),), timeout=480) == [0] * 8
    return folder / "profiling_result"


@pytest.fixture(scope="module")
def directories(root: Path) -> list[Path]:
    assert sorted(path.name for path in root.iterdir()) == ["0", "1"]
    (first,), (second,) = (list((root / str(rank)).iterdir()) for rank in (0, 1))
    return [first, second]


def test_steps_10_to_14_of_ranks_0_and_1_and_no_others(directories: list[Path]) -> None:
    for rank, directory in enumerate(directories):
        info = json.loads((directory / f"profiler_info_{rank}.json").read_text())
        assert info["rank_id"] == rank and info["collective_ops"]["world_size"] == 8
        assert info["collective_ops"]["steps"] == [10, 11, 12, 13, 14]
        assert names(directory) == FILES
        assert [row["Step"] for row in table(directory, "step_trace_time.csv")] == STEPS
        for name in ("communication.json", "communication_matrix.json"):
            assert list(json.loads(output(directory, name).read_text())) == [f"step{n}" for n in STEPS]
        marks = [name for _, name, *_ in spans(directory) if name.startswith("ProfilerStep#")]
        assert marks == [f"ProfilerStep#{n}" for n in STEPS]
        assert {row["Step Id"] for row in table(directory, "kernel_details.csv")} == set(STEPS)
        raw = {p.name for p in (directory / "FRAMEWORK").glob("step_*")}
        assert raw == {f"step_{n}.pt.trace.json" for n in STEPS}


def test_a_step_of_resnet_is_in_them(directories: list[Path]) -> None:
    """53 convolutions and their gradients in each step; shapes and planes, because of level2; memory."""
    for directory in directories:
        kernels = table(directory, "kernel_details.csv")
        for step in STEPS:
            own = [row["Name"] for row in kernels if row["Step Id"] == step]
            assert own.count("aten::conv2d") == own.count("ConvolutionBackward0") == 53
            assert sum(name.startswith("hcom_allReduce_") for name in own) >= 4  # 94 MB in buckets of 25
        shapes = {row["Input Shapes"] for row in kernels if row["Name"] == "aten::conv2d"}
        assert any(shape.startswith('"2,3,32,32;64,3,') for shape in shapes)
        lanes = {event[4].get("step") for event in spans(directory) if event[0] == "HCCL"}
        assert {"wait", "reduce"} <= lanes
        assert len(table(directory, "operator_memory.csv")) > 1000


def test_each_step_adds_up_to_the_nanosecond(directories: list[Path]) -> None:
    for directory in directories:
        swept = parts_by_overlap(directory)
        for row in table(directory, "step_trace_time.csv"):
            parts = swept[row["Step"]]
            for column in ("Computing", "Communication(Not Overlapped)", "Overlapped", "Free"):
                assert ns(row[column]) == parts[column], column
            whole = ns(row["Computing"]) + ns(row["Communication(Not Overlapped)"]) + ns(row["Free"])
            assert whole == parts["step"]


@pytest.mark.slow
def test_the_example_script_ends_with_an_analysis(tmp_path: Path) -> None:
    """On two ranks, which are all of the job; the profiles lie below a path with a blank in it."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        environment.pop(name, None)
    small = ["--images", "64", "--batch-size", "2", "--threads", "1"]
    command = ["bash", str(EXAMPLES / "profile_step_range.sh"), "2", "my profiles", *small]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-3000:]
    assert len(re.findall(r"10-14 \(5\) +yes", done.stdout)) == 2, said[-3000:]
    (steps,) = tmp_path.rglob("cluster_step_trace_time.csv")
    assert len(steps.read_text().splitlines()) == 1 + 2 * 5
