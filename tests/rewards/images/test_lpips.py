"""LPIPS is torchmetrics' with the same random network, and its files are found and refused as they should be."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torchmetrics
import torchvision
from PIL import Image
from safetensors.torch import load_file, save_file
from torchmetrics.functional.image.lpips import _LPIPS

from mmrl.rewards import RewardError, RewardInput, Status
from mmrl.rewards.images.lpips import LAYOUTS, LPIPS, MAX_DISTANCE, LPIPSNetwork

LINEAR = Path(torchmetrics.__file__).parent / "functional" / "image" / "lpips_models"


def ask(image, reference):
    return RewardInput(id="a", group=0, prompt="", image=image, references={"image": reference})


@pytest.fixture(scope="module")
def oracles():
    """torchmetrics' LPIPS: official linear weights on random networks."""
    layers = torchvision.models.vgg
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:  # without the classifier, which takes seconds to fill
        features = layers.make_layers(layers.cfgs["D"])
        patch.setattr(torchvision.models, "vgg16", lambda weights: SimpleNamespace(features=features))
        return {name: _LPIPS(net=name, pnet_rand=True).eval() for name in ("alex", "vgg")}


@pytest.fixture(scope="module")
def network_files(oracles, tmp_path_factory):
    """Their networks under torchvision's names."""
    folder = tmp_path_factory.mktemp("networks")
    for name, theirs in oracles.items():
        tensors = {f"features.{key.partition('.')[2]}": value for key, value in theirs.net.state_dict().items()}
        save_file(tensors, folder / f"{name}.safetensors")
    return folder


def pictures(number, side, seed=0):
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (number, side // 8 + 1, side // 8 + 1, 3)).repeat(8, 1).repeat(8, 2)[:, :side, :side]
    return np.clip(coarse + rng.normal(0, 30, coarse.shape), 0, 255).astype(np.uint8)


@pytest.mark.integration
@pytest.mark.parametrize(
    "name, cases, side", [("alex", 50, 32), pytest.param("alex", 500, 32, marks=pytest.mark.slow), ("vgg", 8, 20)]
)
def test_lpips_equals_torchmetrics(oracles, network_files, name, cases, side):
    reward = LPIPS(name, str(network_files / f"{name}.safetensors"), device="cpu")
    first, second = pictures(cases, side), pictures(cases, side, seed=1)
    x, y = (torch.from_numpy(p.astype(np.float32) / 255).permute(0, 3, 1, 2) for p in (first, second))
    with torch.no_grad():
        expected = oracles[name](x, y, normalize=True).flatten().numpy()
    output = reward.score([ask(Image.fromarray(a), Image.fromarray(b)) for a, b in zip(first, second, strict=True)])
    assert set(output.status["lpips"]) == {Status.OK}
    np.testing.assert_allclose(output.values["lpips"], expected, rtol=1e-4, atol=1e-7)
    assert expected.std() > 0.01 * expected.mean()
    assert reward.spec.sign == -1


def test_lpips_is_zero_only_for_equal_images(network_files):
    reward = LPIPS("alex", str(network_files / "alex.safetensors"), device="cpu")
    picture = pictures(1, 40)[0]
    almost = picture.copy()
    almost[3, 4, 1] ^= 1
    items = [ask(Image.fromarray(seen), Image.fromarray(picture)) for seen in (picture, almost, 255 - picture)]
    same, near, far = reward.score(items).values["lpips"].tolist()
    assert same == 0 < near < far < MAX_DISTANCE


def test_lpips_loads_from_one_file(oracles, network_files, tmp_path):
    whole = oracles["alex"].state_dict()
    tensors = {key: value.contiguous() for key, value in whole.items() if not key.startswith("lins.")}
    save_file(tensors, tmp_path / "lpips_alex.safetensors")
    parts = LPIPS("alex", str(network_files / "alex.safetensors"), device="cpu")
    one = LPIPS("alex", str(tmp_path), linear=None, device="cpu")
    first, second = (Image.fromarray(p) for p in pictures(2, 40))
    assert one.score([ask(first, second)]).values == parts.score([ask(first, second)]).values
    assert [len(reward.spec.weights) for reward in (one, parts)] == [1, 2]
    assert parts.spec.weights[1].path == "torchmetrics/alex.pth"


def test_lpips_uses_the_torchvision_weights_in_the_cache(network_files, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    torch.save(load_file(network_files / "alex.safetensors"), tmp_path / "checkpoints" / LAYOUTS["alex"].files[-1])
    first, second = (Image.fromarray(p) for p in pictures(2, 40))
    expected = LPIPS("alex", str(network_files / "alex.safetensors"), device="cpu").score([ask(first, second)])
    assert LPIPS("alex", device="cpu").score([ask(first, second)]).values == expected.values


def test_lpips_gradients_point_to_the_reference(network_files):
    reward = LPIPS("alex", str(network_files / "alex.safetensors"), device="cpu")
    first, second = pictures(2, 48)
    item = ask(Image.fromarray(first), Image.fromarray(second))
    images = torch.from_numpy(first.astype(np.float32) / 255).permute(2, 0, 1)[None].requires_grad_()
    before = reward.score_tensor(images, [item])
    assert before.item() == pytest.approx(reward.score([item]).values["lpips"][0], rel=1e-3)
    before.sum().backward()
    step = images.detach() - 0.02 * images.grad / images.grad.abs().max()
    assert reward.score_tensor(step.clamp(0, 1), [item]).item() < before.item()
    black = torch.zeros(1, 3, 48, 48).requires_grad_()
    reward.score_tensor(black, [item]).sum().backward()
    assert black.grad.isfinite().all()


@pytest.mark.parametrize("name", ["alex", "vgg"])
def test_smallest_size_is_that_of_the_network(network_files, name):
    network = LPIPSNetwork(name, str(network_files / f"{name}.safetensors"), "torchmetrics", "cpu")
    least = LAYOUTS[name].min_side
    assert all(min(layer.shape[2:]) >= 1 for layer in network.features(torch.rand(1, 3, least, least)))
    with pytest.raises(RuntimeError):
        network.features(torch.rand(1, 3, least - 1, least - 1))
    reward = LPIPS(name, str(network_files / f"{name}.safetensors"), device="cpu")
    small = Image.new("RGB", (least - 1, 60))
    assert reward.score([ask(small, small)]).failures[0]["lpips"].kind == "too_small"


def test_invalid_files_are_rejected(network_files, tmp_path):
    alex, vgg = (str(network_files / f"{name}.safetensors") for name in ("alex", "vgg"))
    (tmp_path / "text.pth").write_text("no weights")
    save_file({f"lin{i}.model.1.weight": torch.full((1, c, 1, 1), 9.0) for i, c in enumerate((64, 192, 384, 256, 256))},
              tmp_path / "huge.safetensors")  # fmt: skip
    torch.save({"features.0.weight": Path("a")}, tmp_path / "code.pth")
    for settings, says in (
        ({"net": "squeeze"}, "net is 'squeeze'; it must be alex or vgg"),
        ({"network": str(tmp_path / "absent.pth")}, "absent.pth"),
        ({"network": str(tmp_path / "text.pth")}, "text.pth cannot be loaded"),
        ({"network": str(tmp_path / "code.pth")}, "code.pth cannot be loaded"),
        ({"network": str(LINEAR / "alex.pth")}, "has no features.0.weight"),
        ({"network": alex, "linear": None}, "has no lin0.model.1.weight of 64 channels"),
        ({"network": alex, "linear": str(LINEAR / "vgg.pth")}, "has no lin1.model.1.weight of 192 channels"),
        ({"network": alex, "linear": str(tmp_path / "huge.safetensors")}, "these allow 90"),
        ({"net": "vgg", "network": alex}, "has no features"),
        ({"network": vgg}, "has no features"),
    ):
        with pytest.raises(RewardError, match=says):
            LPIPS(**({"device": "cpu"} | settings))
