"""``anchor``: patches aligned with the strongest polyphase component of the image."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from aft_models.errors import AftModelsError
from aft_models.repair.context import RepairContext
from aft_models.repair.layer import window_of
from aft_models.repair.phases import roll_each
from aft_models.repair.polyphase import strongest
from aft_models.repair.remedy import Remedy, register
from aft_models.repair.window import Pair


@dataclass
class Anchor:
    """Rolls each image until its strongest polyphase component lies at (0, 0)."""

    patch: Pair

    def __call__(self, images: Tensor) -> Tensor:
        """Images ``(B, C, H, W)``, anchored."""
        (height, width), (rows, columns) = images.shape[2:], self.patch
        if height % rows or width % columns:
            raise AftModelsError(
                f"anchor needs an image that patches of {rows} x {columns} pixels divide, got "
                f"{height} x {width}: resize or crop it to a multiple"
            )
        phase = strongest(images, self.patch)
        return roll_each(images, -phase.rows, -phase.columns)


def _apply(context: RepairContext, _: int) -> None:
    windows = ((name, window_of(module)) for name, module in context.layers())
    name, window = next((pair for pair in windows if pair[1] is not None), ("", None))
    if window is None:
        raise AftModelsError(
            f"anchor needs a network that cuts the image into patches, and "
            f"{type(context.model).__name__} has no such layer: use canonical or vote"
        )
    if not window.strided or window.extent != window.stride or not window.unpadded:
        raise AftModelsError(
            f"anchor needs a network that cuts the image into patches, and {name or 'its layer'} "
            f"slides windows of {window.extent} pixels by {window.stride}: use aps or canonical"
        )
    what = f"patches of {window.stride} begin at the strongest component"
    context.move_images("anchor", Anchor(window.stride), what, keeps_pixels=True)


register(
    Remedy(
        name="anchor",
        group="placement",
        summary="patches begin where the strongest polyphase component of the image lies",
        apply=_apply,
        treats=("sub-sampling",),
        exact="whole pixels",
    )
)
