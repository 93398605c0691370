"""Limits of scores, and significance against a baseline."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sample_records import make_result, spread

from shiftbench.errors import UsageError
from shiftbench.report.scores import score_cells
from shiftbench.report.thresholds import Limit, missed, planned_scores, worse
from shiftbench.running.job import Settings
from shiftbench.scores import ScoreName

PLANNED = planned_scores([Settings(attacks=("crop",), max_shift=3, consistency=("half",))])


def limit(text: str, *, above: bool = False) -> Limit:
    return Limit.parse(text, above=above, scores=PLANNED)


def test_planned_scores_need_no_model() -> None:
    assert {str(name) for name in PLANNED} == {
        *("accuracy", "consistency_half", "change_half"),
        *("detected", "segmented"),  # the task follows from the model
        *(f"{f}_crop@{s}" for f in ("adversarial", "detected", "segmented") for s in range(4)),
    }
    assert [str(name) for name, lower in PLANNED.items() if lower] == ["change_half"]


def test_limit_names_score_radius_and_end() -> None:
    assert limit("top1=0.7").name == limit("accuracy=0.7").name == ScoreName("accuracy")
    crop = limit("adversarial_crop=0.7")
    assert (crop.name.radius, crop.end, crop.bound) == (3, "value", 0.7)
    assert limit("adversarial_crop@1=0.7").name.radius == 1
    assert (limit("top1_low=0.7").end, limit("adversarial_crop@2_low=0").end) == ("low", "low")


@pytest.mark.parametrize(
    ("text", "above", "words"),
    [
        ("top1", False, "expected --fail-below SCORE=FRACTION such as top1=0.7, got 'top1'"),
        ("top1=high", False, "expected --fail-below SCORE=FRACTION"),
        ("top1=70", False, "expected --fail-below top1=FRACTION from 0 to 1, got 70"),
        ("adversarial_crops=0.5", False, "Did you mean 'adversarial_crop'"),
        ("adversarial_crop@4=0.5", False, "unknown score of this run 'adversarial_crop@4'"),
        ("change_half=0.1", False, "lower values of change_half are better. Use --fail-above"),
        ("top1=0.1", True, "higher values of top1 are better. Use --fail-below top1=0.1"),
    ],
)
def test_limit_bad_text_raises(text: str, above: bool, words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        limit(text, above=above)


def test_missed_describes_every_limit_that_fails() -> None:
    good = make_result("good", failures={"crop": spread(100, [5])}, max_shift=3)
    bad = make_result("bad", failures={"crop": spread(100, [20, 0, 0, 15])}, max_shift=3)
    limits = [limit("adversarial_crop=0.7"), limit("top1_low=0.85"), limit("top1=0.8")]
    assert missed(score_cells([good, bad]), limits) == [
        "bad: adversarial_crop@3 is 0.6500, below 0.7",
        "bad: accuracy (low end) is 0.7112, below 0.85",
    ]
    draws = limit("change_half=0.01", above=True)
    calm = make_result("calm", consistent={"half": [1] * 100})
    assert missed(score_cells([calm]), [draws]) == ["calm: change_half is 0.0156, above 0.01"]
    assert missed(score_cells([good]), [draws]) == ["good has no change_half"]


def test_worse_prints_adjusted_p_values() -> None:
    base = make_result("base", failures={"crop": spread(100, [5])}, max_shift=1)
    same = make_result("same", failures={"crop": spread(100, [5])}, max_shift=1)
    bad = make_result("bad", failures={"crop": spread(100, [40])}, max_shift=1)
    problems = worse(base, [same, bad])
    assert problems[0].startswith("bad: accuracy is 0.6000, significantly worse than 0.9500")
    assert problems[1].startswith("bad: adversarial_crop@1 is ")
    assert len(problems) == 2
    # Two scores with the same 35 images: p = 2 * 2^-35, twice that by Holm.
    assert problems[0].endswith("worse than 0.9500 of the baseline (adjusted p = 1.2e-10)")
    assert worse(bad, [base]) == []


def test_worse_of_equally_good_models_is_rare() -> None:
    """Twelve scores of independent images: without a correction, half of the trials fail."""
    rng, fails, trials = np.random.default_rng(0), 0, 40
    attacks = ("integer", "half", "crop", "bilinear")
    for _ in range(trials):
        pair = [
            make_result(
                name,
                failures={a: rng.permutation(spread(80, [0, 20])).tolist() for a in attacks},
                consistent={k: rng.random(80) < 0.8 for k in ("integer", "half", "crop")},
                max_shift=1,
            )
            for name in "ab"
        ]
        fails += bool(worse(pair[0], pair[1:]))
    assert fails / trials < 0.1


def test_worse_names_scores_that_are_not_compared(caplog: pytest.LogCaptureFixture) -> None:
    draws = {"consistent": {"half": [1] * 100}}
    baseline, result = make_result("a", **draws), make_result("b", **draws, samples=2)
    worse(baseline, [result])
    assert "b: consistency_half: samples is 1 and 2" in caplog.text
