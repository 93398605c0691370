"""Checkpoints with the key names of the authors' code."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import torch
from shifted_models import disturbed
from torch import Tensor, nn

from aft_models import AftModelsError, XCiT, create_xcit, load_authors_checkpoint
from aft_models.authors import convert_authors_checkpoint
from aft_models.checkpoint import load_state, load_weights, read_weights

ALIAS_FREE = "xcit_nano_12_p16_af"
TRAINED = {"num_classes": 6, "norm_mean": "channel", "tokens_norm": True}  # as in their code
PAPER = {  # the command line of the alias-free models, and a few arguments of the script itself
    "model": "xcit_af_nano_12_p16",
    "use_pos": False,
    "conv_padding_mode": "circular",
    "pe_down_af": True,
    "pe_fuse_down": True,
    "pe_act": "up_gelu",
    "pe_act_kwargs": "{}",
    "pe_first_act": None,
    "pe_last_act": True,
    "mlp_act": "up_gelu",
    "mlp_act_kwargs": "{}",
    "lpi_act": "up_gelu",
    "lpi_act_kwargs": "{}",
    "xca_norm_layer": "layer_af",
    "features_type": "cls_attn_af",
    "lr": 5e-4,
}
DEFAULTS = {  # arguments that the script saves with their other models, which ignore them
    **PAPER,
    "model": "xcit_nano_12_p16",
    "use_pos": True,
    "pe_act": "gelu",
    "mlp_act": "gelu",
    "lpi_act": "gelu",
    "xca_norm_layer": "layer",
    "features_type": "cls_token",
}
UP_POLY = {"pe_act": "up_poly", "mlp_act": "up_poly", "lpi_act": "up_poly"}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def authors_names(model: XCiT, kind: str, *, fused: bool = True) -> dict[str, Tensor]:
    """Return the state dict of ``model`` under the names of their ``kind`` of model."""
    fused = fused and kind != "APS"
    position = "pos_module." if kind == "alias-free" else "pos_embeder."
    state = {}
    for key, value in model.state_dict().items():
        new = key.replace("pos_embed.", position)
        if kind == "alias-free":
            new = new.replace(".local_mp.bn.", ".local_mp.norm.")
        if new.startswith("patch_embed.proj.") and not fused:
            head, _, rest = new.removeprefix("patch_embed.proj.").partition(".")
            new = f"patch_embed.proj.{int(head) // 2 * 3 + int(head) % 2}.{rest}"
        if new.endswith(".coefficients"):
            place = new.removesuffix(".coefficients")
            powers = torch.arange(value.shape[1])
            state[f"{place}.act_layer.coef"] = (value / (3.0 * 2.0**powers))[:, :, None, None]
            state[f"{place}.act_layer.in_scale"] = torch.tensor([2.0])
            state[f"{place}.act_layer.out_scale"] = torch.tensor([3.0])
            continue
        state[new] = value.clone()
    if model.cfg.head == "class_attention":
        for i in range(model.cfg.class_depth):
            for part in ("weight", "bias"):
                keys = [f"cls_attn_blocks.{i}.attn.{letter}.{part}" for letter in "qkv"]
                state[f"cls_attn_blocks.{i}.attn.qkv.{part}"] = torch.cat(
                    [state.pop(key) for key in keys]
                )
    return state


def require_same(loaded: nn.Module, model: nn.Module) -> None:
    x = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(loaded(x), model(x), rtol=1e-4, atol=1e-5)
    assert not loaded.training


@pytest.mark.parametrize(
    ("variant", "kind"),
    [
        ("", "baseline"),
        ("_nopos", "baseline"),
        ("_aps", "APS"),
        ("_aps_avgpool", "APS"),
        ("_af", "alias-free"),
        ("_af_avgpool", "alias-free"),
        ("_af_poly", "alias-free"),
    ],
)
def test_authors_checkpoint_loads_by_name_of_architecture(
    variant: str, kind: str, tmp_path: Path
) -> None:
    name = f"xcit_nano_12_p16{variant}"
    model = disturbed(create_xcit(name, **TRAINED))
    state = authors_names(model, kind)
    assert state.keys() != model.state_dict().keys()
    require_same(load_authors_checkpoint(state, name), model)
    content = {"model": {f"module.{k}": v for k, v in state.items()}}
    content["args"] = argparse.Namespace(lr=1.0)
    torch.save(content, tmp_path / "checkpoint.pth")
    loaded = load_authors_checkpoint(tmp_path / "checkpoint.pth", name)
    require_same(loaded, model)
    assert loaded.cfg.norm_mean == "channel"


@pytest.mark.parametrize(
    ("changes", "switches"),
    [
        ({}, {}),
        ({"xca_norm_layer": "layer"}, {"norm": "layer"}),
        ({"conv_padding_mode": "zeros"}, {"padding": "zeros"}),
        ({"pe_down_af": False}, {"downsample": "stride"}),
        ({"pe_last_act": False}, {"last_embed_activation": False}),
        ({"pe_fuse_down": False, "pe_act": "gelu"}, {"embed_activation": "gelu"}),
        ({"mlp_act": "gelu", "lpi_act": "gelu"}, {"block_activation": "gelu"}),
        ({"features_type": "cls_attn"}, {"head": "class_attention"}),
        ({"features_type": "avgpool", "use_pos": True}, {"head": "avgpool", "positional": True}),
        (
            {**UP_POLY, "pe_act_kwargs": '{"degree": 3, "in_scale": 0.5}'},
            {"embed_activation": "af_poly", "block_activation": "af_poly"},
        ),
        (
            {**UP_POLY, "mlp_act_kwargs": {"degree": 3}, "lpi_act_kwargs": {"degree": 3}},
            {
                "embed_activation": "af_poly",
                "block_activation": "af_poly",
                "embed_degree": 2,
                "block_degree": 3,
            },
        ),
    ],
)
def test_authors_saved_arguments_override_preset(
    changes: dict[str, Any], switches: dict[str, Any]
) -> None:
    model = disturbed(create_xcit(ALIAS_FREE, **TRAINED, **switches))
    arguments = argparse.Namespace(**{**PAPER, **changes})
    fused = changes.get("pe_fuse_down", True) and changes.get("pe_last_act", True)
    content = {"model": authors_names(model, "alias-free", fused=fused), "args": arguments}
    loaded = load_authors_checkpoint(content, ALIAS_FREE)
    assert loaded.cfg == model.cfg
    require_same(loaded, model)
    require_same(load_authors_checkpoint({**content, "args": vars(arguments)}, ALIAS_FREE), model)


@pytest.mark.parametrize(
    ("name", "kind", "arguments", "switches"),
    [
        ("xcit_nano_12_p8", "baseline", DEFAULTS, {"tokens_norm": False}),
        ("xcit_nano_12_p16", "baseline", DEFAULTS, {"tokens_norm": True}),
        ("xcit_tiny_12_p8", "baseline", DEFAULTS, {"tokens_norm": True}),
        (
            "xcit_nano_12_p8_af",
            "alias-free",
            {**PAPER, "features_type": "cls_attn"},
            {"head": "class_attention", "tokens_norm": True},
        ),
        (ALIAS_FREE, "alias-free", {}, {"positional": True}),
    ],
)
def test_authors_nano_p8_baseline_normalizes_class_token_alone(
    name: str, kind: str, arguments: dict[str, Any], switches: dict[str, Any]
) -> None:
    """The keys determine the positional encoding."""
    model = disturbed(create_xcit(name, **{**TRAINED, **switches}))
    content = {"model": authors_names(model, kind), "args": argparse.Namespace(**arguments)}
    loaded = load_authors_checkpoint(content, name)
    assert loaded.cfg == model.cfg
    require_same(loaded, model)
    if kind == "alias-free":  # arguments of the caller take precedence
        assert load_authors_checkpoint(content, name, up=3).cfg.up == 3


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"mlp_act": "up_c_gelu"}, "--mlp-act up_c_gelu, .* gelu, up_gelu, up_poly can be loaded"),
        ({"lpi_act": "gelu"}, "--mlp-act up_gelu --lpi-act gelu, .* both are the same"),
        ({"features_type": "cls_token"}, "--features-type cls_token"),
        ({"conv_padding_mode": "reflect"}, "--conv-padding-mode reflect"),
        ({"pe_first_act": "up_poly"}, "--pe-first-act up_poly"),
        ({"xca_norm_layer": "batch"}, "--xca-norm-layer batch, .* layer, layer_af can be loaded"),
        ({"pe_act": "gelu"}, "never sub-samples"),
        ({"pe_down_af": False, "pe_last_act": False}, "sub-samples once too often"),
        (
            {**UP_POLY, "pe_act_kwargs": '{"degree": 3}'},
            "--pe-act-kwargs .* the weights contain none",
        ),
        ({**UP_POLY, "pe_act_kwargs": "{"}, "--pe-act-kwargs {, .* expected a JSON object"),
        ({**UP_POLY, "mlp_act_kwargs": {"degree": 3}}, "the weights contain some of degree 2"),
        ({**UP_POLY, "mlp_act_kwargs": {"up": 4}}, "the weights contain some of degree 2"),
    ],
)
def test_authors_unsupported_arguments_raise(changes: dict[str, Any], complaint: str) -> None:
    stored = "mlp_act_kwargs" in changes
    poly = {"embed_activation": "af_poly", "block_activation": "af_poly", "embed_degree": 2}
    model = create_xcit(ALIAS_FREE, **TRAINED, **(poly if stored else {}))
    content = {"model": authors_names(model, "alias-free"), "args": {**PAPER, **changes}}
    with pytest.raises(AftModelsError, match=complaint) as caught:
        load_authors_checkpoint(content, ALIAS_FREE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "built", "asked", "complaint"),
    [
        ("baseline", "_nopos", "_cyclic", "authors' baseline model, .* differs in padding: choose"),
        ("APS", "_aps", "_nopos", "authors' APS model, .* differs in padding, downsample: choose"),
        ("baseline", "", "_aflayernorm", "authors' baseline model, .* differs in norm: choose"),
        ("alias-free", "_af_avgpool", "_aps_avgpool", "authors' alias-free model"),
    ],
)
def test_authors_other_model_with_fitting_keys_raises(
    kind: str, built: str, asked: str, complaint: str
) -> None:
    state = authors_names(create_xcit(f"xcit_nano_12_p16{built}", **TRAINED), kind)
    with pytest.raises(AftModelsError, match=complaint):
        load_authors_checkpoint(state, f"xcit_nano_12_p16{asked}")


def test_authors_keys_are_loaded_strictly(tmp_path: Path) -> None:
    state = authors_names(create_xcit(ALIAS_FREE), "alias-free")
    del state["blocks.3.gamma1"]
    state["blocks.3.gamma7"] = torch.ones(3)
    state["pos_module.token_projection.bias"] = torch.ones(3)
    state["norm.weight"] = torch.ones(5)
    with pytest.raises(AftModelsError) as caught:
        load_authors_checkpoint(state, ALIAS_FREE)
    for words in (
        "2 missing (blocks.3.gamma1, pos_embed.token_projection.weight)",
        "1 unexpected (blocks.3.gamma7",
        "norm.weight (5,) instead of (128,)",
    ):
        assert words in str(caught.value)
    with pytest.raises(AftModelsError, match="expected a checkpoint"):
        load_authors_checkpoint({"epoch": 3}, ALIAS_FREE)
    broken = tmp_path / "broken.pth"
    broken.write_bytes(b"no checkpoint")
    with pytest.raises(AftModelsError, match="cannot read the checkpoint"):
        load_authors_checkpoint(broken, ALIAS_FREE)
    with pytest.raises(AftModelsError, match="cannot read the checkpoint"):
        load_authors_checkpoint(tmp_path / "absent.pth", ALIAS_FREE)


@pytest.mark.parametrize(
    ("variant", "kind"), [("", "baseline"), ("_aps", "APS"), ("_af", "alias-free")]
)
def test_authors_converted_checkpoint_has_equal_logits(
    variant: str, kind: str, tmp_path: Path
) -> None:
    name = f"xcit_nano_12_p16{variant}"
    model = create_xcit(name, num_classes=7, norm_mean="channel", tokens_norm=True).eval()
    file = tmp_path / "theirs.pth"
    torch.save({"model": authors_names(model, kind)}, file)
    with pytest.raises(AftModelsError, match=r"python -m aft_models\.authors FILE"):
        load_state(create_xcit(name, num_classes=7), read_weights(file))
    convert_authors_checkpoint(file, name, tmp_path / "converted")
    require_same(load_weights(f"{name}.authors", tmp_path / "converted"), model)
