"""Exactness of ``circular+aps`` for every convolutional family of timm.

    python benchmarks/repair_sweep.py                   # the table of docs/reference/remedies.md
    python benchmarks/repair_sweep.py resnet10t vgg11   # some models

Small members represent each module of ``timm.models`` that contains convolutional networks: those
without attention and without a positional encoding. Weights are random, in float64. Batch norms
have the statistics of the images. No residual branch is switched off.
"""

from __future__ import annotations

import argparse
import copy
import re
from dataclasses import dataclass

import timm
import torch
import torchvision
from torch import Tensor, nn

from aft_models import AftModelsError, repair
from aft_models.layers import fractional_shift
from aft_models.remedies.repair import reports

SHIFTS = [(1, 0), (3, 2), (-5, 7)]
EXACT = 1e-6  # relative change of the logits

# Small members of each module of timm.models.
MEMBERS = {
    "byobnet": ["mobileone_s0", "gernet_s", "repvgg_a0", "resnet26t"],
    "convmixer": ["convmixer_768_32"],
    "convnext": ["convnext_atto", "convnextv2_atto", "convnext_atto_ols"],
    "cspnet": ["cspresnet50", "darknet17", "cs3darknet_focus_s", "cs3darknet_s"],
    "densenet": ["densenet121", "densenetblur121d"],
    "dla": ["dla46_c", "dla60_res2net"],
    "dpn": ["dpn48b"],
    "efficientnet": [
        "efficientnet_lite0", "tf_efficientnet_b0", "mobilenetv2_035", "mobilenetv1_100",
        "mnasnet_small", "tf_mixnet_s", "fbnetc_100", "tinynet_e",
    ],
    "fasternet": ["fasternet_t0"],
    "fastvit": ["fastvit_t8"],
    "focalnet": ["focalnet_tiny_srf"],
    "ghostnet": ["ghostnet_050", "ghostnetv2_100"],
    "hardcorenas": ["hardcorenas_a"],
    "hgnet": ["hgnet_tiny", "hgnetv2_b0"],
    "hrnet": ["hrnet_w18_small"],
    "inception_next": ["inception_next_atto"],
    "inception_resnet_v2": ["inception_resnet_v2"],
    "inception_v3": ["inception_v3"],
    "inception_v4": ["inception_v4"],
    "lcnetv2": ["lcnetv2_small"],
    "mambaout": ["mambaout_femto"],
    "metaformer": ["poolformer_s12", "convformer_s18"],
    "mobilenetv3": [
        "mobilenetv3_small_050", "tf_mobilenetv3_small_minimal_100", "lcnet_035", "fbnetv3_b",
        "mobilenetv4_conv_small_035", "mobilenetv4_conv_blur_medium",
    ],
    "nasnet": ["nasnetalarge"],
    "nfnet": ["nf_regnet_b0", "nf_resnet26", "nfnet_l0", "dm_nfnet_f0"],
    "pnasnet": ["pnasnet5large"],
    "rdnet": ["rdnet_tiny"],
    "regnet": ["regnetx_002", "regnety_002", "regnetz_005"],
    "repghost": ["repghostnet_050"],
    "repvit": ["repvit_m0_9"],
    "res2net": ["res2net50_48w_2s"],
    "resnest": ["resnest14d"],
    "resnet": ["resnet10t", "resnet18", "resnet18d", "resnext26ts", "resnetblur18", "resnetaa34d"],
    "resnetv2": ["resnetv2_18", "resnetv2_50d_gn", "resnetv2_50x1_bit"],
    "rexnet": ["rexnet_100"],
    "selecsls": ["selecsls42b"],
    "senet": ["legacy_seresnet18"],
    "sknet": ["skresnet18"],
    "starnet": ["starnet_s050"],
    "tresnet": ["tresnet_m"],
    "vgg": ["vgg11_bn"],
    "vovnet": ["ese_vovnet19b_slim_dw", "vovnet39a"],
    "xception": ["legacy_xception"],
    "xception_aligned": ["xception41"],
}  # fmt: skip
# Models of torchvision, whose networks are in files of their own.
TORCHVISION = [
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3",
    "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf", "resnet18",
    "shufflenet_v2_x0_5", "squeezenet1_1", "vgg11_bn",
]  # fmt: skip
# Sides of the images (pixels), multiples of the total stride.
SIDE = 64
SIDES = {
    "convmixer_768_32": 56,
    "alexnet": 224,
    "inception_v3": 128,
    "inception_v4": 128,
    "inception_resnet_v2": 128,
    "vgg11_bn": 224,
}

# Reason why a model is not exact, if the report of the repair does not contain it.
REASONS: dict[str, str] = {}


@dataclass(frozen=True)
class Verdict:
    """Result for one model."""

    family: str  # module of timm.models
    model: str
    layers: int  # changed by aps
    before: float  # largest relative change of the logits
    after: float | None  # None if the repaired model does not run
    reason: str  # reason why the model is not exact; empty if it is

    @property
    def exact(self) -> bool:
        """True if integer shifts do not change the logits."""
        return self.after is not None and self.after < EXACT


def scene(side: int, count: int = 2) -> Tensor:
    """Return random images with the spectrum of natural images."""
    white = torch.randn(count, 3, side, side, dtype=torch.float64)
    f = torch.hypot(
        torch.fft.fftfreq(side, dtype=torch.float64)[:, None],
        torch.fft.rfftfreq(side, dtype=torch.float64),
    )
    x = torch.fft.irfft2(torch.fft.rfft2(white) / (0.02 + f), s=(side, side))
    return x / x.std()


@torch.no_grad()
def calibrate(model: nn.Module, x: Tensor) -> nn.Module:
    """Set the statistics of batch norms to those of ``x``, and enable residual branches."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    for name, parameter in model.named_parameters():
        if re.search(r"gamma|layer_scale|\.ls\d|skipinit_gain", name):
            parameter.uniform_(0.5, 1)
    for norm in norms:
        if norm.affine:
            norm.weight.uniform_(0.5, 1)
        norm.momentum = None
        norm.reset_running_stats()
    model.train()(x)
    return model.eval()


@torch.no_grad()
def largest_change(model: nn.Module, x: Tensor) -> float:
    """Return the largest relative change of the logits over the shifts."""
    still = model(x)
    moved = [model(fractional_shift(x, *shift)) for shift in SHIFTS]
    return max(float((y - still).norm() / still.norm()) for y in moved)


def build(family: str, name: str) -> nn.Module:
    """Build a random model of timm or torchvision."""
    if family != "torchvision":
        model: nn.Module = timm.create_model(name, num_classes=10)
        return model
    plain = (
        {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    )
    found: nn.Module = getattr(torchvision.models, name)(num_classes=10, **plain)
    return found


def examine(family: str, name: str) -> Verdict:
    """Repair a model and measure it."""
    torch.manual_seed(0)
    model = build(family, name).double()
    side = SIDES.get(name, SIDE)
    x = scene(side)
    before = largest_change(calibrate(copy.deepcopy(model), x), x)
    try:
        repaired = repair(model, "circular+aps", input_size=x.shape[-1])
    except AftModelsError as error:
        return Verdict(family, name, 0, before, None, str(error))
    notes = reports(repaired)
    layers = len(notes[1].changed)
    try:
        after = largest_change(calibrate(repaired, x), x)
    except (RuntimeError, AftModelsError) as error:
        message = str(error).splitlines()[0]
        return Verdict(family, name, layers, before, None, REASONS.get(name, message))
    reason = ""
    if after >= EXACT:
        places = [f"{o.why} ({o.where})" for note in notes for o in note.unchanged]
        reason = REASONS.get(name) or "; ".join(dict.fromkeys(places)) or "unknown"
    return Verdict(family, name, layers, before, after, reason)


def main() -> None:
    """Examine the models and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help="names of timm; those of the table by default")
    wanted = parser.parse_args().models
    members = {**MEMBERS, "torchvision": TORCHVISION}
    print("| module | model | layers | change before | after | why |")
    print("| --- | --- | --- | --- | --- | --- |")
    verdicts = []
    for family, names in members.items():
        for name in names:
            if wanted and name not in wanted:
                continue
            verdict = examine(family, name)
            verdicts.append(verdict)
            after = "fails" if verdict.after is None else f"{verdict.after:.0e}"
            print(
                f"| {family} | `{name}` | {verdict.layers} | {verdict.before:.2f} | {after} "
                f"| {verdict.reason} |",
                flush=True,
            )
    for source in ("timm", "torchvision"):
        found = [v for v in verdicts if (v.family == "torchvision") == (source == "torchvision")]
        exact = [v for v in found if v.exact]
        families = {v.family for v in exact}
        print(
            f"\n{source}: {len(exact)} of {len(found)} models are exact, at least one in each of "
            f"{len(families)} of {len({v.family for v in found})} modules."
        )


if __name__ == "__main__":
    main()
