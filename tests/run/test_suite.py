"""A suite: one file for a whole benchmark, and the sentence for every mistake in it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import shiftbench

from aft_models.remedies import join_remedies
from shiftbench.errors import UsageError
from shiftbench.metrics import plan_metric
from shiftbench.records.choose import load_records
from shiftbench.records.record import read_records
from shiftbench.report.paper import read_claims
from shiftbench.run.suite import Measurement, read_suite, run_suite

ROOT = Path(__file__).parents[2]
QUICK = "limit: 8\nmax_shift: 1\nattacks: crop\nconsistency: []\n"
SCENES = "xcit_pico_6_p8.scenes"


@pytest.fixture
def suite(tmp_path: Path) -> Callable[..., list[Measurement]]:
    def read(text: str, **options: object) -> list[Measurement]:
        (tmp_path / "mine.yaml").write_text(text)
        return read_suite(str(tmp_path / "mine.yaml"), **options)

    return read


def test_what_stands_above_holds_below_unless_that_says_otherwise(
    suite: Callable[..., list[Measurement]], tmp_path: Path
) -> None:
    (tmp_path / "net.py").write_text("")
    (tmp_path / "photos").mkdir()
    runs = suite("""
data: folder:photos
attacks: crop
crop_pct: 0.9
models:
  - timm:resnet18
  - {model: timm:resnet18, name: better, remedies: [circular, aps], limit: 3, data: scenes}
  - pad: reflect
    measure: [{max_shift: 2}, {attacks: [half], search_limit: 5}]
    models:
      - net.py:build
      - {model: tv:resnet18, checkpoint: weights/r18.pth, engine: onnx, measure: [{repeats: 5}]}
""")
    photos = f"folder:{tmp_path / 'photos'}"
    assert [
        (r.model.text, join_remedies(r.model.remedies), str(r.model), r.data) for r in runs
    ] == [
        ("timm:resnet18", "", "timm:resnet18", photos),
        ("timm:resnet18", "circular+aps", "better", "scenes"),
        (f"{tmp_path / 'net.py'}:build", "", "net.py:build", photos),
        (f"{tmp_path / 'net.py'}:build", "", "net.py:build", photos),
        ("tv:resnet18", "", "tv:resnet18", photos),
    ]
    assert runs[4].checkpoint == tmp_path / "weights" / "r18.pth"
    chosen = [
        (r.settings.attacks, r.settings.max_shift, r.settings.pad, r.settings.engine) for r in runs
    ]
    assert chosen == [
        (("crop",), 6, "none", "auto"),
        (("crop",), 6, "none", "auto"),
        (("crop",), 2, "reflect", "auto"),
        (("half",), 6, "reflect", "auto"),
        (("crop",), 6, "reflect", "onnx"),
    ]
    assert {r.settings.crop_pct for r in runs} == {"0.9"}
    assert (runs[1].settings.limit, runs[3].settings.search_limit) == (3, 5)
    assert runs[4].settings.repeats == 5


def test_the_command_says_where_data_are_and_which_models(
    suite: Callable[..., list[Measurement]],
) -> None:
    text = "models: [{model: timm:vit, data: imagenet}, xcit_pico_6_p8.scenes]"
    assert [r.data for r in suite(text, data=["imagenet:/d"])] == ["imagenet:/d", "scenes"]
    assert [str(r.model) for r in suite(text, models=["xcit*"])] == [SCENES]
    with pytest.raises(UsageError, match=r"unknown data set 'imagenette'. Did you mean 'imagenet'"):
        suite(text, data=["imagenette:/d"])
    with pytest.raises(UsageError, match=r"unknown model 'timm:vti'. Did you mean 'timm:vit'"):
        suite(text, models=["timm:vti"])


MISTAKES = {
    "models: [a]\nmax_shfit: 3": "unknown key 'max_shfit'. Did you mean 'max_shift'",
    "models: [{model: a, atacks: crop}]": "unknown key 'atacks'. Did you mean 'attacks'",
    "models: [{model: a, measure: [{data: x}]}]": "unknown key 'data'",
    "models: [a, a]": "a on scenes stands twice: remove one, or give it a name",
    "models: [{model: a, name: x}, {model: b, name: x}]": "x on scenes stands twice",
    "models: [{model: a, name: b}, b]": "b on scenes stands twice",
    "models: [{model: a, models: [b]}]": "model 'a' stands beside models",
    "models: [{limit: 3}]": "expected a key model or models beside limit",
    "models: [3]": "expected a model's name, or keys and values, got 3",
    "models: a": "expected a list for models, got 'a'",
    "models: [a]\nlimit: many": "expected a whole number for limit, got 'many'",
    "models: [a]\nlimit: true": "expected a whole number for limit, got True",
    "models: [a]\nskip_bad: 3": "expected true or false for skip_bad, got 3",
    "models: [{model: a, measure: [crop]}]": "expected keys and values in measure, got 'crop'",
    "models: [a]\nattacks: cropp": "unknown attack 'cropp'. Did you mean 'crop'",
    "models: [a]\nengine: onx": "unknown engine 'onx'. Did you mean 'onnx'",
    "- a": "expected a key models",
    "": "expected a key models",
    "models: [": "cannot read the suite",
    "models: &m [{models: *m}]": "a group of models contains itself",
    "models: [&g {limit: 3, models: [*g]}]": "a group of models contains itself",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_one_sentence(text: str, suite: Callable[..., list[Measurement]]) -> None:
    with pytest.raises(UsageError) as raised:
        suite(text)
    assert MISTAKES[text] in str(raised.value)
    assert "mine.yaml" in str(raised.value)


def test_suites_that_are_not_there() -> None:
    with pytest.raises(UsageError, match=r"unknown suite 'papr'. Did you mean 'paper'\?.*\.yaml"):
        read_suite("papr")
    with pytest.raises(UsageError, match=r"there is no suite no/such\.yaml"):
        read_suite("no/such.yaml")


# --- the suites that come with the package


def test_the_paper_suite_has_every_network_and_attack_of_table_1_and_figure_2() -> None:
    runs = {str(r.model): r for r in read_suite("paper", data=["imagenet:/data"])}
    assert {r.data for r in runs.values()} == {"imagenet:/data"}
    claims = [
        claim
        for table in ("imagenet_main", "realistic_shifts")
        for claim in read_claims(table, ROOT / "results" / "paper")
    ]
    assert {claim.model for claim in claims} == set(runs)
    for claim in claims:
        settings = runs[claim.model].settings
        texts = [f"{claim.score.family}:{claim.score.kind}".removesuffix(":None")]
        assert claim.score.family == "accuracy" or texts[0] in settings.metric_texts()
        assert settings.max_shift == (claim.score.radius or 6)


def test_the_board_suite_measures_what_the_board_has() -> None:
    asked: dict[tuple[str, str], dict[str, object]] = {}
    for one in read_suite("board"):
        data = one.data.rpartition(":")[2] if one.data.startswith("folder") else one.data
        metrics = asked.setdefault((str(one.model), data.partition(":")[0]), {})
        for text in one.settings.metric_texts():
            metric = plan_metric(text, one.settings, view=224, resize=256)
            metrics[metric.name] = metric.settings().get("radius")
    records = read_records([ROOT / "results" / "records"])
    assert len(records) > 10
    for record in records:
        metrics = asked[record.model.name, record.data.name]
        for name, info in record.metrics.items():
            assert metrics[name] == info.settings.get("radius"), (record.model.name, name)


# --- running one


def test_a_model_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(
        QUICK
        + f"""models:
  - {{model: timm:resnet18, checkpoint: gone.pth}}
  - {{model: timm:resnet10t, data: folder:gone}}
  - {{model: timm:resnet14t, data: folder:gone}}
  - {{model: {SCENES}, measure: [{{}}, {{attacks: half}}]}}
"""
    )

    code, out, err = shiftbench("run", "mine.yaml", "--device", "cpu")
    assert code == 1
    assert "xcit_pico_6_p8.scenes" in out
    assert "5/5 xcit_pico_6_p8.scenes: adversarial half" in err
    *_, checkpoint, data = [line for line in err.splitlines() if line.startswith("error: ")]
    assert checkpoint.startswith("error: timm:resnet18 failed: no checkpoint at gone.pth")
    assert data.startswith("error: timm:resnet10t, timm:resnet14t failed: ")
    (record,) = load_records([Path("mine")])
    assert record.folder == Path("results/runs/mine") / f"{SCENES}--scenes"
    assert record.data.images == 8
    assert {"adversarial_crop", "adversarial_half"} <= set(record.metrics)
    # Only what is missing is measured, options hold for all of it, and commands know the name.
    code, _, err = shiftbench("run", "mine.yaml", "-m", "xcit*", "--limit", "9", "--device", "cpu")
    assert code == 0
    assert load_records([Path("mine.yaml")])[0].data.images == 9
    for words in (("leaderboard", "mine", "--format", "csv"), ("verify", "mine")):
        code, out, _ = shiftbench(*words)
        assert (code, SCENES in out) == (0, True)
    assert shiftbench("compare", SCENES, SCENES, "-r", "mine")[0] == 0
    assert shiftbench("plot", "mine", "-o", "curves.png")[0] == 0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("paper", "--name", "x"), "--name is of one model: write it into paper"),
        (("paper", "--checkpoint", "x"), "--checkpoint is of one model"),
        (("-d", "scenes", "-d", "cifar10"), "expected one --data without a suite, got 2"),
    ],
)
def test_options_that_do_not_fit(words: tuple[str, ...], sentence: str) -> None:
    code, _, err = shiftbench("run", *words)
    assert code == 2
    assert sentence in err


def test_fresh_starts_over_once_per_model(tmp_path: Path) -> None:
    text = QUICK + f"models: [{{model: {SCENES}, measure: [{{}}, {{attacks: half}}]}}]"
    (tmp_path / "mine.yaml").write_text(text)
    runs = read_suite(str(tmp_path / "mine.yaml"))
    *_, last = run_suite(runs, tmp_path, fresh=True)
    assert last.result is not None
    assert last.result.record is not None
    assert {"adversarial_crop", "adversarial_half"} <= set(last.result.record.metrics)


def test_reproduce_points_to_the_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = shiftbench("reproduce", "realistic_shifts").err
    assert "shiftbench run paper -d imagenet:DIR" in " ".join(said.split())


def test_doctor_checks_a_suite_before_it_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def doctor(models: str, *words: str) -> tuple[object, str]:
        Path("mine.yaml").write_text(QUICK + f"models: {models}")
        return shiftbench("doctor", "--suite", "mine.yaml", "--device", "cpu", *words)[:2]

    code, out = doctor(f"[{SCENES}]")
    assert code == 0
    assert f"{SCENES} on scenes: 8 images, at most 72 forward passes, about" in out
    assert "1 of 1 runs are ready: at most 72 forward passes" in out
    code, out = doctor("[{model: timm:resnet18, checkpoint: gone.pth}]")
    assert (code, "timm:resnet18 on scenes: no checkpoint at gone.pth" in out) == (1, True)
    code, out = doctor(f"[{{model: {SCENES}, data: 'folder:photos'}}]", "--format", "json")
    assert (code, json.loads(out)[0]["passes"]) == (1, 0)
    assert "photos" in json.loads(out)[0]["problem"]
    assert not list(tmp_path.glob("results*")), "nothing is written"
