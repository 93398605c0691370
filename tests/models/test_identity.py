"""The identity of a model: weights, remedies, code and logits."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch

from shiftbench.data import load_dataset
from shiftbench.errors import ModelError, RecordError
from shiftbench.identity import Identity, file_digests, plugin_digests
from shiftbench.models import SOURCES, Model, load_model
from shiftbench.plugins import load_plugins
from shiftbench.running.job import Settings
from shiftbench.running.runner import Execution, run
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


def measure(model: Model, folder: Path, attack: str = "integer") -> bool:
    """Run a model; return True if an existing record was reused."""
    settings = Settings(attacks=(attack,), max_shift=1, consistency=())
    data = load_dataset("scenes", limit=3)
    return run(model, data, settings, folder / "runs", execution=Execution("cpu", 4)).complete


def test_files_of_two_folders_import_their_own_modules(folder: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    second.mkdir()
    (second / "model.py").write_text(MODEL)
    (second / "net.py").write_text(NET.replace("self.sign *", "100 +"))
    images = torch.zeros(1, 3, 8, 8)
    first = load_model(f"{folder}/model.py:build")
    assert load_model(f"{second}/model.py:build")(images).min() > 50
    assert load_model(f"{folder}/model.py:build")(images).equal(first(images))


def test_file_digests_follow_packages_and_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "nets" / "deep"
    package.mkdir(parents=True)
    (tmp_path / "nets" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .a import x\nfrom ..b import y\nimport torch\n")
    (package / "a.py").write_text("x = 1\n")
    (tmp_path / "nets" / "b.py").write_text("y = 1\n")
    (tmp_path / "unused.py").write_text("1\n")
    (tmp_path / "m.py").write_text("def build():\n    from nets import deep\n")
    names = ["m.py", "nets/__init__.py", "nets/b.py", "nets/deep/__init__.py", "nets/deep/a.py"]
    assert list(file_digests(tmp_path / "m.py")) == names
    (tmp_path / "m.py").write_text("def build(:\n")
    with pytest.raises(ModelError, match=r"cannot read the Python file .*m\.py"):
        file_digests(tmp_path / "m.py")


PLUGIN = """
from fractions import Fraction
from shiftbench.models import SOURCES
from shiftbench.models.sources import Built
from shiftbench.shifts import ATTACKS, SHIFTS, Attack
from shiftbench.shifts.cyclic import Cyclic

class Own:
    def build(self, name, request):
        return Built(lambda x: x.mean((2, 3)), {"input_size": 8, "mean": 0, "std": 1})

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


def test_plugin_source_is_part_of_identity(plugin: Path) -> None:
    model = load_model("own:x")
    digest = hashlib.sha256(plugin.read_bytes()).hexdigest()[:16]
    assert model.identity.code == plugin_digests(SOURCES.get("own")) == {"plug.py": digest}
    assert model.identity.digest != model.identity.weights
    assert plugin_digests(load_model) == {}


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
        ("build", ("net.py", "import torch\n", "# a comment\nimport torch\n"), ["net.py"]),
        ("build", ("model.py", "Net(sign)", "Net(3 * sign)"), ["model.py", "logits"]),
        ("build", ("net.py", "mean((2, 3))", "amax((2, 3))"), ["net.py", "logits"]),
        ("other", (), ["function", "logits"]),
        ("build,sign=-1", (), ["options", "logits"]),
    ],
)
def test_record_of_another_model_is_not_continued(
    after: str, edit: tuple[str, ...], changed: list[str], folder: Path
) -> None:
    before = load_model(f"mine={folder}/model.py:build")
    assert not measure(before, folder)
    change(folder, *edit)
    model = load_model(f"mine={folder}/model.py:{after}")
    assert before.identity.changed(model.identity) == changed
    assert (before.identity.digest != model.identity.digest) == bool(changed)
    if not changed:
        assert measure(model, folder)
        return
    words = (
        "net.py changed, logits did not" if changed == ["net.py"] else f"{changed[0]}, logits ch"
    )
    with pytest.raises(RecordError, match=words):
        measure(model, folder)


def test_record_of_another_plugin_or_file_is_not_continued(folder: Path, plugin: Path) -> None:
    assert not measure(load_model(f"a={folder}/model.py:build"), folder, "further")
    (folder / "model.py").write_text(SCALED)
    assert not measure(load_model(f"b={folder}/model.py:build"), folder)
    change(folder, "plug.py", "pace = 2", "pace = 3")
    with pytest.raises(RecordError, match=r"\(logits changed"):  # no source shows what it read
        measure(load_model(f"b={folder}/model.py:build"), folder)
    (folder / "model.py").write_text(MODEL)
    with pytest.raises(RecordError, match=r"plug\.py"):
        measure(load_model(f"a={folder}/model.py:build"), folder, "further")


def test_files_load_unedited_helpers_once(folder: Path) -> None:
    first = load_model(f"{folder}/model.py:build").network
    assert type(load_model(f"{folder}/model.py:build").network) is type(first)
    change(folder, "net.py", "import torch\n", "import torch\n\n")
    assert type(load_model(f"{folder}/model.py:build").network) is not type(first)


def test_file_digests_leave_out_packages_of_this_project(tmp_path: Path) -> None:
    for package in ("shiftbench", "aft_models"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("")
    (tmp_path / "m.py").write_text("import shiftbench\nfrom aft_models import repair\n")
    assert list(file_digests(tmp_path / "m.py")) == ["m.py"]


def test_identity_json_round_trip() -> None:
    identity = Identity("a", "circular", {"net.py": "b"}, (1.5, float("nan")))
    again = Identity.from_json(identity.to_json())
    assert identity.changed(again) == []
    assert again.digest == identity.digest
    assert identity.difference(Identity("c", "circular", {"net.py": "b"}, (1.5, 2.0))) == (
        "weights, logits changed"
    )
