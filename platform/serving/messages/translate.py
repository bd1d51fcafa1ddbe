"""Translate a request in Anthropic's format to the fields of a chat call.

So validation, the choice of workers that honour each field, counting and the call itself are those of
a chat call. Thinking of earlier turns is left out, as Anthropic does; that of the tool calls since the
last turn of the user is sent. Consecutive turns of one role become one. Names of fields in errors are
translated back (:meth:`ChatFields.original`).

Cost: O(blocks), and a copy of the bytes of images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from fairserve.platform.base.errors import InvalidRequestError
from fairserve.platform.serving.messages.schemas import (
    Block,
    CountBody,
    ImageBlock,
    MessageBody,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
)

CHOICES = {"auto": "auto", "any": "required", "none": "none"}
ERROR_RESULT = "Error: "
"""Begins the result of a tool that failed: chat messages have no flag for it."""


@dataclass(slots=True)
class MessagesChatFields:
    """Fields of a chat call, and the source of each."""

    plain: dict[str, Any]
    origins: dict[str, str] = field(default_factory=dict)
    """The client's name of a field, by its name in the chat call, where they differ."""

    def original(self, name: str) -> str:
        """Return the client's name of a field of the chat call, or of the nearest part around it."""
        end = len(name)
        while end > 0:
            if (found := self.origins.get(name[:end])) is not None:
                return found
            end = max(name.rfind(".", 0, end), name.rfind("[", 0, end))
        return name


def chat_fields(body: CountBody) -> MessagesChatFields:
    """Return the chat call of a body. Raises InvalidRequestError for messages without an equivalent."""
    fields = MessagesChatFields({"model": body.model})
    plain, origins = fields.plain, fields.origins
    plain["messages"] = _messages(body, origins)
    if body.messages[-1].role == "assistant":
        _continue_answer(fields)
    if body.tools:
        plain["tools"] = [_tool(tool) for tool in body.tools]
        for number in range(len(body.tools)):
            origins[f"tools[{number}].function.parameters"] = f"tools[{number}].input_schema"
    if body.tool_choice is not None:
        plain |= _tool_choice(body.tool_choice)
        origins["parallel_tool_calls"] = "tool_choice.disable_parallel_tool_use"
    if body.thinking is not None and body.thinking.type != "adaptive":
        thinks = body.thinking.type == "enabled"
        plain["chat_template_kwargs"] = {"enable_thinking": thinks, "thinking": thinks}
        if thinks:
            plain["thinking_token_budget"] = body.thinking.budget_tokens
        origins |= dict.fromkeys(("chat_template_kwargs", "thinking_token_budget"), "thinking")
    wanted = body.output_config
    if wanted is not None and wanted.effort is not None:
        plain["reasoning_effort"] = wanted.effort
        origins["reasoning_effort"] = "output_config.effort"
    if wanted is not None and wanted.format is not None:
        schema = {"name": "answer", "schema": wanted.format.schema_, "strict": True}
        plain["response_format"] = {"type": "json_schema", "json_schema": schema}
        origins["response_format"] = "output_config.format"
        origins["response_format.json_schema.schema"] = "output_config.format.schema"
    if isinstance(body, MessageBody):
        _add_sampling(body, fields)
    return fields


def _add_sampling(body: MessageBody, fields: MessagesChatFields) -> None:
    plain = fields.plain
    plain["max_tokens"] = body.max_tokens
    for name in ("temperature", "top_p", "top_k", "stream"):
        if (value := getattr(body, name)) is not None:
            plain[name] = value
    if body.stop_sequences:
        plain["stop"] = body.stop_sequences
        fields.origins["stop"] = "stop_sequences"
    if body.metadata is not None and body.metadata.user_id:
        plain["metadata"] = {"user_id": body.metadata.user_id}


def _messages(body: CountBody, origins: dict[str, str]) -> list[dict[str, Any]]:
    """Return the chat messages; ``origins`` gets the path of each part."""
    messages: list[dict[str, Any]] = []

    def add(message: dict[str, Any], path: str) -> None:
        origins[f"messages[{len(messages)}]"] = path
        messages.append(message)

    if body.system:
        add(
            {"role": "system", "content": _content([_part(block) for block in body.system])},
            "system",
        )
    turns = list(_turns(body))
    loop = _tool_loop(turns)
    for number, (role, blocks) in enumerate(turns):
        first_path = blocks[0][0]
        if role == "assistant":
            add(
                _assistant([block for _, block in blocks], keep_thinking=number >= loop), first_path
            )
            continue
        for path, block in blocks:
            if isinstance(block, ToolResultBlock):
                add(_tool_result(block), path)
        parts, paths = [], []
        for path, block in blocks:
            if isinstance(block, TextBlock | ImageBlock):
                parts.append(_part(block))
                paths.append(path)
        if parts:
            for index, path in enumerate(paths):
                origins[f"messages[{len(messages)}].content[{index}]"] = path
            add({"role": role, "content": _content(parts)}, paths[0])
    return messages


def _turns(body: CountBody) -> Iterator[tuple[str, list[tuple[str, Block]]]]:
    """Yield the role and the blocks of each turn, with their paths."""
    role = ""
    blocks: list[tuple[str, Block]] = []
    for number, message in enumerate(body.messages):
        if message.role != role and blocks:
            yield role, blocks
            blocks = []
        role = message.role
        blocks += [
            (f"messages[{number}].content[{index}]", block)
            for index, block in enumerate(message.content)
        ]
    yield role, blocks


def _tool_loop(turns: list[tuple[str, list[tuple[str, Block]]]]) -> int:
    """Return the number of the first turn after the user's last words: results of tools are none."""
    for number in range(len(turns) - 1, -1, -1):
        role, blocks = turns[number]
        if role == "user" and not any(isinstance(block, ToolResultBlock) for _, block in blocks):
            return number
    return 0


def _continue_answer(fields: MessagesChatFields) -> None:
    """Let the model continue the assistant's last turn."""
    last = fields.plain["messages"][-1]
    path = fields.origins[f"messages[{len(fields.plain['messages']) - 1}]"]
    if "tool_calls" in last:
        raise InvalidRequestError(f"{path}: the last turn calls tools; add results", param=path)
    fields.plain |= {"continue_final_message": True, "add_generation_prompt": False}
    fields.origins["continue_final_message"] = fields.origins["add_generation_prompt"] = path


def _assistant(blocks: list[Block], *, keep_thinking: bool) -> dict[str, Any]:
    """Return an answer as its worker sent it."""
    text = "".join(block.text for block in blocks if isinstance(block, TextBlock))
    calls = [
        {
            "id": block.id,
            "type": "function",
            "function": {"name": block.name, "arguments": orjson.dumps(block.input).decode()},
        }
        for block in blocks
        if isinstance(block, ToolUseBlock)
    ]
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    thinking = "".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock))
    if keep_thinking and thinking:
        message["reasoning"] = thinking
    if calls:
        message["tool_calls"] = calls
    return message


def _tool_result(block: ToolResultBlock) -> dict[str, Any]:
    parts = [_part(each) for each in block.content]
    if block.is_error:
        parts.insert(0, {"type": "text", "text": ERROR_RESULT})
    if all(part["type"] == "text" for part in parts):
        content: Any = "".join(part["text"] for part in parts)
    else:
        content = parts
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _part(block: TextBlock | ImageBlock) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    url = f"data:{block.source.media_type};base64,{block.source.data}"
    return {"type": "image_url", "image_url": {"url": url}}


def _content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Return the content of a message: a text that is alone is a string."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts


def _tool(tool: Tool) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    for name in ("description", "strict"):
        if (value := getattr(tool, name)) is not None:
            function[name] = value
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "tool_choice": {"type": "function", "function": {"name": choice.name}}
        if choice.type == "tool"
        else CHOICES[choice.type]
    }
    if choice.disable_parallel_tool_use:
        fields["parallel_tool_calls"] = False
    return fields
