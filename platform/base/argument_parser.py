"""The argument parser of all commands: an error is one line with the next step, exit code 2."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

USAGE_ERROR = 2


class OneLineParser(argparse.ArgumentParser):
    """An argument parser that reports an error in one line and names the help."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Parse; report an unknown argument as an error of the subcommand that precedes it."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}{self._suggestion(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with code 2."""
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _suggestion(self, unknown: Sequence[str]) -> str:
        flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
        close = [get_close_matches(flag, self._option_string_actions, n=1) for flag in flags]
        found = [name for names in close for name in names]
        return f"; did you mean {' '.join(found)}?" if found else ""
