"""Real text that is on every machine: documentation of Python's library and of this package.

Docstrings are read from the source files through their syntax trees, so nothing is imported or run,
and the same Python gives the same text. One token of the built-in model is one byte, therefore a
length in characters is a length in tokens; non-ASCII characters are omitted.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import fairserve

LIBRARY_FILES = (
    "argparse", "ast", "asyncio/events", "asyncio/queues", "asyncio/streams", "asyncio/tasks",
    "calendar", "collections/__init__", "concurrent/futures/_base", "contextlib", "copy", "csv",
    "dataclasses", "datetime", "difflib", "email/message", "enum", "fnmatch", "fractions",
    "functools", "gettext", "gzip", "heapq", "http/client", "http/cookiejar", "inspect",
    "ipaddress", "json/__init__", "json/decoder", "locale", "logging/__init__",
    "logging/handlers", "mailbox", "multiprocessing/context", "optparse", "os", "pathlib", "pdb",
    "pickle", "pickletools", "pprint", "queue", "random", "re/__init__", "sched", "selectors",
    "shelve", "shlex", "shutil", "smtplib", "socket", "socketserver", "sqlite3/__init__",
    "statistics", "string", "subprocess", "tarfile", "tempfile", "textwrap", "threading",
    "timeit", "tokenize", "traceback", "turtle", "typing", "unittest/case", "unittest/mock",
    "urllib/parse", "urllib/request", "uuid", "warnings", "weakref", "xml/dom/minidom",
    "xml/etree/ElementTree", "zipfile",
)  # fmt: skip
PACKAGE_FILES = (
    "interactions/call", "interactions/profile", "interactions/tracker", "throttling/base",
    "throttling/oit", "throttling/overload", "throttling/rpm", "throttling/window",
    "scheduling/base", "scheduling/cost", "scheduling/counters", "scheduling/dispatcher",
    "scheduling/events", "scheduling/feeder/wsc", "scheduling/local/dlpm", "scheduling/metrics",
    "scheduling/prefix_tree", "scheduling/routers/d2lpm", "scheduling/system", "engine/base",
    "platform/base/errors", "platform/server/settings",
)  # fmt: skip
MIN_CHARS = 20_000
"""Minimum length of a corpus; a shorter one was not found in the expected place."""


class NoTextError(RuntimeError):
    """The sources that the demo reads are not on this machine."""


@dataclass(frozen=True, slots=True)
class Corpus:
    """A long text. Documents are consecutive parts of it, wrapping around at its end."""

    name: str
    text: str

    def part(self, number: int, chars: int) -> str:
        """Return the ``number``-th document of exactly ``chars`` characters."""
        begin = number * chars % len(self.text)
        doubled = self.text + self.text[:chars]
        return doubled[begin : begin + chars]


@cache
def library() -> Corpus:
    """Return documentation of Python's standard library. Raises NoTextError."""
    return _corpus("Python's library", Path(sysconfig.get_path("stdlib")), LIBRARY_FILES)


@cache
def package() -> Corpus:
    """Return documentation of this package. Raises NoTextError."""
    assert fairserve.__file__ is not None
    return _corpus("FairServe", Path(fairserve.__file__).parent, PACKAGE_FILES)


def docstrings(source: str) -> list[str]:
    """Return every docstring of a module's source, each under its name, in source order."""
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            if text:
                found.append((getattr(node, "lineno", 0), getattr(node, "name", "module"), text))
    return [f"{name}: {inspect.cleandoc(text)}" for _, name, text in sorted(found)]


def _corpus(name: str, root: Path, files: tuple[str, ...]) -> Corpus:
    parts = []
    for file in files:
        path = root / f"{file}.py"
        if not path.is_file():  # not every version of Python has every module
            continue
        texts = docstrings(path.read_text(encoding="utf-8"))
        parts.append(f"# {file.removesuffix('/__init__')}\n" + "\n\n".join(texts))
    text = "\n\n".join(parts).encode("ascii", "ignore").decode("ascii")
    if len(text) < MIN_CHARS:
        raise NoTextError(f"found no documentation of {name} in {root}")
    return Corpus(name, text)
