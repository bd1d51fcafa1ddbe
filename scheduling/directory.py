"""Settings of tenants, apps and users in the core: profiles, limits, weights. Only events change them.

Unknown apps use the default profile and have no limits. Tenants and users are stored only if their
settings differ from the default.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar

from fairserve.interactions.call import TENANT_LEVELS, Call
from fairserve.interactions.profiles.profile import DEFAULT_PROFILE, AppProfile
from fairserve.scheduling.declared_trust import DeclaredTrust
from fairserve.scheduling.events import (
    AppChanged,
    ContractChanged,
    TenantChanged,
    UserChanged,
)
from fairserve.throttling.base import Arrival, Limits
from fairserve.throttling.quotas.contracts import Holder
from fairserve.throttling.quotas.quota import UNLIMITED, Quota

NO_LIMITS = Limits()

K = TypeVar("K")
V = TypeVar("V")

Setting = AppChanged | TenantChanged | UserChanged | ContractChanged


def holder_of(event: ContractChanged) -> Holder:
    """Return the holder of a contract; for ``app_user`` it stands for every user of the app."""
    owner = event.tenant if event.scope in ("tenant", "user") else event.app
    return (event.scope, owner, event.user)


class Directory:
    """Settings of apps and users. Look-ups are O(1)."""

    def __init__(self) -> None:
        self.trust = DeclaredTrust()
        """Trust in the profiles that apps declare, of the calls of all models."""
        self._apps: dict[str, AppChanged] = {}
        self._tenants: dict[str, TenantChanged] = {}
        self._users: dict[tuple[str, str], UserChanged] = {}
        self._contracts: dict[Holder, ContractChanged] = {}
        self.profile_changes = 0
        """Number of profiles set by :meth:`take`; read-only."""

    def take(self, event: Setting) -> None:
        """Apply a setting, unless it is older than what is known.

        Raises ValueError for a weight or for levels that are not allowed.
        """
        weight = getattr(event, "weight", 1.0)
        if not 0 < weight < 1e6:
            raise ValueError(f"weight is {weight}; allowed: over 0, under 1e6")
        granted = getattr(event, "priority_weight", None)
        if granted is not None and not 1 <= granted < 1e6:
            raise ValueError(f"priority_weight is {granted}; allowed: 1 to under 1e6, or null")
        match event:
            case AppChanged():
                known = self._apps.get(event.app)
                if known is None or event.version >= known.version + event.read_later:
                    self._apps[event.app] = event
                    self.profile_changes += 1
            case TenantChanged():
                if event.levels not in (None, *TENANT_LEVELS):
                    allowed = ", ".join(map(repr, TENANT_LEVELS))
                    raise ValueError(f"levels is {event.levels!r}; allowed: {allowed}, or null")
                default = weight == 1.0 and event.levels is None
                _keep(self._tenants, event.tenant, event, default=default)
            case UserChanged():
                default = event == UserChanged(event.tenant, event.user)
                _keep(self._users, (event.tenant, event.user), event, default=default)
            case ContractChanged():
                default = event.quota == UNLIMITED and event.models is None
                _keep(self._contracts, holder_of(event), event, default=default)

    def profile(self, app: str) -> AppProfile:
        """Return the app's token profile."""
        entry = self._apps.get(app)
        return DEFAULT_PROFILE if entry is None else entry.profile

    def limits(self, app: str, tenant: str, user: str) -> Limits:
        """Return the app's limits, overridden by the user's own.

        A user whose settings an operator changed never counts as a new user of an app.
        """
        entry = self._apps.get(app)
        limits = NO_LIMITS if entry is None else entry.limits
        own = self._users.get((tenant, user))
        if own is None or (own.rpm is None and limits.new_users is None):
            return limits
        return Limits(limits.user_rpm if own.rpm is None else own.rpm, limits.app_rpm)

    def arrival(
        self,
        owner: tuple[str, str, str],
        *,
        overloaded: bool,
        under_way: bool,
        expected_wait_s: float = 0.0,
    ) -> Arrival:
        """Return the throttle's view of a call; ``owner`` is tenant, app and user."""
        tenant, app, user = owner
        return Arrival(
            user=f"{tenant}/{user}",
            app=app,
            limits=self.limits(app, tenant, user),
            overloaded=overloaded,
            under_way=under_way,
            tenant=tenant,
            expected_wait_s=expected_wait_s,
        )

    def weight(self, tenant: str, app: str, user: str) -> float:
        """Return 1 / E_i, the product of the weights of tenant, app and user.

        A call of weight 2 is entitled to twice the service.
        """
        of_tenant, of_app, of_user = self.weights(tenant, app, user)
        return of_user * of_app * of_tenant

    def weights(self, tenant: str, app: str, user: str) -> tuple[float, float, float]:
        """Return the weights of the tenant, the app and the user."""
        settled, settings = self._tenants.get(tenant), self._apps.get(app)
        own = self._users.get((tenant, user))
        return (
            1.0 if settled is None else settled.weight,
            1.0 if settings is None else settings.weight,
            1.0 if own is None else own.weight,
        )

    def priority_weight(self, tenant: str, app: str, user: str) -> float | None:
        """Return the weight of calls of the tier ``priority``: the user's own, else the app's.

        None: the operator has granted neither.
        """
        own, settings = self._users.get((tenant, user)), self._apps.get(app)
        if own is not None and own.priority_weight is not None:
            return own.priority_weight
        return None if settings is None else settings.priority_weight

    def tier_weight(self, call: Call) -> float:
        """Return the factor of the call's tier on the service that its client is entitled to.

        A grant that was revoked after the call was accepted no longer counts.
        """
        if call.tier != "priority":
            return 1.0
        return self.priority_weight(call.tenant, call.app, call.user) or 1.0

    def levels(self, tenant: str) -> str | None:
        """Return the levels of the tenant's clients; None for the system's default."""
        settled = self._tenants.get(tenant)
        return None if settled is None else settled.levels

    def has_settings(self, tenant: str, user: str) -> bool:
        """Return whether an operator changed the user's settings."""
        return (tenant, user) in self._users

    def quota(self, holder: Holder) -> Quota:
        """Return the contract limits of a holder."""
        contract = self._contracts.get(holder)
        return UNLIMITED if contract is None else contract.quota

    def quotas(self, tenant: str, app: str, user: str) -> list[tuple[Holder, Quota]]:
        """Return all holders whose contract limits apply to a call of this user.

        A user's own limit replaces the limit that its app sets for each user.
        """
        found: list[tuple[Holder, Quota]] = []
        if not self._contracts:
            return found
        own = self._contracts.get(("user", tenant, user))
        each = self._contracts.get(("app_user", app, ""))
        candidates: tuple[tuple[Holder, ContractChanged | None], ...] = (
            (("tenant", tenant, ""), self._contracts.get(("tenant", tenant, ""))),
            (("app", app, ""), self._contracts.get(("app", app, ""))),
            (("user", tenant, user), own),
            (("app_user", app, user), each),
        )
        for holder, contract in candidates:
            if contract is None:
                continue
            quota = contract.quota
            if contract is each and own is not None:
                quota = quota.without(own.quota)
            if quota != UNLIMITED:
                found.append((holder, quota))
        return found

    def quota_of(self, holder: Holder) -> Quota:
        """Return the limits of one holder."""
        contract = self._contracts.get(holder)
        return UNLIMITED if contract is None else contract.quota

    def model_allowed(self, tenant: str, app: str, user: str, model: str) -> bool:
        """Return whether a call may request this model."""
        if not self._contracts:
            return True
        own = self._contracts.get(("user", tenant, user))
        if own is None or own.models is None:
            own = self._contracts.get(("app_user", app, ""))
        contracts = (
            self._contracts.get(("tenant", tenant, "")),
            self._contracts.get(("app", app, "")),
            own,
        )
        return all(
            contract is None or contract.models is None or model in contract.models
            for contract in contracts
        )

    def blocked(self, tenant: str, user: str) -> bool:
        """Return whether an operator blocked the user."""
        own = self._users.get((tenant, user))
        return own is not None and own.blocked

    def snapshot(self) -> dict[str, Any]:
        """Return the state as plain JSON values."""
        return {
            "apps": [asdict(app) for app in self._apps.values()],
            "tenants": [asdict(tenant) for tenant in self._tenants.values()],
            "users": [asdict(user) for user in self._users.values()],
            "contracts": [asdict(contract) for contract in self._contracts.values()],
            "trust": self.trust.snapshot(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Replace the state by an earlier snapshot."""
        for entries in (self._apps, self._tenants, self._users, self._contracts):
            entries.clear()
        self.trust.restore(state["trust"])
        for plain in state["apps"]:
            profile = AppProfile.from_plain(plain["profile"])
            limits = Limits(**plain["limits"])
            self.take(AppChanged(**{**plain, "profile": profile, "limits": limits}))
        for plain in state["tenants"]:
            self.take(TenantChanged(**plain))
        for plain in state["users"]:
            self.take(UserChanged(**plain))
        for plain in state["contracts"]:
            models = None if plain["models"] is None else tuple(plain["models"])
            quota = Quota(**plain["quota"])
            self.take(ContractChanged(**{**plain, "quota": quota, "models": models}))


def _keep(entries: dict[K, V], key: K, value: V, *, default: bool) -> None:
    """Store a value that differs from the default; remove the entry otherwise."""
    if default:
        entries.pop(key, None)
    else:
        entries[key] = value
