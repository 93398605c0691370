"""A model under repair, what was done to it, and what could not be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from aft_models.repair.phases import ForwardPass
from aft_models.repair.survey import Survey


@dataclass(frozen=True)
class Change:
    """A layer that a remedy changed."""

    layer: str  # dotted name in the model; "" is the model itself
    kind: str  # its class
    what: str  # before and after, in a few words


@dataclass(frozen=True)
class Obstacle:
    """Something that a remedy should have changed and could not."""

    where: str  # a layer, or a line of the model's code
    why: str  # in a few words


@dataclass(frozen=True)
class RepairReport:
    """What one remedy did to a model."""

    remedy: str  # as written: "blurpool:3"
    changed: tuple[Change, ...]
    unchanged: tuple[Obstacle, ...]
    new_parameters: int  # numbers to be trained that the original does not have
    wraps: bool  # whether the remedy sits in front of the whole model instead of in its layers
    needs_finetuning: bool  # whether the accuracy is not to be trusted before more training


class RepairContext:
    """The model that a remedy works on, and the remedy's notes."""

    def __init__(self, model: nn.Module, survey: Survey, forward_pass: ForwardPass) -> None:
        self.model, self.survey, self.forward_pass = model, survey, forward_pass
        self.changes: list[Change] = []
        self.obstacles: list[Obstacle] = []

    def layers(self) -> Iterator[tuple[str, nn.Module]]:
        """Every module once, under its first name."""
        return iter(list(self.model.named_modules()))

    def changed(self, name: str, layer: nn.Module, what: str) -> None:
        """Notes a change."""
        self.changes.append(Change(name, type(layer).__name__, what))

    def left(self, where: str, why: str) -> None:
        """Notes an obstacle."""
        self.obstacles.append(Obstacle(where, why))

    def left_unseen(self, shape: tuple[int, ...]) -> None:
        """Notes that the model could not be watched."""
        self.left(
            "the model's own code",
            f"unseen, since the model does not take an image of shape {shape}: pass image=...",
        )

    def left_strays(self, *kinds: str) -> None:
        """Notes the operations of these kinds that the model's own code carries out."""
        for stray in self.survey.strays:
            if stray.kind in kinds:
                self.left(stray.where, f"{stray.operator} in the model's own code")
