"""Preview of a change of the throttling settings: a replay of the last minutes under both settings.

The server gathers the rows and passes them to a low-priority child process
(:mod:`fairserve.platform.tuning.preview.job`), which reads the recording and replays. Only one runs at
a time; the child is killed at its time limit or when its client disconnects. Nothing is stored.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import orjson
from sqlalchemy.exc import OperationalError

from fairserve.interactions.profiles.profile_learning import LearningOptions
from fairserve.platform.base.clock import utc_s
from fairserve.platform.base.errors import ConflictError, FairServeError, UnavailableError
from fairserve.platform.control.messages import ClusterView, WorkerView
from fairserve.platform.control.service import ControlService
from fairserve.platform.control.storage import RowsLedger
from fairserve.platform.db.engine import SessionFactory, read_only
from fairserve.platform.db.session import unavailable
from fairserve.platform.reporting.traffic.segments import segment_paths
from fairserve.platform.tenancy.system.parameters import system_config
from fairserve.platform.tenancy.system.settings import TuningSettings
from fairserve.platform.tuning import service
from fairserve.platform.tuning.preview import rows as preview_rows
from fairserve.platform.tuning.preview.input import (
    PreviewJob,
    PreviewWorkers,
    RejectedCall,
    ServedCall,
)
from fairserve.platform.tuning.preview.schemas import PreviewIn, PreviewOut

logger = logging.getLogger(__name__)

TIME_LIMIT_S = 30.0
MAX_CALLS = 5_000
MAX_SERVED_ROWS = 10_000
MAX_REJECTED_ROWS = 20_000
LEAD_S = 60.0
"""Seconds replayed before the window: the length of the limits' window."""
FLUSH_S = 2.0
ASK_S = 0.25
"""Seconds between checks that the client is still connected."""
EMBEDDED_PASS_TOKENS = 512
"""Token budget of a step of the embedded engine."""
OTHERS_BATCH, OTHERS_PASS_TOKENS = 256, 8192
"""Assumed values for external workers, which do not report theirs."""

Gone = Callable[[], Awaitable[bool]]


@dataclass
class Previews:
    """Runs one preview at a time, from the parts of a running server. Belongs to the event loop."""

    settings: TuningSettings
    sessions: SessionFactory
    control: ControlService
    ledger: RowsLedger
    recording: Path | None
    """Folder of the recorded traffic; None if traffic is not recorded."""
    learning: LearningOptions | None
    """Options of profile learning; None if it is off."""
    embedded_batch: int | None
    """Concurrent sequences of an embedded worker; None if the workers are external."""
    time_limit_s: float = TIME_LIMIT_S
    _busy: bool = field(default=False, init=False)

    async def make(self, body: PreviewIn, gone: Gone) -> PreviewOut:
        """Return the preview of a change. ``gone`` returns whether the client has disconnected.

        Raises InvalidRequestError like a change, ConflictError while another preview runs or if there is
        nothing to replay, and UnavailableError at the time limit.
        """
        service.checked(self.settings, body)
        if self._busy:
            raise ConflictError(
                "another preview is running; retry when it has ended", code="preview_busy"
            )
        self._busy = True
        try:
            cluster = await self.control.cluster()
            job = await asyncio.to_thread(gather, self, cluster, body, utc_s())
            return PreviewOut.model_validate(await self._run(job, gone))
        except OperationalError as error:
            raise unavailable() from error
        finally:
            self._busy = False

    async def _run(self, job: PreviewJob, gone: Gone) -> object:
        async with _child() as process:
            answered = asyncio.ensure_future(
                process.communicate(await asyncio.to_thread(pickle.dumps, job))
            )
            left = asyncio.ensure_future(_until(gone))
            try:
                done, _ = await asyncio.wait(
                    (answered, left),
                    timeout=self.time_limit_s,
                    return_when=asyncio.FIRST_COMPLETED,
                )
            finally:
                left.cancel()
                if not answered.done():
                    answered.cancel()
                await asyncio.gather(answered, left, return_exceptions=True)
        if answered not in done:
            if left in done:
                raise _LeftError("the client disconnected")
            raise UnavailableError(
                f"the replay took longer than {self.time_limit_s:g} s; request fewer minutes",
                code="preview_timeout",
            )
        out, err = answered.result()
        if process.returncode != 0:
            logger.error("a preview failed: %s", err.decode(errors="replace")[-2000:])
            raise FairServeError("the replay failed; the server's log has details")
        answer = orjson.loads(out)
        if "nothing" in answer:
            raise nothing(answer["nothing"])
        return answer


class _LeftError(FairServeError):
    """The client has disconnected; the response is not read."""

    status, code = 499, "client_left"


def nothing(why: str) -> ConflictError:
    """Return the error for a window with nothing to replay."""
    return ConflictError(
        f"{why}: retry after some calls have ended, or request more minutes",
        code="nothing_recorded",
    )


@contextlib.asynccontextmanager
async def _child() -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the child process, and kill it when the context ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "fairserve.platform.tuning.preview.job",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _until(gone: Gone) -> None:
    while not await gone():  # noqa: ASYNC110  nothing would set an event
        await asyncio.sleep(ASK_S)


def gather(previews: Previews, cluster: ClusterView, body: PreviewIn, now_at: float) -> PreviewJob:
    """Return the job: rows, the settings of their tenants, apps and users, and workers. Blocks."""
    settings = previews.settings
    folder = previews.recording
    if folder is None:
        raise ConflictError(
            "traffic is not recorded, so there is nothing to replay: start the server with "
            "--trace-recording, and retry after some calls",
            code="nothing_recorded",
        )
    if not segment_paths(folder):
        raise nothing("no traffic is recorded yet")
    previews.ledger.flush(FLUSH_S)
    from_at = now_at - 60.0 * body.minutes
    lead_at = from_at - LEAD_S
    with previews.sessions() as session:
        read_only(session)
        current = service.load_current(session, settings)
        served = preview_rows.served_calls(session, lead_at, now_at, MAX_SERVED_ROWS)
        refused = preview_rows.refused_calls(session, lead_at, now_at, MAX_REJECTED_ROWS)
        rows: list[ServedCall | RejectedCall] = [*served, *refused]
        if not any(row.at >= from_at for row in rows):
            raise nothing(f"no call arrived and ended in the last {body.minutes} min")
        changes = preview_rows.changes_since(session, from_at)
        parties = preview_rows.settings_of(session, rows, previews.learning)
    workers, notes = _workers(previews.embedded_batch, cluster, Counter(row.model for row in rows))
    before = system_config(settings, current.system, current.parameters)
    after, _ = service.checked(settings, body)
    if changes:
        notes.append(f"{changes} changes of the settings within the window")
    if kept := service.kept_by_workers(before, after):
        notes.append(f"that {', '.join(kept)} applies only to restarted workers")
    full = [
        part[-1].at
        for part, most in ((served, MAX_SERVED_ROWS), (refused, MAX_REJECTED_ROWS))
        if len(part) == most
    ]
    first_at = max(full, default=lead_at)
    return PreviewJob(
        recording=folder,
        lead_at=first_at,
        from_at=max(from_at, first_at),
        until_at=now_at,
        workers=workers,
        served=served,
        refused=refused,
        settings=parties,
        current=before,
        proposed=after,
        max_calls=MAX_CALLS,
        notes=notes,
        cut=first_at > from_at,
    )


def _workers(
    embedded_batch: int | None, cluster: ClusterView, models: Counter[str]
) -> tuple[PreviewWorkers, list[str]]:
    """Return the workers of the model with most calls among models with a worker, and notes."""
    ready = [worker for worker in cluster.workers if not worker.draining]
    if not ready:
        raise ConflictError("no worker is ready, so nothing can be replayed", code="no_worker")
    by_model: dict[str, list[WorkerView]] = {}
    for worker in ready:
        by_model.setdefault(worker.model, []).append(worker)
    known = [model for model, _ in sorted(models.items(), key=lambda each: (-each[1], each[0]))]
    model = next((model for model in known if model in by_model), None)
    if model is None:
        raise nothing("no call of a model with a worker has arrived")
    own = by_model[model]
    notes = []
    if len(known) > 1:
        notes.append(f"{len(known) - 1} models other than {model}, which has most calls")
    sizes = {worker.kv_capacity_tokens for worker in own}
    if len(sizes) > 1:
        notes.append("different sizes of workers: all are replayed as the smallest")
    batch, tokens = OTHERS_BATCH, OTHERS_PASS_TOKENS
    if embedded_batch is not None:
        batch, tokens = embedded_batch, EMBEDDED_PASS_TOKENS
    return PreviewWorkers(model, len(own), min(sizes), batch, max(tokens, batch)), notes
