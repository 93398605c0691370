"""Laws that every registered remedy keeps: a new file in the folder is held to them."""

from __future__ import annotations

import copy
import io
import pickle
from importlib import import_module
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from repair_cases import Residual, photo
from shifted_models import changes, scene
from torch import Tensor, nn

from aft_models import AftModelsError, repair
from aft_models.onnx import export_onnx
from aft_models.repair import (
    GROUPS,
    REMEDIES,
    Remedy,
    RepairContext,
    parse,
    register,
    reports,
    view_margin,
)

DOCS = Path(__file__).resolve().parents[2] / "docs"


class Patches(nn.Sequential):
    """Cuts the image into patches."""

    def __init__(self) -> None:
        pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5)]
        super().__init__(nn.Conv2d(3, 4, 4, 4), nn.GELU(), *pool)


def fitting(remedy: str) -> nn.Module:
    """A network that the remedy fits, in float64."""
    torch.manual_seed(0)
    try:
        repair(Residual(), remedy)
    except AftModelsError:
        return Patches().double()
    return Residual().double()


@pytest.fixture(params=REMEDIES)
def remedy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def images_for(remedy: str, count: int = 2) -> Tensor:
    """As large as a network of 16 pixels takes them with the remedy."""
    return photo(16 + 2 * view_margin(repair(fitting(remedy), remedy)), count)


@pytest.fixture
def image(remedy: str) -> Tensor:
    return images_for(remedy)


def test_names_weights_and_the_original_are_kept(remedy: str, image: Tensor) -> None:
    model = fitting(remedy)
    before, expected = copy.deepcopy(model.state_dict()), model(image)
    repaired = repair(model, remedy)
    assert torch.equal(model(image), expected)
    learned = [name for name in repaired.state_dict() if name not in before]
    assert list(before) == [name for name in repaired.state_dict() if name not in learned]
    assert bool(learned) == REMEDIES[remedy].learns
    repaired.load_state_dict(before)
    model.load_state_dict(repaired.state_dict(), strict=not learned)
    for ours, theirs in zip(model.children(), repaired.children(), strict=True):
        assert isinstance(theirs, type(ours))


def test_copies_and_pickles_answer_alike(remedy: str, image: Tensor) -> None:
    model = repair(fitting(remedy), remedy).eval()
    expected = model(image)
    for twin in (copy.deepcopy(model), pickle.load(io.BytesIO(pickle.dumps(model)))):
        assert torch.equal(twin(image), expected)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.mul_(2)
        assert not torch.allclose(twin(image), expected)
        assert torch.equal(model(image), expected)
        assert reports(twin) == reports(model)


def test_every_parameter_learns(remedy: str, image: Tensor) -> None:
    model = repair(fitting(remedy), remedy).train()
    F.cross_entropy(model(image), torch.tensor([1, 2])).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert [name for name, g in gradients.items() if g is None] == []
    assert all(torch.isfinite(g).all() and g.any() for g in gradients.values() if g is not None)


def test_an_answer_does_not_depend_on_the_batch(remedy: str) -> None:
    model, images = repair(fitting(remedy), remedy).eval(), images_for(remedy, 3)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), alone)


def test_shifts_that_it_is_exact_for_change_nothing(remedy: str) -> None:
    exact = REMEDIES[remedy].exact
    model = fitting(remedy)
    x = scene(32, 32)
    if exact == "none":
        return
    others = [] if isinstance(model, Patches) else ["circular"]
    steady = repair(model, *others, remedy).eval()
    shifts = [(1, 0), (3, 2), (-5, 7)] + ([(0.5, 0.5), (0.27, -1.81)] if exact == "all" else [])
    assert max(changes(steady, x, shifts)) < 1e-10
    assert max(changes(model, x, shifts)) > 1e-3


QUICK = {"compile": ("aps",), "onnx": ("canonical", "select")}  # the default run must be quick


def chosen(law: str) -> list[object]:
    slow = pytest.mark.slow
    return [r if r in QUICK[law] else pytest.param(r, marks=slow) for r in REMEDIES]


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of torch.compile itself
@pytest.mark.parametrize("remedy", chosen("compile"))
def test_compiled_models_answer_and_learn_alike(remedy: str, image: Tensor) -> None:
    torch.compiler.reset()
    model = repair(fitting(remedy), remedy)
    model.train(not REMEDIES[remedy].learns)  # Gumbel noise would differ
    backend = "eager" if remedy in QUICK["compile"] else "aot_eager"
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(image), model(image))
    weights = [p for name, p in model.named_parameters() if "scorer" not in name]
    grads = [torch.autograd.grad(m(image).square().sum(), weights) for m in (compiled, model)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("remedy", chosen("onnx"))
def test_exported_models_answer_alike(remedy: str, image: Tensor) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra `onnx`")
    model, images = repair(fitting(remedy), remedy).float().eval(), image.float()
    session = runtime.InferenceSession(export_onnx(model, tuple(images.shape[1:])))
    for batch in (images, images[:1]):
        got = torch.from_numpy(session.run(None, {"images": batch.numpy()})[0])
        torch.testing.assert_close(got, model(batch), rtol=1e-4, atol=1e-5)


def test_odd_maps_give_numbers(remedy: str) -> None:
    """Residual networks of timm pool maps of odd sides with windows that are partly empty."""
    torch.manual_seed(0)
    pool = nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False)
    convs = nn.Conv2d(3, 4, 4, 4), nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(*convs, pool, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    repaired = repair(model, remedy, image=torch.randn(1, 3, 28, 28)).train()
    side = 28 + 2 * view_margin(repaired)
    images = torch.randn(2, 3, side, side, requires_grad=True)
    repaired(images).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in repaired.parameters() if p.grad is not None)
    assert torch.isfinite(repaired.eval()(images)).all()


# The registry


def test_every_file_of_the_folder_is_imported_and_every_remedy_described() -> None:
    homes = {remedy.apply.__module__ for remedy in REMEDIES.values()}
    assert len(homes) == len(REMEDIES), "one file each"
    for name, remedy in REMEDIES.items():
        assert str(parse(name)[0]) == name == remedy.name
        assert remedy.summary
        assert remedy.treats
        with pytest.raises(AftModelsError, match="registered already"):
            register(remedy)


def test_one_remedy_of_a_group_holds() -> None:
    for first in REMEDIES.values():
        for second in REMEDIES.values():
            names = [first.name, second.name]
            if first is second or first.group != second.group:
                continue
            with pytest.raises(AftModelsError, match=f"both decide {GROUPS[first.group]}: choose"):
                repair(Residual(), *names)


def test_docs_list_every_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    table = import_module("make_remedies").table()
    assert table in (DOCS / "repair.md").read_text("utf-8"), "run python docs/make_remedies.py"


def test_a_newcomer_registers_a_remedy() -> None:
    def negate(context: RepairContext, _: int) -> None:
        context.model.head.weight.data.neg_()
        context.changed("head", context.model.head, "negated")

    try:
        register(Remedy("negate", "placement", "negates the head", negate, ("position",)))
        model = repair(Residual(), "circular+negate")
        assert [report.remedy for report in reports(model)] == ["circular", "negate"]
        with pytest.raises(AftModelsError, match="unknown group of the remedy other"):
            register(Remedy("other", "mood", "", negate, ()))
    finally:
        REMEDIES.pop("negate", None)
