"""`shiftbench.train`: any model, any data, a named recipe; scores as training goes, an export."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torchvision.datasets.folder import IMG_EXTENSIONS

from aft_models import PRESETS
from aft_models.classifier import load_backbone
from aft_models.preprocessing import normalize
from aft_models.training import loop
from aft_models.training.augment import Windows
from aft_models.training.checkpoint import Data, Identity
from aft_models.training.data import (
    Batch,
    Batches,
    LoaderBatches,
    MemoryBatches,
    PixelBatches,
    PixelSet,
    loader_batches,
)
from aft_models.training.device import DeviceConfig, Processes
from aft_models.training.export import export
from aft_models.training.progress import Progress, Row
from aft_models.training.recipe import Recipe, override
from aft_models.training.recipes import get_recipe
from aft_models.weights import state_dict_digest
from shiftbench.data import ImageSet, RenderedSet, balanced, load_dataset, subset
from shiftbench.data.base import ALL
from shiftbench.data.folder import FileSet, file_set, split_folder
from shiftbench.errors import DataError, UsageError
from shiftbench.logs import open_logs
from shiftbench.metrics.consistency import CONSISTENCIES, compare_views
from shiftbench.models import Preprocessing, build_model, load_model
from shiftbench.models.checkpoint import read_weights, without_prefixes
from shiftbench.models.names import parse_name, split_remedies
from shiftbench.registry import unknown_name
from shiftbench.run.distributed import SINGLE_PROCESS, Group
from shiftbench.run.engine import choose_device
from shiftbench.shifts import SHIFTS
from shiftbench.statistics import Score, wilson

SHIFT_KINDS = ("integer", "half")  # cyclic consistencies: they need no pixels around the view
EVALUATION_BATCH = 256  # images; batch norm is fixed here, so that it changes no number
TEACHER = 3  # of training without labels: its mean over 3 x 3 windows


@dataclass(frozen=True)
class Trained:
    """What a training leaves."""

    folder: Path  # exported weights and their card, for `load_model(..., checkpoint=folder)`
    rows: Sequence[Row]  # of the log, one per epoch
    scores: Mapping[str, Score]  # of the last epoch, as fractions


@dataclass(frozen=True)
class Start:
    """The weights that training starts from."""

    state: Mapping[str, Tensor]  # empty: random ones
    preprocessing: Preprocessing | None = None  # what they were trained on, where it is known
    classes: int | None = None  # outputs of their classifier, where it is known
    class_names: Sequence[str] = ()


def train(
    model: str,
    data: str,
    recipe: str | Recipe,
    output: str | Path,
    *,
    changes: Sequence[str] = (),
    tag: str | None = None,
    pretrained: bool = False,
    checkpoint: str | Path | None = None,
    unlabeled: bool = False,
    train_split: str = "train",
    split: str | None = None,
    limit: int | None = None,
    download: bool = False,
    score_every: int = 1,
    shift_every: int = 10,
    shift_images: int = 500,
    workers: int = 4,
    device: str = "auto",
    precision: str = "fp32",
    compiled: bool = False,
    channels_last: bool = False,
    seed: int = 0,
    resume: bool = True,
    logs: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    notice: Callable[[str], None] | None = None,
    processes: Group = SINGLE_PROCESS,
) -> Trained:
    """Trains or fine-tunes a model, as `shiftbench train` does.

        shiftbench.train("timm:resnet50+af", "folder:PHOTOS", "finetune", "runs/af")

    Args:
        model: As for `load_model`, remedies included.
        data: As for `load_dataset`.
        recipe: A name of `shiftbench list recipes`, or a recipe.
        output: Gets last.pt, best.pt, log.csv, curves.png and, at the end, export/.
        changes: Fields of the recipe to override, as in `["epochs=10"]`.
        tag: Names the exported weights; by default the data set's name.
        pretrained: Start from the model's own weights.
        checkpoint: Start from weights in a file or an exported folder.
        unlabeled: Read no labels: recipes `steady`, which then learns from a frozen copy of the
            start, and `recalibrate`. Scores need labels, so name `split` to have an accuracy.
        train_split: What to train on.
        split: What to score on; by default the usual evaluation split.
        limit: A balanced subset of either part.
        download: Allow the data set to be fetched.
        score_every: Epochs between two accuracies; 0 for the last alone.
        shift_every: Epochs between two shift scores; 0 likewise.
        shift_images: How many images shift scores take.
        workers: Processes that load images.
        device: `auto`, `cpu`, `cuda[:i]` or `mps`.
        precision: `fp32`, `bf16` or `fp16`.
        compiled: Whether `torch.compile` compiles the model.
        channels_last: Whether to use the channels-last memory layout.
        seed: Of initial weights, order and augmentation.
        resume: Continue from the last epoch in `output`, if there is one.
        logs: Where rows go besides log.csv: `tensorboard`, `wandb`.
        progress: Called now and then by the main process.
        notice: Called with a line that the user should see.
        processes: Which of how many processes this is.

    Raises:
        UsageError: The request contradicts itself.
    """
    output, main = Path(output), processes.is_main
    architecture = _check(model, tag, pretrained, checkpoint)
    if isinstance(recipe, str):
        recipe = get_recipe(recipe)
    recipe = override(recipe.for_model(architecture), changes)
    if unlabeled:
        teacher = (recipe.teacher or TEACHER) if recipe.shift else 0
        recipe = replace(recipe, unlabeled=True, teacher=teacher)
    machine = DeviceConfig(
        choose_device(device, local_rank=processes.local_rank), precision, compiled, channels_last
    )
    images, scored = _load_data(
        data, train_split, split, limit=limit, seed=seed, download=download, unlabeled=unlabeled
    )
    start = _start(model, pretrained, checkpoint)
    classes = start.classes if unlabeled else len(images.class_names)
    size = recipe.image_size or (start.preprocessing.input_size if start.preprocessing else None)
    options = {"drop_path_rate": recipe.drop_path} if recipe.drop_path else {}
    built = build_model(model, classes=classes, size=size, seed=seed, options=options)
    recipe = recipe.for_input(start.preprocessing or built.preprocessing)
    new: list[str] = []
    if start.state:
        fitting = without_prefixes(start.state, built.network.state_dict())
        new = load_backbone(built.network, fitting, size=recipe.image_size)
    _require_start(recipe, built.name, start, new)
    if new and main and notice is not None:
        notice(f"new, to be learned: {', '.join(new)}")
    classes = built.num_classes
    if not isinstance(scored, Unlabeled) and len(scored.class_names) != classes:
        raise UsageError(
            f"{scored.name} {scored.split} has {len(scored.class_names)} classes and the model "
            f"{classes}: score on a split with the model's classes"
        )
    inputs = BatchBuilder(recipe, processes, workers, seed)
    identity = Identity(
        built.name,
        recipe,
        seed,
        classes,
        data=images_of(images, limit),
        scored={**asdict(images_of(scored, limit)), "shift_images": shift_images},
        start=state_dict_digest(start.state) if start.state else "",
    )
    scores = EpochEvaluator(
        scored,
        inputs,
        machine,
        every=score_every,
        shift_every=shift_every,
        shift_images=shift_images,
    )
    with open_logs(tuple(logs) if main else (), output, model, identity.as_dict()) as log:
        outcome = loop.train(
            built.network,
            inputs.training(images),
            identity=identity,
            folder=output,
            machine=machine,
            processes=processes,
            evaluate=scores,
            report=progress if main else None,
            log=log,
            resume=resume,
        )
    folder = output / "export"
    if main:
        export(
            outcome,
            folder,
            identity=identity,
            tag=tag or images.name,
            class_names=start.class_names if unlabeled else images.class_names,
            images=scores.counts,
        )
    row = outcome.rows[-1]
    final = {name: wilson(round(row[name] * n), n) for name, n in scores.counts.items()}
    return Trained(folder, outcome.rows, final)


def _check(model: str, tag: str | None, pretrained: bool, checkpoint: str | Path | None) -> str:
    """Refuses what contradicts itself before anything is loaded; returns the architecture."""
    if pretrained and checkpoint is not None:
        raise UsageError("--pretrained and --checkpoint both give weights: leave one out")
    if tag is not None and not re.fullmatch(r"\w[\w-]*", tag):
        raise UsageError(f"--tag takes letters, digits, _ and -, as in cifar10, got {tag!r}")
    plain, _ = split_remedies(model)
    if Path(plain).is_dir():
        raise UsageError(
            f"{plain} is a folder: name the model with -m, and give the folder's weights with "
            "--checkpoint"
        )
    spec = parse_name(plain)
    if spec.source != "bundled":
        return plain
    architecture, _, weights = spec.name.partition(".")
    if architecture not in PRESETS:
        raise unknown_name("model to train", architecture, PRESETS)
    if pretrained and not weights:
        raise UsageError(
            f"--pretrained starts from bundled weights, and {model!r} names none: add "
            "their tag, as in xcit_pico_6_p4_af.cifar10, or give a file with --checkpoint"
        )
    if weights and not pretrained:
        raise UsageError(
            f"{model!r} names trained weights: add --pretrained to start from them, or "
            f"train {architecture!r} from scratch"
        )
    return architecture


def _start(model: str, pretrained: bool, checkpoint: str | Path | None) -> Start:
    if checkpoint is not None:
        weights = read_weights(Path(checkpoint))
        if weights.card is None:
            return Start(weights.state)
        card = weights.card
        return Start(weights.state, weights.preprocessing, card.num_classes, card.class_names)
    if pretrained:
        own = load_model(split_remedies(model)[0])
        return Start(own.network.state_dict(), own.preprocessing, own.num_classes, own.class_names)
    return Start({})


def _require_start(recipe: Recipe, name: str, start: Start, new: Sequence[str]) -> None:
    """Refuses a start that the recipe cannot use: what is random would stay so, or be taught."""
    if recipe.learns and not recipe.teacher:
        return
    what = "a teacher needs" if recipe.learns else f"recipe {recipe.name} learns nothing and needs"
    if not start.state:
        raise UsageError(f"{what} trained weights of {name}: add --pretrained or --checkpoint")
    if new:
        raise UsageError(
            f"{what} weights with the classes of the data, and these leave {', '.join(new[:2])} of "
            f"{name} random: fine-tune first, and start from that export"
        )


class Unlabeled(FileSet):
    """Photographs without classes: any image below a folder."""


def _load_data(
    data: str,
    train_split: str,
    split: str | None,
    *,
    limit: int | None,
    seed: int,
    download: bool,
    unlabeled: bool,
) -> tuple[ImageSet, ImageSet]:
    """What to train on and what to score on."""
    source, _, path = data.partition(":")

    def load(part: str | None) -> ImageSet:
        return load_dataset(data, split=part, limit=limit, seed=seed, download=download)

    if not unlabeled:
        try:
            return load(train_split), load(split)
        except DataError as error:
            root = Path(path).expanduser()
            loose = (entry for part in (root, root / train_split) for entry in part.glob("*.*"))
            if source == "folder" and any(e.name.lower().endswith(IMG_EXTENSIONS) for e in loose):
                raise DataError(
                    f"{root} holds photographs without class folders: sort them into one folder "
                    "per class, or train with --unlabeled (recipes steady and recalibrate)"
                ) from error
            raise
    if source != "folder":
        raise UsageError(f"--unlabeled takes folder:PATH with images anywhere below, got {data!r}")
    try:
        place = split_folder(Path(path).expanduser(), train_split, source=source)
    except DataError:  # no such split: the folder itself
        place = split_folder(Path(path).expanduser(), ALL, source=source)
    files = file_set(place.name, place, {".": 0}, [""])
    chosen = balanced(files.keys, files.labels, limit or len(files), seed)
    keys, names = ([column[index] for index in chosen] for column in (files.keys, files.names))
    photographs = Unlabeled(files.name, files.split, keys, [0] * len(keys), [""], files.root, names)
    return photographs, photographs if split is None else load(split)


def images_of(data: ImageSet, limit: int | None) -> Data:
    """Which images a data set holds, for a run to recognize them by."""
    return Data(data.name, data.split, limit, len(data), data.fingerprint())


def load_pixels(data: ImageSet, recipe: Recipe) -> PixelSet:
    """Every image as pixels; a data set with a camera renders what lies around the view."""
    canvas = recipe.canvas or recipe.image_size
    if not isinstance(data, RenderedSet):
        return PixelSet.load(data, canvas, recipe.interpolation)
    margin, odd = divmod(canvas - recipe.image_size, 2)
    if odd:
        raise UsageError(
            f"{data.name} shows the same margin on every side of the view, so canvas must be "
            f"image_size plus an even number: got {canvas} for {recipe.image_size}"
        )
    indices = range(len(data))
    parts = [
        data.render(indices[start : start + EVALUATION_BATCH], recipe.image_size, margin)
        for start in range(0, len(data), EVALUATION_BATCH)
    ]
    return PixelSet(torch.cat(parts), torch.tensor(list(data.labels)))


@dataclass(frozen=True)
class BatchBuilder:
    """How images become batches."""

    recipe: Recipe
    processes: Processes
    workers: int
    seed: int

    def training(self, data: ImageSet) -> Batches:
        """Shuffled and augmented."""
        recipe, processes = self.recipe, self.processes
        if recipe.pipeline == "memory":
            pixels = load_pixels(data, recipe)
            return MemoryBatches(pixels, recipe, seed=self.seed, processes=processes)
        return LoaderBatches(
            data, recipe, seed=self.seed, processes=processes, workers=self.workers
        )

    def evaluation(self, data: ImageSet, processes: Processes) -> Iterable[Batch]:
        """In order, as the model will see images when it is used."""
        if self.recipe.pipeline == "memory":
            pixels = load_pixels(data, self.recipe)
            return PixelBatches(pixels, self.recipe, EVALUATION_BATCH, processes)
        return loader_batches(
            data, self.recipe, processes, size=EVALUATION_BATCH, workers=self.workers
        )


class EpochEvaluator:
    """Accuracy and agreement under random shifts, each after every k-th epoch and the last."""

    def __init__(
        self,
        data: ImageSet,
        inputs: BatchBuilder,
        machine: DeviceConfig,
        *,
        every: int,
        shift_every: int,
        shift_images: int,
    ) -> None:
        """Reads the images once where the recipe holds them in memory.

        Args:
            data: What the model is scored on.
            inputs: How images become batches.
            machine: What the model runs on.
            every: Epochs between two measurements of accuracy; 0 for none but the last.
            shift_every: Epochs between two measurements under shifts; 0 likewise. A recipe that
                trains with shifted windows has its agreement measured as often as accuracy.
            shift_images: How many images these take, balanced over the classes.
        """
        self._machine = machine
        self._recipe = inputs.recipe
        self._processes = inputs.processes
        self._every, self._shift_every = every, shift_every
        chosen = subset(data, balanced(data.keys, data.labels, shift_images, seed=0))
        self._keys = chosen.keys
        self._few = inputs.evaluation(chosen, Processes())
        self.counts: dict[str, int] = {}  # score -> how many images it is of
        self._batches: Iterable[Batch] = ()
        if not isinstance(data, Unlabeled):
            self._batches = inputs.evaluation(data, inputs.processes)
            self.counts["accuracy"] = len(data)
        self._canvases: Tensor | None = None
        if self._recipe.shift:
            self._canvases = load_pixels(chosen, self._recipe).images
            self.counts["agreement_crop"] = len(chosen)
        self.counts |= {f"consistency_{name}": len(chosen) for name in SHIFT_KINDS}

    def __call__(self, model: nn.Module, epoch: int) -> Mapping[str, float]:
        """The columns of the log for a finished epoch."""
        scores = {}
        if self._due(epoch, self._every):
            if "accuracy" in self.counts:
                scores["accuracy"] = self._accuracy(model)
            if self._canvases is not None:
                scores["agreement_crop"] = self._agreement(model, self._canvases)
        if self._due(epoch, self._shift_every):
            scores |= self._consistencies(model)
        return scores

    def _due(self, epoch: int, every: int) -> bool:
        return epoch == self._recipe.epochs or (every > 0 and epoch % every == 0)

    def _accuracy(self, model: nn.Module) -> float:
        """The fraction of all processes' images that the model gets right."""
        device = self._machine.device
        counts = torch.zeros(2, dtype=torch.float32, device=device)  # right, seen
        for batch in self._batches:
            images, labels = self._machine.move(*batch)
            with self._machine.autocast():
                right = model(images).argmax(1) == labels
            counts += torch.stack([right.sum(), torch.tensor(len(labels), device=device)])
        right_all, seen_all = self._processes.total(counts).tolist()
        return float(right_all / seen_all)

    def _agreement(self, model: nn.Module, canvases: Tensor) -> float:
        """The share of the eight crops around the center, `shift` px away, that agree with it."""
        recipe, side = self._recipe, canvases.shape[-1]
        agree = 0
        for part in torch.split(canvases, EVALUATION_BATCH):
            center = Windows.centered(len(part), side, recipe.image_size)
            answers = [
                self._predict(model, normalize(windows.cut(part), recipe.mean, recipe.std)).argmax(
                    1
                )
                for windows in (center, *center.around_center(3, recipe.shift, side))
            ]
            agree += sum(int((answer == answers[0]).sum()) for answer in answers[1:])
        return (agree - len(canvases)) / (8 * len(canvases))  # the center is among the nine

    def _predict(self, model: nn.Module, images: Tensor) -> Tensor:
        with self._machine.autocast():
            logits: Tensor = model(images.to(self._machine.device))
        return logits

    def _consistencies(self, model: nn.Module) -> dict[str, float]:
        """Every process measures the same few images, and so has the same answer."""
        images = torch.cat([images for images, _ in self._few])
        views = SHIFTS.get("cyclic").views(images, 0)
        scores = {}
        for name in SHIFT_KINDS:
            kind = CONSISTENCIES.get(name)
            span = kind.span(images.shape[-1], images.shape[-1])
            measured = compare_views(
                lambda images: self._predict(model, images),
                views,
                self._keys,
                kind,
                span=span,
                batch_size=EVALUATION_BATCH,
            )
            scores[f"consistency_{name}"] = measured.score.value
        return scores
