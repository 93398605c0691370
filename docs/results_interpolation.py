"""Tables on interpolated shifts as a substitute for the attack `camera`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pandas as pd
from records_tables import RESULTS, at, at_camera_scale, points, record, shown, table
from results_metrics import correlation_cell
from results_public import FEWEST_NETWORKS

from shiftbench.records.folder import load_records
from shiftbench.records.result import Result
from shiftbench.report.plots import short_name
from shiftbench.scores import ScoreName
from shiftbench.statistics import compare_paired, mean_score

CAMERA = at("camera", 3)  # thirds of a pixel, up to 1 px
SUBSTITUTES: Mapping[str, ScoreName] = {
    "crop 1 px": at("crop", 1),
    "crop 3 px": at("crop", 3),
    "bilinear 1 px": at("bilinear[1/3]", 3),
    "lanczos 1 px": at("lanczos[1/3]", 3),
}


@dataclass(frozen=True)
class Network:
    """Outcomes of one network on common images: 1 if correct at every offset, else 0."""

    name: str
    data: str
    outcomes: pd.DataFrame  # a row per image; columns `camera`, SUBSTITUTES and `clean`


@cache
def measured() -> tuple[Network, ...]:
    """Join the records of each network by image; `scenes` have all of them at scale 1.

    Image files: `camera` is measured at scale 2, and its substitutes at scale 1, as by users
    without the original files.
    """
    found = []
    for interpolated in load_records([RESULTS / "interpolation"]):
        data, name = interpolated.data.name, interpolated.model.name
        plain = record(name, data)
        moved = plain if CAMERA in plain.scores else _at_camera_scale(name, data)
        columns = {"camera": moved.outcomes()[CAMERA]}
        for title, score in SUBSTITUTES.items():
            source = plain if score in plain.scores else interpolated
            columns[title] = source.outcomes()[score]
        clean = [moved.outcomes()[at("camera", 0)], interpolated.outcomes()[at("lanczos[1/3]", 0)]]
        columns["clean"] = clean[0] * clean[1]
        found.append(
            Network(name, data, pd.concat(columns, axis=1, join="inner").dropna())  # by image
        )
    return tuple(found)


def _at_camera_scale(name: str, data: str) -> Result:
    (found,) = (r for r in at_camera_scale() if (r.model.name, r.data.name) == (name, data))
    return found


def interpolation_networks() -> str:
    """Tabulate adversarial accuracy under the camera and its substitutes by network."""
    rows = [
        [
            f"{short_name(network.name)}, n={len(network.outcomes)}",
            *(shown(mean_score(network.outcomes[title])) for title in ("camera", *SUBSTITUTES)),
        ]
        for network in sorted(measured(), key=lambda n: (n.data, -n.outcomes["camera"].mean()))
    ]
    return table(["%", "camera 1 px", *SUBSTITUTES], rows)


def interpolation_agreement() -> str:
    """Tabulate how each substitute predicts the camera, per network and per image."""
    header = [
        "",
        "accuracy minus camera's, points",
        "rank correlation of networks",
        "of retained accuracy",
        "lost to the camera: found, %",
        "found: lost to the camera, %",
    ]
    rows = []
    for data in dict.fromkeys(network.data for network in measured()):
        networks = [network for network in measured() if network.data == data]
        lost = pd.concat([n.outcomes[n.outcomes["clean"] == 1] for n in networks]) == 0
        for title in SUBSTITUTES:
            both = (lost["camera"] & lost[title]).sum()
            rows.append(
                [
                    f"{data}, {title}",
                    _difference(networks, title),
                    _correlation(networks, title, relative=False),
                    _correlation(networks, title, relative=True),
                    *(f"{100 * both / lost[column].sum():.0f}" for column in ("camera", title)),
                ]
            )
    return table(header, rows)


def _difference(networks: Sequence[Network], title: str) -> str:
    """Format the mean difference over networks; the unit of the interval is the image."""
    camera, other = (
        pd.concat([n.outcomes[column] for n in networks], axis=1, join="inner").mean(axis=1)
        for column in ("camera", title)
    )
    return points(compare_paired(camera, other))


def _correlation(networks: Sequence[Network], title: str, *, relative: bool) -> str:
    """Format the rank correlation of accuracy, or of accuracy over clean accuracy."""
    if len(networks) < FEWEST_NETWORKS:
        return ""
    camera, other = (
        np.array(
            [
                n.outcomes[c].mean() / (n.outcomes["clean"].mean() if relative else 1)
                for n in networks
            ]
        )
        for c in ("camera", title)
    )
    return correlation_cell(camera, other)
