"""Systems and server of the DLPM paper's figures on A10G GPUs."""

from __future__ import annotations

from dataclasses import replace

from fairserve.engine.simulated.cost_model import COST_MODELS, CostModel
from fairserve.scheduling.local.dlpm_options import DlpmOptions
from fairserve.scheduling.registry import SYSTEMS
from fairserve.scheduling.system import SystemConfig

COSTS = replace(COST_MODELS["a10g-llama3.2-3b"], max_running=4096)
"""Llama-3.2-3B; the batch is bounded by memory alone, like the paper's engine."""
OURS = "fairserve"
"""Name of this project's default."""
PUBLISHED = "dlpm, published"
"""Algorithm 1 exactly as published, without this project's additions for calls that do not fit."""
_TO_THE_LETTER = {"local.max_bypass": 0, "local.refill_when_stuck": False}
_VARIANTS = {PUBLISHED: SYSTEMS["dlpm"].with_options(_TO_THE_LETTER)}


def system(name: str) -> SystemConfig:
    """Return a registered system, or :data:`PUBLISHED`."""
    return _VARIANTS.get(name) or SYSTEMS[name]


def server_text(costs: CostModel, workers: int = 1) -> str:
    """Return the description of the workers for a report."""
    several = "one worker" if workers == 1 else f"{workers} workers"
    return f"Cost model {costs.name} ({costs.origin}), {several}"


PUBLISHED_TEXT = (
    f"'{PUBLISHED}' is Algorithm 1 to the letter; 'dlpm', as this project registers it, stops at a call "
    f"that did not fit {DlpmOptions().max_bypass} times, and refills the others when those in credit do "
    "not fit."
)
OURS_TEXT = f"{OURS} is this project's default."
