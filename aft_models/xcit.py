"""XCiT: every model and ablation is a value of `presets.XCiTConfig`."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from timm.layers import DropPath, Mlp, trunc_normal_
from timm.models import build_model_with_cfg
from timm.models._features import feature_take_indices
from timm.models.xcit import (
    ClassAttentionBlock,
    PositionalEncodingFourier,
    checkpoint_filter_fn,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from aft_models.errors import AftModelsError
from aft_models.layers.activation import AliasFreeActivation
from aft_models.layers.attention import ATTENTIONS, AliasFreeClassAttention
from aft_models.layers.norm import token_norm
from aft_models.layers.padding import conv3x3
from aft_models.layers.patch_embed import ConvPatchEmbed
from aft_models.presets import XCiTConfig, get_config


def _to_grid(x: Tensor, height: int, width: int) -> Tensor:
    return x.reshape(x.shape[0], height, width, x.shape[2])


class GridMlp(Mlp):  # type: ignore[misc]
    """MLP of timm with an activation on the grid of tokens."""

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Map tokens ``(B, N, C)`` to the same shape."""
        x = self.fc1(x)
        x = self.act(_to_grid(x, height, width)).flatten(1, 2)
        return self.drop2(self.fc2(self.norm(self.drop1(x))))  # type: ignore[no-any-return]


class LocalPatchInteraction(nn.Module):
    """Two depth-wise 3 x 3 convolutions over the token grid, an activation and a norm between."""

    def __init__(self, dim: int, activation: nn.Module, *, padding: str) -> None:
        super().__init__()
        self.conv1 = conv3x3(dim, dim, padding=padding, groups=dim)
        self.act = activation
        self.bn = nn.BatchNorm2d(dim)
        self.conv2 = conv3x3(dim, dim, padding=padding, groups=dim)

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Map tokens ``(B, N, C)`` to the same shape."""
        x = _to_grid(x, height, width).permute(0, 3, 1, 2)  # channels-last memory
        x = self.conv1(x)
        x = self.act(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = self.conv2(self.bn(x))
        return x.permute(0, 2, 3, 1).flatten(1, 2)


class XcaBlock(nn.Module):
    """``x += g1 A(N(x)); x += g3 L(N(x)); x += g2 M(N(x))``: attention, local mixing, MLP."""

    def __init__(
        self, cfg: XCiTConfig, *, proj_drop: float, attn_drop: float, drop_path: float
    ) -> None:
        super().__init__()
        dim, hidden = cfg.dim, int(cfg.dim * cfg.mlp_ratio)
        make_norm = partial(token_norm, cfg.norm, dim, mean=cfg.norm_mean)

        def make_activation(channels: int) -> nn.Module:
            if cfg.block_activation == "gelu":
                return nn.GELU()
            kind = cfg.block_activation.removeprefix("af_")
            return AliasFreeActivation(
                kind, channels=channels, up=cfg.up, degree=cfg.block_degree, layout="NHWC"
            )

        self.norm1 = make_norm()
        self.attn = ATTENTIONS[cfg.attention](
            dim, num_heads=cfg.num_heads, qkv_bias=True, attn_drop=attn_drop, proj_drop=proj_drop
        )
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm3 = make_norm()
        self.local_mp = LocalPatchInteraction(dim, make_activation(dim), padding=cfg.padding)
        self.norm2 = make_norm()
        self.mlp = GridMlp(dim, hidden, act_layer=lambda: make_activation(hidden), drop=proj_drop)
        self.gamma1 = nn.Parameter(torch.full((dim,), cfg.layer_scale))
        self.gamma3 = nn.Parameter(torch.full((dim,), cfg.layer_scale))
        self.gamma2 = nn.Parameter(torch.full((dim,), cfg.layer_scale))

    def forward(self, x: Tensor, height: int, width: int) -> Tensor:
        """Map tokens ``(B, N, C)`` of a ``height x width`` grid to the same shape."""
        x = self._add(x, self.gamma1, self.attn(self.norm1(x)))
        x = self._add(x, self.gamma3, self.local_mp(self.norm3(x), height, width))
        return self._add(x, self.gamma2, self.mlp(self.norm2(x), height, width))

    def _add(self, x: Tensor, gain: Tensor, branch: Tensor) -> Tensor:
        return torch.addcmul(x, gain, self.drop_path(branch))


class XCiT(nn.Module):
    """Cross-covariance image transformer, baseline or alias-free, with timm's model interface.

    Accepts any image whose sides are multiples of the patch size, square or not.

    Arguments are those of timm's XCiT. ``img_size`` is only checked against the patch size. By
    default ``global_pool`` follows from the head of ``cfg``.
    """

    def __init__(
        self,
        cfg: XCiTConfig,
        *,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str | None = None,
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        sides = (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)
        if any(side % cfg.patch_size for side in sides):
            raise AftModelsError(
                f"the patch size {cfg.patch_size} does not divide img_size {img_size}: "
                "choose a multiple"
            )
        self.cfg = cfg
        self.num_classes = num_classes
        self.num_features = self.head_hidden_size = self.embed_dim = cfg.dim
        self.has_class_token = cfg.head != "avgpool"
        self.global_pool = self._checked_pool(global_pool)
        self.grad_checkpointing = False
        self.patch_embed = ConvPatchEmbed(
            cfg.dim,
            cfg.patch_size,
            in_chans=in_chans,
            padding=cfg.padding,
            downsample=cfg.downsample,
            activation=cfg.embed_activation,
            last_activation=cfg.last_embed_activation,
            up=cfg.up,
            degree=cfg.embed_degree,
        )
        self.pos_embed = PositionalEncodingFourier(dim=cfg.dim) if cfg.positional else None
        self.pos_drop = nn.Dropout(pos_drop_rate)
        self.blocks = nn.ModuleList(
            XcaBlock(
                cfg, proj_drop=proj_drop_rate, attn_drop=attn_drop_rate, drop_path=drop_path_rate
            )
            for _ in range(cfg.depth)
        )
        self.feature_info = [
            {"num_chs": cfg.dim, "reduction": cfg.patch_size, "module": f"blocks.{i}"}
            for i in range(cfg.depth)
        ]
        if self.has_class_token:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, cfg.dim))
            trunc_normal_(self.cls_token, std=0.02)
            self.cls_attn_blocks = nn.ModuleList(
                self._class_block(drop_rate, attn_drop_rate) for _ in range(cfg.class_depth)
            )
        # The norm feeds only the class token to the classifier; it is shift-invariant.
        self.norm = token_norm("layer", cfg.dim) if self.has_class_token else nn.Identity()
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(cfg.dim, num_classes) if num_classes > 0 else nn.Identity()
        self.apply(_init_linear)

    def _class_block(self, drop_rate: float, attn_drop_rate: float) -> nn.Module:
        cfg = self.cfg
        if cfg.head == "class_attention":
            block: nn.Module = ClassAttentionBlock(
                cfg.dim,
                cfg.num_heads,
                mlp_ratio=cfg.mlp_ratio,
                qkv_bias=True,
                proj_drop=drop_rate,
                attn_drop=attn_drop_rate,
                norm_layer=partial(nn.LayerNorm, eps=1e-6),
                eta=cfg.layer_scale,
                tokens_norm=cfg.tokens_norm,
            )
            return block
        return AliasFreeClassAttention(
            cfg.dim,
            cfg.num_heads,
            attention=cfg.attention,
            norm=cfg.norm,
            norm_mean=cfg.norm_mean,
            mlp_ratio=cfg.mlp_ratio,
            layer_scale=cfg.layer_scale,
            residual_norm=cfg.residual_norm,
            attn_drop=attn_drop_rate,
            proj_drop=drop_rate,
        )

    def _checked_pool(self, global_pool: str | None) -> str:
        if global_pool is None:
            return "token" if self.has_class_token else "avg"
        allowed = ("", "avg", "token") if self.has_class_token else ("", "avg")
        if global_pool not in allowed:
            known = ", ".join(map(repr, allowed))
            raise AftModelsError(f"global_pool must be one of {known}, got {global_pool!r}")
        return global_pool

    def no_weight_decay(self) -> set[str]:
        """List the parameters that are exempt from weight decay."""
        temperatures = {n for n, _ in self.named_parameters() if n.endswith("temperature")}
        return {"pos_embed", "cls_token"} | temperatures

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Return parameter groups for layer-wise learning rates."""
        return {
            "stem": r"^cls_token|pos_embed|patch_embed",
            "blocks": r"^blocks\.(\d+)",
            "cls_attn_blocks": [(r"^cls_attn_blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute the blocks in the backward pass instead of saving them."""
        self.grad_checkpointing = enable

    def get_classifier(self) -> nn.Module:
        """Return the last linear layer."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the classifier, for another number of classes."""
        if global_pool is not None:
            self.global_pool = self._checked_pool(global_pool)
        self.num_classes = num_classes
        like = next(self.blocks.parameters())
        self.head = (
            nn.Linear(self.num_features, num_classes, device=like.device, dtype=like.dtype)
            if num_classes > 0
            else nn.Identity()
        )
        self.head.apply(_init_linear)
        self.head.train(self.training)

    def forward_tokens(self, x: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Compute the patch tokens entering the first block, and their grid."""
        x, grid = self.patch_embed(x)
        if self.pos_embed is not None:
            position = self.pos_embed(1, *grid).flatten(2).transpose(1, 2)  # (1, N, C)
            x = x + position
        return self.pos_drop(x), grid

    def forward_features(self, x: Tensor) -> Tensor:
        """Compute tokens ``(B, N, C)`` of images ``(B, channels, H, W)``, a class token first."""
        x, (height, width) = self.forward_tokens(x)
        for block in self.blocks:
            x = self._run(block, x, height, width)
        return self._with_class_token(x)

    def _with_class_token(self, x: Tensor) -> Tensor:
        if self.has_class_token:
            x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
            for block in self.cls_attn_blocks:
                x = self._run(block, x)
        return self.norm(x)  # type: ignore[no-any-return]

    def _run(self, block: nn.Module, x: Tensor, *grid: int) -> Tensor:
        if self.grad_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, x, *grid, use_reentrant=False)  # type: ignore[no-any-return]
        return block(x, *grid)  # type: ignore[no-any-return]

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Compute the features after selected blocks, for timm's feature extraction."""
        if output_fmt not in ("NCHW", "NLC"):
            raise AftModelsError(f"output_fmt must be 'NCHW' or 'NLC', got {output_fmt!r}")
        wanted, last = feature_take_indices(len(self.blocks), indices)
        x, (height, width) = self.forward_tokens(x)
        features = []
        for i, block in enumerate(self.blocks[: last + 1] if stop_early else self.blocks):
            x = self._run(block, x, height, width)
            if i in wanted:
                kept = self.norm(x) if norm else x
                if output_fmt == "NCHW":
                    kept = kept.mT.reshape(-1, self.embed_dim, height, width)
                features.append(kept)
        if intermediates_only:
            return features
        return self._with_class_token(x), features

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Compute logits from tokens, or the pooled features."""
        if self.global_pool == "token":
            x = x[:, 0]
        elif self.global_pool == "avg":
            x = x[:, 1:].mean(1) if self.has_class_token else x.mean(1)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        """Compute logits ``(B, num_classes)`` of images ``(B, channels, H, W)``."""
        return self.forward_head(self.forward_features(x))


def _init_linear(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def create_xcit(name: str, pretrained: bool = False, **kwargs: Any) -> XCiT:
    """Build a preset; keywords that are fields of `XCiTConfig` override it.

    Args:
        name: A key of `PRESETS`.
        pretrained: Load the weights of timm's pretrained configuration.
        **kwargs: Fields of `XCiTConfig`, arguments of `XCiT`, and keywords that timm passes on.
    """
    switch_names = {field.name for field in dataclasses.fields(XCiTConfig)}
    switches = {key: kwargs.pop(key) for key in list(kwargs) if key in switch_names}
    config = dataclasses.replace(get_config(name), **switches)
    model: XCiT = build_model_with_cfg(
        XCiT,
        name,
        pretrained,
        model_cfg=config,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
        **kwargs,
    )
    return model
