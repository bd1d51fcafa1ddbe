"""Costs of a simulated worker whose passes take one second each, so that time counts passes."""

from fairserve.engine.simulated.cost_model import CostModel


def pass_costs(kv_tokens, *, running, budget, loop):
    """Return the costs. ``running`` bounds the sequences and ``budget`` the tokens of a pass."""
    return CostModel(
        "passes",
        kv_tokens,
        prefill_base_s=1.0,
        prefill_s_per_token=0.0,
        prefill_s_per_pair=0.0,
        decode_base_s=1.0,
        decode_s_per_sequence=0.0,
        decode_s_per_held_token=0.0,
        max_prefill_tokens=budget,
        max_running=running,
        loop=loop,
    )
