"""Templates get parts where vLLM 0.32 gives them parts: the results are those of its own function."""

import pytest

from fairserve.platform.fleet.prompts.chat_template import compile_template

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


WITHOUT_PARTS = {
    "first character",
    "another field",
    "one message",
    "another list",
    "another name",
    "macro with a text",
    "macro of contents",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_vllm_gives_parts_to_the_same_templates(name):
    assert compile_template(TEMPLATES[name]).reads_parts is (name not in WITHOUT_PARTS)
