"""The HTTP surface: OpenAI's paths, `/healthz` and `/v1/elasmo/stats`. Every error is in OpenAI's shape."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from elasmo.config import ServeConfig
from elasmo.serve.chat_service import ChatService
from elasmo.serve.completion import Completion
from elasmo.serve.openai_errors import ApiError, body_too_slow, defect, invalid_request, too_large, unknown_model
from elasmo.serve.openai_protocol import ModelCard, ModelList
from elasmo.serve.sse import HEADERS, MEDIA_TYPE


class EventStream(Response):
    """A completion as server-sent events; the completion is closed however the response ends.

    Not Starlette's StreamingResponse: that waits for a disconnect by itself, while Serve already cancels the request.
    """

    def __init__(self, completion: Completion) -> None:
        super().__init__(media_type=MEDIA_TYPE, headers={**HEADERS, "x-request-id": completion.id})
        del self.headers["content-length"]
        self._completion = completion

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for event in self._completion.events():
                await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._completion.close()


def build_routes(service: ChatService, config: ServeConfig, stats: Callable[[], Awaitable[dict[str, Any]]]) -> FastAPI:
    """The ASGI app.

    Args:
        service: answers chat completions.
        config: bounds of a request's body.
        stats: the document of `/v1/elasmo/stats`.
    """
    app = FastAPI(title="Elasmo", docs_url=None, redoc_url=None, openapi_url=None)
    model = service.model
    card = ModelCard(id=model.name, created=model.created, max_model_len=model.context)

    @app.get("/healthz")
    async def healthz() -> Response:
        return JSONResponse({"status": "ok", "model": model.name})

    @app.get("/v1/models")
    async def models() -> Response:
        return JSONResponse(ModelList(data=[card]).model_dump())

    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> Response:
        if name != model.name:
            raise unknown_model(name, model.name)
        return JSONResponse(card.model_dump())

    @app.get("/v1/elasmo/stats")
    async def statistics() -> Response:
        return JSONResponse(await stats())

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        answer = await service.answer(await read_body(request, config))
        if isinstance(answer, Completion):
            return EventStream(answer)
        return JSONResponse(answer.model_dump(mode="json"), headers={"x-request-id": answer.id})

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return JSONResponse(error.body(), status_code=error.status, headers=error.headers)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        answer = defect(error)
        return JSONResponse(answer.body(), status_code=answer.status)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        known = "/v1/chat/completions, /v1/models, /v1/elasmo/stats, /healthz"
        sentence = f"{request.method} {request.url.path}: {error.detail}; this server answers {known}."
        answer = ApiError(error.status_code, sentence, "invalid_request_error", "unknown_url")
        return JSONResponse(answer.body(), status_code=answer.status, headers=error.headers)

    return app


async def read_body(request: Request, config: ServeConfig) -> bytes:
    """The request's body.

    Raises:
        ApiError: 413 as soon as more than `body_bytes` are announced or received, 400 for a malformed length, 408 when
            the client does not send it in `request_timeout_s`.
    """
    limit = config.body_bytes
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal():
        raise invalid_request(f"The Content-Length header is {announced!r}; it must be a number of bytes.")
    body = bytearray()
    if int(announced) <= limit:
        try:
            async with asyncio.timeout(config.request_timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > limit:
                        break
                else:
                    return bytes(body)
        except TimeoutError:
            raise body_too_slow(config.request_timeout_s) from None
    raise too_large(f"The request body has more than serve.body_bytes={limit} bytes; send smaller or fewer media.")
