"""examples/train_resnet.py: gradients of many ranks against those of one process, resume, and the parts."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

import digits  # noqa: E402
import train_resnet  # noqa: E402
import training_parts  # noqa: E402
from collective_ops import init_hccl  # noqa: E402
from resnet import Bottleneck, ResNet50  # noqa: E402
from training_parts import GradientAverager  # noqa: E402

WAYS = (("bucket", True), ("bucket", False), ("parameter", True), ("parameter", False))
MICRO_BATCH = 4


def connect() -> tuple[int, int]:
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    init_hccl(rank=rank, world_size=world_size, device_id=rank)
    return rank, world_size


def network() -> ResNet50:
    """Equal on all ranks, and every parameter of it has a gradient from the first step on."""
    torch.manual_seed(7)
    model = ResNet50(num_classes=10)
    for block in model.modules():
        if isinstance(block, Bottleneck):
            torch.nn.init.ones_(block.bn3.weight)
    return model


def backward(model: ResNet50, data: digits.Digits, number: int) -> None:
    part = slice(number * MICRO_BATCH, (number + 1) * MICRO_BATCH)
    inputs = digits.as_network_input(data.train_images[part], 32)
    torch.nn.functional.cross_entropy(model(inputs), data.train_labels[part]).backward()


def gradients_of_all_ranks() -> list[list[torch.Tensor]]:
    """The averaged gradients, for each way to average them."""
    rank, world_size = connect()
    data = digits.load_digits(rank, world_size)
    model = network()
    backward(model, data, rank)
    own = [p.grad for p in model.parameters()]
    result = []
    for number, (mode, placed) in enumerate(WAYS):
        for parameter in model.parameters():
            parameter.grad = None
        averager = GradientAverager(model, world_size, mode=mode, bucket_size_mb=25, placed=placed)
        averager.zero_grad()
        if number == 0:
            backward(model, data, rank)
        else:  # as backward leaves them: in place where there is one, else new
            for parameter, gradient in zip(model.parameters(), own, strict=True):
                if placed:
                    parameter.grad.copy_(gradient)
                else:
                    parameter.grad = gradient.clone()
        averager.average()
        gradients = [p.grad.clone() for p in model.parameters()]
        result.append(gradients if rank == 0 else [g.double().sum() for g in gradients])
    return result


def gradients_of_one_process(world_size: int) -> list[torch.Tensor]:
    """The same micro-batches one after the other; batch norm sees the same images together."""
    connect()
    data = digits.load_digits(0, 1)
    model = network()
    for number in range(world_size):
        backward(model, data, number)
    return [p.grad / world_size for p in model.parameters()]


def test_averaged_gradients_are_those_of_one_process(rank_pool) -> None:
    per_rank = rank_pool.run(gradients_of_all_ranks, world_size=8, timeout=300)
    (expected,) = rank_pool.run(gradients_of_one_process, world_size=1, args=(8,), timeout=300)
    assert len(expected) == 161
    for way, gradients in zip(WAYS, per_rank[0], strict=True):
        for number, (got, wanted) in enumerate(zip(gradients, expected, strict=True)):
            assert wanted.abs().max() > 0
            error = (got - wanted).abs().max() / wanted.abs().max()
            assert error <= 1e-5, f"{way}, gradient {number}: {error}"
    for sums in per_rank[1:]:
        for way_sums, gradients in zip(sums, per_rank[0], strict=True):
            assert way_sums == [g.double().sum() for g in gradients]


def train(*arguments: str) -> int:
    return train_resnet.main(["--images", "48", "--batch-size", "12", "--threads", "1", *arguments])


def assert_equal_state(left: object, right: object, where: str = "") -> None:
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right), where
    elif isinstance(left, dict):
        assert left.keys() == right.keys(), where
        for key in left:
            assert_equal_state(left[key], right[key], f"{where}.{key}")
    elif isinstance(left, list):
        for index, (one, other) in enumerate(zip(left, right, strict=True)):
            assert_equal_state(one, other, f"{where}[{index}]")
    else:
        assert left == right, where


def test_a_resumed_run_ends_with_the_same_bits(rank_pool, tmp_path: Path) -> None:
    whole, parts = str(tmp_path / "whole.pt"), str(tmp_path / "parts.pt")
    common = ("--epochs", "2")
    assert rank_pool.run(train, 2, (*common, "--checkpoint", whole), timeout=200) == [0, 0]
    assert rank_pool.run(train, 2, (*common, "--checkpoint", parts, "--stop-after", "1"), timeout=200) == [
        0,
        0,
    ]
    half = torch.load(parts, weights_only=True)
    assert half["epoch"] == 1
    assert rank_pool.run(train, 2, (*common, "--checkpoint", parts, "--resume"), timeout=200) == [0, 0]
    one, other = torch.load(whole, weights_only=True), torch.load(parts, weights_only=True)
    assert one["epoch"] == other["epoch"] == 2 and len(other["history"]) == 2
    for part in ("model", "optimizer", "settings"):
        assert_equal_state(one[part], other[part], part)
    assert not torch.equal(half["model"]["fc.weight"], one["model"]["fc.weight"])
    assert os.listdir(tmp_path).count("parts.pt") == len(os.listdir(tmp_path)) - 1 == 1


def train_with(*arguments: str) -> dict[str, float]:
    assert train("--epochs", "1", "--json", "metrics.json", *arguments) == 0
    return json.loads(Path("metrics.json").read_text())["epochs"][0] if os.environ["RANK"] == "0" else {}


def test_ddp_trains_as_our_own_loop(rank_pool, tmp_path: Path) -> None:
    pytest.importorskip("collective_ops_torch._native")
    ours, ddp = (
        rank_pool.run(train_with, world_size=2, args=arguments, timeout=300, cwd=tmp_path)[0]
        for arguments in ((), ("--ddp",))
    )
    assert ddp["loss"] == pytest.approx(ours["loss"], rel=1e-4)


def test_alone_without_any_variable(rank_pool, tmp_path: Path) -> None:
    env = {
        "RANK": None,
        "WORLD_SIZE": None,
        "DEVICE_ID": None,
        "LOCAL_RANK": None,
        "COLLECTIVE_OPS_JOB_ID": None,
    }
    metrics = str(tmp_path / "metrics.json")
    arguments = ("--epochs", "1", "--json", metrics, "--require-accuracy", "101")
    assert rank_pool.run(train, 1, arguments, env=env, timeout=200) == [1]  # nobody is right about 101 %
    assert '"tested_images": 48' in Path(metrics).read_text()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    path = tmp_path / "run.pt"
    training_parts.save_checkpoint(path, model, optimizer, 3, [{"loss": 1.0}], {"lr": 0.1, "world_size": 8})
    assert training_parts.load_checkpoint(path, model, optimizer, {"lr": 0.1, "world_size": 8}) == (
        3,
        [{"loss": 1.0}],
    )
    with pytest.raises(ValueError, match="world_size was 8, is 4"):
        training_parts.load_checkpoint(path, model, optimizer, {"lr": 0.1, "world_size": 4})


def test_a_checkpoint_that_fails_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    path = tmp_path / "run.pt"
    training_parts.save_checkpoint(path, model, optimizer, 1, [], {})
    before = path.read_bytes()

    def full_disk(_state: object, file) -> None:
        file.write(b"a part")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="No space"):
        training_parts.save_checkpoint(path, model, optimizer, 2, [], {})
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["run.pt"]


def test_shifted_moves_each_image_as_a_whole() -> None:
    images = torch.arange(2 * 3 * 5 * 6, dtype=torch.float32).reshape(2, 3, 5, 6)
    moved = digits.shifted(images, 2, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(images, (2, 2, 2, 2), mode="replicate")
    found = []
    for number in range(2):
        windows = {(y, x): padded[number, :, y : y + 5, x : x + 6] for y in range(5) for x in range(5)}
        found.append([key for key, window in windows.items() if torch.equal(window, moved[number])])
    assert all(len(places) == 1 for places in found)
    assert digits.shifted(images, 0, torch.Generator()) is images


def test_learning_rate_rises_and_falls() -> None:
    rates = [training_parts.learning_rate(step, 100, 0.5, 0.2) for step in range(100)]
    assert rates[0] == pytest.approx(0.5 / 20) and max(rates) == rates[20] == rates[19] == 0.5
    assert rates[:20] == sorted(rates[:20]) and rates[20:] == sorted(rates[20:], reverse=True)
    assert 0 < rates[-1] < 0.001


def test_the_model_is_on_the_cpu_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where there is a card: the collectives refuse its memory."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert train_resnet.parse_arguments([]).device == "cpu"
    assert train_resnet.parse_arguments(["--device", "cuda:1"]).device == "cuda:1"
    trainer = train_resnet.Trainer(train_resnet.parse_arguments(["--images", "8"]), rank=0, world_size=1)
    assert {parameter.device.type for parameter in trainer.model.parameters()} == {"cpu"}


@pytest.mark.parametrize("option", ["--images", "--epochs", "--batch-size", "--image-size"])
def test_numbers_that_cannot_be_are_named(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train_resnet.parse_arguments([option, "0"])
    assert f"{option}: 0: expected a whole number from 1 on" in capsys.readouterr().err
