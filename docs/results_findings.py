"""The five findings of the results overview: a sentence, a picture and its conditions each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from records_tables import at, committed, difference, lost, record
from results_align import aligned_pairs, aligned_summary, remedy_of
from results_metrics import common_medians
from results_public import networks
from results_seeds import IMAGENETTE, NETWORKS, SEEDS, seeds_summary, trained

from shiftbench.records.result import Result

LITE0 = "tf_efficientnet_lite0.imagenette"


@dataclass(frozen=True)
class Finding:
    """One finding with the records that it follows from."""

    claim: str
    evidence: str
    page: str  # of the results, without its ending
    picture: str
    alternative: str  # text of the picture
    records: Sequence[Result]
    command: str
    seeds: str = "public weights"

    def text(self, number: int) -> str:
        """Return the Markdown of the finding."""
        counts = {r.scores[at("crop", 1)].n for r in self.records}
        n = " to ".join(f"{count:,}" for count in sorted({min(counts), max(counts)}))
        conditions = f"n = {n} images, {self.seeds}, {_date(self.records)}: `{self.command}`"
        return (
            f"**{number}. {self.claim}** {self.evidence} [More]({self.page}.md)\n\n"
            f"![{self.alternative}](../images/{self.picture}.png)\n\n*{conditions}*"
        )


def findings() -> str:
    """Write all findings."""
    made = (_shifts(), _align(), _cyclic(), _alias_free(), _metrics())
    return "\n\n".join(finding.text(number) for number, finding in enumerate(made, 1))


def _date(records: Iterable[Result]) -> str:
    return max(result.created for result in records)[:10]


def _shifts() -> Finding:
    results = networks()
    values = [one.value for r in results if (one := lost(r, at("crop", 6))) is not None]
    return Finding(
        "Shifts of a few pixels change predictions of every public network that was measured.",
        f"In the worst case over crops up to 6 px, {len(values)} networks misclassify "
        f"{100 * min(values):.1f} to {100 * max(values):.1f}% of the images that they classify "
        "correctly without a shift.",
        "imagenet",
        "curves-imagenet",
        "Adversarial accuracy of public networks against max shift",
        results,
        "shiftbench run results/suites/imagenet.yaml --suite-root DIR",
    )


def _align() -> Finding:
    public = aligned_pairs()
    pairs = public or aligned_pairs("scenes")
    evidence = aligned_summary()
    if not public:
        first, second = min(pairs, key=lambda pair: pair[0].scores[at("crop", 3)].value)
        evidence = (
            f"On `scenes`, `{remedy_of(second)}` changes the accuracy of "
            f"`{first.model.name}` at every crop up to 3 px by "
            f"{difference(first, second, at('crop', 3))} points, and at every camera position up "
            f"to 1 px by {difference(first, second, at('camera', 3))}."
        )
    suite = "imagenet-scale2.yaml --suite-root DIR" if public else "scenes-scale2.yaml"
    return Finding(
        "`align` reduces the effect of crops and of a moving camera without training.",
        evidence,
        "align",
        "leaderboard",
        "Accuracy of public networks under crops",
        [result for pair in pairs for result in pair],
        f"shiftbench run results/suites/{suite} -o results/camera",
        "public weights" if public else "one seed",
    )


def _cyclic() -> Finding:
    results = [record(f"{LITE0}{end}", IMAGENETTE) for end in ("", "+circular+aps")]
    return Finding(
        "Invariance to cyclic shifts is not robustness to crops.",
        "`circular+aps` is invariant to integer cyclic shifts. At every crop up to 2 px its "
        f"accuracy differs by {difference(*results, at('crop', 2))} points from the original's.",
        "repair",
        "curves-repaired",
        "Adversarial accuracy of EfficientNet-Lite0, original and repaired, against max shift",
        results,
        "shiftbench run results/suites/imagenette-remedies.yaml --suite-root DIR",
        "one seed",
    )


def _alias_free() -> Finding:
    results = {row: record(name, IMAGENETTE) for row, name in NETWORKS.items()}
    drops = {
        row: 100 * (r.scores[at("crop", 0)].value - r.scores[at("crop", 6)].value)
        for row, r in results.items()
    }
    text = ", ".join(f"{drop:.1f} ({row})" for row, drop in drops.items())
    evidence = f"Under crops up to 6 px, accuracy drops by {text} points. {seeds_summary()}"
    return Finding(
        "On Imagenette, the alias-free network loses half as much under crops.",
        evidence.strip(),
        "alias-free",
        "curves-imagenette",
        "Adversarial accuracy of three XCiTs on Imagenette against max shift",
        [r for group in trained().values() for r in group] or list(results.values()),
        "shiftbench run results/suites/imagenette-seeds.yaml --suite-root DIR -o results/seeds",
        f"{len(SEEDS) + 1} seeds" if trained() else "one seed",
    )


def _metrics() -> Finding:
    pairs, (cheap, dear) = common_medians("consistency, crop", "crop 6 px")
    results = [r for r in committed() if at("crop", 1) in r.scores]
    return Finding(
        "Random consistency ranks networks at the lowest cost.",
        f"The median of {pairs} pairs of networks differs significantly after {cheap:,.0f} forward "
        f"passes of random crops, and after {dear:,.0f} of the whole grid up to 6 px. No random "
        "consistency predicts the worst case of `bilinear` shifts.",
        "which-metric",
        "passes",
        "Forward passes until two networks differ, by measurement",
        results,
        "make leaderboard",
        f"{len(results)} networks",
    )
