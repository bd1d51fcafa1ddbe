"""The CPU time of tokenising a prompt of the benchmark, as the server does it.

The tokenizer is trained on words like those of the prompts, with a vocabulary and a chat template as
models have them. Weakness: a real model's vocabulary is ten times as large; the time of a token hardly
depends on it, but the number of tokens does.
"""

from __future__ import annotations

import json
import time
from typing import Any

from fairserve.benchmarks.bench.gateway.calls import Bodies, CallShape, words
from fairserve.platform.fleet.prompt import TemplateCounter

_VOCABULARY = 8_192
_TRAINING_WORDS = 20_000
_TRAINING_SEED = 1
_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_PROMPTS = 200


class Tokenising:
    """Renders and tokenises prompts with a model's chat template and tokenizer."""

    def __init__(self, prompts: int = _PROMPTS) -> None:
        """Train the tokenizer; a round has this many prompts."""
        self._counter = TemplateCounter(trained_tokenizer())
        self._bodies = Bodies(CallShape("whole", 1))
        self._prompts = prompts
        self.prompt_tokens = len(self._counter.chat(self._messages(), None).token_ids)
        """Tokens of a prompt."""

    def round_us(self) -> float:
        """Return the CPU time of one prompt in microseconds."""
        messages = [self._messages() for _ in range(self._prompts)]
        begin_s = time.process_time()
        for each in messages:
            self._counter.chat(each, None)
        return (time.process_time() - begin_s) / self._prompts * 1e6

    def _messages(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self._bodies.next())["messages"]
        return found


def trained_tokenizer() -> Any:
    """Return a tokenizer of transformers with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

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
    made: Any = PreTrainedTokenizerFast
    return made(tokenizer_object=tokenizer, chat_template=_TEMPLATE)
