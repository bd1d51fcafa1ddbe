"""Pieces of prompts are kept by tenant, within a bound, for a time; only new ones are encoded."""

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from fairserve.platform.fleet.prompts.pieces import (
    ENTRY_BYTES,
    KEPT_S,
    LEAST_CHARS,
    Piece,
    PieceEncoder,
    PieceTable,
    cut_tokens,
)

BEGIN, END = "<|begin|>", "<|end|>"
TEMPLATE = f"{BEGIN}{{role}}{END}"


def tokenizer(*added):
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.add_special_tokens([BEGIN, END])
    made.add_tokens(list(added))
    return made


class Counting:
    """A tokenizer that records the characters that it encodes."""

    def __init__(self, inner):
        self._inner = inner
        self.encoded = 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def encode_batch_fast(self, texts, **options):
        self.encoded += sum(map(len, texts))
        return self._inner.encode_batch_fast(texts, **options)


def conversation(turns, length=800):
    text = "".join(
        f"{BEGIN}{'user' if turn % 2 else 'assistant'}\n{turn}{'x' * length}{END}\n"
        for turn in range(turns)
    )
    return text + f"{BEGIN}assistant\n"


def encoded_by(backend, encoder, text, tenant="tenant"):
    before = backend.encoded
    ids, _ = encoder.encode(text, tenant)
    assert len(ids) == len(backend._inner.encode(text).ids)
    return backend.encoded - before


@pytest.fixture
def backend():
    return Counting(tokenizer())


def test_the_tenth_turn_encodes_only_what_is_new(backend):
    encoder = PieceEncoder(backend, TEMPLATE)
    for turns in range(1, 10):
        encoded_by(backend, encoder, conversation(turns))
    new = len(conversation(10)) - len(conversation(9))
    assert new <= encoded_by(backend, encoder, conversation(10)) < new + LEAST_CHARS
    edited = conversation(10).replace("\n4x", "\nanother ")
    assert encoded_by(backend, encoder, edited) < new + LEAST_CHARS, "of one message"


def test_a_tenant_finds_no_piece_of_another(backend):
    encoder = PieceEncoder(backend, TEMPLATE)
    text = conversation(10)
    assert encoded_by(backend, encoder, text, "one") == len(text)
    assert encoded_by(backend, encoder, text, "other") == len(text)
    assert encoded_by(backend, encoder, text, "one") < LEAST_CHARS


def test_a_prompt_without_tokens_of_the_template_is_one_piece(backend):
    encoder = PieceEncoder(backend, "")
    assert encoded_by(backend, encoder, conversation(3)) == len(conversation(3))
    assert encoded_by(backend, encoder, conversation(3)) == 0
    assert encoded_by(backend, encoder, conversation(4)) == len(conversation(4))


@pytest.mark.parametrize(
    ("added", "left"),
    [
        ([], [BEGIN, END]),
        ([AddedToken("a<|b", normalized=False)], [END]),  # overlaps the beginning
        ([AddedToken("<|end|>!", normalized=False)], [BEGIN]),  # is longer
        ([AddedToken("<|end", normalized=False)], [BEGIN, END]),  # the longest is taken
        ([AddedToken("word", single_word=True)], []),  # depends on what is beyond a cut
        ([AddedToken(BEGIN, normalized=False, rstrip=True)], [END]),
        ([AddedToken(END, normalized=False, lstrip=True)], [BEGIN]),
    ],
)
def test_texts_are_cut_at_tokens_that_always_split_them(added, left):
    assert cut_tokens(tokenizer(*added), TEMPLATE) == left


def test_texts_are_not_cut_at_special_tokens_that_are_encoded_as_text():
    made = tokenizer()
    made.encode_special_tokens = True
    assert cut_tokens(made, TEMPLATE) == []


def test_special_tokens_of_the_tokenizer_belong_to_the_whole(backend):
    backend._inner.post_processor = TemplateProcessing(f"{BEGIN} $A", special_tokens=[(BEGIN, 256)])
    encoder = PieceEncoder(backend, TEMPLATE)
    text = conversation(3)
    ids, before = encoder.encode(text, "tenant", special=True, mark=5)
    assert ids.tolist() == backend._inner.encode(text).ids
    assert before == backend._inner.encode(text).char_to_token(5)


# --- the table ----------------------------------------------------------------------------------------


def key(text, tenant="tenant"):
    return (tenant, text, 0)


def test_a_full_table_loses_pieces_of_the_tenant_with_most_bytes():
    table = PieceTable(20 * (ENTRY_BYTES + 2_000))
    piece = Piece(b"\0" * 1_000)
    table.put(key("kept", "quiet"), piece)
    for number in range(200):
        for tenant in ("a", "b"):
            table.put(key(f"{number}" + "x" * 900, tenant), piece)
    assert table.get(key("kept", "quiet")) == piece
    assert table._pieces.used <= table._pieces.limit


def test_a_piece_larger_than_the_table_is_not_kept():
    table = PieceTable(10_000)
    table.put(key("small"), Piece(b""))
    table.put(key("large"), Piece(b"\0" * 10_000))
    assert table.get(key("small")) is not None
    assert table.get(key("large")) is None


def test_pieces_expire():
    now = 0.0
    table = PieceTable(clock=lambda: now)
    table.put(key("one"), Piece(b""))
    now = KEPT_S
    assert table.get(key("one")) is None
    table.put(key("two"), Piece(b""))
    assert len(table._pieces) == 1


def test_nobody_waits_long_for_a_table_in_use(backend):
    table = PieceTable()
    encoder = PieceEncoder(backend, TEMPLATE, table)
    text = conversation(2)
    with table._lock:
        assert encoded_by(backend, encoder, text) == len(text)
        assert encoded_by(backend, encoder, text) == len(text)
    assert encoded_by(backend, encoder, text) == len(text), "it was not kept"
    assert encoded_by(backend, encoder, text) < LEAST_CHARS
