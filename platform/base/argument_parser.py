"""The parser of our commands: what is wrong in one line, and exit code 2."""

from __future__ import annotations

import argparse
from typing import NoReturn

USAGE_ERROR = 2


class OneLineParser(argparse.ArgumentParser):
    """Says what is wrong in one line, and where the help is."""

    def error(self, message: str) -> NoReturn:
        """Print it and exit."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")
