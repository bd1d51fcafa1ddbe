"""For all tests: Hypothesis judges what code does, never how long a busy machine takes for it.

CI tries the same examples every time, so that it judges a change and not its luck; everywhere else they
are new ones at each run.
"""

import os
from pathlib import Path

from hypothesis import settings

if not Path("/dev/nvidiactl").exists():
    # Read when triton is first imported, which torch may do: kernels are run by its interpreter.
    os.environ.setdefault("TRITON_INTERPRET", "1")

settings.register_profile("fairserve", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("fairserve")
