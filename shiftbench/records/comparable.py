"""One rule of comparability: whether two records, or two of their scores, may stand side by side.

Tables, figures, pages, paired comparisons and the paper's figures all ask here, and repeat the
reasons they get.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from shiftbench.errors import UsageError
from shiftbench.records.result import USUAL_CONDITIONS, Record
from shiftbench.scores import ScoreName


@dataclass(frozen=True)
class RecordGroup:
    """Records whose scores were measured under the same conditions."""

    label: str  # the data in a few words, and whatever tells it from other groups
    records: tuple[Record, ...]


def why_not(
    first: Record, second: Record, name: ScoreName | None = None, *, images_only: bool = False
) -> list[str]:
    """Why two records, or one score of both, cannot be compared; empty when they can.

    Args:
        first: A record.
        second: Another.
        name: The score; without it, what would forbid comparing any of them.
        images_only: Of the score's own conditions, ask about its images alone: where an upper bound
            is shown as one, it need not have been searched like its neighbors.
    """
    reasons = _differences(first.conditions, second.conditions)
    if name is None:
        return reasons
    a, b = first.metric_of(name), second.metric_of(name)
    if a is None or b is None:
        lacking = first if a is None else second
        return [*reasons, f"{lacking.model.name} has no {name.stem}"]
    if a.images_of(name) != b.images_of(name):
        counts = " and ".join(f"{r.scores[name].n:,}" for r in (first, second))
        reasons.append(f"{name} is of different images ({counts})")
    if images_only:
        return reasons
    return reasons + _differences(a.conditions, b.conditions)


def _differences(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    keys = list(dict.fromkeys((*first, *second)))
    pairs = [(key, first.get(key, "none"), second.get(key, "none")) for key in keys]
    return [f"{key} is {a} and {b}" for key, a, b in pairs if a != b]


def comparison_key(record: Record, name: ScoreName) -> Hashable:
    """Equal for two records exactly when nothing forbids comparing this score of theirs.

    The same rule as `why_not`, for many records at once. None, which compares with nothing: the
    record does not say what measured the score.
    """
    info = record.metric_of(name)
    if info is None:
        return None
    own = {**info.conditions, "images of the score": info.images_of(name)}
    return (*record.conditions.values(), *sorted(own.items()))


def require_comparable(records: Sequence[Record], *, what: str) -> None:
    """Refuses records of different conditions, and says which."""
    for other in records[1:]:
        reasons = why_not(records[0], other)
        if reasons:
            raise UsageError(
                f"{what} needs records made under the same conditions, but for "
                f"{records[0].model.name} and {other.model.name} {'; '.join(reasons)}: choose with "
                "--data or --model, or pass --allow-mixed"
            )


def group_records(records: Sequence[Record]) -> list[RecordGroup]:
    """Sorts records into groups that may be compared, in order of the data's name."""
    alike: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        alike.setdefault(tuple(record.conditions.values()), []).append(record)
    groups = []
    for members in sorted(alike.values(), key=lambda group: str(group[0].data)):
        rivals = [g[0] for g in alike.values() if g[0].data.name == members[0].data.name]
        groups.append(RecordGroup(_label(members[0], rivals), tuple(members)))
    return groups


def _label(record: Record, rivals: Sequence[Record]) -> str:
    """The data, and the conditions in which groups of the same data differ."""
    own = record.conditions
    words = [
        f"{key} {own[key]}"
        for key, usual in USUAL_CONDITIONS.items()
        if own[key] != usual or any(rival.conditions[key] != own[key] for rival in rivals)
    ]
    same = [rival for rival in rivals if str(rival.data) == str(record.data)]
    if any(rival.conditions["images"] != own["images"] for rival in same):
        words.append(f"images {own['images']}")
    return ", ".join([str(record.data), *words])
