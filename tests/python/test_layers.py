"""scripts/layers: the tree keeps its direction, and each kind of violation is seen."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TREE = {
    "src/base/status.h": "#include <string>\n",
    "src/base/CMakeLists.txt": "co_library(base SOURCES status.cpp LINK fmt::fmt)\n",
    "src/plan/plan.h": '#include "base/status.h"\n',
    "src/plan/CMakeLists.txt": "co_library(plan SOURCES plan.cpp DEPENDS base)\n",
    "src/transport/channel.h": '#include "base/status.h"\n#include "transport/shm/ring.h"\n',
    "src/transport/CMakeLists.txt": "co_library(transport SOURCES channel.cpp DEPENDS base)\n",
    "src/algorithms/ring.cpp": '#include "plan/plan.h"\n',
    "src/algorithms/CMakeLists.txt": "co_library(algorithms\n  SOURCES ring.cpp\n  DEPENDS base plan)\n",
    "src/torch/backend.cpp": "#include <torch/extension.h>\n#include <ATen/ATen.h>\n",
    "include/collective_ops/status.h": "#include <collective_ops/types.h>\n",
    "tools/tool.cpp": '#include "transport/channel.h"\n',
}


def layers(root: Path) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "scripts/layers"), "--root", str(root)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not run.stderr
    return run.returncode, run.stdout


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_this_project_keeps_the_direction() -> None:
    assert layers(ROOT) == (0, "")


def test_a_tree_in_order_passes(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    assert layers(tmp_path) == (0, "")


VIOLATIONS = [
    pytest.param(
        {"src/base/clock.h": '#pragma once\n#include "plan/plan.h"\n'},
        "src/base/clock.h:2: base must not include plan",
        id="upwards",
    ),
    pytest.param(
        {"src/plan/cost.cpp": "#  include <transport/channel.h>\n"},
        "src/plan/cost.cpp:1: plan must not include transport",
        id="upwards, in angle brackets",
    ),
    pytest.param(
        {"src/transport/tcp.cpp": '#include "plan/plan.h"\n'},
        "src/transport/tcp.cpp:1: transport includes plan, which DEPENDS of",
        id="not in the link list",
    ),
    pytest.param(
        {
            "src/algorithms/tree.cpp": '#include "transport/channel.h"\n',
            "src/algorithms/CMakeLists.txt": "co_library(algorithms SOURCES a.cpp DEPENDS plan transport)\n",
        },
        "src/algorithms/tree.cpp:1: algorithms must not include transport",
        id="algorithms never know a transport",
    ),
    pytest.param(
        {"src/plan/CMakeLists.txt": "co_library(plan SOURCES plan.cpp DEPENDS base algorithms)\n"},
        "src/plan/CMakeLists.txt: plan DEPENDS on algorithms, which stands above it",
        id="link list upwards",
    ),
    pytest.param(
        {
            "src/transport/CMakeLists.txt": "co_library(transport SOURCES a.cpp DEPENDS base bootstrap)\n",
            "src/bootstrap/meet.cpp": "",
            "src/bootstrap/CMakeLists.txt": "co_library(bootstrap SOURCES meet.cpp DEPENDS transport)\n",
        },
        "src/bootstrap/CMakeLists.txt: bootstrap depends on itself in a circle",
        id="circle within a level",
    ),
    pytest.param(
        {"src/communicator/group.cpp": "#include <c10/util/Half.h>\n"},
        "src/communicator/group.cpp:1: c10/util/Half.h: nothing but src/torch includes PyTorch",
        id="PyTorch below src/torch",
    ),
    pytest.param(
        {"python/bindings/module.cpp": "#include <torch/extension.h>\n"},
        "python/bindings/module.cpp:1: only src/torch includes PyTorch",
        id="PyTorch in the bindings",
    ),
    pytest.param(
        {"src/plan/print.cpp": "#include <pybind11/pybind11.h>\n"},
        "src/plan/print.cpp:1: pybind11/pybind11.h: nothing below src/torch includes Python",
        id="Python in the core",
    ),
    pytest.param(
        {"include/collective_ops/plan.h": '#include "plan/plan.h"\n'},
        "include/collective_ops/plan.h:1: a public header includes plan/plan.h",
        id="public header",
    ),
    pytest.param({"src/extra/a.cpp": ""}, "src/extra: not in the levels", id="unknown folder"),
    pytest.param(
        {"src/plan/up.cpp": '#include "../base/status.h"\n'},
        "src/plan/up.cpp:1: ../base/status.h: write the path from src/",
        id="relative path",
    ),
]


@pytest.mark.parametrize(("files", "expected"), VIOLATIONS)
def test_a_violation_is_named(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    write(tmp_path, TREE | files)
    code, output = layers(tmp_path)
    assert code == 1
    assert expected in output
