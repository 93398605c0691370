"""Records as tables: one per group of comparable records, sorted, with the best of each column.

A table is a pure function of the records. `shiftbench.report.formats` writes it as text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from shiftbench.errors import RecordError, UsageError
from shiftbench.metrics import METRICS
from shiftbench.records.choose import pixels
from shiftbench.records.comparable import Group, comparison_key, conditions, group_records
from shiftbench.records.record import Record
from shiftbench.registry import unknown_name
from shiftbench.scores import ACCURACY, UNRANKED_UNITS, ScoreName
from shiftbench.shifts.attacks import DEFAULT_RADIUS, PAPER_ATTACKS
from shiftbench.statistics import FRACTION, Score, compare_paired, differ_for_any_pairing

# The first scores of every table, whether or not a record has them: the paper's.
STANDARD = (
    ACCURACY,
    *(ScoreName("consistency", kind) for kind in METRICS.get("consistency").arguments()),
    *(ScoreName("adversarial", attack) for attack in PAPER_ATTACKS),
)
DEFAULT_SORT = ScoreName("adversarial", "crop").column
HIDDEN_FAMILIES = ("change",)  # in the record, the detail and the comparison; too many for a table

Plain = str | int | float | None
Outcomes = Mapping[ScoreName, pd.Series]  # one number per image, by key


@dataclass(frozen=True)
class Measured:
    """A score as a table shows it."""

    score: Score
    bound: bool = False  # from a sampled search: the true value may be lower
    ranked: bool = True  # measured like most of its column: it may be sorted and may win
    best: bool = False  # the best of its column, or not significantly different from it
    own_n: bool = False  # of fewer images than the row's other scores


Cell = Plain | Measured


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    score: ScoreName | None = None  # what it shows, at one radius for the whole column
    lower_is_better: bool = False

    @property
    def reach(self) -> str:
        """How far the grid of the column goes: `6 px`."""
        if self.score is None or self.score.radius is None:
            return ""
        far = pixels(self.score.curve, self.score.radius)
        return f"{self.score.radius} steps" if far is None else f"{far} px"

    @property
    def group(self) -> str:
        """What neighboring columns have in common: `adversarial`."""
        return self.score.family if self.score is not None and self.score.kind else ""

    @property
    def ascending(self) -> bool:
        """Whether it reads best from the smallest up, as names and costs do."""
        return self.lower_is_better or self.name in _ASCENDING

    @property
    def title(self) -> str:
        """Its name for people; an arrow where less is better."""
        words = TITLES.get(self.name, self.name.replace("_", " "))
        return f"{words} ↓" if self.lower_is_better else words


TITLES = {"param_count": "params", "img_size": "px"}
_FIELDS: Mapping[str, Callable[[Record], Plain]] = {
    "model": lambda r: r.model.name,
    "data": lambda r: r.data.name,
    "images": lambda r: r.data.images,
    "param_count": lambda r: r.model.parameters,
    "img_size": lambda r: r.model.input_size,
    "seconds": lambda r: float(r.seconds),
    "forward_passes": lambda r: r.forward_passes,
    "date": lambda r: r.created[:10],
}
# Scores, image counts and dates read best from the largest down.
_ASCENDING = {"model", "data", "param_count", "img_size", "seconds", "forward_passes"}


@dataclass(frozen=True)
class Row:
    """One record of a table."""

    record: Record
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Table:
    """Comparable records in order."""

    label: str  # the data, and the conditions where they are not the usual ones
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    sort: str = "model"  # the column that the rows are ordered by
    descending: bool = False

    def only(self, names: Sequence[str]) -> Table:
        """The table with the models and some other columns, in this order."""
        by_name = {column.name: column for column in self.columns}
        for name in names:
            if name not in by_name:
                raise unknown_name("column", name, by_name)
        chosen = dict.fromkeys(["model", *names])
        return replace(self, columns=tuple(by_name[name] for name in chosen))

    def measured_columns(self) -> list[Column]:
        """The columns that hold scores, without those that are empty in every row."""
        return [
            column
            for column in self.columns
            if any(isinstance(row.cells[column.name], Measured) for row in self.rows)
        ]

    def notes(self, *, intervals: bool = True, best: str = "bold") -> str:
        """The sentence under a table: units, how far the grids go, what the marks mean.

        Args:
            intervals: Whether the table shows them.
            best: How the table marks the best scores; empty where it does not.
        """
        columns = self.measured_columns()
        found = ["Percent with 95% intervals" if intervals else "Percent"]
        cells = [(c, row.cells[c.name]) for c in columns for row in self.rows]
        units = {c.title: cell.score.unit for c, cell in cells if isinstance(cell, Measured)}
        other = [
            f"{title} in {unit}" for title, unit in units.items() if unit not in ("", FRACTION)
        ]
        if other:
            found[0] += f", {', '.join(other)}"
        scaled = [title for title, unit in units.items() if unit in UNRANKED_UNITS]
        if scaled:
            found.append(f"{', '.join(scaled)}: not ranked, a network may scale its logits")
        reaches = [f"{c.score.kind} {c.reach}" for c in columns if c.score and c.reach]
        if reaches:
            found.append(f"adversarial: right at every shift up to {', '.join(reaches)}")
        if any(column.lower_is_better for column in columns):
            found.append("↓: less is better")
        measured = [cell for _, cell in cells if isinstance(cell, Measured)]
        if best and any(cell.best for cell in measured):
            found.append(f"{best}: the best, and what a paired test cannot tell from it")
        if any(cell.bound for cell in measured):
            found.append("≤: an upper bound, from a search that sampled its grid; not ranked")
        if any(not cell.ranked and not cell.bound for cell in measured):
            found.append("†: not measured like the others of its column; not ranked")
        return "; ".join(found) + "."


def score_columns(records: Sequence[Record], max_shift: int | None = None) -> list[Column]:
    """A column for every score that a table shows, the paper's first."""
    found = [stem for record in records for stem in record.scores.stems()]
    shown = [stem for stem in found if stem.family not in HIDDEN_FAMILIES]
    stems = list(dict.fromkeys([*STANDARD, *sorted(shown, key=_place)]))
    return [
        Column(
            stem.column,
            ScoreName(stem.family, stem.kind, _radius(records, stem, max_shift)),
            lower_is_better(records, stem),
        )
        for stem in stems
    ]


def lower_is_better(records: Sequence[Record], stem: ScoreName) -> bool:
    """Whether less of a score is better, by the metric that measured it."""
    metrics = [info.load() for r in records if (info := r.metric_of(stem)) is not None]
    return any(metric.lower_is_better(stem) for metric in metrics if metric is not None)


def _place(stem: ScoreName) -> tuple[bool, ScoreName]:
    return stem.family not in {name.family for name in STANDARD}, stem


def _radius(records: Sequence[Record], stem: ScoreName, max_shift: int | None) -> int | None:
    """The max shift a column shows: the protocol's own where some record has it, else the largest.

    One radius for the whole column, so that no two scores of different grids stand side by side.
    """
    radii = {radius for record in records for radius in record.scores.curve(stem)}
    if not radii:
        return DEFAULT_RADIUS if stem.family == "adversarial" else None
    if max_shift is not None:
        return max_shift
    return DEFAULT_RADIUS if DEFAULT_RADIUS in radii else max(radii)


def columns_of(records: Sequence[Record], max_shift: int | None = None) -> tuple[Column, ...]:
    """Every column; those of further metrics, and of conditions, come last."""
    measured = score_columns(records, max_shift)
    standard = {name.column for name in STANDARD}
    first = [Column(name) for name in ("model", "data", "images", "param_count", "img_size")]
    last = [Column(name) for name in ("seconds", "forward_passes", "date")]
    accuracy, *others = (column for column in measured if column.name in standard)
    bounds = [Column("top1_low"), Column("top1_high")]
    further = [column for column in measured if column.name not in standard]
    sampled = any(r.is_upper_bound(name) for r in records for name in r.scores.curves())
    mixed = len(group_records(records)) > len({record.data.name for record in records})
    return (
        *(*first, accuracy, *bounds, *others, *last, *further),
        *((Column("mode"),) if sampled else ()),
        *((Column("conditions"),) if mixed else ()),
    )


def build_tables(
    records: Sequence[Record],
    *,
    sort: str = DEFAULT_SORT,
    reverse: bool = False,
    max_shift: int | None = None,
) -> list[Table]:
    """Builds a table for each group of comparable records, sorted by a column.

    Args:
        records: What was measured.
        sort: A column of the table. Scores, image counts and dates go from the largest down, names
            and costs from the smallest up. Scores that are not comparable with the others of their
            column come after them, empty cells last.
        reverse: Turns the order around.
        max_shift: The max shift, in steps, of the adversarial columns.
    """
    columns = columns_of(records, max_shift)
    by_name = {column.name: column for column in columns}
    if sort not in by_name:
        raise unknown_name("column to sort by", sort, by_name)
    radii = {
        radius for r in records for name in r.scores.curves() for radius in r.scores.curve(name)
    }
    if max_shift is not None and radii and max_shift not in radii:
        raise UsageError(f"these records reach a max shift of {max(radii)}, got {max_shift}")
    return [_table(group, columns, by_name[sort], reverse) for group in group_records(records)]


def _table(group: Group, columns: tuple[Column, ...], by: Column, reverse: bool) -> Table:
    judged = {column.name: judge(group.records, column.score) for column in columns if column.score}
    rows = []
    for index, record in enumerate(group.records):
        cells: dict[str, Cell] = {name: field(record) for name, field in _FIELDS.items()}
        accuracy = record.scores.get(ACCURACY)
        cells["top1_low"] = None if accuracy is None else 100 * accuracy.low
        cells["top1_high"] = None if accuracy is None else 100 * accuracy.high
        cells["mode"] = _mode(record)
        cells["conditions"] = ", ".join(f"{k} {v}" for k, v in conditions(record).items())
        cells |= {name: column[index] for name, column in judged.items()}
        rows.append(Row(record, {column.name: cells[column.name] for column in columns}))
    rows.sort(key=lambda row: (row.record.model.name, row.record.data.name))

    def key(row: Row) -> str | int | float:
        cell = row.cells[by.name]
        assert cell is not None
        return cell.score.value if isinstance(cell, Measured) else cell

    descending = by.ascending == reverse
    ranked = [row for row in rows if _rank(row.cells[by.name]) == 0]
    others = [row for row in rows if _rank(row.cells[by.name]) == 1]
    for part in (ranked, others):
        part.sort(key=key, reverse=descending)
    empty = [row for row in rows if row.cells[by.name] is None]
    return Table(group.label, columns, tuple(ranked + others + empty), by.name, descending)


def _rank(cell: Cell) -> int | None:
    if cell is None:
        return None
    return int(isinstance(cell, Measured) and not cell.ranked)


def _mode(record: Record) -> str:
    modes = {str(i.settings["mode"]) for i in record.metrics.values() if "mode" in i.settings}
    return ", ".join(sorted(modes))


def judge(records: Sequence[Record], name: ScoreName) -> list[Measured | None]:
    """The cells of a column for comparable records: which are ranked, and which are best.

    Args:
        records: One group: everything but the metric's own conditions agrees.
        name: The score, with its radius where it is a point of a curve.
    """
    return judge_points(records, [name])[0]


def judge_points(
    records: Sequence[Record], names: Sequence[ScoreName]
) -> list[list[Measured | None]]:
    """The same for several points of one curve; the images of each record are read once."""
    known: dict[int, Outcomes] = {}

    def read(index: int) -> Outcomes:
        if index not in known:
            known[index] = _outcomes(records[index], names[0])
        return known[index]

    return [_judge(records, name, read) for name in names]


def _judge(
    records: Sequence[Record], name: ScoreName, read: Callable[[int], Outcomes]
) -> list[Measured | None]:
    scores = [record.scores.get(name) for record in records]
    there = [i for i, score in enumerate(scores) if score is not None]
    alike = _alike([records[i] for i in there], name)
    ranked = {i for i, same in zip(there, alike, strict=True) if same}
    lower = lower_is_better(records, name)
    ranked_scores = {i: score for i, score in enumerate(scores) if score and i in ranked}
    best = _best(ranked_scores, name, lower, read)
    return [
        None
        if score is None
        else Measured(
            score,
            bound=record.is_upper_bound(name),
            ranked=i in ranked,
            best=i in best,
            own_n=score.n != record.data.images,
        )
        for i, (record, score) in enumerate(zip(records, scores, strict=True))
    ]


def _alike(records: Sequence[Record], name: ScoreName) -> list[bool]:
    """Which records belong to the largest set of one column that is comparable and exact."""
    keys = [None if r.is_upper_bound(name) else comparison_key(r, name) for r in records]
    largest = Counter(key for key in keys if key is not None).most_common(1)
    return [key is not None and key == largest[0][0] for key in keys]


def _best(
    scores: Mapping[int, Score], name: ScoreName, lower: bool, read: Callable[[int], Outcomes]
) -> set[int]:
    """The best of several scores, and those that a paired test cannot tell from it."""
    if len(scores) < 2 or any(score.unit in UNRANKED_UNITS for score in scores.values()):
        return set()
    first = (min if lower else max)(scores, key=lambda i: scores[i].value)
    rivals = [
        i for i in scores if i != first and not differ_for_any_pairing(scores[first], scores[i])
    ]
    return {first} | {
        i
        for i in rivals
        if _tied(read(i).get(name), read(first).get(name), scores[i], scores[first])
    }


def _tied(rival: pd.Series | None, best: pd.Series | None, score: Score, best_score: Score) -> bool:
    if rival is None or best is None:
        return score.value == best_score.value
    both = best.index.intersection(rival.index)
    compared = compare_paired(rival.loc[both], best.loc[both], unit=best_score.unit)
    return not compared.is_significant


def _outcomes(record: Record, name: ScoreName) -> Outcomes:
    try:
        return record.outcomes(name.stem)
    except RecordError:
        return {}  # a record without its table of images: only equal scores are tied
