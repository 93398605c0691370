"""Scores of several records side by side: cells, and tables of comparable records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial

import pandas as pd

from shiftbench.errors import RecordError, UsageError
from shiftbench.metrics.adversarial import AVERAGE
from shiftbench.records.compare import unequal
from shiftbench.records.result import USUAL_CONDITIONS, Result, paired
from shiftbench.registry import unknown_name
from shiftbench.scores import ACCURACY, ScoreName
from shiftbench.shifts import ATTACKS, PAPER_ATTACKS
from shiftbench.statistics import SIGNIFICANCE, Score, compare_paired, differ_for_any_pairing

# The columns of every table, in this order; those of other scores follow.
STANDARD = (
    ACCURACY,
    *(ScoreName("consistency", kind) for kind in ("integer", "half", "crop")),
    *(ScoreName("adversarial", attack) for attack in PAPER_ATTACKS),
)
HIDDEN = "change"  # family in records and comparisons that would double the columns of a table
DEFAULT_SORT = ScoreName("adversarial", "crop").column
# Columns that are not scores. Tables are sorted by them in ascending order.
FACTS: Mapping[str, Callable[[Result], str | int]] = {
    "model": lambda result: result.model.name,
    "data": lambda result: result.data.name,
    "images": lambda result: result.data.images,
    "param_count": lambda result: result.model.parameters,
    "img_size": lambda result: result.model.input_size,
    "forward_passes": lambda result: result.forward_passes,
    "date": lambda result: result.created[:10],
}


@dataclass(frozen=True)
class Cell:
    """One score of one record."""

    result: Result
    group: str  # label of the records that this record is ranked with
    name: ScoreName
    value: Score
    unlike: str = ""  # settings in which the score differs from most of its column; empty: none
    winners: Callable[[], Collection[Result]] = tuple  # the best of its column, see `best`

    @property
    def best(self) -> bool:
        """True if the score is the best of its column, or not significantly worse."""
        return self.result in self.winners()

    @property
    def comparable(self) -> bool:
        """True if the score was measured like most scores of its column."""
        return not self.unlike

    @property
    def extent(self) -> str:
        """Largest shift of the grid with its unit ("6 px"); empty without a curve."""
        if self.name.radius is None:
            return ""
        request = self.result.request_of(self.name)
        settings = {} if request is None else request.settings
        if settings.get("attack") not in ATTACKS:
            return f"{self.name.radius} step{'s' * (self.name.radius != 1)}"
        unit = ATTACKS.get(settings["attack"]).unit
        return f"{self.name.radius * Fraction(settings['step'])} {unit}"


@dataclass(frozen=True)
class Table:
    """Comparable records in order, each column at one max shift."""

    label: str  # data, and the conditions in which tables of the same data differ
    rows: tuple[Result, ...]
    columns: tuple[ScoreName, ...]  # with the radius that the table shows
    cells: Mapping[tuple[Result, ScoreName], Cell]
    curves: tuple[Cell, ...]  # every max shift, for pages and figures
    facts: tuple[str, ...] = ("images", "param_count", "img_size")  # columns before the scores
    restricted: bool = False  # some columns were chosen: files contain no others

    def get(self, row: Result, column: ScoreName) -> Cell | None:
        """Return a cell; None if the score was not measured."""
        return self.cells.get((row, column))

    def lower_is_better(self, column: ScoreName) -> bool:
        """Return True if lower values of a column are better."""
        return any(row.lower_is_better(column) for row in self.rows)

    def title(self, column: ScoreName) -> str:
        """Return the head of a column; an arrow marks columns in which lower is better."""
        return column.column.replace("_", " ") + " ↓" * self.lower_is_better(column)

    def only(self, names: Sequence[str]) -> Table:
        """Return the table with some of its columns, in the given order."""
        columns = {column.column: column for column in self.columns}
        for name in names:
            if name not in (*FACTS, *columns, *(standard.column for standard in STANDARD)):
                raise unknown_name("column", name, (*FACTS, *columns))
        return replace(
            self,
            columns=tuple(columns[name] for name in names if name in columns),
            facts=tuple(name for name in names if name in FACTS and name != "model"),
            restricted=True,
        )

    def extents(self) -> str:
        """List the largest shift of each attack: `crop 6 px, half 3 px`."""
        shown = {column: cell.extent for (_, column), cell in self.cells.items() if cell.extent}
        return ", ".join(dict.fromkeys(f"{c.kind} {shown[c]}" for c in self.columns if c in shown))

    def geometry(self) -> str:
        """Describe how images become views, by model where the records differ."""
        models: dict[str, list[str]] = {}
        for row in self.rows:
            models.setdefault(row.data.geometry_text, []).append(row.model.name)
        if len(models) < 2:
            return "".join(models)
        usual = max(models, key=lambda text: len(models[text]))
        others = [f"{', '.join(names)}: {text}" for text, names in models.items() if text != usual]
        return f"{usual}; {'; '.join(others)}"

    def notes(self, *, intervals: bool = True, best: str = "Bold", extents: bool = True) -> str:
        """Return the text under a table: geometry, unit, extents, and the meaning of its marks.

        Args:
            intervals: The table shows intervals.
            best: How the table marks the best scores; empty: not at all.
            extents: State the largest shift of each attack, which column heads do not show.
        """
        cells = [cell for (_, column), cell in self.cells.items() if column in self.columns]
        notes = [f"Images: {self.geometry()}"] if self.rows else []
        notes.append("Percent, with 95% intervals" if intervals else "Percent")
        if self.extents():
            far = self.extents() if extents else "the max shift"
            notes.append(f"Adversarial: correct at every offset up to {far}")
        if any(column.family == AVERAGE for column in self.columns):
            notes.append("Average: the mean accuracy over these offsets")
        if any(map(self.lower_is_better, self.columns)):
            notes.append("↓: lower is better")
        if best and any(cell.best for cell in cells):
            notes.append(
                f"{best}: best, or not significantly worse (paired tests, 5%, corrected for all "
                "pairs of models)"
            )
        unlike = dict.fromkeys((cell.name.column, cell.unlike) for cell in cells if cell.unlike)
        if unlike:
            reasons = "; ".join(f"{name.replace('_', ' ')}: {why}" for name, why in unlike)
            notes.append(f"†: not ranked, because conditions differ ({reasons})")
        return ". ".join(notes) + "."


def score_cells(results: Sequence[Result]) -> list[Cell]:
    """Collect every score of the results, and compare the settings of each column."""
    columns: dict[tuple[str, ScoreName], list[Cell]] = {}
    for result, group in zip(results, group_labels(results), strict=True):
        for name, value in result.scores.items():
            columns.setdefault((group, name), []).append(Cell(result, group, name, value))
    return [cell for column in columns.values() for cell in _marked(column)]


def _marked(cells: Sequence[Cell]) -> list[Cell]:
    """Mark the cells of a column that were measured otherwise than most of them."""
    name = cells[0].name
    settings = [cell.result.settings_of(name) for cell in cells]
    most = Counter(tuple(sorted(own.items())) for own in settings).most_common(1)[0][0]
    unlike = [unequal(own, dict(most)) for own in settings]
    alike = [cell.result for cell, reason in zip(cells, unlike, strict=True) if not reason]
    ranked = len(alike) > 1 and name.family != HIDDEN
    # Paired tests read the tables of the records, which formats without marks do not need.
    winners = cache(partial(best, alike, name)) if ranked else set
    return [
        replace(cell, unlike=reason, winners=winners)
        for cell, reason in zip(cells, unlike, strict=True)
    ]


def best(results: Sequence[Result], name: ScoreName) -> set[Result]:
    """Return the best result of a column, and those that are not significantly worse.

    The leader is chosen by the same data, so p-values are corrected for all k (k - 1) / 2 pairs:
    with the k - 1 tests against the leader alone, one of 18 equally good models misses the mark in
    17% of cases.

    Args:
        results: Results of the same images under the same settings.
        name: A score of all of them.

    Returns:
        The results; none if the plug-in of the metric is not loaded.
    """
    if any((r := result.request_of(name)) is None or r.loaded is None for result in results):
        return set()
    pick = min if results[0].lower_is_better(name) else max
    leader = pick(results, key=lambda result: result.scores[name].value)
    tests = len(results) * (len(results) - 1) / 2
    winners = {leader}
    for other in results:
        pair = leader.scores[name], other.scores[name]
        if other is leader or differ_for_any_pairing(*pair, tests):
            continue
        if _p_value(leader, other, name) * tests >= SIGNIFICANCE:
            winners.add(other)
    return winners


def _p_value(first: Result, second: Result, name: ScoreName) -> float:
    """Return the p-value of a paired test; without tables, only equal scores are equally good."""
    try:
        return compare_paired(*paired(first, second, name)).p_value
    except RecordError:
        return float(first.scores[name].value == second.scores[name].value)


def group_labels(results: Sequence[Result]) -> list[str]:
    """Label each result by its images and conditions; results are ranked if the labels are equal.

    Data sets are identified by their images: the name and split of the first result are shown. A
    condition is named where it is not the usual one, or differs between results of the same data.
    """
    keys = [_condition_key(result) for result in results]
    first: dict[tuple[str, ...], Result] = {}
    for key, result in zip(keys, results, strict=True):
        first.setdefault(key, result)
    labels: dict[tuple[str, ...], str] = {}
    for key, result in first.items():
        own = result.conditions
        rivals = [other for other in first.values() if other.data.name == result.data.name]
        words = [str(result.data)]
        for name, usual in USUAL_CONDITIONS.items():
            if {rival.conditions[name] for rival in rivals} != {usual}:
                words.append(f"{name} {own[name]}")
        alike = [rival for rival in rivals if str(rival.data) == str(result.data)]
        if len({rival.conditions["images"] for rival in alike}) > 1:
            words.append(f"images {own['images']}")
        labels[key] = ", ".join(words)
    return [labels[key] for key in keys]


def _condition_key(result: Result) -> tuple[str, ...]:
    return tuple(
        value for name, value in result.conditions.items() if name not in ("data", "split")
    )


def leaderboard(
    cells: Sequence[Cell],
    *,
    sort: str = DEFAULT_SORT,
    reverse: bool = False,
    max_shift: int | None = None,
) -> list[Table]:
    """Build one table per group of comparable records.

    Args:
        cells: Scores of all records.
        sort: A column. The best scores come first, then scores that are not comparable, then
            records without the score. Names, sizes and dates ascend.
        reverse: Reverse the order.
        max_shift: Radius of the curves (steps). By default the largest that all records of a table
            with the curve have.

    Raises:
        UsageError: There is no such column, or no record with that max shift.
    """
    known = dict.fromkeys((*FACTS, *(name.column for name in STANDARD)))
    known |= dict.fromkeys(cell.name.column for cell in cells if cell.name.family != HIDDEN)
    if sort not in known:
        raise unknown_name("column to sort by", sort, known)
    radii = {cell.name.radius for cell in cells if cell.name.radius is not None}
    if max_shift is not None and radii and max_shift not in radii:
        steps = f"{max(radii)} step{'s' * (max(radii) != 1)}"
        raise UsageError(f"expected a max shift of 0 to {steps}, got {max_shift}")
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.group, []).append(cell)
    ordered = sorted(groups.values(), key=lambda group: str(group[0].result.data))
    return [_table(group, sort, reverse=reverse, max_shift=max_shift) for group in ordered]


def _table(cells: Sequence[Cell], sort: str, *, reverse: bool, max_shift: int | None) -> Table:
    shown = [cell for cell in cells if cell.name.family != HIDDEN]
    radii: dict[ScoreName, dict[Result, set[int]]] = {}
    for cell in shown:
        own = radii.setdefault(cell.name.curve, {}).setdefault(cell.result, set())
        if cell.name.radius is not None:
            own.add(cell.name.radius)
    columns = []
    for curve in (*STANDARD, *sorted(radii.keys() - {*STANDARD}, key=further_order)):
        if not (of_rows := list(radii.get(curve, {}).values())):
            continue
        common = set.intersection(*of_rows)
        if max_shift is not None and any(of_rows):
            columns.append(curve.at(max_shift))
        else:
            columns.append(curve.at(max(common, default=None)))
    wanted = {(cell.result, cell.name): cell for cell in shown if cell.name in columns}
    columns = [column for column in columns if any(name == column for _, name in wanted)]
    rows = sorted(dict.fromkeys(cell.result for cell in cells), key=lambda r: r.model.name)
    if sort in FACTS:
        rows.sort(key=FACTS[sort], reverse=reverse)
    else:
        by = next((column for column in columns if column.column == sort), None)
        rows.sort(key=lambda row: _order(by and wanted.get((row, by)), reverse=reverse))
    return Table(cells[0].group, tuple(rows), tuple(columns), wanted, tuple(shown))


def further_order(name: ScoreName) -> tuple[bool, ScoreName]:
    """Return the key of a column after the standard ones: their families come first."""
    return name.family not in {standard.family for standard in STANDARD}, name


def _order(cell: Cell | None, *, reverse: bool) -> tuple[int, float]:
    """Return the key of a row: ranked cells by score, then others, then empty ones."""
    if cell is None:
        return 2, 0.0
    ascending = cell.result.lower_is_better(cell.name) != reverse
    return int(not cell.comparable), cell.value.value * (1 if ascending else -1)


def count(number: int) -> str:
    """Format a number of parameters.

    >>> count(3053224), count(120)
    ('3.05M', '120')
    """
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)


def fact_text(result: Result, name: str) -> str:
    """Format a column that is not a score."""
    value = FACTS[name](result)
    if isinstance(value, str):
        return value
    if name == "param_count":
        return count(value) if value else ""  # unknown
    return f"{value:,}"


def to_frame(cells: Sequence[Cell]) -> pd.DataFrame:
    """Return a row per record, score and max shift, in fractions."""
    rows = [
        {"model": cell.result.model.name, "data": cell.result.data.name, "group": cell.group}
        | {"score": cell.name.column, "max_shift": cell.name.radius, "extent": cell.extent}
        | {"value": cell.value.value, "low": cell.value.low, "high": cell.value.high}
        | {"n": cell.value.n, "comparable": cell.comparable, "best": cell.best}
        | {name: FACTS[name](cell.result) for name in ("param_count", "img_size", "date")}
        for cell in cells
    ]
    return pd.DataFrame(rows).astype({"max_shift": "Int64"})
