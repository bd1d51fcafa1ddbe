"""Generate mutations of a module, each a small change of its syntax tree.

Comparisons move by one or are negated, as are conditions; ``and`` and ``or``, ``+`` and ``-``, ``*`` and
``/``, ``min`` and ``max`` are swapped; numbers and truth values change; statements and results go.
Texts, annotations, decorators, imports, assertions and the messages of errors stay as they are.
Weakness: mutations that change nothing that can be observed count as not found.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_SWAPPED = (
    "Lt:LtE/GtE LtE:Lt/Gt Gt:GtE/LtE GtE:Gt/Lt Eq:NotEq NotEq:Eq Is:IsNot IsNot:Is In:NotIn NotIn:In"
    " And:Or Or:And Add:Sub Sub:Add Mult:Div Div:Mult FloorDiv:Mult Mod:Mult BitAnd:BitOr BitOr:BitAnd"
)
_SWAPS = {
    getattr(ast, old): [getattr(ast, each) for each in new.split("/")]
    for old, new in (pair.split(":") for pair in _SWAPPED.split())
}
_REMOVED = (ast.AugAssign, ast.Delete, ast.Continue, ast.Break, ast.Raise)
_KEPT = (ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)
_KEPT_FIELDS = {"annotation", "returns", "decorator_list", "exc"}


@dataclass(frozen=True)
class Mutation:
    """A place in a syntax tree, and what replaces its node there."""

    name: str
    """Function, old and new text; no line number, so that changes elsewhere do not rename it."""
    parent: ast.AST
    field: str
    index: int | None  # in the field's list; None if the field has one node
    new: ast.AST

    def put(self, node: ast.AST) -> ast.AST:
        """Put a node into the place; return the one that it replaces."""
        old = holder = getattr(self.parent, self.field)
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            old, holder[self.index] = holder[self.index], node
        ast.fix_missing_locations(ast.copy_location(node, old))
        return old


def mutations(tree: ast.Module) -> list[Mutation]:
    """Return all mutations of a module."""
    seen: Counter[str] = Counter()
    found = []
    for where, parent, field, index, node in _places(tree, ""):
        for new in _replacements(node, field):
            name = f"{where or 'module'}: {_text(node)} -> {_text(new)}"
            seen[name] += 1
            number = f" ({seen[name]})" if seen[name] > 1 else ""
            found.append(Mutation(name + number, parent, field, index, new))
    return found


def _places(parent: ast.AST, where: str) -> Iterator[tuple[str, ast.AST, str, int | None, ast.AST]]:
    """Yield the function around each node below one, its parent, field and position, and the node."""
    for field, value in ast.iter_fields(parent):
        for index, node in enumerate(value) if isinstance(value, list) else ((None, value),):
            if field in _KEPT_FIELDS or not isinstance(node, ast.AST) or isinstance(node, _KEPT):
                continue
            named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield where, parent, field, index, node
            yield from _places(node, f"{where}.{node.name}".lstrip(".") if named else where)


def _replacements(node: ast.AST, field: str) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left, [op], right):
            yield from (ast.Compare(left, [other()], right) for other in _SWAPS[type(op)])
        case ast.BoolOp(op, values):
            yield from (ast.BoolOp(other(), values) for other in _SWAPS[type(op)])
        case ast.BinOp(left, op, right):
            yield from (ast.BinOp(left, other(), right) for other in _SWAPS.get(type(op), ()))
        case ast.AugAssign(target, op, value):
            yield from (ast.AugAssign(target, other(), value) for other in _SWAPS.get(type(op), ()))
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(int() | float() as value):
            yield ast.Constant(not value if isinstance(value, bool) else value + 1)
        case ast.Name("min" | "max" as name):
            yield ast.Name("max" if name == "min" else "min", ast.Load())
        case ast.Return(ast.AST() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))
    if field == "test" and not isinstance(node, ast.Compare | ast.UnaryOp):
        yield ast.UnaryOp(ast.Not(), node)
    if isinstance(node, _REMOVED) or _has_effect(node):
        yield ast.Pass()


def _has_effect(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):  # without a local name, every test of its function would fail
        return not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 70 else f"{text[:67]}..."
