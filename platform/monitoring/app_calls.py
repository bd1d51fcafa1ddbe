"""Calls of each app in the last minute: how many were rejected, failed, and how long they wait.

Listens to control. The counts of an app are those of a tenant in
:mod:`fairserve.platform.monitoring.activity_bucket`, in the same buckets of five seconds. Beside them is
a count by user, so that one user who is rejected is not mistaken for an app that is.

Rejections that an operator made (a blocked user, a server that drains) are not counted: they are meant.

Memory: ``BUCKETS`` buckets of at most ``MAX_APPS`` apps and ``MAX_USERS`` users, their sums, and one
entry per call that waits. Cost: O(1) a call; about 3 us an app of a bucket that is closed, once in five
seconds. Weakness: apps and users beyond a tenant's share of these numbers within five seconds are not
counted.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.listener import CallListener
from fairserve.platform.monitoring.activity import BUCKET_S
from fairserve.platform.monitoring.activity_bucket import CallCounts
from fairserve.scheduling.events import CallOutcome

BUCKETS = 12
"""Closed buckets that are kept: those of a minute."""
MAX_APPS = 5_000
MAX_USERS = 5_000
"""Maximum numbers of apps and users in one bucket."""
PART = 1 / 4
"""Part of these that one tenant may have of what the others leave."""
MEANT = frozenset({"user_blocked", "draining"})
"""Reasons of rejections that an operator made."""

AppKey = tuple[str, str]
"""Tenant and app."""


@dataclass(slots=True)
class AppBucket:
    """The counts of one app in one bucket, or in several."""

    counts: CallCounts = field(default_factory=CallCounts)
    users: dict[str, list[int]] = field(default_factory=dict)
    """Numbers of calls and of rejected calls by user."""
    model: str = ""
    """Model of the last call."""
    buckets: int = 0
    """Number of buckets that were added."""

    def add(self, later: AppBucket) -> None:
        """Add the counts of a later bucket."""
        self.counts.add(later.counts)
        self.buckets += 1
        self.model = later.model or self.model
        for user, (calls, rejected) in later.users.items():
            so_far = self.users.setdefault(user, [0, 0])
            so_far[0] += calls
            so_far[1] += rejected

    def subtract(self, added: AppBucket) -> None:
        """Subtract the counts of a bucket that was added."""
        self.counts.subtract(added.counts)
        self.buckets -= 1
        for user, (calls, rejected) in added.users.items():
            left = self.users[user]
            left[0] -= calls
            left[1] -= rejected
            if not any(left):
                del self.users[user]


@dataclass(frozen=True, slots=True)
class AppWindow:
    """The calls of one app in the last buckets."""

    calls: int
    """Accepted and rejected calls."""
    rejected: int
    rejected_share: float
    """Share of rejected calls, or the mean of this share over the users, whichever is smaller."""
    reason: str
    """The most frequent reason of a rejection; empty without one."""
    ended: int
    failed: int
    """Calls that failed or expired in the queue."""
    wait_p99_s: float
    """99th percentile of the waits that ended; 0 without any."""
    started: int
    """Number of waits that ended."""
    model: str
    """Model of the last call; empty without calls."""


@dataclass(frozen=True, slots=True)
class WaitingCalls:
    """The calls of one app that wait for their worker to begin."""

    calls: int = 0
    oldest_s: float = 0.0
    model: str = ""
    """Model of the oldest."""


NOTHING_WAITS = WaitingCalls()
_NOTHING = AppBucket()


class AppCalls(CallListener):
    """Belongs to the event loop. ``now_s`` is control's clock."""

    def __init__(self) -> None:
        self._begin(0)
        self._closed: deque[tuple[int, dict[AppKey, AppBucket]]] = deque()
        self._minute: dict[AppKey, AppBucket] = {}
        """Sums of the closed buckets by app."""
        self._waiting: dict[AppKey, dict[str, tuple[float, str]]] = {}
        """Start of the wait and model of each call that waits, by id."""

    # --- events, see CallListener -----------------------------------------------------------------

    def call_accepted(self, call: CallState, now_s: float) -> None:
        """Count a call that is queued."""
        self._count(call, now_s, rejected=False)
        self._wait(call, call.submitted_s)

    def call_requeued(self, call: CallState) -> None:
        """Handle a call that waits for another worker: its wait began when it was submitted."""
        self._wait(call, call.submitted_s)

    def call_started(self, call: CallState, now_s: float) -> None:
        """Count the wait of a call, unless it is a background call."""
        self._wait_over(call)
        found = None if call.call.background else self._of(call, now_s)
        if found is not None:
            found.counts.delay(call.queue_s or 0.0)

    def call_ended(self, call: CallState, outcome: CallOutcome, now_s: float) -> None:
        """Count the outcome of a call."""
        self._wait_over(call)
        found = self._of(call, now_s)
        if found is None:
            return
        ended = found.counts.ended
        ended[outcome] = ended.get(outcome, 0) + 1
        if outcome == "refused":  # it has lost its place in the queue
            found.counts.accepted -= 1
            found.counts.refuse("queue_full")
            user = self._user(found, call)
            if user is not None:
                user[1] += 1

    def call_dropped(self, call: CallState) -> None:
        """Forget the wait of a call."""
        self._wait_over(call)

    def call_rejected(self, call: CallState, reason: str, now_s: float) -> None:
        """Count a rejected call, unless an operator made the rejection."""
        if reason in MEANT:
            return
        found = self._count(call, now_s, rejected=True)
        if found is not None:
            found.counts.refuse(reason)

    def _count(self, call: CallState, now_s: float, *, rejected: bool) -> AppBucket | None:
        found = self._of(call, now_s)
        if found is None:
            return None
        found.counts.accepted += not rejected
        found.model = call.call.pool
        user = self._user(found, call)
        if user is not None:
            user[0] += 1
            user[1] += rejected
        return found

    def _user(self, found: AppBucket, call: CallState) -> list[int] | None:
        """Return the counts of a call's user; None if there is no room for them."""
        user = found.users.get(call.call.user)
        if user is None and self._users.take(call.call.tenant) is None:
            user = found.users[call.call.user] = [0, 0]
        return user

    def _wait(self, call: CallState, since_s: float) -> None:
        if not call.call.background:
            waiting = self._waiting.setdefault(call.owner[:2], {})
            waiting[call.call.call_id] = (since_s, call.call.pool)

    def _wait_over(self, call: CallState) -> None:
        waiting = self._waiting.get(call.owner[:2])
        if waiting is not None:
            waiting.pop(call.call.call_id, None)
            if not waiting:
                del self._waiting[call.owner[:2]]

    # --- buckets ----------------------------------------------------------------------------------

    def _begin(self, number: int) -> None:
        """Open an empty bucket."""
        self._number, self._ends_s = number, (number + 1) * BUCKET_S
        self._open: dict[AppKey, AppBucket] = {}
        self._apps = SharedLimit(MAX_APPS, PART)
        self._users = SharedLimit(MAX_USERS, PART)

    def _of(self, call: CallState, now_s: float) -> AppBucket | None:
        if now_s >= self._ends_s:
            self.settle(now_s)
        app = call.owner[:2]
        found = self._open.get(app)
        if found is None and self._apps.take(call.call.tenant) is None:
            found = self._open[app] = AppBucket()
        return found

    def settle(self, now_s: float) -> None:
        """Close the open bucket if its interval has ended."""
        number = int(now_s // BUCKET_S)
        if number == self._number:
            return
        if self._open:
            self._closed.append((self._number, self._open))
            for app, bucket in self._open.items():
                self._minute.setdefault(app, AppBucket()).add(bucket)
        self._begin(number)
        while self._closed and self._closed[0][0] < number - BUCKETS:
            for app, bucket in self._closed.popleft()[1].items():
                self._minute[app].subtract(bucket)
                if not self._minute[app].buckets:
                    del self._minute[app]

    # --- reads ------------------------------------------------------------------------------------

    def apps(self) -> set[AppKey]:
        """Return the apps with calls in the last minute, or with calls that wait."""
        return {*self._waiting, *self._minute}

    def counts(self, app: AppKey) -> CallCounts:
        """Return the counts of an app in the last minute. Do not change them."""
        return self._minute.get(app, _NOTHING).counts

    def waiting(self, app: AppKey, now_s: float) -> WaitingCalls:
        """Return the calls of an app that wait. O(their number)."""
        waiting = self._waiting.get(app)
        if waiting is None:
            return NOTHING_WAITS
        since_s, model = min(waiting.values())
        return WaitingCalls(len(waiting), max(0.0, now_s - since_s), model)

    def minute(self, app: AppKey) -> AppWindow:
        """Return the calls of an app in the closed buckets of the last minute. O(their users)."""
        return _window(self._minute.get(app, _NOTHING))

    def window(self, app: AppKey, buckets: int) -> AppWindow:
        """Return the calls of an app in the last closed buckets. O(buckets and their users)."""
        found = AppBucket()
        for number, bucket in reversed([*islice(reversed(self._closed), buckets)]):
            if number >= self._number - buckets and app in bucket:
                found.add(bucket[app])
        return _window(found)


def _window(bucket: AppBucket) -> AppWindow:
    """Return what the counts of an app mean."""
    counts, users = bucket.counts, bucket.users
    rejected = sum(counts.refused.values())
    # Calls that lost their place may have been accepted before the window.
    calls = max(counts.accepted + rejected, rejected)
    shares = [rejected / calls] if calls else [0.0]
    if users:
        lost_shares = (lost / max(asked, lost) for asked, lost in users.values())
        shares.append(sum(lost_shares) / len(users))
    return AppWindow(
        calls=calls,
        rejected=rejected,
        rejected_share=min(shares),
        reason=max(counts.refused, key=lambda each: (counts.refused[each], each), default=""),
        ended=sum(counts.ended.values()),
        failed=counts.ended.get("failed", 0) + counts.ended.get("expired", 0),
        wait_p99_s=counts.delay_quantile(0.99) or 0.0,
        started=sum(counts.delays.values()),
        model=bucket.model,
    )
