"""Cost of contract limits per call: the check, the reservation and the settlement.

Calls fall under three holders (tenant, app, each user), half of them under a fourth (their user),
each with every kind of limit, in daily periods. Thousands of users are active, and a rate rejects
about half of all calls, which costs the search for the time of a retry. A round is a minute of
virtual time.
"""

from __future__ import annotations

import random
from collections import deque

from fairserve.benchmarks.bench.figure import Reading
from fairserve.benchmarks.bench.measure import cpu_ns
from fairserve.interactions.call import Call, TokenUsage
from fairserve.scheduling.directory import Directory
from fairserve.scheduling.dispatch.admission import Admission, AdmissionOptions
from fairserve.scheduling.events import CallArrived, ContractChanged
from fairserve.throttling.overload.none import NoThrottle
from fairserve.throttling.quotas.price import TokenPrice
from fairserve.throttling.quotas.quota import Quota

NAME = "contracts_us_per_call"
AT = 1_767_225_600.0
_PRICE = TokenPrice(250_000, 25_000, 1_500_000, "price")
_PARALLEL = 300


class ContractCalls:
    """Admission with contracts only, and a steady flow of calls."""

    def __init__(self, *, users: int, calls: int, seed: int = 1) -> None:
        self._calls = calls
        self._random = random.Random(seed)  # noqa: S311
        self._users = users
        self._now_s = 0.0
        self._number = 0
        self._live: deque[Call] = deque()
        directory = Directory()
        for scope, app, user, rpm in (
            ("tenant", "", "", 10**9),
            ("app", "app", "", 10**9),
            ("app_user", "app", "", 4),
            *(("user", "", f"u{number}", 4) for number in range(0, users, 2)),
        ):
            quota = Quota(rpm, 10**9, 10**6, 10**17, 10**16, budget_duration="1d")
            directory.take(ContractChanged(scope, "t", app, user, quota))  # type: ignore[arg-type]
        self._admission = Admission(directory, NoThrottle(), AdmissionOptions())
        for _ in range(8):  # a steady state of the rates takes a minute
            self._run(calls)

    def round(self) -> Reading:
        """Process the calls of one round; the fraction of rejections is a detail."""
        begin_ns = cpu_ns()
        refused = self._run(self._calls)
        spent_us = (cpu_ns() - begin_ns) / 1000
        return Reading({NAME: spent_us / self._calls}, {"refused_share": refused / self._calls})

    def _run(self, calls: int) -> int:
        refused = 0
        usage = TokenUsage(900, 100, 300, 200)
        for _ in range(calls):
            self._number += 1
            self._now_s += 60.0 / (6 * self._users)
            call = Call(
                f"c{self._number}",
                "t",
                "app",
                f"u{self._random.randrange(self._users)}",
                "run",
                "m",
                900,
                100,
                400,
            )
            decision = self._admission.decide(
                CallArrived(call, AT + self._now_s, _PRICE),
                overloaded=False,
                under_way=False,
                expected_wait_s=0.0,
                immune=False,
                now_s=self._now_s,
            )
            if not decision.admitted:
                refused += 1
                continue
            self._live.append(call)
            if len(self._live) > _PARALLEL:
                self._admission.ended(self._live.popleft(), "completed", usage)
        self._admission.forget_idle(self._now_s)
        return refused
