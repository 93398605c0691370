"""``anchor``: the image itself says where its patches begin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext
from aft_models.repair.image import images_of
from aft_models.repair.layer import window_of
from aft_models.repair.phases import Phase, roll_each
from aft_models.repair.polyphase import energies
from aft_models.repair.remedy import Remedy
from aft_models.repair.window import Pair


@dataclass
class Anchor:
    """A hook that rolls each image until its strongest polyphase component lies at (0, 0)."""

    patch: Pair

    def __call__(self, _: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """A forward pre-hook of the model."""
        images, *others = images_of(inputs, "anchor")
        return self.move(images), *others

    def move(self, images: Tensor) -> Tensor:
        """Images ``(B, C, H, W)``, anchored."""
        (height, width), (rows, columns) = images.shape[2:], self.patch
        if height % rows or width % columns:
            raise AftModelsError(
                f"anchor needs an image that patches of {rows} x {columns} pixels divide, got "
                f"{height} x {width}: resize or crop it to a multiple"
            )
        with torch.no_grad():
            phase = Phase.largest(energies(images.detach(), self.patch))
        return roll_each(images, -phase.rows, -phase.columns)


def _apply(patient: RepairContext, _: int) -> None:
    windows = [(name, m, w) for name, m in patient.layers() if (w := window_of(m)) is not None]
    if not windows:
        raise AftModelsError(
            f"anchor needs a network that cuts the image into patches, and "
            f"{type(patient.model).__name__} has no such layer: use canonical or vote"
        )
    name, layer, window = windows[0]
    if not window.strided or window.extent != window.stride or not window.unpadded:
        raise AftModelsError(
            f"anchor needs a network that cuts the image into patches, and {name or 'its layer'} "
            f"slides windows of {window.extent} pixels by {window.stride}: use aps or canonical"
        )
    patient.model.register_forward_pre_hook(Anchor(window.stride))
    patient.changed(name, layer, f"patches of {window.stride} begin at the strongest component")


ANCHOR = Remedy(
    name="anchor",
    group="image",
    summary="the image is rolled so that its strongest polyphase component lies at (0, 0)",
    exact_for="whole pixels, where the network does not mind a shift by whole patches",
    apply=_apply,
    needs_finetuning=False,
)
