"""Fairness of the service: received shares compared with entitled shares.

For tenants, apps or users, compares the share of the service with the entitled share
(:class:`~fairserve.scheduling.fairness.level_weights.EntitledShares`, which the console uses, too),
and computes Jain's index (Jain, Chiu and Hawe, 1984) of x = service / entitled share, which is
(sum x)^2 / (n sum x^2): 1 if all received their entitled share, 1/n if one received everything.

Service is measured in the unit of the system in force. WSC counts fractions of typical calls: weighted
tokens, with cached ones times ``cached_weight``, divided by those of a typical call of the app. Other
systems count prompt tokens plus twice the output tokens. Departure: rollups do not have the stage of a
call, so the typical call is the mean over the stages of the app's profile.

Weights, levels and profiles are the current ones. Weakness: demand is unknown, so a client with little
demand lowers the index although no client was treated unfairly.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import or_, select
from sqlalchemy.orm import Session, selectinload

from fairserve.interactions.call import DEFAULT_LEVELS, TokenUsage
from fairserve.interactions.profiles.profile import DEFAULT_PROFILE, AppProfile
from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.db.identity import App, EndUser, Tenant
from fairserve.platform.db.sums import sum_of
from fairserve.platform.reporting.settings import ReportSettings
from fairserve.platform.reporting.usage.levels import CALLS, Detail
from fairserve.platform.reporting.usage.schemas import Fairness, Group, UsageRow
from fairserve.platform.reporting.usage.selection import Selection
from fairserve.platform.tenancy.profiles.repository import profiles_in_force
from fairserve.platform.tenancy.system.in_force import load_system
from fairserve.scheduling.fairness.cost import SliceWeights
from fairserve.scheduling.fairness.level_weights import EntitledShares, Owner, Weights
from fairserve.scheduling.feeders.wsc_options import WscOptions
from fairserve.scheduling.metrics import jain_index

MAX_OWNERS = 100_000
"""Maximum number of (tenant, app, user) owners, times days or hours, in one report."""
_LOOKED_UP = 1000
"""Maximum number of ids in one statement."""
_TIMES: tuple[Group, ...] = ("day", "hour")
_OWNER: tuple[Group, ...] = ("tenant", "app", "user")
_COLUMNS = ("input_tokens", "system_tokens", "cached_tokens", "output_tokens", "service")

Time = tuple[Any, ...]
Key = tuple[Any, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Measure:
    """The levels that divide service, and its unit."""

    levels: str = DEFAULT_LEVELS
    """Levels of tenants without their own."""
    wsc: WscOptions | None = None
    """Options of WSC, which counts typical calls; None for other feeders, which count tokens."""
    learning: LearningOptions | None = None
    """Options of profile learning; None if it is off."""


def measure_of(session: Session, settings: ReportSettings) -> Measure:
    """Return the measure of the system in force."""
    system = load_system(session, settings.tuning)
    wsc = WscOptions(**system.feeder_options) if system.feeder == "wsc" else None
    return Measure(system.levels, wsc, settings.tenancy.learning_options)


class _Shares(NamedTuple):
    """Received and entitled shares by holder."""

    got: Mapping[Key, float]
    entitled: Mapping[Key, float]


class Division:
    """The division of a selection's service among its holders."""

    def __init__(self, holders: tuple[Group, ...], shares: Mapping[Time, _Shares]) -> None:
        self._holders = holders
        self._shares = shares

    @property
    def jain_index(self) -> float:
        """Return Jain's index of received over entitled shares; not for groups by day or hour."""
        ((got, entitled),) = self._shares.values()
        return jain_index([got[key] / entitled[key] for key in got])

    def fairness(self, named: Mapping[Group, Any]) -> Fairness | None:
        """Return the shares of one group of a report; None if it has no service."""
        shares = self._shares.get(tuple(named[time] for time in _TIMES if time in named))
        key = tuple(named[group] for group in self._holders)
        if shares is None or key not in shares.got:
            return None
        return Fairness(service_share=shares.got[key], entitled_share=shares.entitled[key])


def division(session: Session, selection: Selection, measure: Measure) -> Division | None:
    """Return the division among all holders of a report, over its whole time range.

    Returns None without service, for groups other than holders, and for more than ``MAX_OWNERS``.
    """
    return _division(session, selection, measure, ())


def add_fairness(
    session: Session,
    selection: Selection,
    measure: Measure,
    whole: Division,
    keys: Sequence[Key],
    items: Sequence[UsageRow],
) -> None:
    """Add the shares to each group of a page, relative to its day or hour if the report has these.

    Reports by days or hours have no shares if these depend on users that are not groups of the report:
    for apps without their own level, and for tenants if the system's only level is ``user``.
    """
    times = tuple(group for group in _TIMES if group in selection.groups)
    found = _division(session, selection, measure, times) if times and items else whole
    if found is None:
        return
    for key, row in zip(keys, items, strict=True):
        row.fairness = found.fairness(dict(zip(selection.groups, key, strict=True)))


def _division(
    session: Session, selection: Selection, measure: Measure, times: tuple[Group, ...]
) -> Division | None:
    holders = _holders(selection)
    if not holders:
        return None
    known = _Known(session, selection, measure)
    detail = known.detail(holders)
    if times and detail == "user" and "user" not in holders:
        return None  # it would need many rows by user and day, which the report does not read otherwise
    whose = _OWNER[: _OWNER.index(detail) + 1]
    names: tuple[Group, ...] = (*times, *whose)
    rows = _sums(session, selection.grouped(*names))
    if not rows or len(rows) > MAX_OWNERS:
        return None
    known.load_apps(session, {row[names.index("app")] for row in rows if "app" in names})
    received: dict[Time, dict[Owner, float]] = defaultdict(dict)
    for row in rows:
        tenant, app, user = (*row[len(times) : len(names)], "", "")[:3]
        received[tuple(row[: len(times)])][tenant, app, user] = known.service(
            app, row[len(names) :]
        )
    shares = {}
    for time, owners in received.items():
        total = sum(owners.values())
        if not total:
            continue
        weights = {owner: known.weights(owner) for owner in owners}
        entitled = EntitledShares(weights, known.levels).among()
        got_by: dict[Key, float] = defaultdict(float)
        entitled_by: dict[Key, float] = defaultdict(float)
        for owner, service in owners.items():
            key = tuple(owner[_OWNER.index(group)] for group in holders)
            got_by[key] += service / total
            entitled_by[key] += entitled[owner]
        shares[time] = _Shares(got_by, entitled_by)
    return Division(holders, shares) if shares else None


def _holders(selection: Selection) -> tuple[Group, ...]:
    """Return the groups that identify holders, if they are of one kind; users include the tenant."""
    holders = tuple(group for group in selection.groups if group not in _TIMES)
    return holders if set(holders) - {"tenant"} in (set(), {"app"}, {"user"}) else ()


def _sums(session: Session, selection: Selection) -> Sequence[Sequence[Any]]:
    """Return the keys and sums of groups with service, at most one more than the maximum.

    They are sorted: shares added in another order differ in the last bit, and so would two pages.
    """
    keys = selection.keys(CALLS)
    column = CALLS.table.c
    sums = [sum_of(column[name]) for name in _COLUMNS]
    statement = select(*keys, *sums).where(*selection.where(CALLS)).group_by(*keys)
    statement = statement.having(sum_of(column.service) > 0)
    return session.execute(statement.order_by(*keys).limit(MAX_OWNERS + 1)).all()


class _Known:
    """Levels, weights and profiles of the tenants, apps and users of a selection.

    Purged ones have weight 1 and the default profile.
    """

    def __init__(self, session: Session, selection: Selection, measure: Measure) -> None:
        self._measure = measure
        tenants = select(Tenant.id, Tenant.weight, Tenant.levels).where(
            or_(Tenant.weight != 1.0, Tenant.levels.is_not(None))
        )
        users = select(EndUser.tenant_id, EndUser.external_id, EndUser.weight).where(
            EndUser.weight != 1.0
        )
        self._tenant_id = selection.tenant_id
        if selection.tenant_id is not None:
            tenants = tenants.where(Tenant.id == selection.tenant_id)
            users = users.where(EndUser.tenant_id == selection.tenant_id)
        found = session.execute(tenants).all()
        self._tenants = {row.id: row.weight for row in found}
        self._own: dict[str, str] = {row.id: row.levels for row in found if row.levels}
        self._users = {(tenant, user): weight for tenant, user, weight in session.execute(users)}
        self._apps: dict[str, float] = {}
        self._typical: dict[str, float] = {}
        wsc = measure.wsc
        self._slices = None if wsc is None else SliceWeights(wsc.alpha, wsc.beta, wsc.gamma)
        self._default = self._typical_of(DEFAULT_PROFILE)

    def detail(self, holders: tuple[Group, ...]) -> Detail:
        """Return the detail that is needed to compute service and entitled shares."""
        if self._tenant_id is None:
            levels = {self._measure.levels, *self._own.values()}
        else:
            levels = {self.levels(self._tenant_id)}
        if "user" in holders or "user" in levels:
            return "user"
        if "app" in holders:
            return "app" if levels == {"tenant > app > user"} else "user"
        return "tenant" if self._slices is None else "app"

    def load_apps(self, session: Session, names: Iterable[str]) -> None:
        """Load the weights and typical calls of these apps."""
        for some in _portions(sorted(names)):
            wanted = select(App).options(selectinload(App.stages)).where(App.id.in_(some))
            apps = session.scalars(wanted).all()
            self._apps |= {app.id: app.weight for app in apps}
            if self._slices is not None:
                profiles = profiles_in_force(session, apps, self._measure.learning)
                self._typical |= {app: self._typical_of(each) for app, each in profiles.items()}

    def _typical_of(self, profile: AppProfile) -> float:
        wsc = self._measure.wsc
        if wsc is None or self._slices is None:
            return 1.0
        whole = self._slices.typical_interaction(profile, wsc.cached_weight)
        return whole if wsc.normalise == "interaction" else whole / profile.calls_per_interaction

    def service(self, app: str, sums: Sequence[Any]) -> float:
        """Return the service of an app's calls, from sums in the order of ``_COLUMNS``."""
        text, system, cached, output, service = sums
        if self._slices is None or self._measure.wsc is None:
            return float(service)
        usage = TokenUsage(int(text), int(system), int(cached), int(output))
        slices = self._slices.slice(usage, self._measure.wsc.cached_weight)
        return slices / self._typical.get(app, self._default)

    def levels(self, tenant: str) -> str:
        """Return the levels of a tenant's clients."""
        return self._own.get(tenant, self._measure.levels)

    def weights(self, owner: Owner) -> Weights:
        """Return the weights of the tenant, the app and the user."""
        tenant, app, user = owner
        return (
            self._tenants.get(tenant, 1.0),
            self._apps.get(app, 1.0),
            self._users.get((tenant, user), 1.0),
        )


def _portions(names: Sequence[T]) -> Iterator[Sequence[T]]:
    for first in range(0, len(names), _LOOKED_UP):
        yield names[first : first + _LOOKED_UP]
