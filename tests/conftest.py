"""For all tests: Hypothesis judges what code does, never how long a busy machine takes for it."""

from hypothesis import settings

settings.register_profile("fairserve", deadline=None)
settings.load_profile("fairserve")
