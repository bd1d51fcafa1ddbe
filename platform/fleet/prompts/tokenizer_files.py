"""Tokenizers of checkpoints, read from their files without transformers.

``tokenizer.json`` is the tokenizer. ``tokenizer_config.json``, or the two files of older checkpoints,
name its special tokens and those that were added. ``chat_template.jinja`` with the folder
``additional_chat_templates``, or the configuration, have the chat templates. The rules are those of
transformers (``PreTrainedTokenizerBase._from_pretrained`` and ``TokenizersBackend.__init__``).

Departures: a checkpoint without ``tokenizer.json`` (SentencePiece, tiktoken, tekken), and one whose
regular expression transformers replaces, have no tokenizer here; their workers count. Weakness: for some
classes (Qwen, Gemma) transformers builds the tokenizer anew from the vocabulary; a checkpoint whose
``tokenizer.json`` differs from its class is counted by the file. Llama 2 is counted as its class counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import Metaspace

from fairserve.engine.torch.model_hub import ask_hub, is_here
from fairserve.platform.fleet.prompts.chat_template import DEFAULT, ChatTemplate

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
TEMPLATES = "additional_chat_templates"
"""Folder of named templates."""
SPECIAL_TOKENS = "special_tokens_map.json"
ADDED_TOKENS = "added_tokens.json"
MODEL = "config.json"
FILES = (TOKENIZER, CONFIG, TEMPLATE, f"{TEMPLATES}/*", SPECIAL_TOKENS, ADDED_TOKENS, MODEL)
NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
MEDIA_FIELDS = ("vision", "image", "video", "audio", "mm_")
"""Prefixes of field names in the configuration of a multimodal model."""

Fields = dict[str, Any]


class NoTokenizerError(Exception):
    """There is no usable tokenizer of this name. The message is the reason."""


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """A checkpoint's tokenizer and chat template, which make the token ids of a prompt."""

    backend: Tokenizer
    """It neither truncates nor pads."""
    template: ChatTemplate | None
    takes_media: bool
    """True if the model accepts images or sound, or if that is unknown."""


def find_folder(name: str, *, fetch: bool) -> Path:
    """Return the folder of a checkpoint folder or hub id.

    Without ``fetch`` only folders and the hub's local cache are searched. Blocks. Raises
    NoTokenizerError, NotAtHubError, or an error of the hub's library.
    """
    if fetch:
        ask_hub(name, CONFIG)
    elif not is_here(name, TOKENIZER, CONFIG):
        raise NoTokenizerError("it is neither a folder nor in the hub's cache on this host")
    if os.path.isdir(name):
        return Path(name)
    from huggingface_hub import snapshot_download

    found = snapshot_download(name, allow_patterns=list(FILES), local_files_only=not fetch)
    return Path(found)


def read_tokenizer(folder: Path) -> ModelTokenizer:
    """Read the tokenizer of a checkpoint. Blocks.

    Raises NoTokenizerError, or another error for a wrong file.
    """
    if not (folder / TOKENIZER).is_file():
        raise NoTokenizerError(f"it has no {TOKENIZER}")
    fields = _read(folder / CONFIG) or {}
    if fields.get("fix_mistral_regex"):
        raise NoTokenizerError("transformers replaces its regular expression (fix_mistral_regex)")
    legacy = "added_tokens_decoder" not in fields
    if legacy:
        fields |= _read(folder / SPECIAL_TOKENS) or {}
    named = _named(fields)
    special = [*named.values(), *_more_special(fields)]
    backend = Tokenizer.from_file(str(folder / TOKENIZER))
    # Tokenizers of embedding models are often stored with both, which would falsify counts.
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(fields.get("split_special_tokens"))
    model = _read(folder / MODEL)
    if _is_llama_2(fields, model, backend):
        # Older files put a space before each part of a text; the class does so by its own rule.
        backend.normalizer = None
        backend.pre_tokenizer = Metaspace(prepend_scheme=_prepend_scheme(fields), split=False)
    if legacy:
        added = _older_added(_read(folder / ADDED_TOKENS) or {}, special)
    else:
        added = {int(key): _token(each) for key, each in fields["added_tokens_decoder"].items()}
    _add(backend, added, special)
    templates = _templates(folder, fields)
    return ModelTokenizer(
        backend,
        ChatTemplate(templates, {name: token.content for name, token in named.items()})
        if templates
        else None,
        model is None or any(field.startswith(MEDIA_FIELDS) for field in model),
    )


def _read(path: Path) -> Fields | None:
    """Return the fields of a JSON file; None if it does not exist."""
    try:
        fields: Fields = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return fields


def _is_llama_2(fields: Fields, model: Fields | None, backend: Tokenizer) -> bool:
    """Return whether transformers builds the tokenizer by its class of Llama 2."""
    named = str(fields.get("tokenizer_class")).removesuffix("Fast") == "LlamaTokenizer"
    other_model = model is not None and model.get("model_type") != "llama"
    pieces = isinstance(backend.model, BPE) and backend.model.byte_fallback
    return named and pieces and not other_model


def _prepend_scheme(fields: Fields) -> str:
    if fields.get("add_prefix_space") is False:
        return "never"
    return "always" if fields.get("legacy") else "first"


def _token(value: str | Mapping[str, Any]) -> AddedToken:
    """Return a token that a file has as its text or as its fields."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    fields = {key: each for key, each in value.items() if key != "__type"}
    return AddedToken(**{"special": True, **fields})


def _named(fields: Fields) -> dict[str, AddedToken]:
    """Return the special tokens that have a name, which are variables of chat templates."""
    more = fields.get("extra_special_tokens")
    keys = (*NAMED, *(key for key in fields if key.endswith("_token") and key not in NAMED))
    named = {key: fields.get(key) for key in keys} | (more if isinstance(more, dict) else {})
    return {key: _token(each) for key, each in named.items() if isinstance(each, str | dict)}


def _more_special(fields: Fields) -> Iterator[AddedToken]:
    """Yield the special tokens without a name."""
    more = fields.get("extra_special_tokens", fields.get("additional_special_tokens"))
    if isinstance(more, list):
        yield from map(_token, more)


def _older_added(ids: Mapping[str, int], special: list[AddedToken]) -> dict[int, AddedToken]:
    """Return the added tokens of an older checkpoint by id."""
    contents = {token.content for token in special}
    return {
        number: AddedToken(text, normalized=text not in contents, special=text in contents)
        for text, number in ids.items()
    }


def _add(backend: Tokenizer, added: Mapping[int, AddedToken], special: list[AddedToken]) -> None:
    """Add the tokens that the tokenizer's own file lacks, in the order of transformers."""
    known = backend.get_added_tokens_decoder()
    same = {repr(token) for token in known.values()}
    new = [token for _, token in sorted(added.items()) if repr(token) not in same]
    contents = {token.content for token in (*known.values(), *new)}
    for token in special:
        if token.content not in contents:
            contents.add(token.content)
            new.append(token)
    backend.add_tokens(new)


def _templates(folder: Path, fields: Fields) -> dict[str, str]:
    """Return the texts of the chat templates by name. Files come before the configuration."""
    files = {path.stem: path for path in sorted(folder.glob(f"{TEMPLATES}/*.jinja"))}
    if (folder / TEMPLATE).is_file():
        files[DEFAULT] = folder / TEMPLATE
    if files:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    found = fields.get("chat_template")
    if isinstance(found, list):
        return {each["name"]: each["template"] for each in found}
    return {DEFAULT: found} if found else {}
