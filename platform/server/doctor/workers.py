"""Probes of all workers as the server probes them, with their models, tokenizers and clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.util import find_spec

from aiohttp import ClientError, ClientSession, ClientTimeout

from fairserve.engine.torch.builtin_model import BUILTIN_MODEL_NAME, builtin_name
from fairserve.engine.wire.base import WorkerFacts, WorkerUnavailableError
from fairserve.engine.wire.client import HttpWorkerClient, worker_session
from fairserve.engine.wire.worker_version import version_warning
from fairserve.platform.fleet.fleet import FleetPart
from fairserve.platform.fleet.fleet_file import FleetFileError
from fairserve.platform.fleet.joining import authorize
from fairserve.platform.fleet.model_pools import tokenizer_names
from fairserve.platform.fleet.prompts.reader import load_counter
from fairserve.platform.fleet.prompts.tokenizer_files import NoTokenizerError
from fairserve.platform.fleet.static_workers import static_fleet
from fairserve.platform.fleet.worker_spec import WorkerSpec
from fairserve.platform.server.configuration.checks import configured_fleet, masked
from fairserve.platform.server.doctor.clocks import compared
from fairserve.platform.server.doctor.finding import Finding, fail, ok, warn
from fairserve.platform.server.settings import Settings

PROBES_AT_ONCE = 16
DATE_TIMEOUT_S = 2.0
DATE_PRECISION_S = 1.0
"""Precision of the header Date, which has whole seconds, with the time of the answer."""


def check_workers(settings: Settings, stored: FleetPart) -> Iterator[Finding]:
    """Yield the findings about the workers of the settings, the fleet file and the API (``stored``)."""
    try:
        configured = configured_fleet(settings)
    except FleetFileError as error:
        yield fail("fleet", str(error), "correct the file")
        return
    specs = (*configured.workers, *stored.workers)
    if not specs and settings.fleet.fleet_file is None:
        yield from _embedded(settings)
        return
    if not specs:
        yield warn("fleet", "it has no workers", "add one to the fleet file, or through the API")
        return
    probed = asyncio.run(_probe_all(specs))
    for _, findings in probed.values():
        yield from findings
    local = {spec.worker_id for spec in static_fleet(settings.fleet).workers}
    tokenizers = {**stored.tokenizers, **configured.tokenizers}
    models: dict[str, tuple[WorkerFacts, bool]] = {}
    for worker_id, (facts, _) in probed.items():
        if facts is not None:
            before = models.get(facts.model, (facts, False))
            models[facts.model] = before[0], before[1] or worker_id in local
    for model, (facts, is_local) in models.items():
        local_model = settings.fleet.model if is_local else ""
        named = tokenizers.get(model)
        yield _tokenizer(model, tokenizer_names(model, facts.root, named, local_model), facts)


def _embedded(settings: Settings) -> Iterator[Finding]:
    fleet = settings.fleet
    if not fleet.workers:
        yield warn("fleet", "no worker is configured", "add one through the API, or set workers")
        return
    if find_spec("torch") is None:
        yield fail("fleet", "embedded workers need torch", "pip install 'fairserve[torch]'")
        return
    builtin = builtin_name(fleet.model or BUILTIN_MODEL_NAME)
    yield ok("fleet", f"{fleet.workers} embedded workers of {builtin or fleet.model}")
    if builtin is None:
        yield _tokenizer(fleet.model, (fleet.model,), None)


async def _probe_all(
    specs: Iterable[WorkerSpec],
) -> dict[str, tuple[WorkerFacts | None, list[Finding]]]:
    """Return the facts of each healthy worker, with the findings about it."""
    slots = asyncio.Semaphore(PROBES_AT_ONCE)
    session = worker_session()

    async def probe(spec: WorkerSpec) -> tuple[WorkerFacts | None, list[Finding]]:
        async with slots:
            return await _probe(spec, session)

    async with session:
        found = await asyncio.gather(*(probe(spec) for spec in specs))
    return {spec.worker_id: each for spec, each in zip(specs, found, strict=True)}


async def _probe(
    spec: WorkerSpec, session: ClientSession
) -> tuple[WorkerFacts | None, list[Finding]]:
    check, url = f"worker {spec.worker_id}", masked(spec.url)
    client = HttpWorkerClient(spec.url, session, spec.kind)
    try:
        authorize(spec, client)
        wrong = await client.probe()
        if wrong:
            help_text = "start it, or correct its URL; its calls wait until it answers"
            return None, [fail(check, f"{url}: {wrong}", help_text)]
        facts = await client.facts(spec.model)
    except (ValueError, WorkerUnavailableError) as error:
        return None, [fail(check, f"{url}: {error}", "correct its entry in the fleet")]
    version = f", version {facts.version}" if facts.version else ""
    found = f"{url} serves {facts.model} ({facts.kind}{version})"
    too_old = version_warning(facts.version)
    findings = [warn(check, found, too_old) if too_old else ok(check, found)]
    date = await _date(spec.url, session)
    if date is not None:
        # The header names the begun second.
        skew_s = (date - datetime.now(UTC)).total_seconds() + 0.5
        findings.append(compared(f"worker {spec.worker_id}", skew_s, DATE_PRECISION_S))
    return facts, findings


async def _date(url: str, session: ClientSession) -> datetime | None:
    """Return the time of the server's clock; None if it does not report it."""
    try:
        timeout = ClientTimeout(total=DATE_TIMEOUT_S)
        async with session.get(f"{url}/health", timeout=timeout, allow_redirects=False) as answer:
            return parsedate_to_datetime(answer.headers["Date"]).astimezone(UTC)
    except (ClientError, TimeoutError, OSError, KeyError, ValueError):
        return None


def _tokenizer(model: str, names: tuple[str, ...], facts: WorkerFacts | None) -> Finding:
    """Return where prompts of the model are counted."""
    check = f"tokenizer of {model}"
    reason = ""
    for name in names:
        try:
            load_counter(name)
        except NoTokenizerError as error:
            reason = reason or f"{name}: {error}"
        else:
            return ok(check, f"{name} is on this host")
    if facts is not None and facts.tokenizes:
        return ok(check, "its workers count prompts (/tokenize)")
    return warn(
        check,
        f"not on this host ({reason})",
        "download it, or name one for the model in the fleet; else the server asks the hub, and counts"
        " are estimates without it",
    )
