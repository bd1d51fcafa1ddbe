"""Checks of a worker before it joins: its token, its model, its version."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace

from fairserve.engine.wire.base import WorkerFacts
from fairserve.engine.wire.client import HttpWorkerClient
from fairserve.engine.wire.worker_version import version_warning
from fairserve.platform.fleet.worker_spec import WorkerSpec

logger = logging.getLogger(__name__)


def authorize(
    spec: WorkerSpec, client: HttpWorkerClient, environment: Mapping[str, str] | None = None
) -> None:
    """Set the client's token from the environment.

    Raises ValueError if it is missing; neither the error nor a log contains the token.
    """
    name = spec.api_key_env
    if not name:
        return
    token = (os.environ if environment is None else environment).get(name, "").strip()
    if not token:
        raise ValueError(f"the environment variable {name}, which has its token, is not set")
    if not token.isascii() or not token.isprintable():
        raise ValueError(f"the environment variable {name} is not a token of printable ASCII")
    client.authorize(token)


async def facts_of(spec: WorkerSpec, client: HttpWorkerClient) -> WorkerFacts:
    """Return the facts that the worker reports, checked, with the tasks that are configured.

    Raises WorkerUnavailableError, or ValueError if it does not serve its model. A version that may lack
    features is logged and accepted. A worker that does not generate keeps nothing in its KV cache, so
    that what it reports of it has no meaning.
    """
    facts = await client.facts(spec.model)
    warning = version_warning(facts.version)
    if warning is not None:
        logger.warning("worker %s: %s", spec.worker_id, warning)
    if spec.tasks:
        facts = replace(facts, tasks=frozenset(spec.tasks))
    if "generate" not in facts.tasks:
        facts = replace(facts, kv_capacity_tokens=None, kv_events=None)
    return facts
