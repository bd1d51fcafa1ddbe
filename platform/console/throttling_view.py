"""Template data of the throttling page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from fairserve.platform.base.errors import ConflictError, FairServeError, InvalidRequestError
from fairserve.platform.console import formats
from fairserve.platform.console.lists import ListPart
from fairserve.platform.console.throttling_form import (
    PARTS,
    Field,
    ParameterChange,
    ParameterForm,
    differences,
    parameter_form,
)
from fairserve.platform.db.operations import ThrottlingSetting
from fairserve.platform.db.rows import read_page
from fairserve.platform.db.schemas import Paging
from fairserve.platform.tenancy.system.parameters import system_config
from fairserve.platform.tenancy.system.settings import TuningSettings
from fairserve.platform.tuning import repository, service
from fairserve.platform.tuning.preview.schemas import DEFAULT_MINUTES, FiguresOut, PreviewOut
from fairserve.platform.tuning.service import Current

PER_PAGE = 20
FIRST = frozenset({"high_watermark", "low_watermark", "hold_s", "resident_share"})
"""Parameters that are shown first, beside those of the throttle, changed ones and wrong ones."""
MINUTES = (5, 10, 30)
RPM = "rpm"
"""Choice of the selection for ``rpm-<N>``."""
DEFAULT_RPM = "20"
NO_PREVIEW: Mapping[str, Any] = {
    "preview": None,
    "preview_problem": None,
    "figures": [],
    "fidelity": [],
    "proposed": [],
}


class ThrottlingPageQuery(Paging):
    """The selected system and the page of the history."""

    system: str = ""
    rpm: str = ""

    def chosen(self) -> str:
        """Return the system's name; empty for the one in force."""
        if self.system == RPM:
            return f"{RPM}-{self.rpm.strip() or DEFAULT_RPM}"
        return self.system.strip()


class Version(NamedTuple):
    """A row of the history."""

    number: int
    system: str
    author: str | None
    at: datetime | None
    changes: list[ParameterChange]


class ParameterRow(NamedTuple):
    """A figure of a preview, without and with the change."""

    name: str
    before: str
    after: str

    @property
    def differs(self) -> bool:
        """Return whether the values differ."""
        return self.before != self.after


def version_of(form: Mapping[str, str], name: str = "version") -> int:
    """Return a version's number from a form. Raises InvalidRequestError."""
    text = form.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise InvalidRequestError(f"{name} must be the number of a version", param=name)
    return int(text)


def minutes_of(form: Mapping[str, str]) -> int:
    """Return the number of minutes to replay. Raises InvalidRequestError."""
    text = form.get("minutes", str(DEFAULT_MINUTES))
    if text not in map(str, MINUTES):
        raise InvalidRequestError(
            f"minutes must be one of {', '.join(map(str, MINUTES))}", param="minutes"
        )
    return int(text)


def version(session: Session, settings: TuningSettings, number: int) -> tuple[str, dict[str, Any]]:
    """Return system and parameters of a version. Raises InvalidRequestError for an unknown one."""
    if number == 0:
        return settings.system, {}
    row = session.get(ThrottlingSetting, number)
    if row is None:
        raise InvalidRequestError(f"there is no version {number}", param="version")
    return row.system, row.parameters


def history(
    session: Session, settings: TuningSettings, offset: int
) -> tuple[list[Version], ListPart]:
    """Return the versions with their changes, newest first; the last is the server's settings."""
    paging = Paging(limit=PER_PAGE + 1, offset=offset)
    rows, total = read_page(session, repository.history(), paging)
    shown, has_more = rows[:PER_PAGE], len(rows) > PER_PAGE
    found = []
    for at, row in enumerate(shown):
        before: tuple[str, dict[str, Any]] = (settings.system, {})
        if at + 1 < len(rows):
            before = (rows[at + 1].system, rows[at + 1].parameters)
        changes = differences(before, (row.system, row.parameters))
        found.append(Version(row.version, row.system, row.author, row.created_at, changes))
    if not has_more:
        found.append(Version(0, settings.system, None, None, []))
    return found, ListPart(offset, PER_PAGE, len(found), total + 1, has_more)


def values(
    session: Session,
    settings: TuningSettings,
    shown: ParameterForm | None,
    problem: FairServeError | None,
    form: Mapping[str, str] | None,
    *,
    offset: int = 0,
    changed: bool = False,
    same: bool = False,
    **more: Any,
) -> dict[str, Any]:
    """Return all values for the templates."""
    current = service.load_current(session, settings)
    shown = shown or parameter_form(settings, current, current.system)
    versions, part = history(session, settings, offset)
    report = service.report(settings, current)
    config = shown.config
    parts = {"own": "", "throttle": config.throttle, "feeder": config.feeder}
    parts |= {"router": config.router, "local": config.local}
    first = [field for field in shown.fields if _is_first(field)]
    rest = [field for field in shown.fields if not _is_first(field)]
    return {
        **NO_PREVIEW,
        "holds": report,
        "systems": [name for name in report.systems if not name.startswith(f"{RPM}-")],
        "rpm": shown.system.removeprefix(f"{RPM}-") if _is_rpm(shown.system) else DEFAULT_RPM,
        "is_rpm": _is_rpm(shown.system),
        "parameter_form": shown,
        "groups": _groups(parts, first),
        "advanced": _groups(parts, rest),
        "first_wrong": next((field.name for field in shown.problems), None),
        "problem": problem,
        "expected": _expected(current, problem, form),
        "concurrent_changes": _concurrent_changes(session, settings, current, problem, form),
        "same": same,
        "kept": _kept(session, settings, current) if changed else [],
        "minutes": MINUTES,
        "asked_minutes": (form or {}).get("minutes", str(DEFAULT_MINUTES)),
        "versions": versions,
        "part": part,
        **more,
    }


def _is_first(field: Field) -> bool:
    changed = field.differs or field.text != field.texts["value"]
    return field.part == "throttle" or field.name in FIRST or changed


def _groups(
    parts: Mapping[str, str], fields: Sequence[Field]
) -> list[tuple[str, str, list[Field]]]:
    """Return the fields by part, with the policy of each part."""
    found = [(part, parts[part], [each for each in fields if each.part == part]) for part in PARTS]
    return [each for each in found if each[2]]


def _is_rpm(system: str) -> bool:
    return system.startswith(f"{RPM}-")


def _expected(
    current: Current, problem: FairServeError | None, form: Mapping[str, str] | None
) -> int:
    """Return the version that the form changes; after a shown conflict, the newer one."""
    if form is None or "to" in form or isinstance(problem, ConflictError):
        return current.version
    try:
        return version_of(form)
    except InvalidRequestError:
        return current.version


def _kept(session: Session, settings: TuningSettings, current: Current) -> list[str]:
    """Return the changes of the newest version that apply to restarted workers only."""
    if current.version == 0:
        return []
    try:
        before = system_config(settings, *version(session, settings, current.version - 1))
    except (ValueError, InvalidRequestError):
        return []  # not known, or not by this release
    return service.kept_by_workers(
        before, system_config(settings, current.system, current.parameters)
    )


def _concurrent_changes(
    session: Session,
    settings: TuningSettings,
    current: Current,
    problem: FairServeError | None,
    form: Mapping[str, str] | None,
) -> list[ParameterChange] | None:
    """Return the changes by others since the form was loaded; None without a conflict."""
    if not isinstance(problem, ConflictError) or form is None:
        return None
    try:
        seen = version(session, settings, version_of(form))
    except InvalidRequestError:
        return []
    return differences(seen, (current.system, current.parameters))


def figures(preview: PreviewOut) -> list[ParameterRow]:
    """Return the replay's figures with the current and the proposed settings."""
    pair = (preview.current, preview.proposed)
    reasons = dict.fromkeys(reason for each in pair for reason in each.refused_by_reason)

    def row(name: str, write: Any, read: Any) -> ParameterRow:
        return ParameterRow(name, *(write(read(each)) for each in pair))

    def delays(name: str, field: str) -> list[ParameterRow]:
        return [
            row(f"{name}, {word}", formats.seconds, lambda f, q=q: getattr(getattr(f, field), q))
            for word, q in (("median", "p50"), ("99th percentile", "p99"))
        ]

    def plain(name: str, field: str, write: Any = formats.number) -> ParameterRow:
        return row(name, write, lambda f: getattr(f, field))

    return [
        plain("Rejected calls", "refused_calls"),
        *(_reason(reason, *pair) for reason in reasons),
        plain("Rejected calls of runs in progress", "refused_mid_run"),
        *delays("Queue delay", "queue_delay_s"),
        *delays("Time to first token", "ttft_s"),
        *delays("Duration of a run", "interaction_latency_s"),
        plain("Jain's fairness index", "jain_index"),
        plain("Complete runs", "completed_interactions"),
        plain("Aborted runs", "aborted_interactions"),
        plain("Wasted tokens", "wasted_tokens"),
        plain("Prefix hit rate", "prefix_hit_rate", formats.percent),
        plain("Tokens per second", "throughput_tokens_per_s"),
        plain("Busy share of workers", "busy_share", formats.percent),
    ]


def _reason(reason: str, before: FiguresOut, after: FiguresOut) -> ParameterRow:
    counts = [formats.number(each.refused_by_reason.get(reason, 0)) for each in (before, after)]
    return ParameterRow(f"… {reason.replace('_', ' ')}", *counts)


def fidelity(preview: PreviewOut) -> list[ParameterRow]:
    """Return the measured figures and those of the replay of the current settings."""
    found = preview.fidelity
    return [
        ParameterRow(name, write(pair.measured), write(pair.simulated))
        for name, pair, write in (
            ("Rejected calls", found.refused_calls, formats.number),
            ("Queue delay, median", found.queue_delay_p50_s, formats.seconds),
            ("Queue delay, 99th percentile", found.queue_delay_p99_s, formats.seconds),
            ("Time to first token, 99th percentile", found.ttft_p99_s, formats.seconds),
        )
    ]
