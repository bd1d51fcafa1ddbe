"""Options that take several values, as in ``--system fcfs vtc``: Typer wants the flag before each."""

from __future__ import annotations

from typer import Context

from fairserve.platform.base.command_line import GroupedCommand


class SeveralValues(GroupedCommand):
    """A command whose options of lists take all words up to the next flag."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Parse the arguments with the flag before each value."""
        lists = {
            flag for each in self.params if getattr(each, "multiple", False) for flag in each.opts
        }
        words: list[str] = []
        flag = ""
        for word in args:
            if word.startswith("-"):
                flag = word if word in lists else ""
            elif flag and words[-1] != flag:
                words.append(flag)
            words.append(word)
        return super().parse_args(ctx, words)
