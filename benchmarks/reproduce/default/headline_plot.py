"""Plot of ``headline``: a panel for each cell, throughput across, the least satisfied upwards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fairserve.benchmarks.plots import COLORS, caption, save, sheet
from fairserve.benchmarks.reproduce.default.costs import OURS
from fairserve.benchmarks.reproduce.report import Row

_ACROSS = 4


def draw_headline(path: Path, rows: Mapping[tuple[str, str], Row]) -> Path:
    """Draw the panels; the best place is the upper right corner."""
    cells = list(dict.fromkeys(cell for cell, _ in rows))
    figure, panels = sheet(len(cells), width=3.6, height=3.2, across=min(_ACROSS, len(cells)))
    for axes, cell in zip(panels, cells, strict=True):
        for (at, name), row in rows.items():
            if at != cell:
                continue
            x, y = row.measured["tok/s in time"].value, row.measured["least satisfied"].value
            color = COLORS[1] if name == OURS else COLORS[0]
            axes.plot(x, y, "o", color=color, markersize=6)
            axes.annotate(name, (x, y), textcoords="offset points", xytext=(5, 4), fontsize=8)
        axes.set_ylim(-0.05, 1.1)
        axes.margins(x=0.25)
        caption(axes, cell, "tokens/s of runs in time", "least satisfied")
    return save(figure, path)
