"""No page is leaked or owned twice, whatever is added, computed, cancelled and finished."""

import numpy as np
from hypothesis import settings

from fairserve.engine.torch.output_text import OutputText
from fairserve.engine.torch.page_pool import PAGE_TOKENS, pages_for
from fairserve.engine.torch.paged_cache import PagedCache
from fairserve.engine.torch.sampling_params import SamplingParams
from fairserve.engine.torch.sequence import Sequence, SequenceRequest


def make_sequence(name, tokens, max_tokens, salt=""):
    request = SequenceRequest(
        name,
        "c",
        np.array(tokens, dtype=np.uint32),
        SamplingParams(max_tokens=max_tokens),
        salt=salt,
    )
    return Sequence(request, OutputText(None, ()), seed=0)


def test_thousands_of_random_operations_leak_nothing(seed):
    operations = 120 * settings.default.max_examples
    random = np.random.default_rng(seed)
    cache = PagedCache(16)
    stored, evicted = [], []
    cache.trie.on_store, cache.trie.on_evict = stored.append, evicted.append
    running, rejected, reused = [], 0, 0
    for number in range(operations):
        kind = random.integers(4)
        if kind == 0:
            # Few distinct beginnings, so that prefixes are shared and duplicates computed.
            length = int(random.integers(1, 100))
            tokens = [int(random.integers(2))] * (length - 1) + [int(random.integers(3))]
            salt = "x" if random.integers(4) == 0 else ""
            sequence = make_sequence(f"s{number}", tokens, int(random.integers(1, 60)), salt)
            before = cache.trie.version
            # Half of them reserve no page for their output, and find the cache full during decoding.
            pages = pages_for(len(tokens)) if random.integers(2) else sequence.total_pages
            cached = cache.try_admit(sequence, pages, int(random.integers(2)))
            assert cache.trie.version == before
            if cached is None:
                rejected += 1
            else:
                reused += cached
                running.append(sequence)
        elif running:
            sequence = running[int(random.integers(len(running)))]
            if kind == 1:
                room = sequence.prompt_tokens + sequence.params.max_tokens
                step = int(random.integers(1, 40))
                computed = min(sequence.computed_tokens + step, room)
                sequence.tokens += [9] * (computed - len(sequence.tokens))
                if cache.grow(sequence, computed):
                    sequence.computed_tokens = sequence.vouched_tokens = computed
            elif kind == 2:
                cache.commit(sequence)
            else:
                if random.integers(2):
                    cache.commit(sequence)
                cache.release(sequence)
                running.remove(sequence)
        cache.check(running)
    assert min(rejected, reused, len(evicted)) > 0
    for sequence in running:
        cache.release(sequence)
    cache.check([])
    assert cache.reserved_pages == 0
    assert cache.used_share == 0
    assert len(stored) - len(evicted) == cache.trie.cached_pages


def compute(cache, sequence):
    """Admit a sequence, and compute its prompt."""
    assert cache.try_admit(sequence, sequence.total_pages) == 0
    tokens = sequence.prompt_tokens
    cache.grow(sequence, tokens)
    sequence.computed_tokens = sequence.vouched_tokens = tokens
    cache.commit(sequence)


def test_admission_counts_the_shared_prefix_once():
    cache = PagedCache(8)
    first = make_sequence("a", range(64), 16)
    compute(cache, first)
    # 4 pages cached and locked, 1 reserved, 3 free: alone it needs 5, with the prefix 2.
    second = make_sequence("b", [*range(64), 5], 12)
    assert cache.try_admit(second, second.total_pages) == 64
    third = make_sequence("c", range(1, 33), 16)
    assert cache.try_admit(third, third.total_pages) is None
    cache.release(first)
    cache.release(second)
    assert cache.try_admit(third, third.total_pages) == 0
    cache.check([third])


def test_matched_pages_do_not_count_as_evictable():
    cache = PagedCache(4)
    first = make_sequence("a", range(32), 1)
    compute(cache, first)
    cache.release(first)
    # 2 cached, 2 free; with 2 matched it needs 3 more.
    assert cache.try_admit(make_sequence("b", [*range(32), 1], 40), 5) is None
    assert cache.try_admit(make_sequence("c", [*range(32), 1], 31), 4, spare_pages=1) is None
    assert cache.try_admit(make_sequence("c", [*range(32), 1], 31), 4) == 32


def test_the_last_prompt_token_is_always_computed():
    cache = PagedCache(8)
    first = make_sequence("a", range(32), 1)
    compute(cache, first)
    cache.release(first)
    assert cache.match(make_sequence("b", range(32), 1)).depth * PAGE_TOKENS == 16
