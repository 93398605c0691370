"""`shiftbench.export`: the measured model, remedies included, as a file.

The file is loaded as a user loads it and compared with the model before it gets its name.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

import shiftbench
from aft_models.errors import AftModelsError
from aft_models.files import write_atomic
from aft_models.onnx import EmbeddedGraph, export_onnx, export_pt2
from aft_models.preprocessing import ASSUMED, Preprocessing, normalize
from aft_models.remedies import join_remedies, parse_remedies
from aft_models.remedies.inputs import InputRemedy, ShownNetwork
from aft_models.remedies.repair import reports
from shiftbench.data import ImageSet, load_dataset
from shiftbench.data.canvases import Canvases
from shiftbench.errors import DataError, ModelError, UsageError
from shiftbench.geometry import geometry_for
from shiftbench.identity import Identity
from shiftbench.models import Model, load_model
from shiftbench.models.exported import EXTRA_FILE, INCLUDES, METADATA, ExportInfo
from shiftbench.models.names import ModelName
from shiftbench.models.sources.onnx import OnnxNetwork, load_runtime
from shiftbench.models.sources.pt2 import Pt2Network
from shiftbench.registry import unknown_name
from shiftbench.running.job import canvas_for
from shiftbench.running.predict import Predictor

ENDINGS = (".onnx", ".pt2")
BATCHES = (1, 8)  # batch sizes of the comparison
TOLERANCE = 1e-3  # of the largest logit; rounding explains 1e-6 to 1e-5


@dataclass(frozen=True)
class ExportResult:
    """A file that was written, and its comparison with the model.

    >>> print(ExportResult(Path("net.onnx"), 12, "net", "", (3, 8, 8), 8, 9, 16, "scenes", 1e-6, 4))
    net.onnx: net, 12 bytes
    input: normalized RGB, float32 (batch, 3, 8, 8)
    images: shorter side resized to 9 px, center crop of 8 px
    compared with PyTorch on 16 images of scenes at batch sizes 1 and 8: largest difference of \
logits 1e-06 (largest logit 4), 0 classes differ
    """

    path: Path
    size: int  # bytes
    name: str  # of the model
    include: str  # one of INCLUDES, or empty
    input_shape: tuple[int, int, int]
    view: int  # side of the input images in pixels
    resize: int  # shorter side before the center crop, in pixels
    images: int  # images of the comparison
    data: str  # their data set
    difference: float  # largest difference of the logits
    largest: float  # largest logit

    def __str__(self) -> str:
        kinds = {
            "": "normalized RGB, float32",
            "normalize": "RGB in 0..1, float32",
            "uint8": "RGB bytes, uint8",
        }
        return (
            f"{self.path.name}: {self.name}, {_bytes(self.size)}\n"
            f"input: {kinds[self.include]} (batch, {', '.join(map(str, self.input_shape))})\n"
            f"images: shorter side resized to {self.resize} px, center crop of {self.view} px"
            f"{', pixels beyond the image reflected' * (self.view > self.resize)}\n"
            f"compared with PyTorch on {self.images} images of {self.data} at batch sizes "
            f"{' and '.join(map(str, BATCHES))}: largest difference of logits "
            f"{self.difference:.2g} (largest logit {self.largest:.3g}), 0 classes differ"
        )


def _bytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size} bytes"


def export(
    model: str | Model | Callable[[Tensor], Any],
    path: str | Path,
    *,
    preprocessing: Preprocessing | Mapping[str, Any] | Callable[..., Any] | None = None,
    class_names: Sequence[str] = (),
    checkpoint: str | Path | None = None,
    strip_prefix: str | None = None,
    include: str = "",
    data: str | ImageSet = "scenes",
    images: int = 16,
    crop_pct: str = "paper",
    force: bool = False,
) -> ExportResult:
    """Write a model, remedies included, to an ONNX file or a `.pt2` archive.

    The file takes batches of any size and carries its preprocessing, class names and digests:
    `load_model(path)` and `-m FILE` need no options.

    Args:
        model: A name as for `load_model`, a loaded model, or a network.
        path: File to write; the ending chooses the format: `.onnx` or `.pt2`.
        preprocessing: The images that a network takes, as for `Model`. Default: timm's own.
        class_names: Classes of a network, by index.
        checkpoint: Weights, for a name.
        strip_prefix: Part of the checkpoint's keys to remove.
        include: `normalize`: the graph takes RGB in 0..1; `uint8`: it takes bytes (B, H, W, 3).
        data: Images of the comparison: a name as for `shiftbench run`, or a data set.
        images: Number of images to compare.
        crop_pct: Rule of the resize that the file states: paper, model, or a fraction.
        force: Replace an existing file.

    Raises:
        UsageError: The path exists, its ending is unknown, or nothing is known about the input.
        ModelError: The file gives other predictions than the model.
        AftModelsError: The model cannot be exported; the message names the operator.

    >>> export("xcit_pico_6_p8.scenes+align:4", "model.onnx").difference  # doctest: +SKIP
    4.8e-06
    """
    path = Path(path)
    _check_request(path, include, force)
    if isinstance(model, str):
        model = load_model(model, checkpoint=checkpoint, strip_prefix=strip_prefix)
    elif not isinstance(model, Model):
        model = _wrapped(model, preprocessing, class_names)
    _check_model(model, path)
    info = _info(model, include, crop_pct)
    compared = _Comparison.of(model, data, images, crop_pct)  # finds mistakes before the long part
    content = _content(model, path.suffix, info)

    def write_checked(temporary: Path) -> None:
        temporary.write_bytes(content)
        compared.check(_load(temporary, path), path.name)

    write_atomic(path, write_checked)
    side = model.preprocessing.input_size
    assert info.resize is not None
    return ExportResult(
        path,
        len(content),
        model.name,
        include,
        _shape(side, include),
        side,
        info.resize,
        len(compared.images),
        compared.data,
        compared.difference,
        float(compared.logits.abs().max()),
    )


def _check_request(path: Path, include: str, force: bool) -> None:
    if path.suffix not in ENDINGS:
        raise UsageError(
            f"expected a file that ends with {' or '.join(ENDINGS)}, got {path.name!r}. Rename it"
        )
    if include and include not in INCLUDES:
        raise unknown_name("part of the preprocessing", include, INCLUDES)
    if path.exists() and not force:
        raise UsageError(f"{path} exists. Add --force (force=True) to replace it")
    if not path.parent.is_dir():
        raise UsageError(f"no folder {path.parent} for {path.name}. Create it first")
    if path.suffix == ".onnx":
        load_runtime(path.name)  # for the comparison, after the long part


def _wrapped(
    network: Callable[[Tensor], Any],
    preprocessing: Preprocessing | Mapping[str, Any] | Callable[..., Any] | None,
    class_names: Sequence[str],
) -> Model:
    """Return a network of a notebook as a model; its input remedies remain around it."""
    inner: Any = network
    remedies: tuple[InputRemedy, ...] = ()
    if type(network) is ShownNetwork:  # not a subclass
        inner, remedies = network.network, network.remedies
    if preprocessing is None and not hasattr(inner, "pretrained_cfg"):
        raise UsageError(
            "expected the preprocessing of the network. Add preprocessing={'input_size': 224, "
            "'mean': ..., 'std': ...}"
        )
    if isinstance(inner, nn.Module):
        inner = copy.deepcopy(inner).eval()
    names = [spec for report in reports(network) for spec in parse_remedies(report.remedy)]
    return Model(
        inner,
        Preprocessing.of(inner) if preprocessing is None else preprocessing,
        name="+".join([type(inner).__name__, *map(str, names)]),
        remedies=remedies,
        class_names=class_names,
        identity=Identity(remedies=join_remedies(names)),
    )


def _check_model(model: Model, path: Path) -> None:
    """Raise UsageError for a model that cannot be exported or has nothing to add."""
    network = model.network
    if isinstance(network, torch.jit.ScriptModule):
        raise UsageError(
            f"cannot export {model.name}: torch.export does not take TorchScript archives. Export "
            "the Python code with FILE.py:FUNCTION"
        )
    if isinstance(network, OnnxNetwork | Pt2Network) and not model.remedies:
        raise UsageError(
            f"expected remedies after {model.name}, which is an exported file already. Copy the "
            "file, or add a remedy as in model.onnx+align:8"
        )
    if isinstance(network, OnnxNetwork):
        if path.suffix != ".onnx":
            raise UsageError(
                f"cannot write the ONNX file {model.name} to {path.name}. Choose a name that ends "
                "with .onnx"
            )
        if network.batch is not None:
            raise UsageError(
                f"cannot export {model.name}: it takes batches of {network.batch} images. Export "
                "the original model with a free batch size"
            )
    size_assumed = isinstance(network, OnnxNetwork) and network.size_assumed
    if size_assumed or model.preprocessing.origin == ASSUMED:
        what = "input size" if size_assumed else "input size, mean and std"
        raise UsageError(
            f"cannot export {model.name}: {what} unknown. State them, as in model.onnx,"
            'input_size=224,mean=0.5,std=0.5 or FILE.py with `return model, {"input_size": 224, '
            '"mean": 0.5, "std": 0.5}`'
        )


def _info(model: Model, include: str, crop_pct: str) -> ExportInfo:
    identity = model.identity
    digests, weights, code = [identity.digest], identity.weights, identity.code
    remedies = identity.remedies
    if model.exported is not None:  # remedies around an exported file: its original counts too
        outer = parse_remedies(identity.remedies)
        digests += model.exported.original_digests(outer, model.name)
        remedies = model.exported.joined(outer, model.name)
        weights, code = model.exported.weights, model.exported.code
    return ExportInfo(
        name=model.name,
        preprocessing=replace(model.preprocessing, bgr=False),  # the graph reverses the channels
        remedies=remedies,
        include=include,
        class_names=model.class_names,
        parameters=model.parameter_count,
        weights=weights,
        code=code,
        digests=tuple(digests),
        resize=geometry_for(model.preprocessing, crop_pct=crop_pct, pad="reflect").resize,
        version=shiftbench.__version__,
    )


class _Deployed(nn.Module):
    """A model behind the parts of its preprocessing that its graph contains."""

    def __init__(self, model: Model, include: str, embedded: EmbeddedGraph | None) -> None:
        super().__init__()
        self.model, self.include = model, include
        if embedded is not None:
            self.model = copy.copy(model)
            self.model._modules = {k: v for k, v in model._modules.items() if k != "network"}
            self.model.network = _Prepared(model.network, embedded)
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        facts = self.model.preprocessing
        if self.include == "uint8":
            images = normalize(images.permute(0, 3, 1, 2), facts.mean, facts.std)
        elif self.include:
            mean, std = (torch.tensor(x).view(3, 1, 1) for x in (facts.mean, facts.std))
            images = (images - mean) / std
        logits: Tensor = self.model(images)
        return logits


class _Prepared(nn.Module):
    """An embedded graph behind the conversion of normalized images to its input."""

    def __init__(self, network: Any, graph: EmbeddedGraph) -> None:
        super().__init__()
        self.prepare, self.graph = network.prepare, graph

    @override
    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.graph(self.prepare(images))
        return logits


def _shape(side: int, include: str) -> tuple[int, int, int]:
    return (side, side, 3) if include == "uint8" else (3, side, side)


def _content(model: Model, ending: str, info: ExportInfo) -> bytes:
    """Return the content of the file."""
    network, embedded = model.network, None
    if isinstance(network, OnnxNetwork):
        embedded = EmbeddedGraph(network.model, network.output, model.num_classes)
    deployed = _Deployed(model, info.include, embedded)
    shape = _shape(model.preprocessing.input_size, info.include)
    dtype = torch.uint8 if info.include == "uint8" else None
    try:
        if ending == ".onnx":
            return export_onnx(
                deployed,
                shape,
                dtype=dtype,
                metadata={METADATA: info.to_json()},
                embedded=embedded,
            )
        return export_pt2(deployed, shape, dtype=dtype, extra_files={EXTRA_FILE: info.to_json()})
    except AftModelsError as error:
        # The wrapper's own name and attribute are not the user's.
        text = str(error).replace(_Deployed.__name__, model.name, 1)
        raise AftModelsError(text.replace("the module model.", "the module ", 1)) from error


def _load(temporary: Path, path: Path) -> Model:
    """Load a file as `-m FILE` does; the temporary name has another ending."""
    return load_model(ModelName(path.name, path.suffix[1:], str(temporary), label=path.name))


@dataclass
class _Comparison:
    """Images with the logits of the original model."""

    images: Tensor  # normalized (N, 3, I, I)
    logits: Tensor  # (N, classes)
    near_ties: Any  # mask (N,) of classes that rounding may decide
    data: str  # name of the data set
    difference: float = 0.0  # largest difference found by `check`

    @classmethod
    def of(cls, model: Model, data: str | ImageSet, count: int, crop_pct: str) -> _Comparison:
        """Read images as a run does, and predict them with the model."""
        dataset = load_dataset(data) if isinstance(data, str) else data
        if count < 1 or not len(dataset):
            raise UsageError(
                f"expected at least 1 image to compare, got {min(count, len(dataset))}"
            )
        geometry = canvas_for(model, dataset, crop_pct=crop_pct, pad="reflect")
        step = max(1, len(dataset) // count)  # spread over the classes
        indices = range(0, len(dataset), step)[:count]
        batch = Canvases(dataset, geometry, list(indices), skip_bad=True).take(len(indices))
        if batch is None or not len(batch):
            raise DataError(f"expected at least 1 readable image of {dataset.name}, got none")
        facts = model.preprocessing
        images = normalize(batch.canvas, facts.mean, facts.std)
        predictor = _predictor(model)
        logits = torch.cat([predictor(part) for part in torch.split(images, BATCHES[-1])])
        return cls(images, logits, predictor.near_ties(logits), dataset.name)

    def check(self, exported: Model, name: str) -> None:
        """Raise ModelError if a file gives other logits or classes; note the difference."""
        predictor = _predictor(exported)
        allowed = TOLERANCE * float(self.logits.abs().max())
        for size in BATCHES:
            some = self.images[: BATCHES[-1]] if size == 1 else self.images
            found = torch.cat([predictor(part) for part in torch.split(some, size)])
            expected = self.logits[: len(found)]
            difference = float((found - expected).abs().max())
            self.difference = max(self.difference, difference)
            differ = (found.argmax(1) != expected.argmax(1)).numpy()
            differ &= ~self.near_ties[: len(found)]
            if not difference <= allowed or differ.any():
                raise ModelError(
                    f"{name} was not written: its logits differ from PyTorch's by "
                    f"{difference:.2g} at batch size {size} (tolerance {allowed:.2g}), "
                    f"{int(differ.sum())} of {len(found)} classes differ. Export to another format"
                )


def _predictor(model: Model) -> Predictor:
    device = torch.device("cpu")
    return Predictor(model, device, model.name, batch_size=BATCHES[-1])
