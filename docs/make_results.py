"""Write the tables and figures of the documentation that are made from records.

python docs/make_results.py

A table is between a pair of markers of its page. A test fails if page and records differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from matplotlib.figure import Figure
from records_tables import (
    KINDS,
    at,
    committed,
    count,
    extent,
    lost,
    paired_table,
    record,
    scores_table,
    shown,
    table,
)
from results_align import (
    aligned,
    aligned_paired,
    aligned_scenes,
    aligned_scenes_paired,
    aligned_summary,
    arrows,
)
from results_detection import (
    detectors,
    detectors_aligned,
    detectors_halves,
    detectors_paired,
)
from results_findings import findings
from results_interpolation import interpolation_agreement, interpolation_networks
from results_metrics import correlations, passes_figure, passes_until_different
from results_public import front, networks, opening, predicts, published, zoo
from results_remedies import ablation, margin_paired, margin_scores
from results_seeds import seeds, seeds_paired, seeds_summary

from shiftbench.records.folder import select
from shiftbench.report.formats import update_between_markers
from shiftbench.report.plots import curves_figure, save_figure
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.statistics import mean_score

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"

IMAGENETTE = "imagenette128"
TRIO = {
    "baseline": "xcit_pico_6_p8.imagenette",
    "APS": "xcit_pico_6_p8_aps.imagenette",
    "alias-free": "xcit_pico_6_p8_af.imagenette",
}
SCENES = {row: model.replace(".imagenette", ".scenes") for row, model in TRIO.items()}
LITE0 = "tf_efficientnet_lite0.imagenette"
REPAIRED = {  # fine-tuned alike; the last two have the weights of the first
    "original": LITE0,
    "`blurpool`": f"{LITE0}+blurpool",
    "`aps`": f"{LITE0}+aps",
    "`circular+aps`": f"{LITE0}+circular+aps",
    "`af`": f"{LITE0}+af",
    "`canonical`": f"{LITE0}+canonical",
    "`vote:3`": f"{LITE0}+vote:3",
}
POINTS = (("crop", 1), ("crop", 2), ("bilinear", 3), ("integer", 1), ("half", 1))  # of REPAIRED
ATTACKED = ("integer", "half", "bilinear", "lanczos")  # besides crop, of TRIO


def trio_whole() -> str:
    """Tabulate accuracy and consistency of the trio."""
    kinds = {f"consistency {kind}": ScoreName("consistency", kind) for kind in KINDS}
    return scores_table(TRIO, IMAGENETTE, {"accuracy": ACCURACY, **kinds})


def trio_crops() -> str:
    """Tabulate the trio under crop shifts."""
    columns = {f"{s} px" if s else "clean": at("crop", s) for s in (0, 1, 2, 3, 6)}
    return scores_table(TRIO, IMAGENETTE, columns)


def trio_attacks() -> str:
    """Tabulate clean and adversarial accuracy under each attack."""
    rows = []
    for row, model in TRIO.items():
        scores = record(model, IMAGENETTE).scores
        cells = [[shown(scores[at(attack, radius)]) for radius in (0, 6)] for attack in ATTACKED]
        rows.append([row, *(" → ".join(cell) for cell in cells)])
    scores = [record(model, IMAGENETTE).scores for model in TRIO.values()]
    header = [f"{extent(attack, 6)}{count(scores, at(attack, 6))}" for attack in ATTACKED]
    return table(["", *header], rows)


def trio_blur() -> str:
    """Tabulate sub-pixel shifts with and without blur, on the images of both attacks."""
    names = {
        "clean": at("lanczos", 0),
        **{extent(a, 6): at(a, 6) for a in ("lanczos", "bilinear")},
    }
    rows, counts = [], set()
    for row, model in TRIO.items():
        values = record(model, IMAGENETTE).outcomes()
        searched = [values[names[f"{kind} 1 px"]].index for kind in ("lanczos", "bilinear")]
        both = searched[0].intersection(searched[1])
        rows.append([row, *(shown(mean_score(values[name].loc[both])) for name in names.values())])
        counts.add(len(both))
    (n,) = counts
    return table(["", *(f"{title}, n={n}" for title in names)], rows)


def trio_paired() -> str:
    """Tabulate the paired difference of the alias-free network to the others."""
    return paired_table(
        {
            f"alias-free - {row}": (TRIO[row], TRIO["alias-free"])
            for row in TRIO
            if row != "alias-free"
        },
        IMAGENETTE,
        [("crop", 0), ("crop", 1), ("crop", 6), *((attack, 6) for attack in ATTACKED)],
    )


def repaired() -> str:
    """Tabulate the scores of each remedy."""
    columns = {
        "accuracy": ACCURACY,
        "consistency crop": ScoreName("consistency", "crop"),
        **{extent(*point): at(*point) for point in POINTS},
    }
    return scores_table(REPAIRED, IMAGENETTE, columns)


def repaired_lost() -> str:
    """Tabulate the fraction of correctly classified images that each attack changes."""
    records = {row: record(model, IMAGENETTE) for row, model in REPAIRED.items()}
    rows = [
        [
            row,
            f"{one.outcomes()[ACCURACY].eq(1).sum()} of {one.scores[ACCURACY].n}",
            *(shown(lost(one, at(*point))) for point in POINTS),
        ]
        for row, one in records.items()
    ]
    return table(["", "correct clean", *(extent(*point) for point in POINTS)], rows)


def repaired_paired() -> str:
    """Tabulate the paired difference of each remedy to the original."""
    first = REPAIRED["original"]
    return paired_table(
        {row: (first, second) for row, second in REPAIRED.items() if second != first},
        IMAGENETTE,
        [("crop", 0), *POINTS],
    )


def camera() -> str:
    """Tabulate camera shifts and their bilinear approximation."""
    moved = {extent(attack, r): at(attack, r) for attack, r in (("camera", 3), ("bilinear", 6))}
    return scores_table(SCENES, "scenes", {"clean": at("camera", 0), **moved})


Tables = Mapping[str, Callable[[], str]]
PAGES: Mapping[Path, Tables] = {
    DOCS.parent / "README.md": {"opening": opening, "networks": front},
    DOCS / "results" / "index.md": {"findings": findings},
    DOCS / "results" / "imagenet.md": {"zoo": zoo, "published": published, "predicts": predicts},
    DOCS / "results" / "align.md": {
        "aligned": aligned,
        "aligned-summary": aligned_summary,
        "aligned-paired": aligned_paired,
        "aligned-scenes": aligned_scenes,
        "aligned-scenes-paired": aligned_scenes_paired,
    },
    DOCS / "results" / "detection.md": {
        "detectors": detectors,
        "detectors-halves": detectors_halves,
        "detectors-aligned": detectors_aligned,
        "detectors-paired": detectors_paired,
    },
    DOCS / "results" / "repair.md": {
        "repaired": repaired,
        "repaired-lost": repaired_lost,
        "repaired-paired": repaired_paired,
        "margin-scores": margin_scores,
        "margin-paired": margin_paired,
        "ablation": ablation,
    },
    DOCS / "results" / "alias-free.md": {
        "trio-whole": trio_whole,
        "trio-crops": trio_crops,
        "trio-attacks": trio_attacks,
        "trio-paired": trio_paired,
        "trio-blur": trio_blur,
        "seeds": seeds,
        "seeds-paired": seeds_paired,
        "seeds-summary": seeds_summary,
        "camera": camera,
    },
    DOCS / "results" / "which-metric.md": {
        "passes": passes_until_different,
        "correlations": correlations,
        "interpolation-networks": interpolation_networks,
        "interpolation-agreement": interpolation_agreement,
    },
}


def figures() -> Iterator[tuple[str, Figure]]:
    """Yield the name and curves of each figure."""
    realistic = ("crop", "bilinear")
    trio = [record(model, IMAGENETTE) for model in TRIO.values()]
    yield "imagenette", curves_figure(trio, attacks=realistic)
    yield "repaired", curves_figure([record(model, IMAGENETTE) for model in REPAIRED.values()])
    yield "imagenet", curves_figure(networks())
    for data in ("cifar10", "scenes"):
        yield data, curves_figure(select(committed(), data=data))


def main() -> None:
    """Write all tables and figures."""
    for page, tables in PAGES.items():
        for name, make in tables.items():
            update_between_markers(page, make(), name=name)
    for name, figure in figures():
        save_figure(figure, IMAGES / f"curves-{name}.png")
    save_figure(arrows(networks()), IMAGES / "leaderboard.png")
    save_figure(passes_figure(), IMAGES / "passes.png")


if __name__ == "__main__":
    main()
