"""`collective-ops doctor`: each check sees what it is for, and none of them can hang or crash the command."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from collective_ops import (
    _core,
    _doctor_environment,
    _doctor_software,
    _doctor_system,
    cli,
    doctor,
)
from collective_ops._finding import FAIL, OK, WARN, Finding
from collective_ops._hccl_variables import HCCL_VARIABLES

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from collective_ops.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, "doctor", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    )


def by_name(findings: object) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


# --- The command -----------------------------------------------------------------------------------


def test_this_machine() -> None:
    printed = command("--json", HCCL_EXEC_TIMEOUT="7200")
    assert printed.returncode == 0 and not printed.stderr
    data = json.loads(printed.stdout)
    findings = by_name(Finding(**line) for line in data["findings"])
    assert data["worst"] in (OK, WARN)
    for name in (
        "collective_ops",
        "PyTorch",
        "torch_npu",
        "CANN",
        "MindSpore",
        "NPUs",
        "driver",
        "cores",
        "memory",
    ):
        assert name in findings
    for name in ("memfd", "sockets"):  # or no other test could have run
        assert findings[name].level == OK
    assert findings["collective_ops"].value.startswith(_core.__version__)
    assert findings["HCCL_EXEC_TIMEOUT"] == Finding("environment", "HCCL_EXEC_TIMEOUT", OK, "7200 s")


def test_a_failure_is_the_exit_code() -> None:
    printed = command(HCCL_CONNECT_TIMEOUT="soon", HCCL_EXEC_TIMOUT="7200")
    assert printed.returncode == 1
    assert "\x1b" not in printed.stdout  # no terminal
    lines = printed.stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if "HCCL_CONNECT_TIMEOUT" in line and "FAIL" in line]
    assert "'soon' cannot be used" in lines[at] and "from 1 to 7200" in lines[at + 1]
    assert "did you mean HCCL_EXEC_TIMEOUT?" in printed.stdout
    assert re.fullmatch(r"\d+ OK, \d+ WARN, 1 FAIL", lines[-1])


def test_colours_are_for_terminals() -> None:
    found = [Finding("system", "a", FAIL, "x", "do\x1b[2J it"), Finding("environment", "long name", OK, "y")]
    plain = doctor.render(found, coloured=False)
    assert plain.splitlines() == [
        "system",
        "  FAIL  a          x",
        "                   next: do [2J it",
        "",
        "environment",
        "  OK    long name  y",
        "",
        "1 OK, 0 WARN, 1 FAIL",
    ]
    coloured = doctor.render(found, coloured=True)
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain and "\x1b[31mFAIL" in coloured


# --- What is installed -----------------------------------------------------------------------------


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("exec sleep 60", "did not end within 1 s"),
        ("echo broken library >&2; kill -SEGV $$", "exit code -11: broken library"),
        ("echo noise", "exit code 0: no output"),
    ],
)
def test_an_import_that_hangs_or_crashes_is_a_finding(tmp_path: Path, body: str, expected: str) -> None:
    found = _doctor_software.torch_probe(program(tmp_path / "python", body), timeout=1)
    assert expected in found["torch_error"]
    findings = by_name(_doctor_software._pytorch(found))
    assert findings["PyTorch"].level == FAIL and findings["PyTorch"].advice


@pytest.mark.parametrize(
    ("found", "name", "level", "value"),
    [
        ({"torch_error": "ModuleNotFoundError: No module named 'torch'"}, "PyTorch", OK, "not installed"),
        ({"torch": "2.1.0", "torch_npu": "2.1.0.post6", "npu": 8}, "torch_npu", OK, "2.1.0.post6"),
        ({"torch": "2.1.0", "torch_npu": "2.1.0.post6", "npu": 8}, "NPUs", OK, "8"),
        ({"torch": "2.3.1", "torch_npu": "2.1.0"}, "torch_npu", WARN, "2.1.0 beside PyTorch 2.3.1"),
        ({"torch": "2.1.0", "torch_npu_error": "ImportError: libhccl.so"}, "torch_npu", FAIL, "libhccl.so"),
        ({"torch": "2.1.0", "cuda_error": "RuntimeError: no driver"}, "CUDA devices", WARN, "no driver"),
    ],
)
def test_what_pytorch_tells(found: dict[str, object], name: str, level: str, value: str) -> None:
    finding = by_name(_doctor_software._pytorch(found))[name]
    assert finding.level == level and value in finding.value
    assert level == OK or finding.advice


@pytest.mark.parametrize(
    ("file", "text", "version", "level"),
    [
        ("x86_64-linux/ascend_toolkit_install.info", "package_name=a\nversion=7.0.1.3\n", "7.0.1.3", OK),
        ("aarch64-linux/ascend_toolkit_install.info", "version=8.0.RC2\narch=aarch64\n", "8.0.RC2", OK),
        ("version.cfg", "# version: 1.0\nruntime_running_version=[7.3.0.1:8.0.RC2]\n", "8.0.RC2", OK),
        ("compiler/version.info", "Version=8.0.RC3.beta1\n", "8.0.RC3.beta1", WARN),
        ("version.info", "nothing\n", "unknown", WARN),
    ],
)
@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
def test_the_version_of_cann(
    tmp_path: Path, variable: str, file: str, text: str, version: str, level: str
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    finding = _doctor_software.cann({variable: str(tmp_path)}, tmp_path)
    assert (finding.level, version in finding.value) == (level, True)


def test_cann_that_is_not_there(tmp_path: Path) -> None:
    assert _doctor_software.cann({}, tmp_path).value == "not installed"
    gone = _doctor_software.cann({"ASCEND_HOME_PATH": str(tmp_path / "gone")}, tmp_path)
    assert gone.level == WARN and "ASCEND_HOME_PATH" in gone.value


def test_drivers(tmp_path: Path) -> None:
    assert _doctor_software.driver(tmp_path).value == "none found"
    nvidia = tmp_path / "proc/driver/nvidia/version"
    nvidia.parent.mkdir(parents=True)
    nvidia.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\n")
    assert _doctor_software.driver(tmp_path).value == "NVIDIA 550.54.15"
    ascend = tmp_path / "usr/local/Ascend/driver/version.info"
    ascend.parent.mkdir(parents=True)
    ascend.write_text("Version=23.0.6\nascendhal_version=7.35\n")
    assert _doctor_software.driver(tmp_path).value == "Ascend 23.0.6"


# --- What the machine allows -----------------------------------------------------------------------


def test_too_little_memory_fails_and_names_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def limits(free_mib: int) -> None:
        row = {
            "name": "memory cgroup /job",
            "source": "s",
            "limit": 4096 << 20,
            "used": (4096 - free_mib) << 20,
        }
        roomy = {"name": "MemAvailable", "source": "s", "limit": 1 << 40, "used": 0, "advice": "free it"}
        monkeypatch.setattr(_core, "memory_limits", lambda: [roomy, {**row, "advice": "raise it"}])

    for free, level in ((2000, OK), (500, WARN), (10, FAIL)):
        limits(free)
        finding = _doctor_system.memory()
        assert finding.level == level and f"{free} MiB left, by memory cgroup /job" in finding.value
        assert finding.advice == ("" if level == OK else "raise it")


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, level in ((32, FAIL), (256, WARN), (4096, OK), (resource.RLIM_INFINITY, OK)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert _doctor_system.open_files().level == level


def test_more_ranks_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "usable_cores", lambda: 1)
    assert _doctor_system.cores({"WORLD_SIZE": "8"}).level == WARN
    assert "8 ranks" in _doctor_system.cores({"WORLD_SIZE": "64", "LOCAL_WORLD_SIZE": "8"}).value
    assert _doctor_system.cores({"WORLD_SIZE": "1"}).level == OK
    assert _doctor_system.cores({}).value.startswith("1 usable of ")


def test_refused_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _doctor_system.memory_files().level == OK

    def refused(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refused)
    finding = _doctor_system.memory_files()
    assert finding.level == FAIL and "Operation not permitted" in finding.value


def test_reading_of_other_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen = _doctor_system._try_reading(timeout=30)
    assert seen in ("read", "Operation not permitted", "Function not implemented")
    scope = tmp_path / "proc/sys/kernel/yama/ptrace_scope"
    scope.parent.mkdir(parents=True)
    scope.write_text("1\n")
    monkeypatch.setattr(_doctor_system, "_try_reading", lambda _: "Operation not permitted")
    finding = _doctor_system.private_memory(tmp_path)
    assert finding.level == WARN and "ptrace_scope=1" in finding.value and "SYS_PTRACE" in finding.advice


def test_the_probe_sees_what_it_reads() -> None:
    """A wrong address is no success."""
    run = subprocess.run(
        [sys.executable, "-c", _doctor_system._READ_PROBE, str(os.getpid()), "4096"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stdout.strip() not in ("", "read")


def test_huge_pages_are_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    enabled = tmp_path / "sys/kernel/mm/transparent_hugepage/shmem_enabled"
    enabled.parent.mkdir(parents=True)
    enabled.write_text("always within_size [advise] never deny force\n")
    for taken, level in ((0, WARN), (8192, OK)):
        monkeypatch.setattr(_doctor_system, "_mapped_huge_kib", lambda taken=taken: taken)
        finding = _doctor_system.huge_pages(tmp_path)
        assert finding.level == level and "shmem_enabled=advise" in finding.value


# --- Variables -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "level", "value"),
    [
        ({}, OK, "1836 s, the default"),
        ({"HCCL_EXEC_TIMEOUT": "7200"}, OK, "7200 s"),
        ({"HCCL_EXEC_TIMEOUT": "60"}, WARN, "60 s"),
        ({"WORLD_SIZE": "64"}, WARN, "1836 s"),
        ({"HCCL_EXEC_TIMEOUT": "7200", "WORLD_SIZE": "64"}, OK, "7200 s"),
        ({"HCCL_EXEC_TIMEOUT": "0"}, OK, "for ever"),
        ({"HCCL_EXEC_TIMEOUT": "1h"}, FAIL, "1h"),
        ({"HCCL_EXEC_TIMEOUT": "-1"}, FAIL, "-1"),
        ({"HCCL_EXEC_TIMEOUT": "9999999999"}, FAIL, "9999999999"),
    ],
)
def test_the_time_that_a_call_may_wait(environ: dict[str, str], level: str, value: str) -> None:
    finding = _doctor_environment.timeout("HCCL_EXEC_TIMEOUT", environ)
    assert finding.level == level and value in finding.value
    assert level == OK or "7200" in finding.advice


def test_a_start_that_hccl_would_refuse() -> None:
    finding = _doctor_environment.timeout("HCCL_CONNECT_TIMEOUT", {"HCCL_CONNECT_TIMEOUT": "30"})
    assert finding.level == WARN and "120 or more" in finding.advice and "1800" in finding.advice


@pytest.mark.parametrize(
    ("name", "value", "level", "expected"),
    [
        ("HCCL_BUFFSIZE", "400", OK, "read by HCCL"),
        ("HCCL_BUFFSIZE", "0", WARN, "from 1 to"),
        ("HCCL_DETERMINISTIC", "STRICT", OK, ""),
        ("HCCL_DETERMINISTIC", "yes", WARN, "false|true|strict"),
        ("HCCL_ALGO", "level0:NA;level1:H-D_R", OK, ""),
        ("HCCL_ALGO", "ring", WARN, "expected"),
        ("HCCL_BUFSIZE", "400", WARN, "HCCL_BUFFSIZE?"),
        ("HCCL_CONECT_TIMEOUT", "400", WARN, "HCCL_CONNECT_TIMEOUT?"),
        ("HCCL_ZZZ", "1", WARN, "no such variable"),
        ("COLLECTIVE_OPS_TRACE", "1", OK, "record every call"),
        ("COLLECTIVE_OPS_TRACE", "yes", FAIL, "0 or 1"),
        ("COLLECTIVE_OPS_TRACES", "1", WARN, "COLLECTIVE_OPS_TRACE"),
        ("COLLECTIVE_OPS_PATH", "staged", WARN, "forced"),
        ("COLLECTIVE_OPS_PATH", "fast", FAIL, "auto, staged, direct, read"),
        ("COLLECTIVE_OPS_ALGORITHM", "auto", OK, ""),
        ("COLLECTIVE_OPS_TRACE_DIR", "/nowhere/at/all", FAIL, "mkdir -p"),
        ("COLLECTIVE_OPS_TRACE_DIR", "", OK, "empty"),
    ],
)
def test_a_variable_is_judged(name: str, value: str, level: str, expected: str) -> None:
    finding = by_name(_doctor_environment.environment({name: value}))[name]
    assert finding.level == level and expected in f"{finding.value} {finding.advice}"


def test_every_default_of_hccl_can_be_used() -> None:
    for name, variable in HCCL_VARIABLES.items():
        if variable.default not in ("", "by HCCL", "by device", "by name"):
            assert variable.problem(variable.default) == "", name


def test_a_rank_in_the_shell_is_noticed() -> None:
    assert by_name(_doctor_environment.ranks({"RANK": "3"}))["RANK"].level == WARN
    assert "RANK" not in by_name(_doctor_environment.ranks({"RANK": "3", "LOCAL_WORLD_SIZE": "4"}))


def test_what_counts_between_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in _doctor_environment.HOSTS:
        monkeypatch.delenv(name, raising=False)

    def found(**variables: str) -> dict[str, Finding]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        return by_name(_doctor_environment.environment(os.environ))

    monkeypatch.setenv("WORLD_SIZE", "4")
    assert found(LOCAL_WORLD_SIZE="4")["secret"].level == OK
    assert found(LOCAL_WORLD_SIZE="2")["secret"].level == FAIL
    assert found(COLLECTIVE_OPS_INSECURE="1")["secret"].level == WARN
    given = found(COLLECTIVE_OPS_SECRET="not to be shown to anybody")
    assert given["secret"].level == OK and not any("to be shown" in str(line) for line in given.values())
    assert found(COLLECTIVE_OPS_SECRET="short")["secret"].level == FAIL
    lost = found(HCCL_SOCKET_IFNAME="=nosuch0")["other hosts"]
    assert lost.level == FAIL and "lo 127.0.0.1" in lost.value


def test_the_document_lists_the_variables_that_are_read() -> None:
    text = (ROOT / "docs/tuning.md").read_text()
    listed = {}
    for row in re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", text, re.MULTILINE):
        listed[row[0]] = (row[1].strip("`"), row[2])
    for name, default, meaning in _core.environment_variables():
        assert listed.get(name) == (default, meaning), (
            f"| `{name}` | {f'`{default}`' if default else ''} | {meaning} |"
        )


# --- Comparing -------------------------------------------------------------------------------------


def saved(path: Path, **values: str) -> str:
    lines = [
        {
            "section": "software",
            "name": name,
            "level": OK,
            "value": value,
            "advice": "",
            "varies": name == "memory",
        }
        for name, value in values.items()
    ]
    path.write_text(json.dumps({"format": doctor.FORMAT, "worst": OK, "findings": lines}))
    return str(path)


def test_one_difference_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = saved(tmp_path / "old.json", CANN="7.0.1.3", Python="3.10", memory="1 MiB")
    new = saved(tmp_path / "new.json", CANN="8.0.RC2", Python="3.10", memory="2 MiB")
    assert cli.main(["doctor", "--compare", old, new]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "CANN"
    assert f"{old}: 7.0.1.3" in printed and f"{new}: 8.0.RC2" in printed
    assert printed.splitlines()[-1].startswith("One thing differs")

    more = saved(tmp_path / "more.json", CANN="8.0.RC2", Python="3.11", HCCL_ALGO="ring")
    assert cli.main(["doctor", "--compare", old, more, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in data["differences"]] == ["CANN", "Python", "HCCL_ALGO"]
    assert data["differences"][2]["first"] == "not set" and data["comparable"] is False
    assert cli.main(["doctor", "--compare", old, more]) == 1
    assert "3 things differ" in capsys.readouterr().out
    assert cli.main(["doctor", "--compare", old, old]) == 0
    assert capsys.readouterr().out == "Nothing differs.\n"


def test_this_machine_does_not_differ_from_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(_doctor_software, "torch_probe", lambda: {"torch": "2.1.0"})
    assert cli.main(["doctor", "--json"]) == 0
    (tmp_path / "here.json").write_text(capsys.readouterr().out)
    assert cli.main(["doctor", "--compare", str(tmp_path / "here.json")]) == 0
    assert capsys.readouterr().out == "Nothing differs.\n"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 77}', '{"format": 1, "findings": [{"a": 1}]}'])
def test_a_file_of_another_kind_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text(text)
    assert cli.main(["doctor", "--compare", str(tmp_path / "other.json")]) == 1
    assert "other.json" in capsys.readouterr().err


def test_parts_that_are_not_there_are_named() -> None:
    assert _doctor_software.parts([]).level == OK
    found = _doctor_software.parts(["_perf", "_torch"])
    assert found.level == WARN and "make build" in found.advice and "collective-ops-torch" in found.advice
    assert found.value == 'not there: collective-ops perf, init_process_group("collective_ops")'
    assert _doctor_software.parts(["_torch"]).level == OK  # PyTorch may not be used
    assert set(_doctor_software.missing_parts()) <= set(_doctor_software.PARTS)


@pytest.mark.parametrize("name", ["absent.json", "."])
def test_what_cannot_be_compared_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected what `collective-ops doctor --json` has printed"):
        doctor.load(tmp_path / name)
