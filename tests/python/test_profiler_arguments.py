"""The flags of a profile: spellings, defaults, and what is wrong at the start."""

from __future__ import annotations

import argparse
import os
import types
from pathlib import Path

import pytest
from collective_ops.profiler import ProfileConfig, add_profile_args, parse_ranks, profile
from collective_ops.profiler.arguments import check_ranks, config_of, parse_size


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank's environment."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def parsed(*flags: str) -> argparse.Namespace:
    return add_profile_args(argparse.ArgumentParser()).parse_args(flags)


def test_nothing_is_on_without_a_flag() -> None:
    config = config_of(parsed())
    assert config == ProfileConfig()
    assert not config.enable_profiling and config.ranks == (-1,) and config.level == "level1"
    assert (config.step_start, config.step_end, config.profiling_dir) == (10, 12, "./profile_dir")
    assert config.export_type == "text"


def test_the_example_of_the_documents() -> None:
    flags = (
        "--profile --profile-step-start 10 --profile-step-end 15 --profile-level level2 --profile-ranks 0,1 "
        "--profile-with-cpu --profile-with-memory --profile-save-path ./profiling_result/"
    ).split()
    config = config_of(parsed(*flags))
    assert config == ProfileConfig(
        enable_profiling=True,
        profiling_dir="./profiling_result/",
        step_start=10,
        step_end=15,
        ranks=(0, 1),
        level="level2",
        with_cpu=True,
        with_memory=True,
    )
    assert [step for step in range(30) if config.records(step)] == [10, 11, 12, 13, 14]
    assert [rank for rank in range(8) if config.selects(rank)] == [0, 1]


@pytest.mark.parametrize(
    "flags",
    [
        "--profile",
        "--enable_profiling=True",
        "--profiling_enable=True",
        "--enable_profiling",
        "--enable_profiling=1",
    ],
)
def test_every_spelling_switches_it_on(flags: str) -> None:
    assert config_of(parsed(flags)).enable_profiling


def test_the_other_spellings_hold_their_values() -> None:
    config = config_of(parsed("--enable_profiling=True", "--profiling_dir", "./profiler"))
    assert config.profiling_dir == "./profiler"
    assert not config_of(parsed("--enable_profiling=False")).enable_profiling
    with pytest.raises(SystemExit):
        parsed("--enable_profiling=perhaps")


def test_an_interval_records_one_step_of_each() -> None:
    config = config_of(parsed("--enable_profiling=True", "--profiling_steps=10"))
    assert [step for step in range(45) if config.records(step)] == [10, 20, 30, 40]
    config = config_of(
        parsed(
            "--profile",
            "--profile-step-start",
            "5",
            "--profile-step-end",
            "12",
            "--profiling_steps",
            "3",
        )
    )
    assert [step for step in range(45) if config.records(step)] == [5, 8, 11]


def test_any_object_with_the_attributes_will_do() -> None:
    args = types.SimpleNamespace(enable_profiling=True, profiling_dir="./profiler", profile_ranks=[0])
    config = config_of(args)
    assert config.enable_profiling and config.profiling_dir == "./profiler" and config.ranks == (0,)
    assert config_of(ProfileConfig(enable_profiling=True, ranks=(3, 1, 3))).ranks == (1, 3)


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        ("-1", (-1,)),
        (["0", "1", "2"], (0, 1, 2)),
        ("0,1,2", (0, 1, 2)),
        ("0-15", tuple(range(16))),
        (["0-2,5", "9"], (0, 1, 2, 5, 9)),
        ([-1, 3], (-1, 3)),
        ([2, 2, 0], (0, 2)),
        ("[0, 1]", (0, 1)),
        ("7", (7,)),
        (0, (0,)),
    ],
)
def test_ranks_as_users_write_them(given: object, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(given) == ranks  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["", [], "a", "1-", "3-1", "-2", "1.5", "0--3"])
def test_what_is_no_rank_is_named(given: object) -> None:
    with pytest.raises(ValueError, match="ranks: "):
        parse_ranks(given)  # type: ignore[arg-type]


def test_ranks_reach_the_flag_in_each_spelling() -> None:
    for flags in (["0", "1", "2"], ["0,1,2"], ["0-2"]):
        assert config_of(parsed("--profile", "--profile-ranks", *flags)).ranks == (0, 1, 2)
    assert config_of(parsed("--profile", "--profile-ranks=-1")).ranks == (-1,)
    assert config_of(parsed("--profile", "--profile-ranks", "-1")).ranks == (-1,)


def test_ranks_beyond_the_world() -> None:
    assert check_ranks(ProfileConfig(ranks=(-1, 3)), 2) == ""
    assert "7 not in this job, which has the ranks 0 to 3" in check_ranks(ProfileConfig(ranks=(0, 7)), 4)
    with pytest.raises(ValueError, match="--profile-ranks 7: the job has the ranks 0 to 3"):
        check_ranks(ProfileConfig(ranks=(7,)), 4)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--profile-step-start", "10", "--profile-step-end", "10"], "is not after --profile-step-start 10"),
        (["--profile-step-start", "10", "--profile-step-end", "5"], "is not after"),
        (["--profile-ranks", "3"], "the job has the ranks 0 to 0"),
        (["--profile-ranks", "x"], "'x' is neither a rank"),
        (["--profile-save-path", ""], "--profile-save-path is empty"),
    ],
)
def test_wrong_values_end_at_the_start(flags: list[str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        profile(parsed("--profile", *flags))


@pytest.mark.parametrize(
    "flags",
    [
        ["--profile-level", "level3"],
        ["--profile-export-type", "xml"],
        ["--profile-step-start", "-1"],
        ["--profile-step-start", "a"],
        ["--profiling_steps", "0"],
        ["--profile-max-size", "0"],
        ["--profile-max-size", "big"],
    ],
)
def test_the_parser_refuses_what_cannot_be(flags: list[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--profile", *flags)


def test_a_path_that_cannot_be_written_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="--profile-save-path .*file/below"):
        profile(ProfileConfig(enable_profiling=True, profiling_dir=str(tmp_path / "file" / "below")))


def test_a_run_that_begins_behind_the_range_is_told() -> None:
    with pytest.raises(ValueError, match="this run begins with step 12"):
        profile(ProfileConfig(enable_profiling=True), first_step=12)


def test_a_program_keeps_the_flags_that_it_has(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--profile-ranks", nargs="+", type=int, default=[0])
    args = add_profile_args(parser).parse_args(["--profile", "--profile-ranks", "0", "2"])
    assert config_of(args).enable_profiling and config_of(args).ranks == (0, 2)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("800M", 800 << 20), ("1.5G", 3 << 29), ("4GiB", 4 << 30), ("2kB", 2048)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_flags_change_no_variable() -> None:
    """The recorder is switched on at the first recorded step, for this process alone."""
    before = dict(os.environ)
    parsed("--enable_profiling=False")
    parsed("--profile", "--profile-level", "level2")
    assert dict(os.environ) == before
