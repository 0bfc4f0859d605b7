"""Turns the content parts of a request into the model's segments.

Media come as base64, whose size is checked on the encoded text, before a byte of it is decoded; images may be named by
URL where `serve.fetch` allows it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Literal

from elasmo.config import FetchConfig, LimitsConfig
from elasmo.model.sample import Audio, Image, Message, Segment, Table, Text
from elasmo.serve.media_fetch import FetchRefused, Network, fetch
from elasmo.serve.openai_errors import invalid_request, too_large
from elasmo.serve.openai_protocol import AudioPart, ChatMessage, ImagePart, Part, TablePart
from elasmo.serve.tool_calls import spoken

_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "user",  # models know no role of tools; what one returned is told to them
}


def to_messages(
    messages: Sequence[ChatMessage],
    limits: LimitsConfig,
    preface: str | None = None,
    remote: FetchConfig | None = None,
    network: Network | None = None,
) -> tuple[Message, ...]:
    """The conversation as the processor takes it. Blocks where images are fetched.

    Args:
        preface: put in front of the system message, which is added where there is none.
        remote: whether and how images are fetched; not at all when None.
        network: to fetch over, instead of this machine's.

    Raises:
        ApiError: 400 for a remote or malformed URI and for base64 that does not decode, 413 over a byte limit.
    """
    remote = remote or FetchConfig()
    urls = sum(isinstance(part, ImagePart) and _is_remote(part) for message in messages for part in message.content)
    if urls > remote.per_request:
        raise invalid_request(
            f"messages names {urls} URLs to fetch; at most serve.fetch.per_request={remote.per_request} are.",
            "messages",
        )
    turns = [
        Message(
            role=_ROLES[message.role],
            segments=(
                *(
                    _segment(part, limits, remote, network, f"messages[{row}].content[{column}]")
                    for column, part in enumerate(message.content)
                ),
                *((Text(spoken(message)),) if message.tool_calls else ()),
            ),
        )
        for row, message in enumerate(messages)
    ]
    if preface is not None and turns[0].role == "system":
        turns[0] = Message("system", (Text(preface), *turns[0].segments))
    elif preface is not None:
        turns.insert(0, Message("system", (Text(preface),)))
    return tuple(turns)


def _is_remote(part: ImagePart) -> bool:
    return part.image_url.url[:8].lower().startswith(("http:", "https:"))


def _segment(part: Part, limits: LimitsConfig, remote: FetchConfig, network: Network | None, param: str) -> Segment:
    if isinstance(part, ImagePart):
        param = f"{param}.image_url.url"
        if _is_remote(part):
            return Image(_fetched(part.image_url.url, limits.image_bytes, remote, network, param))
        encoded = _data_uri(part.image_url.url, "image/", param)
        return Image(_decode(encoded, limits.image_bytes, "limits.image_bytes", param))
    if isinstance(part, AudioPart):
        param = f"{param}.input_audio.data"
        return Audio(_decode(part.input_audio.data, limits.audio_bytes, "limits.audio_bytes", param))
    if isinstance(part, TablePart):
        return Table(part.record)
    return Text(part.text)


def _fetched(url: str, limit: int, remote: FetchConfig, network: Network | None, param: str) -> bytes:
    try:
        return fetch(url, limit, remote, network)
    except FetchRefused as error:
        raise invalid_request(
            f"{param} is not fetched because {error}; send the bytes as data:image/png;base64,... instead.",
            param,
            "remote_media_not_allowed",
        ) from None


def _data_uri(uri: str, media_type: str, param: str) -> str:
    """The base64 text of a `data:` URI (RFC 2397)."""
    scheme, separator, rest = uri.partition(":")
    if scheme.lower() in ("ftp", "file") and separator:
        raise invalid_request(
            f"{param} is a {scheme.lower()} URL; this server takes data URIs only: send the bytes as "
            f"data:{media_type}png;base64,... instead.",
            param,
            "remote_media_not_allowed",
        )
    header, comma, encoded = rest.partition(",")
    kind, *attributes = header.split(";")
    if scheme.lower() != "data" or not comma or "base64" not in (item.strip().lower() for item in attributes):
        raise invalid_request(f"{param} is not a data URI; send data:{media_type}png;base64,...", param)
    if not kind.strip().lower().startswith(media_type):
        raise invalid_request(f"{param} has media type {kind[:40]!r}; this part takes {media_type}*.", param)
    return encoded


def _decode(encoded: str, limit: int, limit_name: str, param: str) -> bytes:
    size = len(encoded) * 3 // 4 - encoded[-2:].count("=")
    if size > limit:
        raise too_large(f"{param} holds {size} bytes; the server's serve.{limit_name} is {limit}.", param)
    try:
        data = base64.b64decode(encoded.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise invalid_request(f"{param} is not valid base64 ({error}); encode the file's bytes.", param) from None
    if not data:
        raise invalid_request(f"{param} holds no bytes; send the encoded file.", param)
    return data
