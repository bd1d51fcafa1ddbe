"""Draw the packages and rooms with their imports in docs/architecture.md.

`make architecture` writes the drawing; a test compares it with the imports.
"""

import tomllib
from pathlib import Path

import grimp
import networkx as nx

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- Written by `make architecture`. -->\n", "<!-- End of what it writes. -->\n"


def contracts():
    """Return the contracts of import-linter by their id, and its root packages."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {each["id"]: each for each in linter["contracts"]}, linter["root_packages"]


def layers():
    """Return the packages and rooms, the top one first."""
    return contracts()[0]["layers"]["layers"]


def imports():
    """Return the direct imports between layers, downwards: import-linter rejects the others."""
    names = layers()
    graph = grimp.build_graph(*contracts()[1], cache_dir=None)
    layer_of = {
        module: name
        for name in names
        for module in graph.modules
        if f"{module}.".startswith(f"{name}.")
    }
    drawn = nx.DiGraph()
    drawn.add_nodes_from(names)
    for module, layer in layer_of.items():
        for imported in graph.find_modules_directly_imported_by(module):
            target = layer_of.get(imported, layer)
            if names.index(target) > names.index(layer):
                drawn.add_edge(layer, target)
    return drawn


def drawing(graph):
    """Return the imports as a mermaid flowchart without implied arrows, and as a full table."""
    names = layers()
    reduced = nx.transitive_reduction(graph)
    lines = ["```mermaid", "flowchart TD"]
    lines += [f"    {_short(name)}[{_short(name)}]" for name in names]
    for name in names:
        lines += [
            f"    {_short(name)} --> {_short(target)}" for target in _sorted(reduced[name], names)
        ]
    lines += ["```", "", "| imports | directly |", "|---|---|"]
    for name in names:
        targets = ", ".join(_short(target) for target in _sorted(graph[name], names))
        lines.append(f"| {_short(name)} | {targets or 'nothing'} |")
    return "\n".join(lines) + "\n"


def page(text, drawn):
    """Return the text of the page with another drawing."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{drawn}\n{END}{after}"


def _short(name):
    return name.rsplit(".", 1)[-1]


def _sorted(targets, names):
    return sorted(targets, key=names.index)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(), drawing(imports())))
