"""The log of a test as the server's own writer writes it, in JSON."""

import io
import json
import logging
from contextlib import contextmanager

from fairserve.platform.server.logs import JsonFormatter, LogWriter


class KeptLog:
    """The lines of one block."""

    def __init__(self):
        self.stream = io.StringIO()
        self.writer = LogWriter(self.stream, JsonFormatter())

    @property
    def text(self):
        """All lines so far; the writer is closed."""
        self.writer.close()
        return self.stream.getvalue()

    def events(self, logger):
        """The lines of one logger, parsed."""
        found = [json.loads(line) for line in self.text.splitlines()]
        return [each for each in found if each["logger"] == logger]


@contextmanager
def kept_log(level=logging.INFO):
    """Keep what is logged in the block."""
    kept, ours = KeptLog(), logging.getLogger("fairserve")
    before = ours.level
    ours.addHandler(kept.writer)
    ours.setLevel(level)
    try:
        yield kept
    finally:
        ours.removeHandler(kept.writer)
        ours.setLevel(before)
        kept.writer.close()
