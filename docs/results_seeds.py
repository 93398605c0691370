"""Tables of networks that were trained with several seeds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from records_tables import RESULTS, at, count, extent, paired_test, points, record, table

from shiftbench.records.folder import load_records
from shiftbench.records.result import Result
from shiftbench.scores import ACCURACY, ScoreName

IMAGENETTE = "imagenette128"
NETWORKS = {
    "baseline": "xcit_pico_6_p8.imagenette",
    "APS": "xcit_pico_6_p8_aps.imagenette",
    "alias-free": "xcit_pico_6_p8_af.imagenette",
}
SEEDS = (1,)  # besides seed 0, whose records are on the leaderboard
REPLICATES = 2000  # of the bootstrap
UNMEASURED = "The effect of another seed was not measured."
SCORES = {
    "accuracy": ACCURACY,
    "consistency crop": ScoreName("consistency", "crop"),
    **{extent(*point): at(*point) for point in (("crop", 1), ("crop", 3), ("crop", 6))},
    **{extent(attack, 6): at(attack, 6) for attack in ("bilinear", "integer")},
}


def trained() -> dict[str, list[Result]]:
    """Return the records of each network by seed; empty if a seed has no record."""
    folder = RESULTS / "seeds"
    found = {r.model.name: r for r in load_records([folder])} if folder.is_dir() else {}
    names = {row: [f"{name}.seed{seed}" for seed in SEEDS] for row, name in NETWORKS.items()}
    if not all(name in found for group in names.values() for name in group):
        return {}
    return {
        row: [record(NETWORKS[row], IMAGENETTE), *(found[name] for name in group)]
        for row, group in names.items()
    }


def shared_scores(networks: Mapping[str, list[Result]]) -> dict[str, ScoreName]:
    """Return the scores that every record has, by title."""
    results = [result for group in networks.values() for result in group]
    return {
        title: name
        for title, name in SCORES.items()
        if results and all(name in result.scores for result in results)
    }


def seeds() -> str:
    """Tabulate each score by seed, and the mean over seeds."""
    networks = trained()
    rows = []
    for title, name in shared_scores(networks).items():
        n = count([result.scores for group in networks.values() for result in group], name)
        for row, group in networks.items():
            values = [100 * result.scores[name].value for result in group]
            cells = [f"{value:.1f}" for value in [*values, float(np.mean(values))]]
            rows.append([f"{title}{n}: {row}", *cells])
    return table(["%", *_titles(), "mean"], rows) if rows else UNMEASURED


def seeds_paired() -> str:
    """Tabulate the difference of the alias-free network to the others by seed, and the mean."""
    networks = trained()
    rows = []
    for title, name in shared_scores(networks).items():
        for other in ("baseline", "APS"):
            pairs = list(zip(networks[other], networks["alias-free"], strict=True))
            cells = [points(paired_test(first, second, name)) for first, second in pairs]
            value, low, high = (100 * number for number in mean_difference(pairs, name))
            mean = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
            rows.append([f"{title}: alias-free - {other}", *cells, mean])
    return table(["points", *_titles(), "mean"], rows) if rows else ""


def seeds_summary() -> str:
    """State the difference under crops up to 6 px, over seeds."""
    networks = trained()
    if at("crop", 6) not in shared_scores(networks).values():
        return ""
    texts = []
    for other in ("baseline", "APS"):
        pairs = list(zip(networks[other], networks["alias-free"], strict=True))
        value, low, high = (100 * number for number in mean_difference(pairs, at("crop", 6)))
        texts.append(f"{value:.1f} [{low:.1f}, {high:.1f}] points to {other}")
    return (
        f"Over {len(SEEDS) + 1} seeds and images, the mean difference of the alias-free network "
        f"under crops up to 6 px is {' and '.join(texts)}."
    )


def _titles() -> list[str]:
    return [f"seed {seed}" for seed in (0, *SEEDS)]


def mean_difference(
    pairs: list[tuple[Result, Result]], name: ScoreName
) -> tuple[float, float, float]:
    """Return the mean difference over seeds and images with its bootstrap interval."""
    columns = [
        second.outcomes()[name] - first.outcomes()[name]  # aligned by image
        for first, second in pairs
    ]
    differences = pd.concat(columns, axis=1, join="inner").dropna().to_numpy().T
    return (float(differences.mean()), *bootstrap(differences))


def bootstrap(differences: NDArray[np.float64], *, seed: int = 0) -> tuple[float, float]:
    """Return the 95% interval of the mean of a matrix (seeds, images).

    Each replicate draws seeds and images with replacement. All seeds share the drawn images,
    because every network predicts the same ones.
    """
    generator = np.random.default_rng(seed)
    count, n = differences.shape
    drawn = generator.multinomial(n, np.full(n, 1 / n), size=REPLICATES)  # times of each image
    means = drawn @ differences.T / n  # (replicates, seeds)
    chosen = generator.integers(count, size=(REPLICATES, count))
    low, high = np.quantile(np.take_along_axis(means, chosen, axis=1).mean(1), [0.025, 0.975])
    return float(low), float(high)
