"""Statements about the rows of a report, as data: one vocabulary for all papers and studies.

A :class:`Statement` names a kind of comparison, its rows and columns, and its bounds. Unless its
kind says otherwise it must hold under every seed. A statement about a row that the report does not
have is left out; one about a figure that a row lacks (the precision of a throttle that rejected
nobody) does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import combinations
from statistics import geometric_mean

from fairserve.benchmarks.reproduce.report import Check, ReportRow, ReportSpread, ratio

Rows = Mapping[str, ReportRow]
Verdict = tuple[bool, str]
"""The pair of whether a statement holds and what was observed."""
IN_ORDER = 0.7
"""Share of pairs in order that makes a series rising; neighbours may swap between seeds."""
_TIE = 0.95
"""Published values nearer than this to each other may be in any order if the spreads overlap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A claim about a column of one row, of two rows, or of several."""

    kind: str
    claim: str
    """Sentence, in which {row} and {than} are the names of the rows."""
    column: str = ""
    row: str = ""
    best_of: Sequence[str] = ()
    """Patterns of names: the row is the one of these with the greatest median."""
    than: str = ""
    """Name of the row that it is compared with."""
    rows: Sequence[str] = ("*",)
    """Patterns of the names of several rows."""
    but: Sequence[str] = ()
    """Patterns of names that are not meant."""
    by: Sequence[str] = ()
    """Patterns of the names of the rows that may beat them."""
    higher: Sequence[str] = ()
    """Columns of which more is better."""
    lower: Sequence[str] = ()
    """Columns of which less is better."""
    bounds: Sequence[float] = ()
    digits: int | None = None
    """Digits of the shown values; None: the kind's own."""
    times: str = ""
    """Name of a row by whose median of the column the bounds are multiplied."""
    times_greatest: str = ""
    """The same by its maximum over the seeds."""
    plus: str = ""
    """Name of a row whose median of the column is added to the bounds."""
    contradicted_by: str = ""
    """Figures of the paper that rule out its claim."""

    def check(self, rows: Rows) -> Check | None:
        """Return whether it holds in these rows; None if one that it names is missing."""
        the = self
        if self.best_of:
            own = self.matching(rows, self.best_of)
            best = max(own, key=lambda row: row.measured[self.column].value)
            the = replace(self, row=best.name)
        named = (the.row, the.than, the.times, the.times_greatest, the.plus)
        names = [each for each in named if each]
        claim = the.claim.format(row=the.row, than=the.than)
        if the.kind in _OF_CELLS:
            missing = not any(the.pairs(rows))
        else:
            missing = any(each not in rows for each in names) or (
                the.kind in _OF_SEVERAL and not the.row and not the.matching(rows, the.rows)
            )
        if missing:
            return None
        if the.kind not in _OF_CELLS and not all(self.judges(rows[each]) for each in names):
            return Check(claim, False, "none", the.contradicted_by)
        return Check(claim, *KINDS[the.kind](the, rows), the.contradicted_by)

    def judges(self, row: ReportRow) -> bool:
        """Return whether a row has all figures that are compared."""
        return {self.column, *self.lower, *self.higher} - {""} <= row.measured.keys()

    def matching(self, rows: Rows, patterns: Sequence[str]) -> list[ReportRow]:
        """Return the rows with these names that have the figures."""
        return [
            row
            for name, row in rows.items()
            if any(fnmatchcase(name, each) for each in patterns)
            and not any(fnmatchcase(name, each) for each in self.but)
            and self.judges(row)
        ]

    def limits(self, rows: Rows) -> list[float]:
        """Return the bounds in the unit of the column."""
        times = 1.0
        if self.times:
            times = rows[self.times].measured[self.column].value
        if self.times_greatest:
            times = rows[self.times_greatest].measured[self.column].greatest
        plus = rows[self.plus].measured[self.column].value if self.plus else 0.0
        return [times * bound + plus for bound in self.bounds]

    def shown(self, value: float, digits: int = 0) -> str:
        """Return a value as text."""
        return f"{value:,.{digits if self.digits is None else self.digits}f}"

    def pair(self, rows: Rows) -> tuple[ReportSpread, ReportSpread]:
        """Return the figures of the row and of the one that it is compared with."""
        return rows[self.row].measured[self.column], rows[self.than].measured[self.column]

    def pairs(self, rows: Rows) -> Iterator[tuple[str, ReportRow, ReportRow]]:
        """Yield each cell that has both systems; a row's name is its cell and its system."""
        for name, row in rows.items():
            cell, _, system = name.rpartition(" ")
            other = rows.get(f"{cell} {self.than}")
            if system == self.row and other is not None:
                yield cell, row, other


def _at_most(the: Statement, rows: Rows) -> Verdict:
    seen, [bound] = rows[the.row].measured[the.column].greatest, the.limits(rows)
    return seen <= bound, f"{the.shown(seen)}, allowed at most {the.shown(bound)}"


def _median_at_most(the: Statement, rows: Rows) -> Verdict:
    seen, [bound] = rows[the.row].measured[the.column].value, the.limits(rows)
    return seen <= bound, f"{the.shown(seen, 1)}, allowed at most {the.shown(bound)}, median"


def _at_least(the: Statement, rows: Rows) -> Verdict:
    seen, [bound] = rows[the.row].measured[the.column].least, the.limits(rows)
    return seen >= bound, f"{the.shown(seen)}, at least {the.shown(bound)}"


def _between(the: Statement, rows: Rows) -> Verdict:
    seen, [low, high] = rows[the.row].measured[the.column], the.limits(rows)
    text = f"{the.shown(seen.least, 2)} to {the.shown(seen.greatest, 2)}, allowed "
    text += f"{the.shown(low, 2)} to {the.shown(high, 2)}"
    return low <= seen.least and seen.greatest <= high, text


def _less(the: Statement, rows: Rows) -> Verdict:
    """Compare the maximum with the other's minimum, or with a share of it."""
    row, other = the.pair(rows)
    [share] = the.bounds or [1.0]
    of = "" if share == 1.0 else f"{share:g} of "
    text = f"{the.shown(row.greatest)} against {of}{the.shown(other.least)} under {the.than}"
    return row.greatest < share * other.least, text


def _less_by_median(the: Statement, rows: Rows) -> Verdict:
    row, other = the.pair(rows)
    text = f"{the.shown(row.value)} against {the.shown(other.value)} under {the.than}, medians"
    return row.value < other.value, text


def _more_by_seed(the: Statement, rows: Rows) -> Verdict:
    """Compare with the other times the bound, seed by seed."""
    row, other = the.pair(rows)
    return _by_seed(the, (the.than, other), (rows[the.row].name, row))


def _less_by_seed(the: Statement, rows: Rows) -> Verdict:
    row, other = the.pair(rows)
    return _by_seed(the, (rows[the.row].name, row), (the.than, other))


def _by_seed(
    the: Statement, low: tuple[str, ReportSpread], high: tuple[str, ReportSpread]
) -> Verdict:
    [times] = the.bounds or [1.0]
    (name, less), (greater, more) = low, high
    held = [times * a < b for a, b in zip(less.seeds, more.seeds, strict=True)]
    text = f"{name} {the.shown(less.value)}, {greater} {the.shown(more.value)}"
    if less.value > 0:
        text += f", {more.value / less.value:,.2f} times as much"
    if 0 < sum(held) < len(held):
        text += f" (in {sum(held)} of {len(held)} seeds)"
    return all(held), text


def _ratio_between(the: Statement, rows: Rows) -> Verdict:
    row, other = the.pair(rows)
    [low, high] = the.bounds
    seen = ratio(row.value, other.value)
    return low <= seen <= high, f"{seen:.{the.digits or 2}f} of it"


def _within(the: Statement, rows: Rows) -> Verdict:
    """Compare the median with a share of the published value."""
    row, [share] = rows[the.row], the.bounds
    published, seen = row.published[the.column], row.measured[the.column].value
    off = seen / published - 1
    return abs(off) <= share, f"{seen:,.1f}, published {published:,.1f}: {off:+.1%}"


def _not_beaten(the: Statement, rows: Rows) -> Verdict:
    """Find rows that are better in all columns at once, by more than the spread and the bound."""
    names = [the.row] if the.row else [each.name for each in the.matching(rows, the.rows)]
    beaten = [
        f"{name} by {other.name}"
        for name in names
        for other in the.matching(rows, the.by or ("*",))
        if other.name != name and _beats(the, other, rows[name])
    ]
    return not beaten, "; ".join(beaten) or "none is"


def _nowhere_beats(the: Statement, rows: Rows) -> Verdict:
    cells = [cell for cell, row, other in the.pairs(rows) if _beats(the, row, other)]
    return not cells, "; ".join(cells) or "in no cell"


def _beats(the: Statement, row: ReportRow, other: ReportRow) -> bool:
    margin = 1.0 + (the.bounds[0] if the.bounds else 0.0)
    return all(
        row.measured[column].least > margin * other.measured[column].greatest
        for column in the.higher
    ) and all(
        margin * row.measured[column].greatest < other.measured[column].least
        for column in the.lower
    )


def _published_order(the: Statement, rows: Rows) -> Verdict:
    known = [row for row in the.matching(rows, the.rows) if the.column in row.published]
    ordered = sorted(known, key=lambda row: row.published[the.column])
    wrong = []
    for low, high in combinations(ordered, 2):
        less, more = low.measured[the.column], high.measured[the.column]
        near = low.published[the.column] >= _TIE * high.published[the.column]
        if less.value > more.value and not (near and less.least <= more.greatest):
            wrong.append(f"{low.name} {less.value:,.1f} over {high.name} {more.value:,.1f}")
    return not wrong, "; ".join(wrong) or " < ".join(row.name for row in ordered)


def _rises(the: Statement, rows: Rows) -> Verdict:
    """Compare first and last median, and all pairs of medians, in the order of the rows."""
    values = [row.measured[the.column].value for row in the.matching(rows, the.rows)]
    signed = [-value for value in values] if the.kind == "falls" else values
    pairs = [later > earlier for earlier, later in combinations(signed, 2)]
    share = sum(pairs) / len(pairs) if pairs else 1.0
    digits = 3 if max(values) <= 1.0 else 0
    text = f"{values[0]:,.{digits}f} to {values[-1]:,.{digits}f}, {share:.0%} of pairs in order"
    return signed[-1] > signed[0] and share >= IN_ORDER, text


def _all_between(the: Statement, rows: Rows) -> Verdict:
    least, greatest, text = _extremes(the, rows)
    [low, high] = the.bounds
    return low <= least and greatest <= high, text


def _any_beyond(the: Statement, rows: Rows) -> Verdict:
    least, greatest, text = _extremes(the, rows)
    [low, high] = the.bounds
    return least <= low or high <= greatest, text


def _extremes(the: Statement, rows: Rows) -> tuple[float, float, str]:
    """Return the extreme values of some rows under any seed, and those within reach as text."""
    chosen = the.matching(rows, the.rows)
    least, low = min((row.measured[the.column].least, row.name) for row in chosen)
    greatest, high = max((row.measured[the.column].greatest, row.name) for row in chosen)
    ends = [(least, low, the.bounds[0]), (greatest, high, the.bounds[1])]
    return (
        least,
        greatest,
        "; ".join(
            f"{the.shown(value, 2)}: {name}" for value, name, bound in ends if math.isfinite(bound)
        ),
    )


def _medians_above(the: Statement, rows: Rows) -> Verdict:
    values = [row.measured[the.column].value for row in the.matching(rows, the.rows)]
    text = f"{min(values):.2f} to {max(values):.2f}, geometric mean {geometric_mean(values):.2f}"
    return min(values) > the.bounds[0], text


def _ratios(the: Statement, rows: Rows) -> Verdict:
    """Compare the greatest, the least or the mean ratio of medians over all cells."""
    ratios = {
        cell: ratio(row.measured[the.column].value, other.measured[the.column].value)
        for cell, row, other in the.pairs(rows)
    }
    choose = min if the.kind == "least ratio" else max
    cell = choose(ratios, key=ratios.__getitem__)
    text, [bound] = f"{ratios[cell]:.2f} times in {cell}", the.bounds
    if the.kind == "mean ratio":
        mean = geometric_mean(ratios.values())
        return mean > bound, f"{mean:.2f} times; {text}"
    return ratios[cell] >= bound, text


_OF_ROWS: Mapping[str, Callable[[Statement, Rows], Verdict]] = {
    "at most": _at_most,
    "by median at most": _median_at_most,
    "at least": _at_least,
    "between": _between,
    "less": _less,
    "less by median": _less_by_median,
    "less by seed": _less_by_seed,
    "more by seed": _more_by_seed,
    "ratio between": _ratio_between,
    "within": _within,
}
_OF_CELLS: Mapping[str, Callable[[Statement, Rows], Verdict]] = {
    "nowhere beats": _nowhere_beats,
    "greatest ratio": _ratios,
    "least ratio": _ratios,
    "mean ratio": _ratios,
}
_OF_SEVERAL: Mapping[str, Callable[[Statement, Rows], Verdict]] = {
    "not beaten": _not_beaten,
    "published order": _published_order,
    "rises": _rises,
    "falls": _rises,
    "all between": _all_between,
    "any beyond": _any_beyond,
    "medians above": _medians_above,
}
KINDS = {**_OF_ROWS, **_OF_CELLS, **_OF_SEVERAL}
"""Comparisons by name: of a row, alone or with another; of two systems in all cells; of several rows."""
