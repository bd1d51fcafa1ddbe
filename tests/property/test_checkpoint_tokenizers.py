"""Token ids and prompts of checkpoints are those of transformers, however their files are laid out."""

import json
import subprocess
import sys

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from fairserve.engine.torch.builtin_model import ensure_builtin_model
from fairserve.platform.fleet.prompts.reader import load_counter
from fairserve.platform.fleet.prompts.tokenizer_files import NoTokenizerError, read_tokenizer

WORDS = "the table of the house is here; they'll have been there 1234 times. Über ßtraße 中国 " * 9
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}{% endfor %}|{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|"
    "{{ pad_token }}|{{ mask_token }}|{{ image_token }}|{{ video_token }}"
)
"""Shows the special tokens that are variables."""
TURNS = ["<s>", "</s>", "<unk>", "<|turn|>", "<|img|>"]
"""Special tokens of the vocabularies."""


def vocabulary(model, trainer, split, normalizer=None, special=(), **options):
    """Return a trained tokenizer."""
    made = Tokenizer(model)
    made.pre_tokenizer = split
    if normalizer is not None:
        made.normalizer = normalizer
    trained = trainer(
        vocab_size=800, special_tokens=[*TURNS[:3], *special], show_progress=False, **options
    )
    made.train_from_iterator([WORDS], trained)
    return made


def byte_level():
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return vocabulary(models.BPE(), trainers.BpeTrainer, split, initial_alphabet=alphabet)


def pieces(normalizer, split):
    fallback = [f"<0x{number:02X}>" for number in range(256)]
    model = models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return vocabulary(model, trainers.BpeTrainer, split, normalizer, fallback)


def token(content, **fields):
    return {"content": content, "lstrip": False, "rstrip": False, "single_word": False, **fields}


def write(folder, tokenizer, model_type="llama", more=None, **config):
    """Write the files of a checkpoint; ``more`` has others by name."""
    if tokenizer is not None:
        tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **config})
    )
    for name, value in (more or {}).items():
        (folder / name).parent.mkdir(exist_ok=True)
        text = value if isinstance(value, str) else json.dumps(value)
        (folder / name).write_text(text, encoding="utf-8")


def of_class(name, model_type, tokenizer, **options):
    """Return how a checkpoint of one of transformers' classes is written."""

    def build(folder):
        model = json.loads(tokenizer().to_str())["model"]
        vocab = model["vocab"]
        if isinstance(vocab, list):
            vocab = [tuple(each) for each in vocab]
        merges = {"merges": [tuple(each) for each in model["merges"]]} if "merges" in model else {}
        made = getattr(transformers, name)(vocab=vocab, **merges, chat_template=TEMPLATE, **options)
        made.save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))

    return build


def added_by_id(folder):
    ids = {
        "3000": token("<|turn|>", normalized=False, special=True),
        "3001": token("house", normalized=True, special=False),
        "3002": token("<|img|>", normalized=False, special=True, rstrip=True),
    }
    made = byte_level()
    made.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair=None, special_tokens=[("<s>", 0)]
    )
    named = {"bos_token": "<s>", "eos_token": "<|turn|>", "pad_token": None}
    write(folder, made, added_tokens_decoder=ids, chat_template=TEMPLATE, **named)


def with_classes_of_tokens(folder):
    """Tokens are objects, and those that the tokenizer lacks get ids in the order of their names."""
    named = {
        "pad_token": token("<|new pad|>", __type="AddedToken", normalized=True),
        "image_token": "<|img|>",
        "eos_token": token("</s>", __type="AddedToken", normalized=False, lstrip=True),
        "bos_token": "<|new bos|>",
        "extra_special_tokens": {"video_token": "<|video|>"},
    }
    write(folder, byte_level(), chat_template=TEMPLATE, **named)


def older(folder):
    files = {
        "special_tokens_map.json": {
            "bos_token": token("<s>", normalized=False),
            "eos_token": "<|turn|>",
            "additional_special_tokens": ["<|img|>", "<|end|>"],
        },
        "added_tokens.json": {"<|turn|>": 3000, "house": 3001},
    }
    write(folder, byte_level(), more=files, bos_token="<wrong>", chat_template=TEMPLATE)


def llama_2(scheme):
    def build(folder):
        made = pieces(
            normalizers.Sequence(
                [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]  # as older files have it
            ),
            None,
        )
        named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        kind = {"tokenizer_class": "LlamaTokenizer"}
        write(folder, made, chat_template=TEMPLATE, **named, **kind, **scheme)

    return build


def templates_in_files(folder):
    files = {
        "chat_template.jinja": "default" + TEMPLATE,
        "additional_chat_templates/tool_use.jinja": "tools",
    }
    write(folder, byte_level(), more=files, chat_template="unused", eos_token="</s>")


def templates_by_name(folder):
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": TEMPLATE}]
    write(folder, byte_level(), chat_template=several, eos_token="</s>")


def embedding(folder):
    made = vocabulary(
        models.WordPiece(unk_token="<unk>"),
        trainers.WordPieceTrainer,
        pre_tokenizers.BertPreTokenizer(),
        normalizers.BertNormalizer(),
    )
    made.enable_truncation(8)
    made.enable_padding(length=16)
    write(folder, made, "bert", pad_token="<unk>", split_special_tokens=True)


def unigram():
    return vocabulary(
        models.Unigram(), trainers.UnigramTrainer, pre_tokenizers.Metaspace(), unk_token="<unk>"
    )


def words():
    return vocabulary(
        models.WordPiece(unk_token="<unk>"),
        trainers.WordPieceTrainer,
        pre_tokenizers.BertPreTokenizer(),
    )


def gemma_pieces():
    split = pre_tokenizers.Split(" ", "merged_with_previous")
    return pieces(normalizers.Replace(" ", "▁"), split)


CHECKPOINTS = {
    "Llama 3": added_by_id,
    "DeepSeek": with_classes_of_tokens,
    "older": older,
    "Llama 2": llama_2({}),
    "Llama 2, legacy": llama_2({"legacy": True}),
    "Llama 2, no space": llama_2({"add_prefix_space": False}),
    "templates in files": templates_in_files,
    "templates by name": templates_by_name,
    "embedding": embedding,
    "Qwen 3": of_class("Qwen2Tokenizer", "qwen3", byte_level, extra_special_tokens=["<|turn|>"]),
    "Qwen 3.5": of_class("Qwen3_5Tokenizer", "qwen3_5", byte_level),
    "Gemma 3": of_class("GemmaTokenizer", "gemma3", gemma_pieces),
    "Command": of_class("CohereTokenizer", "cohere2", byte_level),
    "Phi 4": of_class("GPT2Tokenizer", "phi3", byte_level),
    "BGE": of_class(
        "BertTokenizer", "bert", words, unk_token="<unk>", cls_token="<s>", sep_token="</s>"
    ),
    "E5": of_class("XLMRobertaTokenizer", "xlm-roberta", unigram),
}
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from([*TURNS, "<|new pad|>", "<|new bos|>", "<|video|>", "<|end|>"]),
        st.sampled_from([" ", "  house ", "\n", "they'll", "123 4", "e\u0301", WORDS[:60]]),
    ),
    max_size=8,
).map("".join)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """Return a function for the tokenizers of a checkpoint: ours and that of transformers."""
    made = {}

    def load(name):
        if name not in made:
            folder = tmp_path_factory.mktemp("checkpoint")
            CHECKPOINTS[name](folder)
            theirs = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            theirs.backend_tokenizer.no_truncation()
            theirs.backend_tokenizer.no_padding()
            made[name] = read_tokenizer(folder), theirs
        return made[name]

    return load


@pytest.mark.parametrize("name", CHECKPOINTS)
@given(text=TEXTS, special=st.booleans())
def test_texts_have_the_ids_of_transformers(loaded, name, text, special):
    ours, theirs = loaded(name)
    ids = ours.backend.encode(text, add_special_tokens=special).ids
    assert ids == theirs(text, add_special_tokens=special)["input_ids"]


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_template_and_its_special_tokens_are_those_of_transformers(loaded, name):
    ours, theirs = loaded(name)
    if theirs.chat_template is None:
        assert ours.template is None
        return
    messages = [{"role": "user", "content": "x"}]
    for tools in (None, [{"type": "function"}]):
        want = theirs.apply_chat_template(messages, tools=tools, tokenize=False)
        assert ours.template.render(messages, tools) == want


def test_a_checkpoint_whose_tokenizer_is_not_in_its_file_is_left_to_its_workers(tmp_path):
    write(tmp_path, None, more={"tokenizer.model": "pieces"}, chat_template=TEMPLATE)
    with pytest.raises(NoTokenizerError, match="it has no tokenizer"):
        load_counter(tmp_path)
    write(tmp_path, byte_level(), "mistral", chat_template=TEMPLATE, fix_mistral_regex=True)
    with pytest.raises(NoTokenizerError, match="fix_mistral_regex"):
        load_counter(tmp_path)
    write(tmp_path, byte_level(), chat_template="{% for %}")
    with pytest.raises(NoTokenizerError, match="Expected an expression"):
        load_counter(tmp_path)


@pytest.mark.parametrize(
    ("config", "takes"), [(None, True), ({"vision_config": {}}, True), ({"hidden_size": 1}, False)]
)
def test_the_configuration_shows_whether_a_model_takes_media(tmp_path, config, takes):
    write(tmp_path, byte_level(), chat_template=TEMPLATE)
    (tmp_path / "config.json").unlink()
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_counter(tmp_path).takes_media is takes


def test_counting_imports_neither_transformers_nor_torch():
    code = (
        "import sys; from fairserve.platform.fleet.prompts.reader import load_counter;"
        f"counter = load_counter({str(ensure_builtin_model())!r});"
        "counter.chat([{'role': 'user', 'content': 'x'}], None);"
        "print({'torch', 'transformers', 'huggingface_hub'} & sys.modules.keys())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
