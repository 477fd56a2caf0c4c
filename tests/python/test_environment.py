"""check_environment: every mistake is named, with the line that mends it."""

import subprocess

import pytest
from collective_ops.environment import LaunchEnvironmentError, check_environment


def message(**environ: str) -> str:
    with pytest.raises(LaunchEnvironmentError) as caught:
        check_environment(environ)
    return str(caught.value)


@pytest.mark.parametrize("rank, size", [("0", "1"), ("7", "8"), (" 3 ", "4"), ("0", "1000"), ("10", "16")])
def test_good_values_pass(rank: str, size: str) -> None:
    check_environment({"RANK": rank, "WORLD_SIZE": size, "DEVICE_ID": rank, "LOCAL_RANK": rank})


def test_nothing_set_passes() -> None:
    check_environment({})
    check_environment({"RANK": "", "WORLD_SIZE": ""})
    check_environment({"RANK": "5"})


@pytest.mark.parametrize("text", ["0,1,2,3", "0 1 2 3", "0, 1, 2, 3", "0;1;2;3", "0\n1\n2\n3"])
@pytest.mark.parametrize("name", ["RANK", "DEVICE_ID"])
def test_a_list_is_named_with_the_corrected_loop(name: str, text: str) -> None:
    explanation = message(**{name: text, "WORLD_SIZE": "4"})
    assert name in explanation and "list of 4" in explanation
    assert "for i in ${DEVICE_IDS//,/ }" in explanation
    assert "DEVICE_IDS=0,1,2,3 WORLD_SIZE=4" in explanation
    assert "collective-ops run --nproc_per_node 4" in explanation


@pytest.mark.parametrize("devices", ["0,1,2", "4,5,6", "2,0,1"])
def test_the_corrected_loop_is_correct(devices: str) -> None:
    lines = message(RANK=devices, WORLD_SIZE="3").splitlines()
    loop = "\n".join(line for line in lines if line.startswith("    "))
    loop = loop.replace("python train.py", "sh -c 'echo $RANK:$DEVICE_ID:$WORLD_SIZE'")
    printed = subprocess.run(["bash", "-c", loop], capture_output=True, text=True, check=True).stdout.split()
    ranks, ids, sizes = zip(*(word.split(":") for word in printed), strict=True)
    assert sorted(ranks) == ["0", "1", "2"]
    assert sorted(ids) == sorted(devices.split(","))
    assert set(sizes) == {"3"}


@pytest.mark.parametrize("text", ["eight", "8.0", "-1", "0x8", "\u0968", "1e3", ","])
def test_not_a_number(text: str) -> None:
    explanation = message(WORLD_SIZE=text)
    assert "WORLD_SIZE" in explanation and text in explanation and "not a number" in explanation


def test_a_shell_without_ranges() -> None:
    assert "start the loop with bash, or write $(seq 0 7)" in message(RANK="{0..7}")


def test_world_size_of_zero() -> None:
    assert "at least 1" in message(WORLD_SIZE="0")


def test_rank_beyond_the_world() -> None:
    explanation = message(RANK="8", WORLD_SIZE="8")
    assert "RANK=8" in explanation and "= 7" in explanation
    assert "not a rank" in message(RANK="9", WORLD_SIZE="2", DEVICE_ID="9")
