"""Plot of the FairServe reproductions: bars of the systems."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fairserve.benchmarks.plots import (
    BLACK,
    GREY,
    caption,
    color,
    save,
    sheet,
    unit_prefixes,
)
from fairserve.benchmarks.reproduce.report import ReportColumn, ReportRow


def draw_bars(path: Path, rows: Sequence[ReportRow], columns: Sequence[ReportColumn]) -> list[str]:
    """Draw a panel per column, with a bar and a spread per row; return the files' names.

    A row without the figure (the precision of a throttle that rejected nobody) has no bar.
    """
    figure, panels = sheet(len(columns), width=3.6, height=3.4)
    names = [row.name for row in rows]
    for axes, column in zip(panels, columns, strict=True):
        greatest = 0.0
        for place, row in enumerate(rows):
            seen = row.measured.get(column.name)
            if seen is None:
                axes.text(0, place, " none", va="center", fontsize=7, color=GREY)
                continue
            axes.barh(place, seen.value, color=color(place))
            axes.plot([seen.least, seen.greatest], [place, place], color=BLACK, linewidth=1)
            axes.text(
                seen.greatest, place, f" {seen.value:,.{column.digits}f}", va="center", fontsize=7
            )
            greatest = max(greatest, seen.greatest)
        axes.set_xlim(0, 1.35 * greatest or 1.0)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        unit_prefixes(axes.xaxis)
        axes.set_yticks(range(len(names)), names if axes is panels[0] else [""] * len(names))
        axes.invert_yaxis()
        caption(axes, column.name)
    return [save(figure, path).name]
