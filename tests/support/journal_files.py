"""Reads the journal of a server that runs or was killed."""

import contextlib
import json


def entries(data_dir):
    """Yield the entries of all files; the last line of one may be incomplete."""
    for path in (data_dir / "journal").glob("journal-*.jsonl"):
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line[9:])


def journal_entries(data_dir):
    """Return the ids of calls that the journal has accepted, and closed."""
    kinds = [(entry["kind"], entry["key"]) for entry in entries(data_dir)]
    accepted = {key for kind, key in kinds if kind == "accepted"}
    return accepted, {key for kind, key in kinds if kind == "closed"}
