"""Templates are given parts where vLLM gives them parts."""

from pathlib import Path

import pytest

pytest.importorskip("vllm")
from vllm.renderers.hf import _detect_content_format

from fairserve.platform.fleet.prompts.chat_template import compile_template

FAMILIES = {
    path.stem: path.read_text(encoding="utf-8")
    for path in Path(__file__).parents[1].joinpath("property", "chat_templates").iterdir()
}
LOOP = "{% for m in messages %}%s{% endfor %}"
MACRO = "{% macro show(x, content) %}{% for part in x %}{{ part }}{% endfor %}{% endmacro %}"
TEMPLATES = {
    "item": LOOP.replace("%s", "{% for part in m['content'] %}{% endfor %}"),
    "attribute, filtered": LOOP.replace("%s", "{% for part in m.content | list %}{% endfor %}"),
    "part of it": LOOP.replace("%s", "{% for part in m.content[1:] %}{% endfor %}"),
    "first character": LOOP.replace("%s", "{% for part in m.content[0] %}{% endfor %}"),
    "another field": LOOP.replace("%s", "{% for call in m.tool_calls %}{% endfor %}"),
    "a part of the conversation": "{% set rest = messages[1:] %}{% set those = rest | list %}"
    "{% for m in those %}{% for part in m.content %}{% endfor %}{% endfor %}",
    "one message": "{% for part in messages[0].content %}{% endfor %}",
    "another list": "{% for d in documents %}{% for part in d.content %}{% endfor %}{% endfor %}",
    "a name": LOOP.replace("%s", "{% set content = m.content %}{% for p in content %}{% endfor %}"),
    "another name": LOOP.replace("%s", "{% set c = m.content %}{% for p in c %}{% endfor %}"),
    "macro": MACRO + LOOP.replace("%s", "{{ show(m.content, 1) }}"),
    "macro by name": MACRO + LOOP.replace("%s", "{{ show(content=1, x=m.content) }}"),
    "macro with a text": MACRO + LOOP.replace("%s", "{{ show(m.role, m.content) }}"),
    "macro of contents": "{% macro show(content) %}{% for p in content %}{% endfor %}{% endmacro %}"
    + LOOP.replace("%s", "{{ show(m.role) }}"),
}


@pytest.mark.parametrize("name", [*TEMPLATES, *FAMILIES])
def test_vllm_gives_parts_to_the_same_templates(name):
    text = (TEMPLATES | FAMILIES)[name]
    given = _detect_content_format(text, default="string") == "openai"
    assert compile_template(text).reads_parts is given


def test_both_kinds_occur():
    kinds = [compile_template(text).reads_parts for text in (TEMPLATES | FAMILIES).values()]
    assert kinds.count(True) >= 8
    assert kinds.count(False) >= 8
