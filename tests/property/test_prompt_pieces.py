"""Prompts that are encoded in pieces have the ids of the whole, whatever was encoded before."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

from fairserve.engine.wire.prompt_options import DEFAULT_PROMPT
from fairserve.platform.fleet.prompts.chat_template import ChatTemplate
from fairserve.platform.fleet.prompts.pieces import PieceEncoder
from fairserve.platform.fleet.prompts.reader import TemplateCounter
from fairserve.platform.fleet.prompts.tokenizer_files import ModelTokenizer

BEGIN, END = "<|begin|>", "<|end|>"
TEMPLATE = (
    "{% for message in messages %}<|begin|>{{ message.role }}\n{{ message.content }}<|end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|begin|>assistant\n{% endif %}"
)
WANTS_USER = (
    "{% if messages[-1].role == 'system' %}{{ raise_exception('a user must speak') }}{% endif %}"
    + TEMPLATE
)
WORDS = "the table of the house is here; they'll have been there 1234 times. Über ßtraße 中国 " * 9
BYTES = pre_tokenizers.ByteLevel.alphabet()
FALLBACK = [f"<0x{number:02X}>" for number in range(256)]


def trained(model, trainer, split=None, normalizer=None, **options):
    tokenizer = Tokenizer(model)
    if split is not None:
        tokenizer.pre_tokenizer = split
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    special = ["<unk>", BEGIN, END, *options.pop("special", ())]
    made = trainer(vocab_size=900, special_tokens=special, show_progress=False, **options)
    tokenizer.train_from_iterator([WORDS], made)
    return tokenizer


def byte_level(**options):
    split = pre_tokenizers.ByteLevel(add_prefix_space=options.pop("space", False))
    return trained(models.BPE(), trainers.BpeTrainer, split, initial_alphabet=BYTES, **options)


def sentence_pieces(**options):
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return trained(model, trainers.BpeTrainer, special=FALLBACK, **options)


def more_tokens():
    """Return a tokenizer whose other added tokens overlap those of the template, or white space."""
    tokenizer = byte_level()
    tokenizer.add_special_tokens(["<|end", "x<|b"])
    tokenizer.add_tokens([AddedToken("left", lstrip=True), AddedToken("right", rstrip=True)])
    tokenizer.add_tokens([AddedToken("house", normalized=True)])
    return tokenizer


TOKENIZERS = {
    "byte level": byte_level(),
    "composed": byte_level(normalizer=normalizers.NFKC()),
    "with a space": byte_level(space=True),
    "other added tokens": more_tokens(),
    "space at the beginning only": sentence_pieces(
        split=pre_tokenizers.Metaspace(prepend_scheme="first")
    ),
    "space in front of parts": sentence_pieces(
        normalizer=normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    ),
    "word pieces": trained(
        models.WordPiece(unk_token="<unk>"),
        trainers.WordPieceTrainer,
        pre_tokenizers.BertPreTokenizer(),
        normalizers.BertNormalizer(),
    ),
    "unigram": trained(
        models.Unigram(),
        trainers.UnigramTrainer,
        pre_tokenizers.Metaspace(),
        unk_token="<unk>",
    ),
}
PARTS = st.one_of(
    st.text(max_size=20),
    st.text(alphabet="ae'1 \n\t\u0301中🎉ﬁ", max_size=20),
    st.sampled_from(
        [
            BEGIN,
            END,
            BEGIN[:-1],
            END[1:],
            "<|end",
            "x" + BEGIN,
            "left",
            " right ",
            " house ",
            WORDS[:300],
        ]
    ),
)
CONTENTS = st.lists(PARTS, max_size=6).map("".join)
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant"]), CONTENTS), min_size=1, max_size=8
)


def whole(counter, tokenizer, messages):
    """Return ids and system tokens as one encoding of the whole prompt has them."""
    text = tokenizer.template.render(messages, add_generation_prompt=True)
    encoding = tokenizer.backend.encode(text, add_special_tokens=False)
    mark = counter._system_chars(text, messages, None, DEFAULT_PROMPT)
    if not mark:
        return encoding.ids, 0
    token = encoding.char_to_token(mark) if mark < len(text) else None
    return encoding.ids, len(encoding.ids) if token is None else token


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=st.lists(CONTENTS, min_size=1, max_size=4), mark=st.integers(0, 400))
@example([f"a{BEGIN} b" + WORDS + BEGIN + " b"], 7)
@example([WORDS + "x" + BEGIN + WORDS + END + " b"], 0)
def test_texts_have_the_ids_of_the_whole(name, texts, mark):
    backend = TOKENIZERS[name]
    encoder = PieceEncoder(backend, TEMPLATE)
    text = ""
    for more in (*texts, *texts):
        text += more
        want = backend.encode(text, add_special_tokens=False)
        ids, before = encoder.encode(text, "tenant", mark=mark)
        assert ids.tolist() == want.ids
        if not mark:
            assert before == 0
        elif mark < len(text):
            assert before == want.char_to_token(mark)
        else:
            assert before == len(ids)


@pytest.mark.parametrize("template", [TEMPLATE, WANTS_USER])
@pytest.mark.parametrize("name", TOKENIZERS)
@given(turns=MESSAGES, edited=st.integers(0, 7), other=CONTENTS)
def test_conversations_have_the_tokens_of_the_whole(name, template, turns, edited, other):
    tokenizer = ModelTokenizer(
        TOKENIZERS[name], ChatTemplate({"default": template}), takes_media=False
    )
    counter = TemplateCounter(tokenizer)
    messages = [{"role": role, "content": content} for role, content in turns]
    messages.append({"role": "user", "content": "and"})
    changed = [*messages]
    changed[edited % len(messages)] = {"role": "user", "content": other}
    for tenant in ("one", "other"):
        for asked in (messages[:1] + messages[-1:], messages, changed, messages):
            counted = counter.chat(asked, None, tenant=tenant)
            want = whole(counter, tokenizer, asked)
            assert (counted.token_ids.tolist(), counted.system_tokens) == want
