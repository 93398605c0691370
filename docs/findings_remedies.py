"""Remedies and fine-tuning that cost one forward pass."""

from __future__ import annotations

from collections.abc import Iterator

from findings_records import at, committed, count, difference, record, shown, table

from shiftbench.records.result import Result

PHOTOGRAPHS = "imagenette128"
NETWORKS = {
    "Lite0": "tf_efficientnet_lite0.imagenette",
    "XCiT": "xcit_pico_6_p8.imagenette",
    "alias-free": "xcit_pico_6_p8_af.imagenette",
}
WAYS = {  # all fine-tuned from the same weights, alike
    "fine-tuned (control)": ".control",
    "fine-tuned (control), `select:10`": ".control+select:10",
    "`steady`": ".steady",
    "`steady`, `select:10`": ".steady+select:10",
    "fine-tuned (control), `vote:3`": ".control+vote:3",
}
TERMS = {  # of the loss, for the same time
    "none": ".control",
    "between the two windows, weight 2": ".kl2",
    "weight 8": ".steady",
    "weight 30": ".kl30",
    "weight 8, the worse of 3 windows": ".worst",
    "weight 8, to a teacher of 3 x 3 views": ".teacher",
}
CROPS = {"clean" if not s else f"crop {s} px": at("crop", s) for s in (0, 1, 2, 3, 6)}
FRACTIONS = {  # by half pixels
    f"{kind} 1 px": at(f"{kind}[1/2]", 2) for kind in ("bilinear", "lanczos")
}


def _records() -> Iterator[tuple[str, Result]]:
    """Yield each network with each remedy, if there is a record."""
    measured = {one.model.name: one for one in committed()}
    for net, model in NETWORKS.items():
        for way, suffix in WAYS.items():
            if model + suffix in measured:
                yield f"{net}, {way}", measured[model + suffix]


def cured() -> str:
    """Tabulate the adversarial accuracy of each network and remedy."""
    columns = CROPS | FRACTIONS
    scores = {row: one.scores for row, one in _records()}
    header = [f"{title}{count(scores.values(), name)}" for title, name in columns.items()]
    rows = [[row, *(shown(s.get(name)) for name in columns.values())] for row, s in scores.items()]
    return table(["", *header], rows)


def cured_paired() -> str:
    """Tabulate what each remedy gains over fine-tuning, image by image."""
    columns = {t: n for t, n in (CROPS | FRACTIONS).items() if t not in ("crop 1 px", "crop 3 px")}
    first, rows = None, []
    for row, one in _records():
        if one.model.name.endswith(WAYS["fine-tuned (control)"]):
            first = one
        else:
            assert first is not None
            rows.append([row, *(difference(first, one, name) for name in columns.values())])
    return table(["points", *columns], rows)


def ablation() -> str:
    """Tabulate terms of the loss, each with the same compute."""
    control = record(NETWORKS["Lite0"] + TERMS["none"], PHOTOGRAPHS)
    rows = []
    for term, name in TERMS.items():
        one = record(NETWORKS["Lite0"] + name, PHOTOGRAPHS)
        cells = [shown(one.scores[point]) for point in CROPS.values()]
        gain = difference(control, one, at("crop", 6)) if one is not control else ""
        rows.append([term, *cells, gain])
    header = [f"{title}{count([control.scores], name)}" for title, name in CROPS.items()]
    return table(["term", *header, "difference at 6 px"], rows)
