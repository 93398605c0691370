"""Shift-equivariant layers, which can make another network alias-free too."""

from aft_models.layers.activation import AliasFreeActivation
from aft_models.layers.attention import AliasFreeClassAttention, LinearAttention, SimaAttention
from aft_models.layers.norm import AliasFreeLayerNorm
from aft_models.layers.patch_embed import AliasFreeDownsample, ConvPatchEmbed
from aft_models.layers.polyphase import ApsDownsample, select_polyphase
from aft_models.resample import alias_free_downsample, alias_free_upsample, fractional_shift

__all__ = [
    "AliasFreeActivation",
    "AliasFreeClassAttention",
    "AliasFreeDownsample",
    "AliasFreeLayerNorm",
    "ApsDownsample",
    "ConvPatchEmbed",
    "LinearAttention",
    "SimaAttention",
    "alias_free_downsample",
    "alias_free_upsample",
    "fractional_shift",
    "select_polyphase",
]
