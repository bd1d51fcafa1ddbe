"""Figures of ``fairserve bench tokenising``: the prompt of a call, by turns of a conversation.

A prompt is rendered, tokenised, and its block keys are computed, as the server does it. The hold of the
event loop is the longest CPU time of one of its steps while it counts conversations whose first turns
are as long as a prompt may be that is tokenised on the loop, and one of 8,000 tokens; ``elapsed_ms`` in
the details has the waits for threads, too. The tokenizer is trained on words like those of the prompts.
Weaknesses: ``elapsed_ms`` includes other programs on the same core; the words are simpler than those of
real prompts, and a real model's vocabulary is ten times as large, which changes the number of tokens.
"""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from itertools import count
from typing import Any

from fairserve.benchmarks.bench.figure import BenchWorkload, Figure, FigurePart, Reading, sized
from fairserve.benchmarks.bench.figures_command import FiguresCommand
from fairserve.benchmarks.bench.gateway.calls import words
from fairserve.benchmarks.bench.measure import cpu_ns, wall_ns
from fairserve.platform.fleet.prompts.chat_template import DEFAULT, ChatTemplate
from fairserve.platform.fleet.prompts.reader import INLINE_CHARS, PromptReader, TemplateCounter
from fairserve.platform.fleet.prompts.tokenizer_files import ModelTokenizer
from fairserve.scheduling.locality.block_keys import BlockHasher

FIRST = Figure("tokenise_first_turn_us", "us", "prompt of a first turn, 200 new tokens", None)
TENTH = Figure("tokenise_tenth_turn_us", "us", "prompt of a tenth turn, 200 new tokens", None)
LONG = Figure("tokenise_known_system_us", "us", "prompt with a known system prompt of 8,000", None)
HOLD = Figure("tokenise_hold_ms", "ms", "longest hold of the event loop by prompts", 1)
TURN_WORDS = 80
"""Words of a message: about 100 tokens."""
SYSTEM_WORDS = 6_400
SWITCH_S = 0.0005
"""Interval at which Python may switch threads in seconds, as in a server."""
TENANT = "tenant"
_VOCABULARY = 8_192
_TRAINING_WORDS = 20_000
_TRAINING_SEED = 1
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

Messages = list[dict[str, Any]]


def trained_tokenizer() -> ModelTokenizer:
    """Return a tokenizer with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCABULARY,
        special_tokens=["<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([words(_TRAINING_WORDS, _TRAINING_SEED)], trainer)
    return ModelTokenizer(tokenizer, ChatTemplate({DEFAULT: _TEMPLATE}), takes_media=False)


class BenchConversations:
    """Conversations of new words."""

    def __init__(self) -> None:
        self._seeds = count(2)

    def text(self, size: int) -> str:
        """Return that many words."""
        return words(size, next(self._seeds))

    def turns(self, number: int, system_words: int = 0) -> list[Messages]:
        """Return the messages of each turn of a conversation."""
        messages = [{"role": "system", "content": self.text(system_words)}] if system_words else []
        found = []
        for _ in range(number):
            messages = [*messages, {"role": "user", "content": self.text(TURN_WORDS)}]
            found.append(messages)
            messages = [*messages, {"role": "assistant", "content": self.text(TURN_WORDS)}]
        return found


class Prompts:
    """Counts prompts in one thread."""

    def __init__(self, repeats: int) -> None:
        self._repeats = repeats
        self._counter = TemplateCounter(_tokenizer())
        self._conversations = BenchConversations()
        self._hasher = BlockHasher(1)

    def _us(self, messages: Messages) -> tuple[float, int]:
        """Return the CPU time of a prompt in microseconds, and its tokens."""
        begin = cpu_ns()
        prompt = self._counter.chat(messages, None, tenant=TENANT)
        self._hasher.keys(prompt.token_ids, TENANT)
        return (cpu_ns() - begin) / 1e3, len(prompt.token_ids)


class BenchTurns(Prompts):
    """First and tenth turns."""

    def round(self) -> Reading:
        """Count the turns of new conversations."""
        first = tenth = whole = 0.0
        tokens = 0
        for _ in range(self._repeats):
            turns = self._conversations.turns(10, TURN_WORDS)
            spent = [self._us(messages) for messages in turns]
            first += spent[0][0]
            tenth += spent[-1][0]
            tokens += spent[-1][1]
            self._counter = TemplateCounter(_tokenizer())
            whole += self._us(turns[-1])[0]
        figures = {FIRST.name: first / self._repeats, TENTH.name: tenth / self._repeats}
        details = {
            "tenth_turn_tokens": tokens / self._repeats,
            "tenth_turn_if_new_us": whole / self._repeats,
        }
        return Reading(figures, details)


class LongSystems(Prompts):
    """A call with a long system prompt that an earlier one had."""

    def round(self) -> Reading:
        """Count the first turns of conversations with the same system prompt."""
        new = known = 0.0
        tokens = 0
        for _ in range(self._repeats):
            (messages,) = self._conversations.turns(1, SYSTEM_WORDS)
            new += self._us(messages)[0]
            ((*_, question),) = self._conversations.turns(1)
            spent_us, size = self._us([messages[0], question])
            known += spent_us
            tokens += size
        details = {"tokens": tokens / self._repeats, "if_new_us": new / self._repeats}
        return Reading({LONG.name: known / self._repeats}, details)


class Hold:
    """An event loop that counts prompts."""

    def __init__(self) -> None:
        self._conversations = BenchConversations()

    def round(self) -> Reading:
        """Count the prompts of conversations, and a long one."""
        before_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            return asyncio.run(self._longest())
        finally:
            sys.setswitchinterval(before_s)

    async def _longest(self) -> Reading:
        reader = PromptReader(TemplateCounter(_tokenizer()))
        turns = [each for _ in range(20) for each in self._conversations.turns(3)]
        turns += self._conversations.turns(1, SYSTEM_WORDS)
        for messages in turns[::3]:
            messages[0]["content"] = messages[0]["content"][: INLINE_CHARS - 20]
        counting = asyncio.create_task(_count(reader, turns))
        longest_ns = elapsed_ns = 0
        while not counting.done():
            begin = wall_ns(), cpu_ns()
            await asyncio.sleep(0)
            longest_ns = max(longest_ns, cpu_ns() - begin[1])
            elapsed_ns = max(elapsed_ns, wall_ns() - begin[0])
        reader.close()
        await counting
        return Reading({HOLD.name: longest_ns / 1e6}, {"elapsed_ms": elapsed_ns / 1e6})


async def _count(reader: PromptReader, turns: list[Messages]) -> None:
    for messages in turns:
        await reader.chat(messages, None, tenant=TENANT)


@cache
def _tokenizer() -> ModelTokenizer:
    return trained_tokenizer()


def _turns(scale: float) -> BenchWorkload:
    return BenchTurns(sized(30, scale))


def _long(scale: float) -> BenchWorkload:
    return LongSystems(sized(10, scale))


def _hold(scale: float) -> BenchWorkload:
    return Hold()


PARTS: tuple[FigurePart, ...] = (
    FigurePart((FIRST, TENTH), _turns),
    FigurePart((LONG,), _long),
    FigurePart((HOLD,), _hold),
)

command = FiguresCommand(
    "tokenising",
    "Measure what the prompt of a call costs by turns of a conversation, and how long it holds the "
    "event loop.",
    PARTS,
)
app = command.app
"""The command ``fairserve bench tokenising``."""
