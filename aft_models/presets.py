"""The named architectures, without torch or timm.

A name is ``xcit_<size>_p<patch>`` for the baseline, followed by ``_<variant>`` for the others:
``xcit_nano_12_p16``, ``xcit_small_12_p8_af``, ``xcit_pico_6_p4_aps``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aft_models.errors import AftModelsError, unknown

_CHOICES: dict[str, tuple[Any, ...]] = {
    "patch_size": (2, 4, 8, 16, 32),
    "padding": ("zeros", "circular"),
    "downsample": ("stride", "aps", "af"),
    "embed_activation": ("gelu", "af_gelu", "af_poly"),
    "block_activation": ("gelu", "af_gelu", "af_poly"),
    "up": (2, 3, 4),
    "norm": ("layer", "af"),
    "norm_mean": ("token", "channel"),
    "head": ("class_attention", "af_class_attention", "avgpool"),
    "attention": ("xca", "linear", "sima"),
}


@dataclass(frozen=True)
class XCiTConfig:
    """The architecture: sizes first, then the switches that make it alias-free."""

    dim: int  # channels of a token
    depth: int  # attention blocks before the head
    num_heads: int  # divides dim
    patch_size: int  # pixels per token along each axis, a power of two
    layer_scale: float = 1.0  # initial gain of every residual branch
    mlp_ratio: float = 4.0  # hidden width of the MLPs over dim
    class_depth: int = 2  # class-attention blocks
    tokens_norm: bool = True  # class attention normalizes all tokens, not the class token alone
    padding: str = "zeros"  # of every convolution: zeros, circular
    downsample: str = "stride"  # how the patch embedding halves the grid: stride, aps, af
    embed_activation: str = "gelu"  # in the patch embedding: gelu, af_gelu, af_poly
    block_activation: str = "gelu"  # in the blocks: gelu, af_gelu, af_poly
    last_embed_activation: bool = False  # an activation after the last embedding convolution too
    up: int = 2  # up-sampling factor of alias-free activations: 2 (the paper), 3, 4
    embed_degree: int = 3  # of af_poly in the patch embedding
    block_degree: int = 2  # of af_poly in the blocks
    norm: str = "layer"  # of the blocks and of alias-free class attention: layer, af
    norm_mean: str = "token"  # af norm: mean per token (the paper) or per channel (its code)
    positional: bool = True  # Fourier positional encoding
    head: str = "class_attention"  # class_attention, af_class_attention, avgpool
    residual_norm: bool = True  # af class attention: the second norm feeds the residual too
    attention: str = "xca"  # xca, linear, sima

    def __post_init__(self) -> None:
        for field, allowed in _CHOICES.items():
            value = getattr(self, field)
            if value not in allowed:
                known = ", ".join(map(str, allowed))
                raise AftModelsError(f"{field} must be one of {known}, got {value!r}")
        if self.dim % self.num_heads:
            raise AftModelsError(
                f"{self.num_heads} heads cannot share {self.dim} channels evenly: choose a "
                "multiple of the heads for dim"
            )
        if self.dim % (self.patch_size // 2):
            raise AftModelsError(
                f"dim {self.dim} cannot be halved once per stage of patch size "
                f"{self.patch_size}: choose a multiple of {self.patch_size // 2}"
            )


_SIZES: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    # Small enough to train on a laptop's processor: 0.4 M parameters on an 8 x 8 grid of tokens.
    "pico_6": ({"dim": 64, "depth": 6, "num_heads": 4}, (4, 8)),
    # timm's released nano weights were trained with class attention normalizing its token alone.
    "nano_12": ({"dim": 128, "depth": 12, "num_heads": 4, "tokens_norm": False}, (16, 8)),
    "tiny_12": ({"dim": 192, "depth": 12, "num_heads": 4}, (16, 8)),
    "small_12": ({"dim": 384, "depth": 12, "num_heads": 8}, (16, 8)),
}

_APS: dict[str, Any] = {"padding": "circular", "downsample": "aps", "positional": False}

_ALIAS_FREE: dict[str, Any] = {
    "padding": "circular",
    "downsample": "af",
    "embed_activation": "af_gelu",
    "block_activation": "af_gelu",
    "last_embed_activation": True,
    "norm": "af",
    "positional": False,
    "head": "af_class_attention",
}

VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "aps": _APS,
    "aps_avgpool": {**_APS, "head": "avgpool"},  # of the paper's table by batch size
    "af": _ALIAS_FREE,
    # Class attention as in the paper's text; that of `af` follows the authors' code.
    "aftext": {**_ALIAS_FREE, "residual_norm": False},
    "af_avgpool": {**_ALIAS_FREE, "head": "avgpool"},
    "af_poly": {**_ALIAS_FREE, "embed_activation": "af_poly", "block_activation": "af_poly"},
    "af_polyblocks": {**_ALIAS_FREE, "block_activation": "af_poly"},
    "cyclic": {"padding": "circular"},
    "avgpool": {"head": "avgpool"},
    "aflayernorm": {"norm": "af"},
    "nopos": {"positional": False},
}


PRESETS = {
    f"xcit_{size}_p{patch}_{variant}".rstrip("_"): XCiTConfig(patch_size=patch, **shape, **switches)
    for size, (shape, patches) in _SIZES.items()
    for patch in patches
    for variant, switches in VARIANTS.items()
}


def get_config(name: str) -> XCiTConfig:
    """Return the configuration of a preset.

    Raises:
        AftModelsError: The name is unknown; the message contains the nearest names.
    """
    if name not in PRESETS:
        raise AftModelsError(unknown("model", name, PRESETS))
    return PRESETS[name]
