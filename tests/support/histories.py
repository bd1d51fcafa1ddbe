"""Lists of steps for property tests, half of which are long."""

from hypothesis import strategies as st


def histories(steps, most):
    """Return lists of up to ``most`` steps, half of which have at least half as many.

    Hypothesis alone makes lists of about five elements: most bugs of a queue or a window need more.
    Short lists are tried first, so failures shrink to short ones.
    """
    return st.lists(steps, max_size=most) | st.lists(steps, min_size=most // 2, max_size=most)
