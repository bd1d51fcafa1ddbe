"""The principal of an app that a setting names, for calls that carry no key of ours.

It is looked up off the event loop and cached for 30 s, so that a suspension takes effect within that
time. While the database does not answer, the last result is used, at most for five minutes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from fairserve.interactions.run_rules import known_rules
from fairserve.platform.base.errors import UnavailableError
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.identity import App, Tenant
from fairserve.platform.tenancy.auth import CACHE_TTL_S, STALE_S, Principal

ACTOR = "gateway"
"""Name of the principal in logs: it has no key."""


class AppPrincipal:
    """Looks up one app by its id. Belongs to the event loop."""

    def __init__(
        self, sessions: SessionFactory, app_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.app_id = app_id
        self._sessions = sessions
        self._clock = clock
        self._lock = asyncio.Lock()
        self._found: Principal | None = None
        self._looked_up_s = -CACHE_TTL_S

    async def get(self) -> Principal:
        """Return the principal. Raises UnavailableError if there is no such app, or it is suspended."""
        if self._age_s() >= CACHE_TTL_S:
            async with self._lock:
                if self._age_s() >= CACHE_TTL_S:
                    await self._look_up()
        if self._found is None:
            raise UnavailableError(
                f"the app {self.app_id!r} of calls without an app key does not exist, or it is"
                " suspended; send an app key, or ask the operator",
                code="no_default_app",
            )
        return self._found

    def _age_s(self) -> float:
        return self._clock() - self._looked_up_s

    async def _look_up(self) -> None:
        try:
            self._found = await asyncio.to_thread(self._read)
        except SQLAlchemyError as error:
            if self._found is None or self._age_s() >= STALE_S:
                raise UnavailableError(
                    "the app of calls without an app key cannot be checked: the database does not"
                    " answer",
                    headers={"Retry-After": "5"},
                ) from error
            return
        self._looked_up_s = self._clock()

    def _read(self) -> Principal | None:
        with self._sessions() as session:
            row = (
                read_only(session)
                .execute(
                    select(App.tenant_id, App.run_rules)
                    .join(Tenant, Tenant.id == App.tenant_id)
                    .where(
                        App.id == self.app_id,
                        App.suspended_at.is_(None),
                        App.deleted_at.is_(None),
                        Tenant.suspended_at.is_(None),
                        Tenant.deleted_at.is_(None),
                    )
                )
                .first()
            )
        if row is None:
            return None
        tenant_id, rules = row
        return Principal(
            "app",
            tenant_id,
            self.app_id,
            key_id="",
            actor=ACTOR,
            user_headers=(),
            run_rules=None if rules is None else known_rules(rules),
        )
