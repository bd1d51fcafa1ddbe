"""Every threat of docs/security.md names tests, and these tests exist."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_threat_names_tests_that_exist():
    text = (ROOT / "docs/security.md").read_text()
    table = text[text.index("## Threats") : text.index("## Shared tables")]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        threat, who, stops, tests = row.strip("| ").split(" | ")
        assert threat, row
        assert who, row
        assert stops, row
        named = re.findall(r"`([^`:]+)::(\w+)`", tests)
        assert named, f"no test: {threat}"
        for path, name in named:
            code = (ROOT / path).read_text()
            assert re.search(rf"^(async )?def {name}\(", code, re.MULTILINE), f"{path}::{name}"
