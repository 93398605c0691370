"""From the rows of every task to the table of images and the scores of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from shiftbench.parts import IMAGE
from shiftbench.results import OffsetScore, Scores
from shiftbench.search import adversarial_accuracy
from shiftbench.statistics import wilson
from shiftbench.tasks import UNSHIFTED, AttackTask, ConsistencyTask, Task, offset_counts

# What the runner adds to the rows of a task; summed or merged, never shown per task.
PASSES, SECONDS, NEAR_TIE = "passes", "seconds", "near_tie"


def join_samples(rows: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """One row per image from the rows of every task, in the order of the data set."""
    own = {
        task: frame.set_index(IMAGE).drop(columns=[PASSES, SECONDS, NEAR_TIE])
        for task, frame in rows.items()
    }
    ties = pd.concat([frame.set_index(IMAGE)[NEAR_TIE] for frame in rows.values()], axis=1)
    table = pd.concat([own.pop(UNSHIFTED), *own.values()], axis=1, join="inner")
    return table.assign(near_tie=ties.any(axis=1)).sort_index().reset_index(drop=True)


def score_samples(samples: pd.DataFrame, tasks: Sequence[Task]) -> Scores:
    """Every score of a record; a pure function of the table of images."""
    correct = int((samples["label"] == samples["prediction"]).sum())
    attacks = [task for task in tasks if isinstance(task, AttackTask)]
    draws = [task for task in tasks if isinstance(task, ConsistencyTask)]
    return Scores(
        accuracy=wilson(correct, len(samples)),
        consistency={task.kind.name: task.score(samples) for task in draws},
        mean_change={task.kind.name: task.mean_change(samples) for task in draws},
        adversarial={
            task.name: {
                s: adversarial_accuracy(samples[f"{task.name}_broken_radius"], s)
                for s in range(task.grid.radius + 1)
            }
            for task in attacks
        },
        offsets={
            task.name: _offset_scores(samples, task)
            for task in attacks
            if f"{task.name}_bitmap" in samples
        },
    )


def _offset_scores(samples: pd.DataFrame, task: AttackTask) -> tuple[OffsetScore, ...]:
    counts = offset_counts(samples[f"{task.name}_bitmap"], len(task.grid))
    scores = (wilson(int(count), len(samples)) for count in counts)
    return tuple(
        OffsetScore(offset.dy, offset.dx, score.value, score.low, score.high, score.n)
        for offset, score in zip(task.grid, scores, strict=True)
    )
