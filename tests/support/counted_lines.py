"""Number of lines of Python that a function executes: how much it does, whatever the machine does."""

import sys


def lines_of(function):
    """Return the number of lines executed by a call of a function, in all frames below it."""
    lines = 0

    def trace(frame, event, arg):
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return lines
