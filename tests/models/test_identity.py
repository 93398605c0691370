"""A model's identity holds everything that its answers depend on, by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from shiftbench.data import load_dataset
from shiftbench.errors import ModelError, RecordError
from shiftbench.identity import changed_parts, plugin_parts, source_parts
from shiftbench.models import SOURCES, load_model
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


def changes(folder: Path, before: str, after: str, file: str = "", old: str = "", new: str = ""):  # type: ignore[no-untyped-def]
    """What differs between two models, after an edit in between; the digests say the same."""
    first = load_model(f"{folder}/model.py:{before}")
    if file:
        content = (folder / file).read_text()
        assert old in content
        (folder / file).write_text(content.replace(old, new))
    second = load_model(f"{folder}/model.py:{after}")
    changed = changed_parts(first.parts, second.parts)
    assert (first.digest != second.digest) == bool(set(changed) - {"logits"})
    return changed


@pytest.mark.parametrize(
    ("after", "edit", "expected"),
    [
        ("build", (), []),
        ("other", (), ["function", "logits"]),
        ("build,sign=-1", (), ["options", "logits"]),
        ("build", ("net.py", "mean((2, 3))", "amax((2, 3))"), ["net.py", "logits"]),
        ("build", ("model.py", "Net(sign)", "Net(3 * sign)"), ["model.py", "logits"]),
        ("build", ("net.py", "import torch\n", "# a comment\nimport torch\n"), []),
        (
            "build",
            ("net.py", "class Net(nn.Module):", 'class Net(nn.Module):\n    """Doc."""\n'),
            [],
        ),
    ],
)
def test_what_changed_is_named(
    after: str, edit: tuple[str, ...], expected: list[str], folder: Path
) -> None:
    assert changes(folder, "build", after, *edit) == expected


def test_models_of_two_folders_have_their_own_modules(folder: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "model.py").write_text(MODEL)
    (second / "net.py").write_text(NET.replace("self.sign *", "100 +"))
    images = torch.zeros(1, 3, 8, 8)
    first = load_model(f"{folder}/model.py:build")
    assert load_model(f"{second}/model.py:build")(images).min() > 50
    assert load_model(f"{folder}/model.py:build")(images).equal(first(images))


def test_logits_tell_what_no_source_shows(folder: Path) -> None:
    (folder / "scale.txt").write_text("1")
    (folder / "model.py").write_text(
        "from pathlib import Path\nimport torch\n\n"
        "def build():\n    scale = float(Path(__file__).with_name('scale.txt').read_text())\n"
        "    return lambda x: scale * x.mean((2, 3)), {'input_size': 8, 'mean': 0, 'std': 1}\n"
    )
    assert changes(folder, "build", "build", "scale.txt", "1", "1.000001") == []
    assert changes(folder, "build", "build", "scale.txt", "1", "2") == ["logits"]


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


@pytest.mark.parametrize(
    ("after", "edit", "words"),
    [
        ("build", ("net.py", "import torch\n", "# a comment\nimport torch\n"), ""),
        ("other", (), "function was build, is other"),
        ("build,sign=-1", (), "options was , is sign=-1"),
        ("build", ("net.py", "mean((2, 3))", "amax((2, 3))"), r"net\.py was"),
        ("build", ("plug.py", "pace = 2", "pace = 3"), r"plug\.py"),
    ],
)
def test_a_record_does_not_answer_for_another_model(
    after: str, edit: tuple[str, ...], words: str, folder: Path, plugin: Path
) -> None:
    data = load_dataset("scenes", limit=3)
    settings = Settings(attacks=("further",), max_shift=1, consistency=())

    def measure(function: str) -> bool:
        model = load_model(f"mine={folder}/model.py:{function}")
        return run(model, data, settings, folder / "runs", execution=Execution("cpu", 4)).reused

    assert not measure("build")
    if edit:
        file, old, new = edit
        (folder / file).write_text((folder / file).read_text().replace(old, new))
    if not words:
        assert measure(after)
        return
    with pytest.raises(RecordError, match=words):
        measure(after)
