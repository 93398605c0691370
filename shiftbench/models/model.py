"""A network that can be evaluated: images in, logits out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
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

log = logging.getLogger(__name__)

PROBED_LOGITS = 8  # logits of the fixed image that an identity contains


class Model(ShownNetwork):
    """A network in eval mode, behind its input remedies, with the facts about it.

    Normalized RGB images (B, 3, I, I) in, logits (B, classes) out; I is
    `preprocessing.input_size`. The state dict is that of the network.

    Attributes:
        network: The network itself, a torch module or any callable.
        remedies: Input remedies; the last one is the first to change an image.
        preprocessing: The images that the model takes, margin and scale of remedies included.
        name: Name in records: "timm:resnet50".
        source: Name of the source that built the network.
        class_names: By index; empty if unknown.
        num_classes: Number of logits.
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
    ) -> None:
        """Wrap a network and run it once: a network that fails, fails here.

        Args:
            network: From normalized images to logits or probabilities, or to a tuple, dict or
                object that contains them.
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
        """
        super().__init__(network, remedies)
        self.name, self.source, self.class_names = name, source, tuple(class_names)
        read = read_preprocessing(preprocessing, name)
        self.network_size = read.input_size
        self.preprocessing = with_view(read, remedies)  # an exported file may contain remedies too
        self.exported = exported
        self._probabilities = False  # the network returns probabilities: logarithms are taken
        self.eval()
        logits = self._probe(images)
        self.num_classes = int(logits.shape[1])
        self.parameter_count = parameters or sum(p.numel() for p in self.parameters())
        identity = identity or Identity()
        spread = -(-self.num_classes // PROBED_LOGITS)  # every n-th class
        self.identity = replace(
            identity,
            weights=identity.weights or state_dict_digest(self.state_dict()),
            logits=tuple(float(f"{logit:.5g}") for logit in logits[0, ::spread].tolist()),
        )
        if class_names and len(class_names) != self.num_classes:
            raise ModelError(
                f"expected a name for each of the {self.num_classes} classes of {name}, got "
                f"{len(class_names)}. Correct the list of class names"
            )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits (B, classes) of normalized images (B, 3, I, I)."""
        shown, undo = show_all(self.remedies, images, self.network_size)
        logits: Tensor = undo(self._as_logits(self._run(shown)))
        return logits

    def _run(self, shown: Tensor) -> Tensor:
        """Return the outputs of the network, logits or probabilities."""
        return read_logits(self.network(shown.flip(1) if self.preprocessing.bgr else shown))

    def _as_logits(self, outputs: Tensor) -> Tensor:
        if not self._probabilities:
            return outputs
        # Logits up to a constant per image, which neither a softmax nor a logit margin changes.
        return outputs.float().clamp_min(torch.finfo(torch.float32).tiny).log()

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
    def _probe(self, images: Tensor | None) -> Tensor:
        """Run the model on a few images: float32 logits on the CPU."""
        size = self.preprocessing.input_size
        if images is None:
            # Two images: a model that ignores the batch would pass with one.
            images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0))
        first = next(self.parameters(), None)
        images = images if first is None else images.to(first.device, first.dtype)
        try:
            shown, undo = show_all(self.remedies, images, self.network_size)
            outputs = self._run(shown)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"{self.name} fails on images of {size} x {size} pixels ({first_line(error)}): if "
                "it takes another size, name the size, as in FILE.py with `return model, "
                '{"input_size": 96}`, or after the name with ,input_size=96 (onnx:) or '
                ",img_size=96 (timm:)"
            ) from error
        if outputs.ndim != 2 or outputs.shape[0] != len(shown) or outputs.shape[1] < 2:
            raise ModelError(
                f"{self.name} is not a classifier: expected logits of shape ({len(shown)}, "
                f"classes) for {len(shown)} images, got {tuple(outputs.shape)}"
            )
        if _are_probabilities(outputs):
            log.warning("%s returns probabilities: their logarithms are taken as logits", self.name)
            self._probabilities = True
        logits: Tensor = undo(self._as_logits(outputs))
        return logits.float().cpu()


def _are_probabilities(outputs: Tensor) -> bool:
    """Return True if outputs (B, classes) are a softmax.

    >>> _are_probabilities(torch.tensor([[0.25, 0.75]])), _are_probabilities(torch.eye(2) * 2)
    (True, False)
    """
    total = outputs.double().sum(-1)
    return bool((outputs >= 0).all() and torch.allclose(total, torch.ones_like(total), atol=1e-3))


def read_logits(output: Any) -> Tensor:
    """Return the logits in an output of a model.

    The output is a tensor or array, has the attribute `logits`, is a tuple that begins with them,
    or a dict that contains them as `logits` or as its only matrix.
    """
    if isinstance(output, Mapping) and "logits" not in output:
        matrices = {k: v for k, v in output.items() if getattr(v, "ndim", 0) == 2}
        if len(matrices) > 1:
            raise ModelError(
                f"expected logits from the model, got a dict with several candidates "
                f"({', '.join(map(str, matrices))}). Return them under the key 'logits'"
            )
        found = next(iter(matrices.values()), output)
    elif isinstance(output, Mapping):
        found = output["logits"]
    elif isinstance(output, tuple | list) and output:
        found = output[0]
    else:
        found = getattr(output, "logits", output)
    found = torch.from_numpy(found) if isinstance(found, np.ndarray) else found
    if isinstance(found, Tensor):
        return found
    raise ModelError(
        f"expected logits of shape (batch, classes) from the model, got a "
        f"{type(output).__name__}. Return them from a FILE.py:FUNCTION"
    )
