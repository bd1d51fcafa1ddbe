"""Plots of the FairServe reproductions: bars of systems, and bars of systems in each app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.ticker import EngFormatter, MaxNLocator

from fairserve.benchmarks.reproduce.report import Column, Row
from fairserve.benchmarks.simulate.plots import COLORS, save, sheet


def draw_bars(path: Path, rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    """A panel a column, a bar a row with its spread; returns the names of the files.

    A row without the figure (the precision of a throttle that refused nobody) has no bar.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, panels = sheet(len(columns), width=3.6, height=3.4)
    names = [row.name for row in rows]
    colors = [COLORS[number % len(COLORS)] for number in range(len(rows))]
    for axes, column in zip(panels, columns, strict=True):
        greatest = 0.0
        for place, (row, color) in enumerate(zip(rows, colors, strict=True)):
            seen = row.measured.get(column.name)
            if seen is None:
                axes.text(0, place, " none", va="center", fontsize=7, color="#6b6b6b")
                continue
            axes.barh(place, seen.value, color=color)
            axes.plot([seen.least, seen.greatest], [place, place], color="black", linewidth=1)
            axes.text(
                seen.greatest, place, f" {seen.value:,.{column.digits}f}", va="center", fontsize=7
            )
            greatest = max(greatest, seen.greatest)
        axes.set_axisbelow(True)
        axes.set_xlim(0, 1.35 * greatest or 1.0)
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_yticks(range(len(names)), names if axes is panels[0] else [""] * len(names))
        axes.invert_yaxis()
        axes.set_title(column.name, fontsize=9)
        axes.tick_params(labelsize=8)
    save(figure, path)
    return [path.name]


def draw_apps(
    path: Path,
    apps: Sequence[str],
    systems: Sequence[str],
    rows: Mapping[str, Row],
    columns: Sequence[Column],
) -> list[str]:
    """A panel a column: in each app a bar a system; rows are named ``<app>, <system>``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, panels = sheet(len(columns), width=7.0, height=3.8)
    width = 0.8 / len(systems)
    for axes, column in zip(panels, columns, strict=True):
        for number, (system, color) in enumerate(zip(systems, COLORS, strict=False)):
            seen = [rows[f"{app}, {system}"].measured.get(column.name) for app in apps]
            places = [place + (number + 0.5) * width - 0.4 for place in range(len(apps))]
            heights = [0.0 if each is None else each.value for each in seen]
            axes.bar(places, heights, width, label=system, color=color)
        axes.set_xticks(range(len(apps)), apps, rotation=30, ha="right", fontsize=8)
        axes.set_axisbelow(True)
        axes.set_title(f"well-behaved users: {column.name}", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=len(systems))
    save(figure, path)
    return [path.name]
