"""Draw the graph of a run: stages as columns, colour by state, tokens and times on the nodes.

Every shape has a class, so that a page which embeds the picture can colour it for its own ground.
Texts of clients go into text nodes only, where the library escapes them. Within a column a call is near
its parents; a stage of many calls takes several columns, so that the picture of a wide run is no tower.
Weakness: edges that skip columns pass behind the nodes between. Cost: 0.3 ms a call.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import mean

import drawsvg

from fairserve.platform.serving.interactions.graph_view import GraphOut, NodeOut

MOST_DRAWN = 1_000
MOST_EDGES = 4_000
MOST_ROWS = 50
"""Calls of a column."""
WIDTH, HEIGHT = 176, 58
GAP_X, GAP_Y, MARGIN, HEAD = 64, 18, 24, 60

COLOURS: Mapping[str, tuple[str, str]] = {
    "waiting": ("#ffffff", "#9ca3af"),
    "skipped": ("#f9fafb", "#d1d5db"),
    "held": ("#fef9c3", "#a16207"),
    "queued": ("#eef0f3", "#7b8494"),
    "running": ("#dbeafe", "#2563eb"),
    "completed": ("#dcfce7", "#15803d"),
    "done": ("#f0fdf4", "#86efac"),
    "failed": ("#fee2e2", "#b91c1c"),
    "cancelled": ("#f3e8ff", "#7e22ce"),
    "expired": ("#ffedd5", "#c2410c"),
}
"""Fill and line by state."""

Place = tuple[float, float]


def draw(graph: GraphOut) -> str:
    """Return an SVG document of the page, of ``MOST_DRAWN`` calls and ``MOST_EDGES`` edges at most.

    A text names the number that is left out.
    """
    nodes = graph.nodes[:MOST_DRAWN]
    places = _places(nodes, graph.edges)
    width = max((x for x, _ in places.values()), default=0) + WIDTH + MARGIN
    height = max((y for _, y in places.values()), default=HEAD) + HEIGHT + GAP_Y + MARGIN
    picture = drawsvg.Drawing(
        max(width, 560),
        height,
        font_family="system-ui, sans-serif",
        preserveAspectRatio="xMinYMin",
    )
    picture.append(drawsvg.Rectangle(0, 0, "100%", "100%", fill="#ffffff", class_="ground"))
    edges = [edge for edge in graph.edges if edge[0] in places and edge[1] in places]
    _head(picture, graph, len(nodes), max(0, len(edges) - MOST_EDGES))
    critical = set(zip(graph.critical_path.calls, graph.critical_path.calls[1:], strict=False))
    for parent, child in edges[:MOST_EDGES]:
        _edge(picture, places[parent], places[child], strong=(parent, child) in critical)
    for node in nodes:
        _node(picture, node, places[node.id])
    return str(picture.as_svg())


def _places(nodes: Sequence[NodeOut], edges: Sequence[tuple[str, str]]) -> dict[str, Place]:
    parents: dict[str, list[str]] = defaultdict(list)
    for parent, child in edges:
        parents[child].append(parent)
    stages: dict[int, list[NodeOut]] = defaultdict(list)
    for node in nodes:
        stages[node.stage].append(node)
    rows: dict[str, int] = {}
    places: dict[str, Place] = {}
    left = MARGIN
    for stage in sorted(stages):
        beside = {
            node.id: mean([rows[p] for p in parents[node.id] if p in rows] or [0])
            for node in stages[stage]
        }
        ordered = sorted(stages[stage], key=lambda each: beside[each.id])
        for first in range(0, len(ordered), MOST_ROWS):
            column = ordered[first : first + MOST_ROWS]
            free, last = 0, MOST_ROWS - len(column)
            for number, node in enumerate(column):
                rows[node.id] = max(free, min(round(beside[node.id]), last + number))
                free = rows[node.id] + 1
                places[node.id] = (left, HEAD + rows[node.id] * (HEIGHT + GAP_Y))
            left += WIDTH + GAP_X
    return places


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _head(picture: drawsvg.Drawing, graph: GraphOut, drawn: int, edges_left_out: int) -> None:
    state = "in progress" if graph.state == "under_way" else graph.state
    title = f"{_short(graph.id, 48)} - {state}"
    head = drawsvg.Text(
        _plain(title), 15, MARGIN, 24, font_weight="bold", fill="#111827", class_="name"
    )
    picture.append(head)
    left_out = graph.total - drawn
    more = f", {left_out} not drawn" if left_out else ""
    if edges_left_out:
        more += f", {edges_left_out} edges not drawn"
    text = (
        f"{_count(graph.total, 'call')}{more}, {_count(graph.stages, 'stage')}, at most"
        f" {graph.parallelism} in parallel, critical path {_seconds(graph.critical_path.duration_s)}"
    )
    picture.append(drawsvg.Text(text, 12, MARGIN, 42, fill="#4b5563", class_="soft"))


def _edge(picture: drawsvg.Drawing, parent: Place, child: Place, *, strong: bool) -> None:
    x1, y1 = parent[0] + WIDTH, parent[1] + HEIGHT / 2
    x2, y2 = child[0], child[1] + HEIGHT / 2
    middle = (x1 + x2) / 2
    colour, width = ("#111827", 2.2) if strong else ("#9ca3af", 1.2)
    kind = "edge strong" if strong else "edge"
    path = drawsvg.Path(stroke=colour, stroke_width=width, fill="none", class_=kind)
    picture.append(path.M(x1, y1).C(middle, y1, middle, y2, x2, y2))


def _node(picture: drawsvg.Drawing, node: NodeOut, place: Place) -> None:
    x, y = place
    fill, line = COLOURS.get(node.state, COLOURS["queued"])
    box = drawsvg.Rectangle(
        x,
        y,
        WIDTH,
        HEIGHT,
        rx=7,
        fill=fill,
        stroke=line,
        stroke_width=1.4,
        class_=f"node {node.state}",
    )
    facts = [node.id, node.state, node.model, node.worker or "no worker", node.error]
    box.append_title(_plain(" | ".join(part for part in facts if part)))
    picture.append(box)
    for text, size, below, colour, kind in (
        (_short(node.agent or node.id, 22), 13, 20, "#111827", "name"),
        (_tokens(node), 11, 36, "#374151", "soft"),
        (_times(node), 11, 50, "#374151", "soft"),
    ):
        picture.append(
            drawsvg.Text(_plain(text), size, x + 10, y + below, fill=colour, class_=kind)
        )


def _tokens(node: NodeOut) -> str:
    prompt = node.input_tokens
    cached = f" ({node.cached_tokens} cached)" if node.cached_tokens else ""
    return f"{prompt}{cached} + {node.output_tokens} tokens" if prompt else _short(node.model, 24)


def _times(node: NodeOut) -> str:
    if node.duration_s is None:
        return node.state
    waited = "" if node.queue_s is None else f", waited {_seconds(node.queue_s)}"
    return f"{_seconds(node.duration_s)}{waited}"


def _seconds(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _short(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"


def _plain(text: str) -> str:
    """Return a text without characters that XML does not allow."""
    return "".join(char if char.isprintable() else " " for char in text)
