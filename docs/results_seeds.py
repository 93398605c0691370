"""Tables of networks that were trained with several seeds."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from records_tables import RESULTS, at, extent, points, record, table

from shiftbench.records.compare import IMAGES, unequal
from shiftbench.records.folder import load_records
from shiftbench.records.result import Result
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.statistics import compare_paired

IMAGENETTE = "imagenette128"
NETWORKS = {
    "baseline": "xcit_pico_6_p8.imagenette",
    "APS": "xcit_pico_6_p8_aps.imagenette",
    "alias-free": "xcit_pico_6_p8_af.imagenette",
}
SEEDS = (1, 2)  # besides seed 0, whose records are on the leaderboard
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


def measured(networks: Mapping[str, list[Result]]) -> dict[str, dict[str, pd.DataFrame]]:
    """Return the outcomes of each score by network: a row per image, a column per seed.

    Scores that fewer than two seeds have are left out. All networks share images and seeds.
    """
    found = {}
    for title, name in SCORES.items():
        seeds = [
            i
            for i, group in enumerate(zip(*networks.values(), strict=True))
            if all(name in result.scores for result in group)
        ]
        if len(seeds) < 2:
            continue
        settings = [networks[row][i].settings_of(name) for row in networks for i in seeds]
        # The number of images may differ: outcomes are joined by image.
        assert not any(unequal(settings[0], other, skip=IMAGES) for other in settings), name
        columns = {(row, i): networks[row][i].outcomes()[name] for row in networks for i in seeds}
        outcomes = pd.concat(columns, axis=1, join="inner").dropna()
        found[title] = {row: outcomes[row] for row in networks}
    return found


def seeds() -> str:
    """Tabulate each score by seed, and the mean over seeds, on the images of all networks."""
    rows = []
    for title, outcomes in measured(trained()).items():
        for row, frame in outcomes.items():
            cells = _by_seed({i: f"{100 * mean:.1f}" for i, mean in frame.mean().items()})
            mean = f"{100 * frame.to_numpy().mean():.1f}"
            rows.append([f"{title}, n={len(frame):,}: {row}", *cells, mean])
    return table(["%", *_by_seed(), "mean"], rows) if rows else UNMEASURED


def seeds_paired() -> str:
    """Tabulate the difference of the alias-free network to the others by seed, and the mean."""
    rows = []
    for title, outcomes in measured(trained()).items():
        for other in ("baseline", "APS"):
            first, second = outcomes[other], outcomes["alias-free"]
            cells = {i: points(compare_paired(first[i], second[i])) for i in first}
            value, low, high = (100 * number for number in mean_difference(second - first))
            mean = f"{value:+.1f} [{low:+.1f}, {high:+.1f}]"
            rows.append([f"{title}: alias-free - {other}", *_by_seed(cells), mean])
    return table(["points", *_by_seed(), "mean"], rows) if rows else ""


def seeds_summary() -> str:
    """State the difference under crops up to 6 px, over seeds."""
    outcomes = measured(trained()).get(extent("crop", 6))
    if outcomes is None:
        return ""
    texts = []
    for other in ("baseline", "APS"):
        change = outcomes["alias-free"] - outcomes[other]
        value, low, high = (100 * number for number in mean_difference(change))
        texts.append(f"{value:.1f} [{low:.1f}, {high:.1f}] points to {other}")
    return (
        f"Over {outcomes['baseline'].shape[1]} seeds and images, the mean difference of the "
        f"alias-free network under crops up to 6 px is {' and '.join(texts)}."
    )


def _by_seed(cells: Mapping[int, str] | None = None) -> list[str]:
    """Return a cell per seed, blank where a score was not measured; without cells the titles."""
    seeds = (0, *SEEDS)
    if cells is None:
        return [f"seed {seed}" for seed in seeds]
    return [cells.get(i, "") for i in range(len(seeds))]


def mean_difference(change: pd.DataFrame) -> tuple[float, float, float]:
    """Return the mean over images (rows) and seeds (columns) with its bootstrap interval."""
    differences = change.to_numpy(np.float64).T
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
