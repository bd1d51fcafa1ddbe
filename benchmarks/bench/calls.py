"""Calls of many clients, with their owners and prompts.

There are ten tenants with the same number of users each; paths are ``(tenant, user)``. Each tree of
prompts belongs to one tenant, so that salts do not multiply the trees: the calls of every second
tenant have a salt, the others none.
"""

from __future__ import annotations

import numpy as np

from fairserve.benchmarks.bench.prompts import PromptTrees
from fairserve.interactions.call import Call

TENANTS = 10
OUTPUT_TOKENS = 150


class BenchCallSource:
    """An endless sequence of calls. Equal seeds give equal calls."""

    def __init__(self, seed: int, clients: int = 100, prompts: PromptTrees | None = None) -> None:
        self._prompts = PromptTrees(seed) if prompts is None else prompts
        self._random = np.random.default_rng(seed + 1)
        self._tenants = min(TENANTS, clients)
        self._users = clients // self._tenants
        self._made = 0

    def call(self) -> Call:
        """Return the next call: of some tree and one of its tenant's users, in a separate run."""
        tree = int(self._random.integers(len(self._prompts)))
        user = int(self._random.integers(self._users))
        return self._call(tree, user, "", final=True)

    def call_of_run(self, run: int, client: int, *, final: bool) -> Call:
        """Return a call of an interaction; ``client`` is 0 to the number of clients less 1."""
        tenant = client % self._tenants
        choices = -(-(len(self._prompts) - tenant) // self._tenants)
        tree = tenant + self._tenants * int(self._random.integers(choices))
        return self._call(tree, client // self._tenants, f"run-{run}", final=final)

    def _call(self, tree: int, user: int, run: str, *, final: bool) -> Call:
        self._made += 1
        prompt = self._prompts.prompt(tree)
        tenant = tree % self._tenants
        name = f"tenant-{tenant}"
        return Call(
            call_id=f"call-{self._made}",
            tenant=name,
            app=f"app-{tenant}",
            user=f"user-{user}",
            interaction_id=run or f"run-{self._made}",
            model="model",
            input_tokens=len(prompt.token_ids) - prompt.system_tokens,
            system_tokens=prompt.system_tokens,
            max_output_tokens=OUTPUT_TOKENS,
            expected_output_tokens=OUTPUT_TOKENS,
            final=final,
            token_ids=prompt.token_ids,
            salt=name if tenant % 2 else "",
        )
