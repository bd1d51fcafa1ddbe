"""Which chat templates read the content of a message as a list of parts.

vLLM gives contents as lists of parts to a template that loops over one, and as texts to all others
(``--chat-template-content-format auto``). What loops over a content is found in the template's program:

- the conversation is ``messages``, and what is assigned from it, filtered or sliced;
- a message is the target of a loop over the conversation;
- a content is ``content`` of a message, the name ``content`` outside of macros, or the parameter of a
  macro that is called with the content of a message.

Source: ``_detect_content_format`` in ``vllm/renderers/hf.py`` of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Collection

from jinja2 import nodes

_CONTENT = "content"


def reads_parts(template: nodes.Template) -> bool:
    """Return whether a template loops over the content of a message."""
    loops = list(template.find_all(nodes.For))
    conversation = _conversation(template)
    messages = {
        loop.target.name
        for loop in loops
        if isinstance(loop.target, nodes.Name) and _name(_whole(loop.iter)) in conversation
    }
    if any(_is_content(loop.iter, messages) for loop in loops):
        return True
    in_macros = set[int]()
    for macro in template.find_all(nodes.Macro):
        contents = _contents(template, macro, messages)
        for loop in macro.find_all(nodes.For):
            in_macros.add(id(loop))
            if _name(loop.iter) in contents:
                return True
    return any(_name(loop.iter) == _CONTENT and id(loop) not in in_macros for loop in loops)


def _conversation(template: nodes.Template) -> set[str]:
    """Return the names of the conversation."""
    names, known = {"messages"}, 0
    while known < len(names):
        known = len(names)
        names |= {
            assign.target.name
            for assign in template.find_all(nodes.Assign)
            if isinstance(assign.target, nodes.Name) and _name(_whole(assign.node)) in names
        }
    return names


def _contents(template: nodes.Template, macro: nodes.Macro, messages: Collection[str]) -> set[str]:
    """Return the parameters of a macro that get the content of a message in some call."""
    parameters, found = [each.name for each in macro.args], set[str]()
    for call in template.find_all(nodes.Call):
        if _name(call.node) == macro.name:
            given = [*zip(parameters, call.args, strict=False)]
            given += [(each.key, each.value) for each in call.kwargs]
            found |= {name for name, value in given if _is_content(value, messages)}
    return found & set(parameters)


def _is_content(node: nodes.Node, messages: Collection[str]) -> bool:
    whole = _whole(node)
    if isinstance(whole, nodes.Getattr):
        return whole.attr == _CONTENT and _name(whole.node) in messages
    if isinstance(whole, nodes.Getitem) and isinstance(whole.arg, nodes.Const):
        return whole.arg.value == _CONTENT and _name(whole.node) in messages
    return False


def _whole(node: nodes.Node | None) -> nodes.Node | None:
    """Return what is filtered, tested or sliced."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    return node


def _name(node: nodes.Node | None) -> str:
    """Return the name that is read; empty if it is another expression."""
    return node.name if isinstance(node, nodes.Name) else ""
