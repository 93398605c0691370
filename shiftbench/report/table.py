"""Records as tables: one per group of comparable records, sorted, with the best of each column.

A table is a pure function of the records. `shiftbench.report.formats` writes it as text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from shiftbench.errors import UsageError
from shiftbench.metrics import METRICS
from shiftbench.records.comparable import RecordGroup, group_records
from shiftbench.records.record import Record
from shiftbench.registry import unknown_name
from shiftbench.report.axis import ShiftAxis
from shiftbench.report.ranking import Measured, lower_is_better, rank
from shiftbench.scores import ACCURACY, UNRANKED_UNITS, ScoreName
from shiftbench.shifts import DEFAULT_RADIUS, PAPER_ATTACKS
from shiftbench.statistics import FRACTION

# The first scores of every table, whether or not a record has them: the paper's.
STANDARD = (
    ACCURACY,
    *(ScoreName("consistency", kind) for kind in METRICS.get("consistency").entries()),
    *(ScoreName("adversarial", attack) for attack in PAPER_ATTACKS),
)
DEFAULT_SORT = ScoreName("adversarial", "crop").column
HIDDEN_FAMILIES = ("change",)  # in the record, the detail and the comparison; too many for a table

Plain = str | int | float | None
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
        return ShiftAxis.of(self.score).reach(self.score.radius)

    @property
    def family(self) -> str:
        """What neighboring columns have in common: `adversarial`."""
        return self.score.family if self.score is not None and self.score.kind else ""

    @property
    def ascending(self) -> bool:
        """Whether it reads best from the smallest up, as names and costs do."""
        return self.lower_is_better or self.name in _ASCENDING

    @property
    def title(self) -> str:
        """Its name for people; an arrow where lower is better."""
        words = TITLES.get(self.name, self.name.replace("_", " "))
        return f"{words} ↓" if self.lower_is_better else words

    @property
    def short_title(self) -> str:
        """Its name below that of its family."""
        return self.title.removeprefix(self.family).strip()

    def at(self, radius: int) -> Column:
        """The same column at another max shift, where it has one."""
        if self.score is None or self.score.radius is None:
            return self
        return replace(self, score=replace(self.score, radius=radius))


TITLES = {"param_count": "params", "img_size": "px"}
_FACTS: Mapping[str, Callable[[Record], Plain]] = {
    "model": lambda r: r.model.name,
    "data": lambda r: r.data.name,
    "images": lambda r: r.data.images,
    "param_count": lambda r: r.model.parameters,
    "img_size": lambda r: r.model.input_size,
    "seconds": lambda r: float(r.seconds),
    "forward_passes": lambda r: r.forward_passes,
    "date": lambda r: r.created[:10],
    "mode": lambda r: _mode(r),
    "conditions": lambda r: ", ".join(f"{k} {v}" for k, v in r.conditions.items()),
}
# Scores, image counts and dates read best from the largest down.
_ASCENDING = {"model", "data", "param_count", "img_size", "seconds", "forward_passes"}


def _mode(record: Record) -> str:
    modes = {str(i.settings["mode"]) for i in record.metrics.values() if "mode" in i.settings}
    return ", ".join(sorted(modes))


@dataclass(frozen=True)
class TableRow:
    """One record of a table."""

    record: Record
    points: Mapping[ScoreName, Measured]  # every score of the table's columns, at every max shift

    def cell(self, column: Column) -> Cell:
        """What a column shows of the record; None: nothing was measured."""
        if column.score is not None:
            return self.points.get(column.score)
        return _FACTS[column.name](self.record)


@dataclass(frozen=True)
class Table:
    """Comparable records in order."""

    label: str  # the data, and the conditions where they are not the usual ones
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    sort: str = "model"  # the column that the rows are ordered by
    descending: bool = False
    remark: str = ""  # a further sentence below it

    def only(self, names: Sequence[str]) -> Table:
        """The table with the models and some other columns, in this order."""
        by_name = {column.name: column for column in self.columns}
        for name in names:
            if name not in by_name:
                raise unknown_name("column", name, by_name)
        chosen = dict.fromkeys(["model", *names])
        return replace(self, columns=tuple(by_name[name] for name in chosen))

    def at(self, radius: int) -> Table:
        """The same rows with every curve at one max shift."""
        return replace(self, columns=tuple(column.at(radius) for column in self.columns))

    def measured(self, column: Column) -> list[Measured]:
        """The scores of a column, without empty cells."""
        return [cell for row in self.rows if isinstance(cell := row.cell(column), Measured)]

    def measured_columns(self) -> list[Column]:
        """The columns that hold scores, without those that are empty in every row."""
        return [column for column in self.columns if self.measured(column)]

    def notes(self, *, intervals: bool = True, best: str = "Bold") -> str:
        """The sentences under a table: units, what is measured, what the marks mean.

        Args:
            intervals: Whether the table shows them.
            best: How the table marks the best scores; empty where it does not.
        """
        columns = self.measured_columns()
        cells = {column.title: self.measured(column) for column in columns}
        units = {title: column[0].score.unit for title, column in cells.items()}
        sentences = ["Percent, with 95% intervals" if intervals else "Percent"]
        for title, unit in units.items():
            if unit not in ("", FRACTION):
                sentences[0] += f"; {title} in {unit}"
        scaled = [title for title, unit in units.items() if unit in UNRANKED_UNITS]
        if scaled:
            sentences.append(f"{', '.join(scaled)}: not ranked, a network may scale its logits")
        reaches = [f"{c.score.kind} {c.reach}" for c in columns if c.score and c.reach]
        if reaches:
            sentences.append(
                "Adversarial: images classified correctly at every single shift, up to "
                + ", ".join(reaches)
            )
        every = [cell for column in cells.values() for cell in column]
        if any(column.lower_is_better for column in columns):
            sentences.append("↓: lower is better")
        if best and any(cell.best for cell in every):
            sentences.append(
                f"{best}: best, or not significantly different from it (paired test, 5%)"
            )
        if any(cell.bound for cell in every):
            sentences.append("≤: upper bound, from a search that sampled its grid; not ranked")
        if any(not cell.ranked and not cell.bound for cell in every):
            sentences.append("†: not measured like the others of its column; not ranked")
        remarks = [self.remark] if self.remark else []
        return ". ".join([*sentences, *self._empty_cells(), *remarks]) + "."

    def _empty_cells(self) -> list[str]:
        """Which columns have models that were not searched as far, and what shows them."""
        sentences = []
        for column in self.measured_columns():
            if column.score is None or column.score.radius is None:
                continue
            curves = [row.record.scores.curve(column.score) for row in self.rows]
            searched = [curve for curve in curves if curve]
            short = [curve for curve in searched if column.score.radius not in curve]
            if short:
                common = min(max(curve) for curve in searched)
                sentences.append(
                    f"{column.title}: {len(short)} of {len(searched)} models were not searched up "
                    f"to {column.reach}; --max-shift {common} shows all"
                )
        return sentences


def columns_of(records: Sequence[Record]) -> tuple[Column, ...]:
    """Every column of tables of these records; those of further metrics, and conditions, are last.

    Curves have no radius yet: each table has its own.
    """
    stems = [stem for record in records for stem in record.scores.stems()]
    shown = [stem for stem in stems if stem.family not in HIDDEN_FAMILIES]
    further = dict.fromkeys(sorted((s for s in shown if s not in STANDARD), key=_further_order))
    sampled = any(r.is_upper_bound(name) for r in records for name in r.scores.curves())
    mixed = len(group_records(records)) > len({record.data.name for record in records})
    columns: list[Column] = []
    for name in (
        *("model", "data", "images", "param_count", "img_size"),
        *STANDARD,
        *("seconds", "forward_passes", "date"),
        *further,
        *(("mode",) if sampled else ()),
        *(("conditions",) if mixed else ()),
    ):
        if isinstance(name, str):
            columns.append(Column(name))
        else:
            columns.append(Column(name.column, name, lower_is_better(records, name)))
    return tuple(columns)


def _further_order(stem: ScoreName) -> tuple[bool, ScoreName]:
    return stem.family not in {name.family for name in STANDARD}, stem


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
        max_shift: The max shift, in steps, of the adversarial columns. By default the protocol's
            own where some record of a table has it, else the largest of the table.
    """
    columns = columns_of(records)
    names = [column.name for column in columns]
    if sort not in names:
        raise unknown_name("column to sort by", sort, names)
    radii = {name.radius for r in records for name in r.scores if name.radius is not None}
    if max_shift is not None and radii and max_shift not in radii:
        raise UsageError(f"these records reach a max shift of {max(radii)}, got {max_shift}")
    return [
        _table(group, columns, sort, reverse=reverse, max_shift=max_shift)
        for group in group_records(records)
    ]


def _table(
    group: RecordGroup,
    columns: Sequence[Column],
    sort: str,
    *,
    reverse: bool,
    max_shift: int | None,
) -> Table:
    stems = {column.score for column in columns if column.score}
    names = {name for record in group.records for name in record.scores if name.curve in stems}
    points = rank(group.records, list(names))
    rows = [TableRow(record, mine) for record, mine in zip(group.records, points, strict=True)]
    rows.sort(key=lambda row: (row.record.model.name, row.record.data.name))
    resolved = tuple(_with_radius(column, group.records, max_shift) for column in columns)
    by = next(column for column in resolved if column.name == sort)
    descending = by.ascending == reverse

    def key(row: TableRow) -> str | int | float:
        cell = row.cell(by)
        assert cell is not None
        return cell.score.value if isinstance(cell, Measured) else cell

    ranked, unranked, empty = ([row for row in rows if _part(row.cell(by)) == i] for i in range(3))
    for part in (ranked, unranked):
        part.sort(key=key, reverse=descending)
    return Table(group.label, resolved, (*ranked, *unranked, *empty), sort, descending)


def _part(cell: Cell) -> int:
    """Which part of a sorted table a row belongs to: ranked, unranked or empty."""
    if cell is None:
        return 2
    return int(isinstance(cell, Measured) and not cell.ranked)


def _with_radius(column: Column, records: Sequence[Record], max_shift: int | None) -> Column:
    """A curve's column at one radius: no two scores of different grids stand side by side."""
    if column.score is None:
        return column
    radii = {radius for record in records for radius in record.scores.curve(column.score)}
    if not radii:
        return column
    largest = DEFAULT_RADIUS if DEFAULT_RADIUS in radii else max(radii)
    radius = largest if max_shift is None else max_shift
    return replace(column, score=replace(column.score, radius=radius))
