"""Input remedies: functions around any callable that takes images."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from aft_models.errors import AftModelsError
from aft_models.preprocessing import Preprocessing
from aft_models.remedies import RemedySpec

Undo = Callable[[Any], Any]
"""Maps the outputs for the images that a network was given back to the original images."""


class InputRemedy(ABC):
    """A change of the images that a network is given."""

    margin: int = 0  # pixels needed on each side of the network's view, in network pixels
    scale: int = 1  # image pixels per network pixel
    keeps_pixels: bool = False  # crops or rolls only, one image for each: equal inputs may occur

    def bound(self, network: Preprocessing) -> InputRemedy:
        """Return the remedy for a network that takes such images."""
        return self

    def resized(self, size: tuple[int, int]) -> InputRemedy:
        """Return the remedy for windows of another height and width, of detectors and segmenters.

        Raises:
            AftModelsError: The remedy cannot move the outputs of such models back.
        """
        raise AftModelsError(
            f"expected a remedy that moves boxes and maps back around a detector or segmenter, got "
            f"{type(self).__name__}: use align:12"
        )

    @abstractmethod
    def show(self, images: Tensor) -> tuple[Tensor, Undo]:
        """Change images (B, C, I, I) to the images that the network is given.

        Returns:
            Images (n B, C, S, S), and the function that maps the network's outputs for them to
            outputs for the B original images.
        """


def same(outputs: Any) -> Any:
    """Return the outputs: the `undo` of remedies that do not change them."""
    return outputs


def build_inputs(specs: Sequence[RemedySpec], network: Preprocessing) -> tuple[InputRemedy, ...]:
    """Build the input remedies among some remedies, in the order of application to the network.

    The last one is the outermost: it is the first to change an image.

    Args:
        specs: Remedies in the order of application.
        network: The images that the network itself takes.
    """
    built: list[InputRemedy] = []
    for spec in specs:
        if spec.remedy.input:
            remedy = unbound(spec).bound(network)
            network = with_view(network, [remedy])
            built.append(remedy)
    return tuple(built)


def unbound(spec: RemedySpec) -> InputRemedy:
    """Build an input remedy that states its margin and scale and has no network yet."""
    remedy: InputRemedy = spec.remedy.load()(*spec.numbers)
    return remedy


def with_view(network: Preprocessing, remedies: Sequence[InputRemedy]) -> Preprocessing:
    """Return the images that a network behind some input remedies takes."""
    return replace(
        network,
        margin=network.margin + sum([remedy.margin for remedy in remedies]),
        scale=network.scale * prod([remedy.scale for remedy in remedies]),
    )


def show_all(
    remedies: Sequence[InputRemedy], images: Tensor, size: int | None = None
) -> tuple[Tensor, Undo]:
    """Apply several input remedies, the outermost first.

    Args:
        remedies: Input remedies in the order of application to the network.
        images: Images (B, C, I, I).
        size: Side of the images that the network takes, in pixels. None: any.

    Raises:
        AftModelsError: The images do not have the size that the remedies and the network need.
    """
    if remedies and not (images.ndim == 4 and images.is_floating_point()):
        raise AftModelsError(
            f"expected floating-point images (B, C, H, W), got {images.dtype} "
            f"{tuple(images.shape)}. Convert them first"
        )
    if size is not None:
        _require_size(remedies, images, size)
    steps = []
    for remedy in reversed(remedies):
        images, undo = remedy.show(images)
        steps.append(undo)

    def undo_all(outputs: Any) -> Any:
        for step in reversed(steps):
            outputs = step(outputs)
        return outputs

    return images, undo_all


def _require_size(remedies: Sequence[InputRemedy], images: Tensor, size: int) -> None:
    """Raise AftModelsError if remedies would give the network images of another size."""
    # Lists: torch.compile cannot trace generator expressions here.
    margin, scale = sum([r.margin for r in remedies]), prod([r.scale for r in remedies])
    needed = scale * (size + 2 * margin)
    height, width = images.shape[-2:]
    if (margin or scale > 1) and (height, width) != (needed, needed):
        inner = min(height, width) // scale - 2 * margin
        known = f", or input_size={inner} to repair() if the network takes {inner} px"
        raise AftModelsError(
            f"expected images of {needed} x {needed} px (network {size} px, margin {margin} px, "
            f"scale {scale}), got {height} x {width} px. Pass images of {needed} px"
            f"{known if inner > 0 else ''}"
        )


def shared_view(remedies: Sequence[InputRemedy], images: Tensor) -> Tensor:
    """Apply the outermost remedies that keep pixels: equal results have equal predictions."""
    for remedy in reversed(remedies):
        if not remedy.keeps_pixels:
            break
        images, _ = remedy.show(images)
    return images


class ShownNetwork(nn.Module):
    """A network or any callable behind input remedies; weights keep their names."""

    def __init__(
        self,
        network: Callable[[Tensor], Any],
        remedies: Sequence[InputRemedy],
        *,
        size: int | None = None,
    ) -> None:
        """Wrap a network.

        Args:
            network: A network or any callable.
            remedies: Input remedies in the order of application.
            size: Side of the images that the network takes, in pixels. None: any.
        """
        super().__init__()
        self.network = network
        self.remedies = tuple(remedies)
        modules = [remedy for remedy in remedies if isinstance(remedy, nn.Module)]
        if modules:  # registered, so that their constants follow the network to its device
            self.remedy_modules = nn.ModuleList(modules)
        self.network_size = size

    def forward(self, images: Tensor) -> Any:
        """Return the network's outputs for images (B, C, I, I)."""
        shown, undo = show_all(self.remedies, images, self.network_size)
        return undo(self.network(shown))

    @override
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        network = self.network
        return network.state_dict(*args, **kwargs) if isinstance(network, nn.Module) else {}

    @override
    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(self.network, nn.Module):
            raise AftModelsError(
                "cannot load weights: the wrapped callable is not a torch module. Wrap a module"
            )
        return self.network.load_state_dict(*args, **kwargs)

    def no_weight_decay(self) -> set[str]:
        """Name the parameters that the network exempts from weight decay, as timm's models do."""
        listed = getattr(self.network, "no_weight_decay", None)
        return set() if listed is None else {f"network.{name}" for name in listed()}
