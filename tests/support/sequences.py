"""Sequences without an engine, and a grammar without rules."""

import numpy as np

from fairserve.engine.torch import sampler
from fairserve.engine.torch.output_text import OutputText
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.engine.torch.sequence import Sequence, SequenceRequest

PROMPT = [1, 0]


def make_sequence(seed=0, output=(), **params):
    """Return a sequence that has generated ``output``."""
    request = SequenceRequest(
        "s", "c", np.array(PROMPT, dtype=np.uint32), SamplingParams(**{"max_tokens": 99, **params})
    )
    sequence = Sequence(request, OutputText(None, ()), seed)
    sequence.tokens += output
    return sequence


class AnyToken:
    """A grammar that allows every token of at most 320, and checks that it is shown known ones."""

    problem = ""

    def start(self):
        return self

    def allowed(self, output):
        assert all(token >= 0 for token in output)
        return np.full(10, -1, dtype=np.int32)


def adjusted(rows, sequences, end_ids):
    """Return the logits [S, vocabulary] after the sequences' penalties, bias and bans."""
    changes, failed = sampler._changes(sequences, end_ids, rows.shape[-1])
    assert not failed
    return sampler._adjusted(rows.clone(), changes)
