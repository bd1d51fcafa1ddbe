"""A worker that lies, a tenant that crowds and a client that cheats cost the honest nothing."""

import asyncio

from processes import eventually
from soak import BUDGET, soaking


async def test_honest_clients_get_exact_answers_and_bills(tmp_path):
    async with soaking(tmp_path) as soak:
        seen = await soak.honest(4, attacked=True)
        assert not seen.errors
        assert seen.calls > 20
        assert not soak.surprises

        def settled():
            row = soak.usage("honest")
            return row is not None and row["calls"] >= seen.calls

        await asyncio.to_thread(eventually, settled, lambda: soak.usage("honest"))
        row = await asyncio.to_thread(soak.usage, "honest")
        assert (row["calls"], row["completed"]) == (seen.calls, seen.calls)
        assert row["output_tokens"] == seen.output_tokens
        assert row["input_tokens"] == seen.prompt_tokens
        liar = await asyncio.to_thread(soak.usage, "liar")
        assert soak.refused_by_budget.is_set()
        assert float(liar["cost"]) <= BUDGET
