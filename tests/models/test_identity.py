"""A model's identity holds everything that its answers depend on, by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shiftbench.data import load_dataset
from shiftbench.errors import ModelError, RecordError
from shiftbench.identity import changed_parts, plugin_parts, source_parts
from shiftbench.models import SOURCES, Classifier, load_model
from shiftbench.plugins import load_plugins
from shiftbench.run.job import Settings
from shiftbench.run.runner import Execution, run
from shiftbench.shifts import ATTACKS, SHIFTS

NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, sign=1):
        super().__init__()
        self.sign = sign
        self.head = nn.Linear(3, 12)

    def forward(self, images):
        return self.sign * self.head(images.mean((2, 3)))
"""
MODEL = """
from net import Net

def build(sign=1):
    return Net(sign), {"input_size": 8, "mean": 0.5, "std": 0.5}

def other(sign=1):
    return Net(2 * sign), {"input_size": 8, "mean": 0.5, "std": 0.5}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "model.py").write_text(MODEL)
    return tmp_path


def change(folder: Path, file: str = "", old: str = "", new: str = "") -> None:
    if file:
        content = (folder / file).read_text()
        assert old in content
        (folder / file).write_text(content.replace(old, new))


def measure(model: Classifier, folder: Path, attack: str = "integer") -> bool:
    """Whether a record answers for the model."""
    settings = Settings(attacks=(attack,), max_shift=1, consistency=())
    data = load_dataset("scenes", limit=3)
    return run(model, data, settings, folder / "runs", execution=Execution("cpu", 4)).reused


def test_models_of_two_folders_have_their_own_modules(folder: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "model.py").write_text(MODEL)
    (second / "net.py").write_text(NET.replace("self.sign *", "100 +"))
    images = torch.zeros(1, 3, 8, 8)
    first = load_model(f"{folder}/model.py:build")
    assert load_model(f"{second}/model.py:build")(images).min() > 50
    assert load_model(f"{folder}/model.py:build")(images).equal(first(images))


def test_packages_and_relative_imports_are_followed(tmp_path: Path) -> None:
    package = tmp_path / "nets" / "deep"
    package.mkdir(parents=True)
    (tmp_path / "nets" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .a import x\nfrom ..b import y\nimport torch\n")
    (package / "a.py").write_text("x = 1\n")
    (tmp_path / "nets" / "b.py").write_text("y = 1\n")
    (tmp_path / "unused.py").write_text("1\n")
    (tmp_path / "m.py").write_text("def build():\n    from nets import deep\n")
    names = ["m.py", "nets/__init__.py", "nets/b.py", "nets/deep/__init__.py", "nets/deep/a.py"]
    assert list(source_parts(tmp_path / "m.py")) == names
    (tmp_path / "m.py").write_text("def build(:\n")
    with pytest.raises(ModelError, match=r"cannot read the Python file .*m\.py"):
        source_parts(tmp_path / "m.py")


PLUGIN = """
from fractions import Fraction
from shiftbench.models import SOURCES, as_classifier
from shiftbench.shifts import ATTACKS, SHIFTS, Attack
from shiftbench.shifts.cyclic import Cyclic

class Own:
    def load(self, spec):
        recipe = {"input_size": 8, "mean": 0, "std": 1}
        return as_classifier(lambda x: x.mean((2, 3)), recipe, name=spec.text)

class Further(Cyclic):
    pace = 2

SOURCES.register("own", Own())
SHIFTS.register("further", Further())
ATTACKS.register("further", Attack("further", "further", Fraction(1), "further"))
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for registry in (SOURCES, SHIFTS, ATTACKS):
        monkeypatch.setattr(registry, "_entries", dict(registry._entries))  # type: ignore[attr-defined]
    (tmp_path / "plug.py").write_text(PLUGIN)
    load_plugins([tmp_path / "plug.py"])
    return tmp_path / "plug.py"


def test_sources_of_plugins_are_parts(plugin: Path) -> None:
    model = load_model("own:x")
    assert model.parts["plug.py"] == plugin_parts(SOURCES.get("own"))["plug.py"]
    assert model.digest != model.parts["weights"]
    assert plugin_parts(load_model) == {}


SCALED = """
from pathlib import Path

def build():
    scale = float(Path(__file__).with_name("plug.py").read_text().split("pace = ")[1][0])
    return lambda x: scale * x.mean((2, 3)).repeat(1, 4), {"input_size": 8, "mean": 0, "std": 1}
"""


@pytest.mark.parametrize(
    ("after", "edit", "changed"),
    [
        ("build", (), []),
        ("build", ("net.py", "import torch\n", "# a comment\nimport torch\n"), []),
        ("build", ("net.py", "(nn.Module):", '(nn.Module):\n    """Doc."""\n'), []),
        ("build", ("model.py", "Net(sign)", "Net(3 * sign)"), ["model.py", "logits"]),
        ("build", ("net.py", "mean((2, 3))", "amax((2, 3))"), ["net.py", "logits"]),
        ("other", (), ["function", "logits"]),
        ("build,sign=-1", (), ["options", "logits"]),
    ],
)
def test_a_record_does_not_answer_for_another_model(
    after: str, edit: tuple[str, ...], changed: list[str], folder: Path
) -> None:
    before = load_model(f"mine={folder}/model.py:build")
    assert not measure(before, folder)
    change(folder, *edit)
    model = load_model(f"mine={folder}/model.py:{after}")
    assert changed_parts(before.parts, model.parts) == changed
    assert (before.digest != model.digest) == bool(changed)
    if not changed:
        assert measure(model, folder)
        return
    with pytest.raises(RecordError, match=rf"{changed[0]} was .*, is .*; logits was"):
        measure(model, folder)


def test_a_record_does_not_answer_for_another_plugin_or_file(folder: Path, plugin: Path) -> None:
    assert not measure(load_model(f"a={folder}/model.py:build"), folder, "further")
    (folder / "model.py").write_text(SCALED)
    assert not measure(load_model(f"b={folder}/model.py:build"), folder)
    change(folder, "plug.py", "pace = 2", "pace = 3")
    with pytest.raises(RecordError, match=r"\(logits was"):  # no source shows what it read
        measure(load_model(f"b={folder}/model.py:build"), folder)
    (folder / "model.py").write_text(MODEL)
    with pytest.raises(RecordError, match=r"plug\.py"):
        measure(load_model(f"a={folder}/model.py:build"), folder, "further")
