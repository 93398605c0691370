"""Models: parity with timm, timm's interface, and invalid requests."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
from shifted_models import disturbed
from torch import nn

import aft_models
from aft_models import PRESETS, AftModelsError, XCiTConfig, create_xcit
from aft_models.cards import WeightsCard, list_weights, weights_card
from aft_models.checkpoint import load_weights, read_carded, save_weights, state_dict_digest
from aft_models.presets import VARIANTS

PICO = [name for name in PRESETS if name.startswith("xcit_pico_6_p4")]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def tiny_model(**switches: object) -> nn.Module:
    """Build a preset reduced to two blocks."""
    return create_xcit("xcit_pico_6_p4_af", depth=2, num_classes=5, img_size=16, **switches)


@pytest.mark.parametrize("size", ["nano_12_p16", "nano_12_p8", "tiny_12_p16", "small_12_p16"])
def test_xcit_baseline_equals_timm(size: str) -> None:
    theirs = disturbed(timm.create_model(f"xcit_{size}_224", num_classes=7))
    ours = timm.create_model(f"xcit_{size}", num_classes=7).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        expected, got = theirs(x), ours(x)
    assert (got - expected).norm() <= 1e-5 * expected.norm()
    assert theirs.state_dict().keys() == ours.state_dict().keys()


@pytest.mark.parametrize("name", PICO)
def test_every_preset_trains_on_any_grid(name: str) -> None:
    model = timm.create_model(name, num_classes=4, img_size=32)
    logits = model(torch.randn(2, 3, 12, 20))  # 3 x 5 tokens
    assert logits.shape == (2, 4)
    logits.sum().backward()
    without = [n for n, p in model.named_parameters() if p.grad is None]
    assert without == []


def test_presets_equal_table_of_the_paper() -> None:
    sizes = {"pico_6": (4, 8), "nano_12": (16, 8), "tiny_12": (16, 8), "small_12": (16, 8)}
    assert len(PRESETS) == len(VARIANTS) * sum(map(len, sizes.values()))
    assert set(timm.list_models("xcit_nano_12_p16_af*")) >= {
        "xcit_nano_12_p16_af",
        "xcit_nano_12_p16_af_avgpool",
        "xcit_nano_12_p16_af_poly",
        "xcit_nano_12_p16_af_polyblocks",
    }
    baseline = PRESETS["xcit_small_12_p8"]
    for variant in ("cyclic", "avgpool", "aflayernorm", "nopos"):
        other = PRESETS[f"xcit_small_12_p8_{variant}"]
        changed = [
            f.name
            for f in dataclasses.fields(XCiTConfig)
            if getattr(other, f.name) != getattr(baseline, f.name)
        ]
        assert len(changed) == 1, variant
    with pytest.raises(dataclasses.FrozenInstanceError):
        baseline.dim = 3  # type: ignore[misc]


def test_timm_interface() -> None:
    model = timm.create_model("xcit_nano_12_p16_af", num_classes=3).eval()
    assert model.default_cfg["crop_pct"] == 224 / 256
    assert model.default_cfg["input_size"] == (3, 224, 224)
    names = {name for name, _ in model.named_parameters()}
    decay_free = model.no_weight_decay()
    assert "cls_token" in decay_free
    assert "blocks.0.attn.temperature" in decay_free & names
    x = torch.randn(1, 3, 32, 48)
    features = model.forward_features(x)
    assert features.shape == (1, 1 + 2 * 3, 128)
    assert torch.equal(model.forward_head(features), model(x))
    assert model.forward_head(features, pre_logits=True).shape == (1, 128)
    last, middle = model.forward_intermediates(x, indices=[0, 5])
    assert torch.equal(last, features)
    assert [m.shape for m in middle] == [(1, 128, 2, 3)] * 2
    model.reset_classifier(9)
    assert model(x).shape == (1, 9)
    model.reset_classifier(0)
    assert model(x).shape == (1, 128)
    assert timm.create_model("xcit_nano_12_p16").num_classes == 1000
    assert "xcit_nano_12_p16.fb_in1k" in timm.list_pretrained("xcit_nano_12_p16.*")
    model = timm.create_model("xcit_pico_6_p4_af", features_only=True, out_indices=[1, 4])
    assert [f.shape for f in model(torch.randn(1, 3, 16, 24))] == [(1, 64, 4, 6)] * 2


@pytest.mark.parametrize("name", ["xcit_pico_6_p4_af", "xcit_pico_6_p4_aps", "xcit_pico_6_p4"])
def test_xcit_copies_and_files_give_equal_logits(name: str, tmp_path: Path) -> None:
    model = disturbed(timm.create_model(name, num_classes=4, img_size=16))
    x = torch.randn(2, 3, 16, 16)
    expected = model(x)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    fresh = timm.create_model(name, num_classes=4, img_size=16).eval()
    fresh.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model)), fresh):
        assert torch.equal(other(x), expected)


def test_xcit_state_dict_contains_no_matrices() -> None:
    plain = create_xcit("xcit_pico_6_p4_nopos").state_dict()
    alias_free = create_xcit("xcit_pico_6_p4_af")
    before = alias_free.state_dict().keys()
    alias_free(torch.randn(1, 3, 16, 16))
    assert alias_free.state_dict().keys() == before
    body = {k for k in plain if not k.startswith("cls_attn_blocks")}
    assert body == {k for k in before if not k.startswith("cls_attn_blocks")}


@pytest.mark.parametrize("name", ["xcit_pico_6_p4_af", "xcit_pico_6_p4_af_poly"])
def test_xcit_gradient_checkpointing_gives_equal_gradients(name: str) -> None:
    model = create_xcit(name, depth=2, num_classes=5)
    other = copy.deepcopy(model)
    other.set_grad_checkpointing()
    x = torch.randn(2, 3, 16, 16)
    for m in (model, other):
        m(x).square().sum().backward()
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        torch.testing.assert_close(a.grad, b.grad)


def test_xcit_channels_last_gives_equal_logits() -> None:
    model = disturbed(tiny_model()).double()
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    expected = model(x)
    got = model.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)


def test_autocast_resamples_in_single_precision() -> None:
    layer = aft_models.layers.AliasFreeActivation(layout="NHWC")
    x = torch.randn(2, 8, 8, 4, requires_grad=True)
    expected = layer(x)
    (grad,) = torch.autograd.grad(expected.sum(), x)
    with torch.autocast("cpu", dtype=torch.float16):
        got = layer(x)
        (grad_cast,) = torch.autograd.grad(got.sum(), x)
    assert torch.equal(got, expected)
    assert torch.equal(grad_cast, grad)


@pytest.mark.slow
def test_torch_compile_equals_eager_for_another_batch() -> None:
    model = disturbed(
        create_xcit("xcit_pico_6_p4_af", depth=1, class_depth=1, num_classes=5, img_size=16)
    )
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    for batch in (2, 3):  # the second size makes the compiler generalize
        x = torch.randn(batch, 3, 16, 16)
        results = []
        for m in (model, compiled):
            model.zero_grad()
            y = m(x)
            y.sum().backward()
            results.append([y.detach(), *(p.grad.clone() for p in model.parameters())])
        for eager, other in zip(*results, strict=True):
            torch.testing.assert_close(other, eager, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_torch_export_equals_eager() -> None:
    model = disturbed(tiny_model())
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        program = torch.export.export(model, (x,))
        torch.testing.assert_close(program.module()(x), model(x), rtol=1e-4, atol=1e-5)


def card(architecture: str, tag: str = "toy") -> WeightsCard:
    return WeightsCard(
        name=f"{architecture}.{tag}",
        architecture=architecture,
        tag=tag,
        num_classes=3,
        class_names=("a", "b", "ç"),
        input_size=16,
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
        interpolation="bilinear",
        crop_pct=1.0,
        digest="",
        recipe={"lr": 0.1},
        scores={"accuracy": 0.5},
    )


def test_weights_round_trip_with_card(tmp_path: Path) -> None:
    name = "xcit_pico_6_p4_af"
    model = disturbed(create_xcit(name, num_classes=3, up=3, img_size=16))
    save_weights(model, tmp_path / "new", card(name))
    folder = tmp_path / "new"
    assert list_weights(folder) == [f"{name}.toy"]
    assert sorted(p.suffix for p in folder.iterdir()) == [".json", ".safetensors"]
    stored = weights_card(f"{name}.toy", folder)
    assert stored.digest == state_dict_digest(model.state_dict())
    assert stored == dataclasses.replace(card(name), digest=stored.digest, switches={"up": 3})
    loaded = load_weights(f"{name}.toy", folder)
    x = torch.randn(1, 3, 16, 16)
    assert torch.equal(loaded(x), model(x))
    assert not loaded.training


def test_weights_invalid_files_raise(tmp_path: Path) -> None:
    name = "xcit_pico_6_p4"
    model = create_xcit(name, num_classes=3)
    path = save_weights(model, tmp_path, card(name))
    with pytest.raises(AftModelsError, match=r"Did you mean 'xcit_pico_6_p4.toy'"):
        load_weights(f"{name}.toys", tmp_path)
    with pytest.raises(AftModelsError, match="expected a folder of exported weights"):
        list_weights(tmp_path / "absent")
    with pytest.raises(AftModelsError, match=r"'<architecture>\.<tag>'"):
        save_weights(model, tmp_path, dataclasses.replace(card(name), name="other"))
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"digest": "', '"digest": "0'), encoding="utf-8")
    with pytest.raises(AftModelsError, match="expected the weights of its card"):
        read_carded(f"{name}.toy", tmp_path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(AftModelsError, match="cannot read the weights card"):
        weights_card(f"{name}.toy", tmp_path)


def test_digest_depends_on_values_names_and_shapes_but_not_order() -> None:
    a, b = torch.arange(4.0), torch.ones(2, dtype=torch.int64)
    one = state_dict_digest({"a": a, "b": b})
    assert one == state_dict_digest({"b": b, "a": a.clone()})
    others = [{"a": a + 1, "b": b}, {"a": a.view(2, 2), "b": b}, {"c": a, "b": b}]
    others.append({"a": a, "b": b.to(torch.int32)})
    assert len({one, *map(state_dict_digest, others)}) == 5


@pytest.mark.parametrize("name", list_weights())
def test_bundled_weights_load_by_name_and_through_timm(name: str) -> None:
    model = load_weights(name)
    stored = weights_card(name)
    x = torch.randn(1, 3, stored.input_size, stored.input_size)
    assert model(x).shape == (1, stored.num_classes)
    if not stored.switches:
        through_timm = timm.create_model(name, pretrained=True).eval()
        assert torch.equal(through_timm(x), model(x))


SHAPE = {"depth": 1, "num_heads": 4}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (lambda: create_xcit("xcit_nano_12_p16_aff"), "Did you mean 'xcit_nano_12_p16_af'"),
        (lambda: create_xcit("xcit_pico_6_p4_af", img_size=30), "does not divide img_size 30"),
        (lambda: tiny_model()(torch.zeros(1, 3, 18, 16)), "does not divide the image, 18 x 16"),
        (lambda: XCiTConfig(dim=66, patch_size=4, **SHAPE), "heads cannot share"),
        (lambda: XCiTConfig(dim=12, patch_size=16, **SHAPE), "cannot be halved"),
        (
            lambda: XCiTConfig(dim=8, patch_size=4, downsample="x", **SHAPE),
            "downsample must be one of stride, aps, af, got 'x'",
        ),
        (lambda: create_xcit("xcit_pico_6_p4_avgpool", global_pool="token"), "global_pool"),
        (
            lambda: tiny_model().forward_intermediates(torch.zeros(1, 3, 16, 16), output_fmt="x"),
            "output_fmt",
        ),
    ],
)
def test_xcit_invalid_request_raises(request_: Callable[[], object], message: str) -> None:
    with pytest.raises(AftModelsError, match=message):
        request_()
