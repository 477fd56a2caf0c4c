"""The network of examples/: its size is the known one, and its parts do what the names say."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))

from resnet import STAGES, Bottleneck, ResNet50  # noqa: E402

# Output channels of the seven kinds of tensor that a table of ResNet-50 lists.
KNOWN_SHAPES = {
    "conv1.weight": (64, 3, 7, 7),
    "layer1.0.conv1.weight": (64, 64, 1, 1),
    "layer1.0.downsample.0.weight": (256, 64, 1, 1),
    "layer2.0.conv2.weight": (128, 128, 3, 3),
    "layer3.5.conv3.weight": (1024, 256, 1, 1),
    "layer4.2.bn3.bias": (2048,),
    "fc.weight": (1000, 2048),
}


@pytest.fixture(scope="module")
def model() -> ResNet50:
    with torch.device("meta"):  # shapes alone, no memory
        return ResNet50()


def test_size_is_the_known_one(model: ResNet50) -> None:
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    assert len(list(model.parameters())) == 161
    assert sum(isinstance(m, torch.nn.Conv2d) for m in model.modules()) == 53
    # Statistics are no parameters: 26,560 means and variances each, and a counter for each of 53 layers.
    assert sum(b.numel() for b in model.buffers()) == 2 * 26_560 + 53


def test_names_and_shapes_are_those_of_usual_checkpoints(model: ResNet50) -> None:
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    for name, shape in KNOWN_SHAPES.items():
        assert shapes[name] == shape


def test_another_number_of_classes_changes_the_last_layer_alone(model: ResNet50) -> None:
    with torch.device("meta"):
        small = ResNet50(num_classes=10)
    assert small.fc.weight.shape == (10, 2048)
    difference = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in small.parameters())
    assert difference == (1000 - 10) * (2048 + 1)


def test_each_stage_halves_the_picture(model: ResNet50) -> None:
    x = torch.empty(2, 3, 224, 224, device="meta")
    x = model.maxpool(model.relu(model.bn1(model.conv1(x))))
    assert x.shape == (2, 64, 56, 56)
    for stage, (width, _, stride) in zip(
        (model.layer1, model.layer2, model.layer3, model.layer4), STAGES, strict=True
    ):
        side = x.shape[-1] // stride
        x = stage(x)
        assert x.shape == (2, 4 * width, side, side)
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_a_block_begins_as_its_shortcut() -> None:
    torch.manual_seed(0)
    network = ResNet50(num_classes=3)
    block = network.layer1[1]
    x = torch.rand(2, 256, 4, 4)
    assert torch.equal(block(x), x)  # x >= 0, and the last batch norm of the branch has a factor of 0
    torch.nn.init.ones_(block.bn3.weight)
    assert not torch.equal(block(x), x)


def test_every_parameter_gets_a_gradient() -> None:
    torch.manual_seed(0)
    network = ResNet50(num_classes=3)
    for block in network.modules():
        if isinstance(block, Bottleneck):
            torch.nn.init.ones_(block.bn3.weight)
    network(torch.rand(2, 3, 64, 64)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None and torch.count_nonzero(parameter.grad) > 0, name
