"""scripts/tidy: the project passes, and each rule sees what it is for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

TREE = {
    "include/collective_ops/status.h": "enum class ErrorCode : int {\n  kOk = 0,\n  kPeerLost,\n};\n",
    "docs/errors.md": "# Errors\n\n## `peer_lost`\nA rank died.\n",
    "src/base/environment.cpp": 'EnvironmentVariable{"COLLECTIVE_OPS_TRACE", "0", ""}; std::getenv("A");\n',
    "src/base/README.md": "# base\n",
    "src/README.md": "## [base](base/README.md)\n",
    "README.md": "[errors](docs/errors.md#peer_lost) [site](https://example.org) `[no](link)`\n",
    "python/collective_ops/a.py": 'import os\nx = os.environ["COLLECTIVE_OPS_TRACE"]\nos.environ["S"] = ""\n',
    "examples/b.py": 'import os\nx = os.environ.get("RANK")\n',
}


def tidy(root: Path) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "scripts/tidy"), "--root", str(root)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert not run.stderr
    return run.returncode, run.stdout


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


TABLE = "does not stand in src/base/environment.cpp"


def test_this_project_is_tidy() -> None:
    assert [line for line in tidy(ROOT)[1].splitlines() if TABLE not in line] == []


def test_this_project_reads_only_variables_of_the_table() -> None:
    assert [line for line in tidy(ROOT)[1].splitlines() if TABLE in line] == []


def test_a_tidy_tree_passes(tmp_path: Path) -> None:
    write(tmp_path, TREE)
    assert tidy(tmp_path) == (0, "")


LONG_FUNCTION = "def long():\n" + "    pass\n" * 70
# In pieces, since this file is looked at as well.
TO_DO = "TO" + "DO"
VIOLATIONS = [
    pytest.param({"src/base/a.cpp": "\n" * 601}, "src/base/a.cpp: 601 lines", id="long file"),
    pytest.param({"tools/t.py": LONG_FUNCTION}, "tools/t.py:1: long has 71 lines", id="long function"),
    pytest.param({"docs/a.md": f"{TO_DO}: write\n"}, f"docs/a.md:1: '{TO_DO}'", id="left to do"),
    pytest.param({"tools/t.py": 'p = "/wor' + 'k/main"\n'}, "tools/t.py:1: '/wor" + "k/'", id="machine path"),
    pytest.param({"docs/a.md": "see issue " + "#4\n"}, "docs/a.md:1: 'issue " + "#4'", id="issue number"),
    pytest.param(
        {"src/base/b.cpp": 'auto x = std::getenv("COLLECTIVE_OPS_TRACE");\n'},
        "src/base/b.cpp:1: getenv: ask environment_text()",
        id="getenv",
    ),
    pytest.param(
        {"src/base/b.cpp": '\nenvironment_flag("COLLECTIVE_OPS_TRAC");\n'},
        "src/base/b.cpp:2: COLLECTIVE_OPS_TRAC does not stand in",
        id="variable unknown to the table",
    ),
    pytest.param(
        {"python/collective_ops/a.py": 'import os\nx = os.environ.get("OTHER", "")\n'},
        "python/collective_ops/a.py:2: OTHER does not stand in",
        id="variable read in Python",
    ),
    pytest.param(
        {"python/collective_ops/a.py": 'import os\nx = "OTHER" in os.environ\n'},
        "python/collective_ops/a.py:2: OTHER does not stand in",
        id="variable asked for in Python",
    ),
    pytest.param(
        {"examples/b.py": 'import os\nx = os.getenv("COLLECTIVE_OPS_X")\n'},
        "examples/b.py:2: COLLECTIVE_OPS_X does not stand in",
        id="variable of ours in an example",
    ),
    pytest.param(
        {"docs/tuning.md": "nothing\n"}, "docs/tuning.md: COLLECTIVE_OPS_TRACE", id="undocumented variable"
    ),
    pytest.param({"docs/errors.md": "# Errors\n"}, "no section `peer_lost`", id="undocumented error"),
    pytest.param(
        {"docs/errors.md": "## `peer_lost`\n## `gone`\n"},
        "`gone` is no ErrorCode",
        id="documented error gone",
    ),
    pytest.param({"docs/a.md": "[x](b.md)\n"}, "docs/a.md:1: b.md does not exist", id="dead link"),
    pytest.param({"docs/a.md": "[x](errors.md#y)\n"}, "docs/a.md:1: no heading #y in", id="dead heading"),
    pytest.param({"src/plan/p.h": ""}, "src/plan: no README.md", id="folder without README"),
    pytest.param(
        {"src/plan/p.h": ""}, "src/README.md: no paragraph that links plan/", id="folder not listed"
    ),
    pytest.param(
        {"src/base/k.cpp": "x = ReorderDemote2To(d);\n"}, "ReorderDemote2To truncates", id="truncation"
    ),
]


@pytest.mark.parametrize(("files", "expected"), VIOLATIONS)
def test_a_violation_is_named(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    write(tmp_path, TREE | files)
    code, output = tidy(tmp_path)
    assert code == 1
    assert expected in output


def test_ignored_files_are_not_looked_at(tmp_path: Path) -> None:
    write(tmp_path, TREE | {".gitignore": "/build/\n", "build/a.md": f"{TO_DO}\n"})
    assert tidy(tmp_path)[0] == 1
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    assert tidy(tmp_path) == (0, "")
