"""A clock for code that must not rely on two looks at the time being the same."""

import time


class SlowClock:
    """Advances by ``look_s`` seconds with each look, and with the time that passes."""

    def __init__(self, look_s):
        self._look_s, self._looks = look_s, 0

    def __call__(self):
        self._looks += 1
        return time.monotonic() + self._looks * self._look_s
