"""For all tests: Hypothesis judges what code does, never how long a busy machine takes for it.

CI tries the same examples every time, so that it judges a change and not its luck; everywhere else they
are new ones at each run.
"""

import os

from hypothesis import settings

settings.register_profile("fairserve", deadline=None, derandomize=os.environ.get("CI") == "true")
settings.load_profile("fairserve")
