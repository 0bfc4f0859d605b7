"""Tools: how the model is told of them, what its answer may be, and how a call is read from the text as it comes.

A call is an answer of the form `{"name":"...","arguments":{...}}` and nothing else. A grammar sees to it, so reading
one needs no repair, whatever the model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from elasmo.engine.grammar import GrammarSpec
from elasmo.serve.openai_protocol import ChatMessage, ChatRequest, NamedTool, ToolCall

_HEAD = re.compile(r'\{"name":"([A-Za-z0-9_-]+)","arguments":')
_COMPACT = {"x-guidance": {"whitespace_flexible": False}}


def answer_grammar(request: ChatRequest) -> GrammarSpec | None:
    """What the answer must match: a schema, a call of a tool, or a call or any text that does not begin as one."""
    form = request.response_format
    if form is not None and form.type == "json_object":
        return GrammarSpec("json_schema", '{"type":"object"}')
    if form is not None and form.type == "json_schema":
        return GrammarSpec("json_schema", json.dumps(form.json_schema.schema_))
    if not request.calls_tools:
        return None
    named = request.tool_choice.function.name if isinstance(request.tool_choice, NamedTool) else None
    tools = [tool.function for tool in request.tools if named in (None, tool.function.name)]
    calls = [f"call{number}" for number in range(len(tools))]
    may_talk = request.tool_choice in (None, "auto")
    lines = [f"start: {' | '.join([*calls, *(['TALK'] if may_talk else [])])}"]
    if may_talk:
        lines.append("TALK: /([^{](?s:.*))?/")
    for call, tool in zip(calls, tools, strict=True):
        head = json.dumps(f'{{"name":"{tool.name}","arguments":')
        lines.append(f'{call}: {head} {call}_arguments "}}"')
        lines.append(f"{call}_arguments: %json {json.dumps({**tool.parameters, **_COMPACT})}")
    return GrammarSpec("lark", "\n".join(lines))


def describe_tools(request: ChatRequest) -> str | None:
    """What the model is told of the tools, as the beginning of its system message."""
    if not request.calls_tools:
        return None
    tools = [tool.function.model_dump(exclude_none=True, exclude={"strict"}) for tool in request.tools]
    return (
        f"You can call these functions: {json.dumps(tools, ensure_ascii=False)}\n"
        'To call one, answer {"name":"its name","arguments":{its arguments}} and nothing else.\n'
    )


def spoken(message: ChatMessage) -> str:
    """A message's calls as the text that the assistant once answered."""
    return "".join(_as_text(call) for call in message.tool_calls or ())


class CallReader:
    """Tells a call from talk in an answer that comes piece by piece.

    Args:
        call_id: the id of the call, should it be one.
    """

    def __init__(self, call_id: str) -> None:
        self._call_id = call_id
        self._held = ""
        self._talks = False
        self.called = False

    def push(self, text: str, last: bool) -> tuple[str, list[dict[str, Any]]]:
        """Text of talk, and OpenAI's deltas of `tool_calls`, that a piece adds."""
        if self._talks:
            return text, []
        self._held += text
        deltas: list[dict[str, Any]] = []
        if not self.called and (head := _HEAD.match(self._held)):
            self.called = True
            self._held = self._held[head.end() :]
            function = {"name": head[1], "arguments": ""}
            deltas.append({"index": 0, "id": self._call_id, "type": "function", "function": function})
        if self.called:
            # The brace that ends the call is no part of its arguments, and may be the newest character.
            arguments, self._held = self._held[:-1], self._held[-1:]
            if arguments:
                deltas.append({"index": 0, "function": {"arguments": arguments}})
            return "", deltas
        if last or not self._held.startswith("{"):
            self._talks = bool(self._held)
            talk, self._held = self._held, ""
            return talk, []
        return "", []


def joined(deltas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The whole call of a list of deltas."""
    if not deltas:
        return []
    first = deltas[0]
    arguments = "".join(delta["function"]["arguments"] for delta in deltas)
    function = {"name": first["function"]["name"], "arguments": arguments}
    return [{"id": first["id"], "type": "function", "function": function}]


def _as_text(call: ToolCall) -> str:
    return f'{{"name":{json.dumps(call.function.name)},"arguments":{call.function.arguments}}}'
