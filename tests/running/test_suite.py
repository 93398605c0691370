"""Suites: defaults, a flat list of runs, and the error for every mistake."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from aft_models.cards import BUNDLED
from shiftbench.data import load_dataset
from shiftbench.errors import UsageError
from shiftbench.geometry import Geometry
from shiftbench.metrics.adversarial import Adversarial
from shiftbench.models import Model
from shiftbench.records.folder import load_records
from shiftbench.records.result import Result
from shiftbench.report.paper import read_claims
from shiftbench.running.finished import run_digest
from shiftbench.running.job import AttackSpec
from shiftbench.running.runner import RunResult
from shiftbench.running.suite import RunSpec, read_suite, run_all
from shiftbench.scores import ScoreName
from shiftbench.tasks import TASKS

ROOT = Path(__file__).parents[2]
SCENES = "xcit_pico_6_p8.scenes"
Read = Callable[..., list[RunSpec]]


@pytest.fixture
def suite(tmp_path: Path) -> Read:
    def read(text: str, **options: object) -> list[RunSpec]:
        (tmp_path / "mine.yaml").write_text(text)
        return read_suite(tmp_path / "mine.yaml", **options)

    return read


def test_read_suite_run_replaces_defaults(suite: Read, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("")
    (tmp_path / "photos").mkdir()
    first, second, third = suite("""
defaults: {data: folder:photos, attacks: crop, crop_pct: 0.9, max_shift: 4}
runs:
  - {model: timm:resnet18}
  - model: timm:resnet18+circular+aps
    name: better
    data: scenes
    attacks: [integer, {attack: half, max_shift: 3, limit: 200}, {attack: bilinear, step: 1/4}]
    consistency: []
  - {model: net.py:build, checkpoint: weights/net.pth, max_shift: 2, skip_bad: true}
""")
    assert (first.shown, second.shown, third.shown) == ("timm:resnet18", "better", "net.py:build")
    assert [run.data for run in (first, second)] == [f"folder:{tmp_path / 'photos'}", "scenes"]
    assert [run.max_shift for run in (first, second, third)] == [4, 4, 2]
    assert first.attacks == ("crop",)
    assert first.crop_pct == "0.9"
    assert second.attacks[1:] == (
        AttackSpec("half", max_shift=3, limit=200),
        AttackSpec("bilinear", step="1/4"),
    )
    assert second.consistency == ()
    assert third.model == f"{tmp_path / 'net.py'}:build"
    assert third.checkpoint == tmp_path / "weights" / "net.pth"
    assert third.skip_bad


def test_requests_follow_each_attacks_max_shift_and_limit(suite: Read) -> None:
    (run,) = suite(
        "runs: [{model: a, consistency: [], attack_limit: 50, max_shift: 5, "
        "attacks: [crop, {attack: half, max_shift: 3, limit: 20}]}]"
    )
    requests = run.requests(Geometry(224, 256, 0, "none"), images=100)
    grids = {r.metric.attack: (r.metric.radius, r.images) for r in requests[1:]}
    assert requests[0].images == 100
    assert grids == {"crop": (5, 50), "half": (3, 20)}


def test_changed_replaces_the_settings_of_every_attack(suite: Read) -> None:
    text = "runs: [{model: a, attacks: [crop, {attack: half, max_shift: 3, limit: 20}]}]"
    (run,) = suite(text)
    changed = run.changed(max_shift=2, attack_limit=7)
    (_, _, half) = changed.changed(consistency=()).requests(Geometry(224, 256, 0, "none"), 100)
    assert isinstance(half.metric, Adversarial)
    assert (half.metric.radius, half.images) == (2, 7)
    assert run.changed(limit=5).attacks[1] == AttackSpec("half", max_shift=3, limit=20)


def test_read_suite_places_data_and_selects_models(suite: Read) -> None:
    text = "runs: [{model: timm:vit, data: imagenet}, {model: xcit_pico_6_p8.scenes}]"
    assert [r.data for r in suite(text, data=["imagenet:/d"])] == ["imagenet:/d", "scenes"]
    assert [r.shown for r in suite(text, models=["xcit*"])] == [SCENES]
    with pytest.raises(UsageError, match="Did you mean 'imagenet'"):
        suite(text, data=["imagenette:/d"])
    with pytest.raises(UsageError, match="Did you mean 'timm:vit'"):
        suite(text, models=["timm:vti"])


def test_read_suite_locates_paths_in_options_of_a_model(suite: Read, tmp_path: Path) -> None:
    for name in ("net.py", "x.onnx"):
        (tmp_path / name).write_text("")
    (tmp_path / "weights").mkdir()  # a key of options is no path
    (run,) = suite("runs: [{model: 'net.py:build,k=3,weights=x.onnx+align:12', name: x}]")
    assert run.model == f"{tmp_path}/net.py:build,k=3,weights={tmp_path}/x.onnx+align:12"


def test_read_suite_root_is_the_start_of_paths(suite: Read, tmp_path: Path) -> None:
    (run,) = suite("runs: [{model: a, checkpoint: w.pth}]", root=tmp_path / "other")
    assert run.checkpoint == tmp_path / "other" / "w.pth"


MISTAKES = {
    "runs: [{model: a}]\nmodels: [a]": "unknown key 'models'",
    "runs: [{model: a, atacks: crop}]": "unknown key 'atacks'. Did you mean 'attacks'",
    "defaults: {max_shfit: 3}\nruns: [{model: a}]": "Did you mean 'max_shift'",
    "runs: [{model: a, attacks: [{attack: crop, radius: 3}]}]": "unknown key 'radius'",
    "runs: [{model: a}, {model: a}]": "expected one run per record, got a on scenes twice",
    "runs: [{model: a, name: x}, {model: b, name: x}]": "x on scenes twice",
    "runs: [{limit: 3}]": "expected the key model beside limit",
    "runs: [3]": "expected keys and values such as {model: NAME}, got 3",
    "runs: a": "expected the keys defaults and runs",
    "defaults: [a]\nruns: []": "expected keys and values",
    "runs: [{model: a, limit: many}]": "expected an integer for limit, got 'many'",
    "runs: [{model: a, limit: true}]": "expected an integer for limit, got True",
    "runs: [{model: a, skip_bad: 3}]": "expected true or false for skip_bad, got 3",
    "runs: [{model: a, attacks: cropp}]": "unknown attack 'cropp'. Did you mean 'crop'",
    "runs: [{model: a, attacks: [[crop]]}]": "expected a text for attacks",
    "- a": "expected the keys defaults and runs",
    "": "expected the keys defaults and runs",
    "runs: [": "cannot read suite",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_read_suite_mistake_raises_usage_error(text: str, suite: Read) -> None:
    with pytest.raises(UsageError) as raised:
        suite(text)
    assert MISTAKES[text] in str(raised.value)
    assert "mine.yaml" in str(raised.value)


def test_read_suite_missing_file_raises_usage_error() -> None:
    with pytest.raises(UsageError, match=r"unknown suite 'papr'. Did you mean 'paper'.*\.yaml"):
        read_suite("papr")
    with pytest.raises(UsageError, match=r"no/such\.yaml: there is no such file"):
        read_suite("no/such.yaml")


def test_run_all_continues_after_a_failed_run(tmp_path: Path) -> None:
    quick = {"attacks": ("crop",), "max_shift": 1, "limit": 6, "consistency": ()}
    specs = [RunSpec(model=model, **quick) for model in ("nowhere.py:make", SCENES)]
    failed, done = run_all(specs, tmp_path)
    assert "nowhere.py" in str(failed.error)
    assert done.result is not None
    assert done.result.record is not None


def never(*_: object) -> Model:
    raise AssertionError("a model was built")


QUICK = {"attacks": ("crop",), "max_shift": 1, "limit": 6, "consistency": ()}


def finished(spec: RunSpec, output: Path) -> RunResult:
    (outcome,) = run_all([spec], output)
    assert outcome.result is not None, outcome.error
    return outcome.result


def test_run_all_finished_run_builds_no_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = RunSpec(model=SCENES, **QUICK)
    first = finished(spec, tmp_path)
    monkeypatch.setattr(RunSpec, "load_model", never)
    again = finished(spec, tmp_path)
    assert again.complete
    assert not first.complete
    assert again.requested.scores == first.requested.scores
    assert [r.metric for r in again.requested.requests] == [
        r.metric for r in first.requested.requests
    ]


@pytest.mark.parametrize("change", ["tables", "record", "limit", "weights", "fresh"])
def test_run_all_builds_the_model_after_any_change(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in BUNDLED.glob(f"{SCENES}.*"):
        (tmp_path / "weights").mkdir(exist_ok=True)
        shutil.copy(file, tmp_path / "weights")
    spec = RunSpec(model=SCENES.partition(".")[0], checkpoint=tmp_path / "weights", **QUICK)
    record = finished(spec, tmp_path / "runs").record
    assert finished(spec, tmp_path / "runs").complete
    monkeypatch.setattr(RunSpec, "load_model", never)
    if change == "tables":
        shutil.rmtree(record.folder / "tables")
    elif change == "record":
        (record.folder / "record.json").unlink()
    elif change == "limit":
        spec = replace(spec, limit=5)
    elif change == "weights":
        (tmp_path / "weights" / f"{SCENES}.safetensors").write_bytes(b"")
    with pytest.raises(AssertionError, match="a model was built"):
        list(run_all([spec], tmp_path / "runs", fresh=change == "fresh"))


def test_run_all_python_file_is_built_again(tmp_path: Path) -> None:
    dataset = load_dataset("scenes")
    spec = RunSpec(model="net.py:make")
    assert run_digest(spec, spec.model, None, dataset) == ""  # it may read any file


def test_paper_suite_contains_every_number_of_table_1_and_figure_2() -> None:
    runs = {run.shown: run for run in read_suite("paper", data=["imagenet:/data"])}
    assert {run.data for run in runs.values()} == {"imagenet:/data"}
    claims = [
        claim for table in ("imagenet_main", "realistic_shifts") for claim in read_claims(table)
    ]
    assert {claim.model for claim in claims} == set(runs)
    for claim in claims:
        run, text = runs[claim.model], f"{claim.score.family}:{claim.score.kind}"
        assert claim.score.family == "accuracy" or text in run.metric_texts()
        assert run.max_shift == (claim.score.radius or 6)


def test_suites_of_results_contain_every_committed_record() -> None:
    wanted = {}
    for file in sorted((ROOT / "results" / "suites").glob("*.yaml")):
        for run in read_suite(file):
            name, _, path = run.data.partition(":")
            data = Path(path).name if name in ("folder", "yolo") else name
            wanted[run.shown, data, run.scale or 1] = run
    folders = [ROOT / "results" / name for name in ("records", "camera", "seeds", "detection")]
    records = {
        (r.model.name, r.data.name, r.data.geometry.get("scale", 1)): r
        for r in load_records(folders)
    }
    assert wanted.keys() == records.keys()
    for key, record in records.items():
        task = TASKS.get(record.conditions["task"])
        settings = wanted[key].with_attacks(camera=True, task=task)
        planned = settings.requests(Geometry(224, 448, 0, "none"), 10**6, task)
        grids = {
            r.metric.name: r.metric.radius for r in planned if isinstance(r.metric, Adversarial)
        }
        for request in record.requests:
            if isinstance(request.loaded, Adversarial):
                assert grids[request.loaded.name] >= request.loaded.radius, (key, request)


def test_run_all_models_with_and_without_wider_view_share_span(tmp_path: Path) -> None:
    how = {"attacks": (), "consistency": ("crop",), "limit": 12}
    plain, wide = (RunSpec(model=name, **how) for name in (SCENES, f"{SCENES}+align:2:1"))
    (alone,) = run_all([plain], tmp_path)
    assert alone.result is not None
    results = [done.result for done in run_all([plain, wide], tmp_path)]
    requests = [
        result.requested.request_of(ScoreName("consistency", "crop"))
        for result in results
        if result is not None and result.requested is not None
    ]
    spans = [request.settings["span"] for request in requests if request is not None]
    assert len(spans) == 2
    assert spans[0] == spans[1] == span_of(alone.result.record) - 4


def span_of(result: Result | None) -> int:
    assert result is not None
    request = result.request_of(ScoreName("consistency", "crop"))
    assert request is not None
    return int(request.settings["span"])
