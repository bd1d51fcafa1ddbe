"""The page about the path of a call names every class that holds a call: none is added unnoticed."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATH = (
    "platform/control",
    "platform/serving",
    "interactions",
    "scheduling/dispatch",
    "engine/wire",
)
NAME = re.compile(r"([A-Z]\w*[a-z])?(Call|Request)|Submit|CallState|CallRecord")
OTHERS = {
    "IdempotentRequest": "the key of a request, with its hash",
    "ChatToolCall": "a part of a message",
    "OpenCall": "rows of a call that a crash left open",
    "ReadRequest": "what an endpoint makes of a body: request and writer",
    "RejectCall": "an answer",
    "RelayedRequest": "the interface of parsed requests",
    "RestoredCall": "a call of a run that a restart restores",
    "SentCall": "a connection",
}


def test_the_page_names_each_shape_of_a_call():
    page = (ROOT / "docs/request-path.md").read_text()
    table = page.partition("## The shapes of a call")[2].partition("\n## ")[0]
    named = dict(re.findall(r"\[(\w+)\]\(\.\./(\S+?)\)", table))
    found = {
        node.name: str(path.relative_to(ROOT))
        for room in PATH
        for path in (ROOT / room).rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and NAME.fullmatch(node.name)
    }
    assert found.keys() >= OTHERS.keys()
    assert {name: path for name, path in found.items() if name not in OTHERS} == named
