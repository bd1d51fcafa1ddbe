"""Plot of ``headline``: a panel for each cell, throughput across, the least satisfied upwards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairserve.benchmarks.plots import COLORS, caption, legend_below, save, sheet
from fairserve.benchmarks.reproduce.default.costs import OURS
from fairserve.benchmarks.reproduce.report import ReportRow

_ACROSS = 4
_MARKERS = "osDv^<>p"


def draw_headline(path: Path, rows: Mapping[tuple[str, str], ReportRow]) -> Path:
    """Draw the panels; the best place is the upper right corner."""
    cells = list(dict.fromkeys(cell for cell, _ in rows))
    others = [name for name in dict.fromkeys(name for _, name in rows) if name != OURS]
    figure, panels = sheet(len(cells), width=2.6, height=2.6, across=min(_ACROSS, len(cells)))
    for axes, cell in zip(panels, cells, strict=True):
        work = {
            name: row.measured["tok/s in time"].value
            for (at, name), row in rows.items()
            if at == cell
        }
        most = max(work.values()) or 1.0
        for number, name in enumerate(others):
            least = rows[cell, name].measured["least satisfied"].value
            axes.plot(
                work[name] / most,
                least,
                _MARKERS[number % len(_MARKERS)],
                color=COLORS[0] if number == 0 else COLORS[(number + 1) % len(COLORS)],
                markersize=6,
                alpha=0.8,
                label=name,
            )
        least = rows[cell, OURS].measured["least satisfied"].value
        axes.plot(work[OURS] / most, least, "*", color=COLORS[1], markersize=14, label=OURS)
        axes.set_xlim(-0.06, 1.08)
        axes.set_ylim(-0.06, 1.08)
        caption(axes, cell)
    for number, axes in enumerate(panels):
        if number % _ACROSS == 0:
            axes.set_ylabel("least satisfied client", fontsize=8)
        if number >= len(panels) - _ACROSS:
            axes.set_xlabel("work done in time, of the best", fontsize=8)
    legend_below(figure, panels, columns=len(others) + 1)
    return save(figure, path)
