"""Cost model of the reports about this project's default, and its name among the systems."""

from __future__ import annotations

from dataclasses import replace

from fairserve.engine.simulated.cost_model import COST_MODELS

COSTS = replace(COST_MODELS["a100-llama3-8b"], max_running=256)
OURS = "fairserve"
