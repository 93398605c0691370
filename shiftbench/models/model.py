"""A network that can be evaluated: images in, outputs of its task out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from aft_models.checkpoint import state_dict_digest
from aft_models.preprocessing import Preprocessing
from aft_models.remedies import parse_remedies
from aft_models.remedies.inputs import (
    InputRemedy,
    ShownNetwork,
    shared_view,
    show_all,
    with_view,
)
from shiftbench.errors import ModelError, UsageError, first_line
from shiftbench.identity import Identity
from shiftbench.models.exported import ExportInfo
from shiftbench.models.transforms import read_preprocessing
from shiftbench.tasks import TASKS, task_of
from shiftbench.tasks.classification import read_logits

__all__ = ["Model", "read_logits"]

log = logging.getLogger(__name__)

DEFAULT_THRESHOLD = 0.5  # score from which a detection counts, unless the model states another


class Model(ShownNetwork):
    """A network in eval mode, behind its input remedies, with the facts about it.

    Normalized RGB images (B, 3, I, I) in, logits (B, classes) out, or the outputs of another task;
    I is `preprocessing.input_size`. The state dict is that of the network.

    Attributes:
        network: The network itself, a torch module or any callable.
        remedies: Input remedies; the last one is the first to change an image.
        preprocessing: The images that the model takes, margin and scale of remedies included.
        name: Name in records: "timm:resnet50".
        source: Name of the source that built the network.
        class_names: By index; empty if unknown.
        task: The task that recognizes the network's output.
        num_classes: Number of classes; 0 if unknown.
        score_threshold: Score from which a detection counts.
        identity: Everything that predictions depend on.
        parameter_count: Number of parameters.
        exported: Metadata of the exported file that contains the network; None: no such file.
    """

    def __init__(
        self,
        network: Callable[[Tensor], Any],
        preprocessing: Preprocessing | Mapping[str, Any] | Callable[..., Any],
        *,
        name: str,
        source: str = "python",
        remedies: Sequence[InputRemedy] = (),
        class_names: Sequence[str] = (),
        identity: Identity | None = None,
        parameters: int | None = None,
        images: Tensor | None = None,
        exported: ExportInfo | None = None,
        score_threshold: float | None = None,
    ) -> None:
        """Wrap a network and run it once: a network that fails, fails here.

        Args:
            network: From normalized images to logits or probabilities, or to a tuple, dict or
                object that contains them; to a list of dicts with boxes, labels and scores; or to
                maps (B, classes, h, w).
            preprocessing: The images that the network takes; anything that `read_preprocessing`
                accepts.
            name: Name in records.
            source: Name of the source that built the network.
            remedies: Input remedies.
            class_names: By index; folders of images are then matched by name.
            identity: Code, remedies and, for a callable without a state dict, a digest of the
                weights. The other parts are computed.
            parameters: Number of parameters, if the network has none.
            images: Images of the first run. Default: two fixed random ones.
            exported: Metadata of the exported file that contains the network.
            score_threshold: Score from which a detection counts. Default: 0.5.
        """
        super().__init__(network, remedies)
        self.name, self.source, self.class_names = name, source, tuple(class_names)
        read = read_preprocessing(preprocessing, name)
        self.network_size = read.input_size
        self.preprocessing = with_view(read, remedies)  # an exported file may contain remedies too
        self.exported = exported
        self.score_threshold = DEFAULT_THRESHOLD if score_threshold is None else score_threshold
        self.task = TASKS.get("classification")
        self.eval()
        outputs = self._probe(images)
        self.num_classes = self.task.class_count(outputs, self.class_names)
        self.parameter_count = parameters or sum(p.numel() for p in self.parameters())
        identity = identity or Identity()
        self.identity = replace(
            identity,
            weights=identity.weights or state_dict_digest(self.state_dict()),
            logits=tuple(float(f"{number:.5g}") for number in self.task.numbers(outputs)),
        )
        if class_names and len(class_names) != self.num_classes:
            raise ModelError(
                f"expected a name for each of the {self.num_classes} classes of {name}, got "
                f"{len(class_names)}. Correct the list of class names"
            )

    def forward(self, images: Tensor) -> Any:
        """Return the logits (B, classes) of normalized images (B, 3, I, I).

        Detectors and segmenters take images (B, 3, S, S): their remedies cut the image inside the
        fill (`shiftbench.running.parts`).
        """
        remedies = () if self.task.has_parts else self.remedies
        shown, undo = show_all(remedies, images, self.network_size)
        return undo(self._adapt(self.task.read(self._run(shown), shown, self.name)))

    def _run(self, shown: Tensor) -> Any:
        return self.network(shown.flip(1) if self.preprocessing.bgr else shown)

    @property
    def layers(self) -> nn.Module:
        """The network as a torch module, whose layers and parameters keep their names.

        Raises:
            UsageError: The network is no torch module, or has no parameters.
        """
        if isinstance(self.network, nn.Module) and any(True for _ in self.network.parameters()):
            return self.network
        raise UsageError(
            f"expected the layers of a PyTorch network for remedies, audits and training, got "
            f"none from {self.name}. Load the network with timm:, tv:, hf: or FILE.py"
        )

    @property
    def original_digests(self) -> tuple[str, ...]:
        """Digests of the models that an exported file was written from; empty: no such file."""
        if self.exported is None:
            return ()
        return self.exported.original_digests(parse_remedies(self.identity.remedies), self.name)

    @property
    def shares_inputs(self) -> bool:
        """True if several images may reach the network as the same image: see `shown`."""
        return bool(self._chain) and self._chain[-1].keeps_pixels

    def shown(self, images: Tensor) -> Tensor:
        """Return the images that the network is given, as far as remedies only crop or roll.

        Equal results have equal logits: a search predicts them once.
        """
        return shared_view(self._chain, images)

    @property
    def _chain(self) -> tuple[InputRemedy, ...]:
        """All input remedies, including those of a network that was repaired before."""
        inner = self.network.remedies if isinstance(self.network, ShownNetwork) else ()
        return (*inner, *self.remedies)

    @torch.no_grad()  # not inference_mode: tensors that the network caches could not be trained
    def _probe(self, images: Tensor | None) -> Any:
        """Run the model on a few images, and find its task: outputs of these images."""
        size = self.preprocessing.input_size
        if images is None:
            # Two images: a model that ignores the batch would pass with one.
            images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        first = next(self.parameters(), None)
        images = images if first is None else images.to(first.device, first.dtype)
        try:
            shown, undo = show_all(self.remedies, images, self.network_size)
            raw = self._run(shown)
            self.task = task_of(raw)
            outputs = self.task.read(raw, shown, self.name)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"{self.name} fails on images of {size} x {size} pixels ({first_line(error)}): if "
                "it takes another size, name the size, as in FILE.py with `return model, "
                '{"input_size": 96}`, or after the name with ,input_size=96 (onnx:) or '
                ",img_size=96 (timm:)"
            ) from error
        self._adapt = self.task.adapted(outputs, shown, self.name)
        return undo(self._adapt(outputs))
