"""Properties of every registered remedy: a new row of the table is tested without further edits."""

from __future__ import annotations

import copy
import inspect
import io
import math
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from repair_cases import Residual, photo
from shifted_models import changes, scene
from torch import Tensor, nn

from aft_models import AftModelsError, repair
from aft_models.onnx import export_onnx
from aft_models.preprocessing import Preprocessing
from aft_models.remedies import GROUPS, REMEDIES, Number, Remedy, parse_remedies, register
from aft_models.remedies.context import RepairContext
from aft_models.remedies.inputs import InputRemedy, ShownNetwork, Undo, build_inputs, same
from aft_models.remedies.repair import reports

DOCS = Path(__file__).resolve().parents[2] / "docs"
INPUT_REMEDIES = [name for name, remedy in REMEDIES.items() if remedy.input]


@pytest.fixture(params=REMEDIES)
def remedy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return Residual().double()


def side_of(model: nn.Module, size: int) -> int:
    """Return the side of the images that a repaired model takes, in pixels."""
    margin = sum(report.margin for report in reports(model))
    return math.prod(report.scale for report in reports(model)) * (size + 2 * margin)


def images_for(remedy: str, count: int = 2) -> Tensor:
    """Draw images of the size that a network of 16 pixels takes with the remedy."""
    return photo(side_of(repair(Residual(), remedy), 16), count)


def test_repair_keeps_names_weights_and_original(remedy: str, network: nn.Module) -> None:
    image = images_for(remedy)
    before, expected = copy.deepcopy(network.state_dict()), network(image)
    repaired = repair(network, remedy, input_size=16)
    assert torch.equal(network(image), expected)
    assert list(before) == list(repaired.state_dict())
    repaired.load_state_dict(before)
    network.load_state_dict(repaired.state_dict())
    inner = repaired.network if isinstance(repaired, ShownNetwork) else repaired
    assert isinstance(inner, nn.Module)
    for original, changed in zip(network.children(), inner.children(), strict=True):
        assert isinstance(changed, type(original))


def test_repaired_copies_and_pickles_predict_the_same(remedy: str, network: nn.Module) -> None:
    model, image = repair(network, remedy, input_size=16).eval(), images_for(remedy)
    expected = model(image)
    for twin in (copy.deepcopy(model), pickle.load(io.BytesIO(pickle.dumps(model)))):
        assert torch.equal(twin(image), expected)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.mul_(2)
        assert not torch.allclose(twin(image), expected)
        assert torch.equal(model(image), expected)
        assert reports(twin) == reports(model)


def test_repaired_parameters_have_gradients(remedy: str, network: nn.Module) -> None:
    model = repair(network, remedy, input_size=16).train()
    F.cross_entropy(model(images_for(remedy)), torch.tensor([1, 2])).backward()
    gradients = {name: p.grad for name, p in model.named_parameters()}
    assert [name for name, g in gradients.items() if g is None] == []
    assert all(torch.isfinite(g).all() and g.any() for g in gradients.values() if g is not None)


def test_repaired_logits_independent_of_batch(remedy: str, network: nn.Module) -> None:
    model, images = repair(network, remedy, input_size=16).eval(), images_for(remedy, 3)
    alone = torch.cat([model(image[None]) for image in images])
    torch.testing.assert_close(model(images), alone)


def test_exact_remedies_are_invariant_to_their_shifts(remedy: str, network: nn.Module) -> None:
    exact = REMEDIES[remedy].exact
    if exact == "none":
        return
    repaired = repair(network, f"circular+{remedy}").eval()
    shifts = [(1, 0), (3, 2), (-5, 7)]
    shifts += [(0.5, 0.5), (0.27, -1.81)] if exact == "all shifts" else []
    x = scene(32, 32)
    assert max(changes(repaired, x, shifts)) < 1e-10
    assert max(changes(network, x, shifts)) > 1e-3


QUICK = {"compile": ("aps",), "onnx": ("canonical", "align")}  # the others take seconds each


def chosen(test: str) -> list[object]:
    slow = pytest.mark.slow
    return [r if r in QUICK[test] else pytest.param(r, marks=slow) for r in REMEDIES]


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # of torch.compile itself
@pytest.mark.parametrize("remedy", chosen("compile"))
def test_compiled_models_have_equal_logits_and_gradients(remedy: str, network: nn.Module) -> None:
    torch.compiler.reset()
    model, image = repair(network, remedy, input_size=16).train(), images_for(remedy)
    backend = "eager" if remedy in QUICK["compile"] else "aot_eager"
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    torch.testing.assert_close(compiled(image), model(image))
    weights = list(model.parameters())
    grads = [torch.autograd.grad(m(image).square().sum(), weights) for m in (compiled, model)]
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("remedy", chosen("onnx"))
def test_exported_models_have_equal_logits(remedy: str, network: nn.Module) -> None:
    runtime = pytest.importorskip("onnxruntime", reason="needs the extra `onnx`")
    model, images = (
        repair(network, remedy, input_size=16).float().eval(),
        images_for(remedy).float(),
    )
    session = runtime.InferenceSession(export_onnx(model, tuple(images.shape[1:])))
    for batch in (images, images[:1]):
        got = torch.from_numpy(session.run(None, {"images": batch.numpy()})[0])
        torch.testing.assert_close(got, model(batch), rtol=1e-4, atol=1e-5)


def test_repaired_odd_maps_have_finite_outputs(remedy: str) -> None:
    """Residual networks of timm pool maps of odd sides with windows that are partly empty."""
    torch.manual_seed(0)
    pool = nn.AvgPool2d(2, 2, ceil_mode=True, count_include_pad=False)
    convs = nn.Conv2d(3, 4, 4, 4), nn.Conv2d(4, 4, 3, padding=1)
    model = nn.Sequential(*convs, pool, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    repaired = repair(model, remedy, input_size=28).train()
    side = side_of(repaired, 28)
    images = torch.randn(2, 3, side, side, requires_grad=True)
    repaired(images).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in repaired.parameters() if p.grad is not None)
    assert torch.isfinite(repaired.eval()(images)).all()


@pytest.mark.parametrize("remedy", INPUT_REMEDIES)
def test_input_remedies_wrap_any_callable(remedy: str, network: nn.Module) -> None:
    images = images_for(remedy)
    wrapped = repair(lambda x: network(x), remedy, input_size=16)  # no module
    assert wrapped.state_dict() == {}
    assert torch.equal(wrapped(images), repair(network, remedy, input_size=16)(images))
    with pytest.raises(AftModelsError, match="the wrapped callable is not a torch module"):
        wrapped.load_state_dict({})


@pytest.mark.parametrize("remedy", sorted(set(REMEDIES) - set(INPUT_REMEDIES)))
def test_layer_remedies_need_a_network(remedy: str) -> None:
    for model in (lambda x: x, nn.Identity()):
        with pytest.raises(AftModelsError, match=f"{remedy} needs the layers of a PyTorch network"):
            repair(model, remedy)


@pytest.mark.parametrize("remedy", INPUT_REMEDIES)
def test_input_remedies_return_network_size_and_undo(remedy: str) -> None:
    (built,) = build_inputs(parse_remedies(remedy), Preprocessing(32))
    side = built.scale * (32 + 2 * built.margin)
    shown, undo = built.show(photo(side, 3))
    assert shown.shape[1:] == (3, 32, 32)
    assert len(shown) % 3 == 0
    assert undo(torch.randn(len(shown), 5)).shape == (3, 5)
    assert not built.keeps_pixels or len(shown) == 3


# The table


def test_table_equals_files_of_remedies() -> None:
    package = Path(str(import_module("aft_models.remedies").__file__)).parent
    functions = ("def apply(context: RepairContext", "def build(")
    files = {p.stem for p in package.glob("*.py") if any(f in p.read_text() for f in functions)}
    assert files == set(REMEDIES)
    for remedy in REMEDIES.values():
        parameters = list(inspect.signature(remedy.load()).parameters.values())
        numbers = parameters if remedy.input else parameters[1:]
        assert len(numbers) == len(remedy.numbers), remedy.name


def test_table_rows_are_complete() -> None:
    for name, remedy in REMEDIES.items():
        assert str(parse_remedies(name)[0]) == name == remedy.name
        assert remedy.summary
        assert remedy.treats
        with pytest.raises(AftModelsError, match="registered already"):
            register(remedy)


def test_table_needs_no_torch() -> None:
    code = (
        "import sys; from aft_models.remedies import parse_remedies; "
        "parse_remedies('circular+align:4:1'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("aps+circular", "circular+aps"),
        ("vote:3", "vote"),
        ("align:12:1+vote:2+af:2", "af+vote:2+align:12:1"),
        ("", ""),
    ],
)
def test_parse_remedies_orders_and_drops_default_numbers(text: str, expected: str) -> None:
    assert "+".join(map(str, parse_remedies(text))) == expected


def test_parse_remedies_two_of_one_group_raise() -> None:
    for first in REMEDIES.values():
        for second in REMEDIES.values():
            if first is second or first.group != second.group:
                continue
            message = rf"both decide {GROUPS[first.group]}\. Choose"
            with pytest.raises(AftModelsError, match=message):
                parse_remedies(f"{first.name}+{second.name}")


def test_docs_contain_table_of_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    table = import_module("make_remedies").table()
    assert table in (DOCS / "reference" / "remedies.md").read_text("utf-8"), (
        "run python docs/make_remedies.py"
    )


# Plug-ins


class Brighter(InputRemedy):
    """Brighter images of twice the resolution, with a margin of one pixel."""

    scale, margin = 2, 1

    def __init__(self, percent: int) -> None:
        self.percent = percent

    def show(self, images: Tensor) -> tuple[Tensor, Undo]:
        return images[..., 2:-2:2, 2:-2:2] * (1 + self.percent / 100), same


def test_plugin_remedies_of_both_kinds_apply() -> None:
    def negate(context: RepairContext) -> None:
        context.model.head.weight.data.neg_()
        context.changed("head", context.model.head, "negated")

    percent = (Number("the percentage", 1, 100, 50),)
    try:
        register(Remedy("negate", "sampling", "negates the head", ("position",), function=negate))
        register(
            Remedy(
                "brighter", "view", "", ("position",), numbers=percent, input=True,
                function=Brighter,
            )
        )  # fmt: skip
        model = repair(Residual(), "circular+negate+brighter:20", input_size=16)
        assert [report.remedy for report in reports(model)] == ["circular", "negate", "brighter:20"]
        assert (reports(model)[2].margin, reports(model)[2].scale) == (1, 2)
        assert model(torch.rand(1, 3, 36, 36)).shape == (1, 5)
        with pytest.raises(AftModelsError, match="unknown group of the remedy other"):
            register(Remedy("other", "mood", "", ()))
    finally:
        REMEDIES.pop("negate", None)
        REMEDIES.pop("brighter", None)


def test_input_remedies_apply_outside_in(network: nn.Module) -> None:
    """The crop is cut first; then the network is given its shifted views."""
    images = photo(24)
    (align,) = build_inputs(parse_remedies("align:4:1"), Preprocessing(16))
    expected = repair(network, "vote:2")(align.show(images)[0])
    np.testing.assert_allclose(
        repair(network, "vote:2+align:4:1", input_size=16)(images).detach(),
        expected.detach(),
        rtol=1e-12,
    )
