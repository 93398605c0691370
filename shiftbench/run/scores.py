"""From the rows of every task to the table of images and the scores of a record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from shiftbench.measure.metrics import UNSHIFTED, AttackTask, ConsistencyTask, Task, offset_counts
from shiftbench.measure.search import adversarial_accuracy
from shiftbench.records.record import SEARCHED, OffsetScore, Scores, searched_samples
from shiftbench.run.plan import Plan
from shiftbench.run.resume import IMAGE
from shiftbench.statistics import wilson

# What the runner adds to the rows of a task; summed or merged, never shown per task.
PASSES, SECONDS, NEAR_TIE = "passes", "seconds", "near_tie"


def join_samples(rows: Mapping[str, pd.DataFrame], plan: Plan) -> pd.DataFrame:
    """One row per image that every task of the plan has measured, in the order of the data set."""
    by_image = {task: frame.set_index(IMAGE) for task, frame in rows.items()}
    lacking = set[int]()
    for task in plan.tasks:
        lacking |= set(plan.images_of(task)) - set(by_image[task.name].index)
    images = pd.Index([image for image in plan.images if image not in lacking], name=IMAGE)
    own = {
        task: frame.drop(columns=[PASSES, SECONDS, NEAR_TIE]).reindex(images)
        for task, frame in by_image.items()
    }
    ties = pd.concat([frame[NEAR_TIE] for frame in by_image.values()], axis=1).reindex(images)
    table = pd.concat([own.pop(UNSHIFTED), *own.values()], axis=1)
    table = table.assign(near_tie=ties.eq(True).any(axis=1))
    if len(plan.searched) < len(plan.images):
        table[SEARCHED] = images.isin(plan.searched)
    return table.reset_index(drop=True)


def score_samples(samples: pd.DataFrame, tasks: Sequence[Task]) -> Scores:
    """Every score of a record; a pure function of the table of images."""
    correct = int((samples["label"] == samples["prediction"]).sum())
    attacks = [task for task in tasks if isinstance(task, AttackTask)]
    draws = [task for task in tasks if isinstance(task, ConsistencyTask)]
    searched = searched_samples(samples)
    return Scores(
        accuracy=wilson(correct, len(samples)),
        consistency={task.kind.name: task.score(samples) for task in draws},
        mean_change={task.kind.name: task.mean_change(samples) for task in draws},
        adversarial={
            task.name: {
                s: adversarial_accuracy(searched[f"{task.name}_broken_radius"], s)
                for s in range(task.grid.radius + 1)
            }
            for task in attacks
        },
        offsets={
            task.name: _offset_scores(searched, task)
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
