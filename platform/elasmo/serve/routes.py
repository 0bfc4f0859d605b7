"""The HTTP surface: OpenAI's paths, `/healthz` and `/v1/elasmo/stats`. Every error is in OpenAI's shape."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from elasmo.config import ServeConfig
from elasmo.serve.arrival import Arrival
from elasmo.serve.chat_service import ChatService
from elasmo.serve.completion import Completion
from elasmo.serve.deadline import Deadline
from elasmo.serve.live_streams import LiveStream, LiveStreams
from elasmo.serve.openai_errors import ApiError, body_too_slow, defect, invalid_request, too_large, unknown_model
from elasmo.serve.openai_protocol import ModelCard, ModelList
from elasmo.serve.sse import HEADERS, MEDIA_TYPE


class EventStream(Response):
    """A stream's events from number `first` on; the stream is left however the response ends.

    Not Starlette's StreamingResponse: that waits for a disconnect by itself, while Serve already cancels the request.
    """

    def __init__(self, streams: LiveStreams, stream: LiveStream, first: int) -> None:
        super().__init__(media_type=MEDIA_TYPE, headers={**HEADERS, "x-request-id": stream.id})
        del self.headers["content-length"]
        self._streams = streams
        self._stream = stream
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._stream.read(self._first):
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._streams.leave(self._stream)


def build_routes(service: ChatService, config: ServeConfig, stats: Callable[[], Awaitable[dict[str, Any]]]) -> FastAPI:
    """The ASGI app.

    Args:
        service: answers chat completions.
        config: bounds of a request's body.
        stats: the document of `/v1/elasmo/stats`.
    """
    app = FastAPI(title="Elasmo", docs_url=None, redoc_url=None, openapi_url=None)
    model = service.model
    streams = app.state.streams = LiveStreams(config.reconnect_s, config.max_queue)
    card = ModelCard(id=model.name, created=model.created, max_model_len=model.context)

    def arrive(request: Request) -> Arrival:
        """Everything that can be refused before a byte of the body is read."""
        caller = service.callers.identify(request.headers.get("authorization"))
        caller.spend_request()
        service.admission.check(caller)
        return Arrival(caller, Deadline(config.request_timeout_s))

    @app.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok", "model": model.name})

    @app.get("/v1/models")
    async def models(request: Request) -> Response:
        service.callers.identify(request.headers.get("authorization"))
        return JSONResponse(ModelList(data=[card]).model_dump())

    @app.get("/v1/models/{name:path}")
    async def one_model(request: Request, name: str) -> Response:
        service.callers.identify(request.headers.get("authorization"))
        if name != model.name:
            raise unknown_model(name, model.name)
        return JSONResponse(card.model_dump())

    @app.get("/v1/elasmo/stats")
    async def statistics(request: Request) -> Response:
        service.callers.admin(request.headers.get("authorization"))
        return JSONResponse(await stats())

    async def complete(
        request: Request, answer: Callable[[bytes, Arrival], Awaitable[dict[str, Any] | Completion]]
    ) -> Response:
        last_event_id = request.headers.get("last-event-id")
        if last_event_id is not None:
            caller = service.callers.identify(request.headers.get("authorization"))
            return EventStream(streams, *streams.resume(last_event_id, caller.name))
        arrival = arrive(request)
        told = await answer(await read_body(request, config, arrival.deadline), arrival)
        if isinstance(told, Completion):
            return EventStream(streams, streams.open(told, arrival.caller.name), 0)
        return JSONResponse(told, headers={"x-request-id": told["id"]})

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await complete(request, service.chat)

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await complete(request, service.text)

    @app.post("/v1/embeddings")
    async def embeddings(request: Request) -> Response:
        arrival = arrive(request)
        return JSONResponse(await service.embed(await read_body(request, config, arrival.deadline), arrival))

    @app.post("/tokenize")
    async def tokenize(request: Request) -> Response:
        arrival = arrive(request)
        return JSONResponse(await service.tokenize(await read_body(request, config, arrival.deadline)))

    @app.post("/detokenize")
    async def detokenize(request: Request) -> Response:
        arrival = arrive(request)
        return JSONResponse(await service.detokenize(await read_body(request, config, arrival.deadline)))

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return JSONResponse(error.body(), status_code=error.status, headers=error.headers)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        answer = defect(error)
        return JSONResponse(answer.body(), status_code=answer.status)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        known = ", ".join(sorted({route.path.split("{")[0] for route in app.routes if isinstance(route, Route)}))
        sentence = f"{request.method} {request.url.path}: {error.detail}; this server answers {known}."
        answer = ApiError(error.status_code, sentence, "invalid_request_error", "unknown_url")
        return JSONResponse(answer.body(), status_code=answer.status, headers=error.headers)

    return app


async def read_body(request: Request, config: ServeConfig, deadline: Deadline) -> bytes:
    """The request's body.

    Raises:
        ApiError: 413 as soon as more than `body_bytes` are announced or received, 400 for a malformed length, 408 when
            the client does not send it by the deadline.
    """
    limit = config.body_bytes
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal():
        raise invalid_request(f"The Content-Length header is {announced!r}; it must be a number of bytes.")
    body = bytearray()
    if int(announced) <= limit:
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        break
                else:
                    return bytes(body)
        except TimeoutError:
            raise body_too_slow(config.request_timeout_s) from None
    raise too_large(f"The request body has more than serve.body_bytes={limit} bytes; send smaller or fewer media.")
