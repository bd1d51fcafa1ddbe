"""Conversations of several turns (the DLPM paper's sections 6.1 and 6.3, Table 2).

A run is a conversation, a chain of calls: the prompt of a turn consists of the previous prompt, its
answer and a new message. The user thinks between turns (``gap_s`` of the call).

Published: 56 tokens of prompt and 142 of output on average. A prompt that contains its history is
longer than that from the second turn on, so 56 is taken as the tokens that a turn adds. The paper
replays recorded conversations; the number of turns (geometric) and the thinking time (exponential)
are chosen here. The recorded ones are shorter (mostly one turn), which would leave hardly anything
to share.

Weakness: users do not leave because an answer is late.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fairserve.benchmarks.traces.generate.block_ids import BlockIds
from fairserve.benchmarks.traces.generate.programs import (
    Calls,
    call_on,
)
from fairserve.benchmarks.traces.generate.token_lengths import TokenLengths


@dataclass(frozen=True, slots=True)
class Chat:
    """Program of a chat; lengths in tokens."""

    message_tokens: float = 56.0
    """Mean length of a user's message (Table 2)."""
    output_tokens: float = 142.0
    turns: float = 4.0
    """Mean turns of a conversation; chosen."""
    most_turns: int = 32
    """Maximum turns of a conversation; chosen."""
    think_s: float = 5.0
    """Mean seconds between an answer and the next message; chosen."""
    system_tokens: int = 0
    """System prompt of all conversations of an owner, in tokens; 600 in our S2."""
    cv: float = 0.75
    """Coefficient of variation of messages and outputs; chosen."""
    app: str = "chat"

    def runs(
        self, owner: str, client: str, blocks: BlockIds, rng: np.random.Generator
    ) -> Iterator[Calls]:
        """Yield an endless sequence of conversations."""
        system = blocks.extend(blocks.empty, ("chat-system", owner), self.system_tokens)
        messages = TokenLengths(self.message_tokens, self.cv)
        outputs = TokenLengths(self.output_tokens, self.cv)
        conversation = 0
        while True:
            history = system
            calls = []
            for turn in range(min(int(rng.geometric(1 / self.turns)), self.most_turns)):
                content = ("message", client, conversation, turn)
                prompt = blocks.extend(history, content, messages.draw(rng))
                output = outputs.draw(rng)
                deps = (turn - 1,) if turn else ()
                gap_s = float(rng.exponential(self.think_s)) if turn else 0.0
                calls.append(call_on(turn, "turn", deps, prompt, self.system_tokens, output, gap_s))
                history = blocks.extend(prompt, "answer", output)
            yield tuple(calls)
            conversation += 1
