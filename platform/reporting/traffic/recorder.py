"""Recorder of live traffic: control reports each ended call, a thread writes the recording.

Cost on the event loop: one tuple per call. Block keys are those of the router, so nothing is hashed
twice; the thread hashes names and encodes and writes lines. Errors never affect the call: calls beyond
the memory bound, or that cannot be written, are dropped, counted and logged.

All accepted calls are recorded. Rejected calls are not: their outputs are unknown, and a flood of them
must not displace the others.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from fairserve.platform.base.clock import utc_s
from fairserve.platform.base.shared_limit import SharedLimit
from fairserve.platform.control.call_state import CallState
from fairserve.platform.control.listener import CallListener
from fairserve.platform.reporting.traffic.lines import EndedCall
from fairserve.platform.reporting.traffic.segments import SegmentWriter
from fairserve.scheduling.events import CallOutcome

logger = logging.getLogger(__name__)

MAX_BYTES = 128 * 1024 * 1024
"""Size of the recording; the oldest part is deleted."""
RETENTION_S = 7 * 86_400.0
"""Seconds after which recorded calls are deleted at the latest."""
MAX_PENDING_CALLS = 20_000
MAX_PENDING_BLOCKS = 4_000_000
TENANT_SHARE = 1 / 2
"""Share of the pending calls and blocks that one tenant may have of what the others leave."""
"""Maximum number of block keys of unwritten calls, 32 MB."""
WRITE_S = 1.0
"""Seconds between writes. The thread polls, so the event loop does not notify it."""
PRUNE_S = 600.0


class TrafficRecorder(CallListener):
    """Recorder: events on the event loop, files in a thread. Call ``start`` and ``close`` once."""

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = MAX_BYTES,
        retention_s: float = RETENTION_S,
        block_tokens: int,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = utc_s,
    ) -> None:
        self._writer = SegmentWriter(
            folder,
            max_bytes=max_bytes,
            retention_s=retention_s,
            block_tokens=block_tokens,
            wall=wall,
        )
        self._began_at = wall() - clock()
        """Fixed offset of wall time from monotonic time: clock steps do not distort runs."""
        self._lock = threading.Lock()
        self._pending: list[EndedCall] = []
        self._calls, self._blocks = _pending_limits()
        self._dropped = 0
        self._stopping = threading.Event()
        self._failing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the writing thread."""
        self._thread = threading.Thread(target=self._write_all, name="traffic", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write pending calls and stop the thread. Idempotent."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def call_ended(self, call: CallState, outcome: CallOutcome, now_s: float) -> None:
        """Queue the record of an ended call. Never raises."""
        try:
            self._take(self._call(call, now_s))
        except Exception:
            logger.exception("cannot record a call")

    def _call(self, live: CallState, now_s: float) -> EndedCall:
        call, usage = live.call, live.usage
        reported = usage.prompt_tokens > 0  # by the worker, whose count the ledger stores
        return EndedCall(
            run=call.interaction_id,
            opened_at=live.run_opened_at,
            call=call.call_id,
            row=live.record_id,
            deps=call.parents or (),
            stage=call.stage,
            tenant=call.tenant,
            app=call.app,
            user=call.user,
            agent=call.agent,
            begin_at=self._began_at + live.submitted_s,
            end_at=self._began_at + now_s,
            prompt_tokens=usage.prompt_tokens if reported else call.prompt_tokens,
            system_tokens=usage.system_tokens if reported else call.system_tokens,
            output_tokens=usage.output_tokens,
            samples=call.samples,
            keys=live.block_keys,
        )

    def _take(self, call: EndedCall) -> None:
        with self._lock:
            tenant, blocks = call.tenant, len(call.keys)
            if self._calls.full(tenant) or self._blocks.take(tenant, blocks):
                self._dropped += 1
                return
            self._calls.add(tenant)
            self._pending.append(call)

    # --- the thread -------------------------------------------------------------------------------

    def _write_all(self) -> None:
        stopping = False
        prune_s = 0.0
        while not stopping:
            stopping = self._stopping.wait(WRITE_S)
            with self._lock:
                calls, self._pending = self._pending, []
                self._calls, self._blocks = _pending_limits()
                dropped, self._dropped = self._dropped, 0
            if dropped:
                logger.warning("%d calls were not recorded: the disk is too slow", dropped)
            prune_s -= WRITE_S
            if calls or prune_s <= 0:
                prune_s = PRUNE_S
                self._safely(calls)

    def _safely(self, calls: list[EndedCall]) -> None:
        """Write and prune; log an error only when it first occurs."""
        try:
            self._writer.write(calls)
            self._failing = False
        except Exception as error:
            if not self._failing:
                logger.warning("cannot record traffic: %s", error)
            self._failing = True


def _pending_limits() -> tuple[SharedLimit, SharedLimit]:
    """Return the limits of pending calls and of their blocks."""
    return (
        SharedLimit(MAX_PENDING_CALLS, TENANT_SHARE),
        SharedLimit(MAX_PENDING_BLOCKS, TENANT_SHARE),
    )
