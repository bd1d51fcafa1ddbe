"""Compare clocks of other machines with that of this host.

Times of several machines meet in sign-ins, in leases of background jobs, and in the order of reports.
"""

from __future__ import annotations

from fairserve.platform.server.doctor.finding import Finding, fail, ok, warn

ALLOWED_SKEW_S = 5.0
"""Difference in seconds above which a clock is a warning."""
WRONG_SKEW_S = 60.0
"""Difference in seconds above which a clock is a failure: as long as leases of jobs."""
_SYNC = "synchronise both hosts with NTP"


def compared(name: str, skew_s: float, precision_s: float) -> Finding:
    """Return the finding of a clock that is ``skew_s`` ahead, measured to ``precision_s``."""
    check = f"clock of {name}"
    where = "ahead of" if skew_s > 0 else "behind"
    limits = f"allowed: {ALLOWED_SKEW_S:g} s"
    if abs(skew_s) <= precision_s:
        return ok(check, f"equal to ours within {precision_s:.1f} s ({limits})")
    found = f"{abs(skew_s):.1f} s {where} ours ({limits})"
    if abs(skew_s) - precision_s > WRONG_SKEW_S:
        return fail(check, found, _SYNC)
    if abs(skew_s) - precision_s > ALLOWED_SKEW_S:
        return warn(check, found, _SYNC)
    return ok(check, found)
