"""Prompts are counted as system and input tokens, and long ones do not block the loop."""

import threading
from types import SimpleNamespace

import httpx
import huggingface_hub
import pytest

from fairserve.engine.torch.builtin_model import ensure_builtin_model
from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.fleet.prompts.chat_template import DEFAULT, ChatTemplate
from fairserve.platform.fleet.prompts.reader import (
    BytesCounter,
    Prompt,
    PromptReader,
    TemplateCounter,
    load_counter,
)
from fairserve.platform.fleet.prompts.tokenizer_files import (
    ModelTokenizer,
    NoTokenizerError,
    read_tokenizer,
)


@pytest.fixture(scope="module")
def counter():
    return load_counter(ensure_builtin_model())


def message(role, content):
    return {"role": role, "content": content}


def test_system_tokens_are_those_of_the_leading_system_messages(counter):
    assert isinstance(counter, TemplateCounter)
    user = message("user", "question")
    plain = counter.chat([user], None)
    assert plain.system_tokens == 0
    led = counter.chat([message("system", "be brief"), message("developer", "x"), user], None)
    # <|system|>be brief<|end|><|developer|>x<|end|> in a vocabulary of bytes
    assert led.system_tokens == (1 + 8 + 1) + (1 + 1 + 1)
    assert led.input_tokens == plain.input_tokens
    late = counter.chat([user, message("system", "late")], None)
    assert late.system_tokens == 0, "only leading ones are system"
    assert counter.chat([message("system", "alone")], None).input_tokens == 1, (
        "the prompt to answer"
    )


def test_parts_of_text_are_joined(counter):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    whole = counter.chat([message("user", "a\nb")], None)
    assert counter.chat([message("user", parts)], None).token_ids.tolist() == (
        whole.token_ids.tolist()
    )


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"city": "Köln"}', "city=Köln;"), ("{}", ""), ("", ""), ("not JSON", ""), ("[1]", "")],
)
def test_templates_get_messages_as_vllm_gives_them(arguments, shown):
    """Arguments of tool calls are objects, which many templates take apart."""
    template = (
        "{% for m in messages %}{{ m.reasoning_content }}{{ m.content }}"
        "{% for call in m.tool_calls or [] %}"
        "{% for key, value in call.function.arguments.items() %}{{ key }}={{ value }};{% endfor %}"
        "{% endfor %}{{ 'none' if m.tool_calls is not defined }}{% endfor %}"
    )
    backend = read_tokenizer(ensure_builtin_model()).backend
    reader = TemplateCounter(ModelTokenizer(backend, ChatTemplate({DEFAULT: template}), False))
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    calls = {"role": "assistant", "content": None, "tool_calls": [call]}
    later = {**calls, "content": "x", "tool_calls": None, "reasoning": "why"}
    counted = reader.chat([calls, later], None)
    assert backend.decode(counted.token_ids.tolist()) == f"{shown}whyxnone"
    assert call["function"]["arguments"] == arguments, "the call of the client is unchanged"


def test_templates_that_loop_over_parts_get_parts():
    """As vLLM gives them: one text is one part, no content is none, a tool's result is a text."""
    loops = "{% for part in m.content %}<{{ part.type }}:{{ part.text }}>{% endfor %}"
    shown = "{% if m.content is string %}{{ m.content }}{% else %}" + loops + "{% endif %};"
    template = "{% for m in messages %}" + shown + "{% endfor %}"
    backend = read_tokenizer(ensure_builtin_model()).backend
    reader = TemplateCounter(ModelTokenizer(backend, ChatTemplate({DEFAULT: template}), False))
    parts = [{"type": "text", "text": text} for text in ("a", "", "b")]
    chat = [message("system", "x"), message("user", parts), message("assistant", None)]
    chat += [message("tool", parts), message("user", "")]
    counted = reader.chat(chat, None)
    want = "<text:x>;<text:a><text:><text:b>;;a\nb;<text:>;"
    assert backend.decode(counted.token_ids.tolist()) == want


def test_errors_of_the_template_are_reported(counter):
    with pytest.raises(InvalidRequestError, match="unknown role pirate") as raised:
        counter.chat([message("pirate", "arr")], None)
    assert raised.value.param == "messages"


def test_without_a_tokenizer_counts_are_estimates_that_share_prefixes():
    counter = BytesCounter()
    system = message("system", "s" * 40)
    one = counter.chat([system, message("user", "a")], None)
    two = counter.chat([system, message("user", "b")], None)
    assert one.system_tokens == two.system_tokens == 12
    assert one.token_ids[:12].tolist() == two.token_ids[:12].tolist()
    assert counter.text("x" * 9).input_tokens == 3


class Hub:
    """The model hub: answers lookups with a given response, and counts them."""

    def __init__(self, answer):
        self.answer = answer
        self.asked = []

    def head(self, url, **options):
        self.asked.append(url)
        if isinstance(self.answer, Exception):
            raise self.answer
        return SimpleNamespace(status_code=self.answer)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.ConnectError("no network"), "does not answer: no network"),
        (404, "answers 404: it does not exist"),
    ],
)
def test_the_hub_is_queried_once_for_a_missing_tokenizer(monkeypatch, answer, reason):
    hub = Hub(answer)
    monkeypatch.setattr(huggingface_hub, "get_session", lambda: hub)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    with pytest.raises(NoTokenizerError):
        load_counter("org/no-such-model")
    assert hub.asked == [], "only if it may fetch"
    with pytest.raises(NoTokenizerError, match=reason):
        load_counter("org/no-such-model", fetch=True)
    assert len(hub.asked) == 1
    with pytest.raises(NoTokenizerError, match="neither a folder nor the id of a model"):
        load_counter("/no/such/folder", fetch=True)
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    with pytest.raises(NoTokenizerError, match="switched off"):
        load_counter("org/no-such-model", fetch=True)
    assert len(hub.asked) == 1


class SlowCounter:
    def __init__(self):
        self.threads = []

    def chat(self, messages, tools, *_):
        self.threads.append(threading.current_thread().name)
        return Prompt(BytesCounter().text("x").token_ids, 0)


@pytest.mark.parametrize(
    ("content", "inline"),
    [("x" * 280, True), ("x" * 301, False), ("\u4e2d" * 34, True), ("\u4e2d" * 38, False)],
)
async def test_long_prompts_are_tokenised_in_a_thread(content, inline):
    counter = SlowCounter()
    reader = PromptReader(counter)
    messages = [message("user", content)]
    await reader.chat(messages, None)
    here = threading.current_thread().name
    assert (counter.threads[0] == here) == inline
    reader.close()


@pytest.mark.parametrize(("content", "inline"), [("x" * 8_000, True), ("x" * 8_200, False)])
async def test_estimates_of_usual_prompts_take_no_thread(content, inline):
    here, threads = threading.current_thread(), []

    class Counter(BytesCounter):
        def chat(self, *prompt):
            threads.append(threading.current_thread())
            return super().chat(*prompt)

    reader = PromptReader(Counter())
    await reader.chat([message("user", content)], None)
    assert (threads == [here]) == inline
    reader.close()


class KeepingCounter:
    def __init__(self):
        self.tenants = []

    def chat(self, messages, tools, max_tokens, options, tenant):
        self.tenants.append(tenant)
        return Prompt(BytesCounter().text("x").token_ids, 0)

    def text(self, text, max_tokens, options, tenant):
        return self.chat([], None, max_tokens, options, tenant)


async def test_prompts_are_kept_for_their_tenant():
    counter = KeepingCounter()
    reader = PromptReader(counter)
    await reader.chat([message("user", "x")], None, tenant="a")
    await reader.text("x", tenant="b")
    assert counter.tenants == ["a", "b"]
    reader.close()
