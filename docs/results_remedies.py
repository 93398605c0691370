"""Remedies and fine-tuning that cost one forward pass."""

from __future__ import annotations

import re
from collections.abc import Iterator

from records_tables import at, committed, count, difference, record, shown, table

from shiftbench.records.result import Result

IMAGENETTE = "imagenette128"
NETWORKS = {
    "Lite0": "tf_efficientnet_lite0.imagenette",
    "XCiT": "xcit_pico_6_p8.imagenette",
    "alias-free": "xcit_pico_6_p8_af.imagenette",
}
WAYS = {  # all fine-tuned from the same weights, alike; patterns of the end of a name
    "fine-tuned (control)": r"\.control",
    "fine-tuned (control), `align`": r"\.control\+align.*",
    "`shift-consistency`": r"\.shift-consistency",
    "`shift-consistency`, `align`": r"\.shift-consistency\+align.*",
    "fine-tuned (control), `vote:3`": r"\.control\+vote(:3)?",
}
CONTROL = "fine-tuned (control)"
TERMS = {  # of the loss, for the same time
    "none": ".control",
    "between the two windows, weight 2": ".kl2",
    "weight 8": ".shift-consistency",
    "weight 30": ".kl30",
    "weight 8, the worse of 3 windows": ".worst",
    "weight 8, to a teacher of 3 x 3 views": ".teacher",
}
CROPS = {"clean" if not s else f"crop {s} px": at("crop", s) for s in (0, 1, 2, 3, 6)}
FRACTIONS = {  # by half pixels
    f"{kind} 1 px": at(f"{kind}[1/2]", 2) for kind in ("bilinear", "lanczos")
}


def _records() -> Iterator[tuple[str, str, Result]]:
    """Yield network, remedy and record of each combination that has a record."""
    for net, model in NETWORKS.items():
        for way, pattern in WAYS.items():
            for one in committed():
                if re.fullmatch(re.escape(model) + pattern, one.model.name):
                    yield net, way, one


def margin_scores() -> str:
    """Tabulate the adversarial accuracy of each network and remedy."""
    columns = CROPS | FRACTIONS
    scores = {f"{net}, {way}": one.scores for net, way, one in _records()}
    header = [f"{title}{count(scores.values(), name)}" for title, name in columns.items()]
    rows = [[row, *(shown(s.get(name)) for name in columns.values())] for row, s in scores.items()]
    return table(["", *header], rows)


def margin_paired() -> str:
    """Tabulate the paired difference of each remedy to fine-tuning alone."""
    columns = {t: n for t, n in (CROPS | FRACTIONS).items() if t not in ("crop 1 px", "crop 3 px")}
    controls = {net: one for net, way, one in _records() if way == CONTROL}
    rows = [
        [f"{net}, {way}", *(difference(controls[net], one, name) for name in columns.values())]
        for net, way, one in _records()
        if way != CONTROL
    ]
    return table(["points", *columns], rows)


def ablation() -> str:
    """Tabulate terms of the loss, each with the same compute."""
    control = record(NETWORKS["Lite0"] + TERMS["none"], IMAGENETTE)
    rows = []
    for term, name in TERMS.items():
        one = record(NETWORKS["Lite0"] + name, IMAGENETTE)
        cells = [shown(one.scores[point]) for point in CROPS.values()]
        gain = difference(control, one, at("crop", 6)) if one is not control else ""
        rows.append([term, *cells, gain])
    header = [f"{title}{count([control.scores], name)}" for title, name in CROPS.items()]
    return table(["term", *header, "difference at 6 px"], rows)
