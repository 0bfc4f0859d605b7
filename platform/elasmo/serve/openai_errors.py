"""Errors in the OpenAI shape: one status, one sentence, the parameter at fault, and a code a program can branch on."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """An answer other than 200.

    Attributes:
        status: HTTP status.
        message: one sentence that names the value, what is allowed and how to mend it.
        type: OpenAI's error class, such as `invalid_request_error`.
        code: what a program branches on, such as `model_not_found`.
        param: path of the request field at fault, such as `messages[0].content[1].image_url.url`.
        headers: extra response headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        type: str,
        code: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type
        self.code = code
        self.param = param
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The JSON document of the error, as `openai` clients parse it."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


def invalid_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """400: the request can never succeed as it stands."""
    return ApiError(400, message, "invalid_request_error", code, param)


def too_large(message: str, param: str | None = None) -> ApiError:
    """413: a medium or the whole body has more bytes than the server reads."""
    return ApiError(413, message, "invalid_request_error", "request_too_large", param)


def body_too_slow(timeout_s: float) -> ApiError:
    """408: the body did not arrive in time."""
    return ApiError(
        408,
        f"The request body did not arrive within serve.request_timeout_s={timeout_s:g} s; send it faster or smaller.",
        "invalid_request_error",
        "request_body_timeout",
    )


def unknown_model(name: str, served: str) -> ApiError:
    """404: the endpoint serves one model, and it is not this one."""
    return ApiError(
        404,
        f"The model {name!r} does not exist here; this endpoint serves {served!r} (see /v1/models).",
        "invalid_request_error",
        "model_not_found",
        "model",
    )


def rate_limited(why: str, retry_after_s: float) -> ApiError:
    """429 with Retry-After: the caller has all that its key may have; the request was not started."""
    return ApiError(
        429,
        f"{why[:1].upper()}{why[1:]}; try again in {math.ceil(retry_after_s)} s.",
        "rate_limit_error",
        "rate_limit_exceeded",
        headers={"Retry-After": str(math.ceil(retry_after_s))},
    )


def overloaded(why: str, retry_after_s: float) -> ApiError:
    """503 with Retry-After: there is no room; the request was not started."""
    return ApiError(
        503,
        f"{why}; try again in {retry_after_s:.0f} s.",
        "server_error",
        "overloaded",
        headers={"Retry-After": str(math.ceil(retry_after_s))},
    )


def timed_out(timeout_s: float, waiting_for: str) -> ApiError:
    """504: the deadline passed."""
    return ApiError(
        504,
        f"The request was not done within serve.request_timeout_s={timeout_s:g} s; it was waiting for {waiting_for}.",
        "server_error",
        "request_timeout",
    )


def unavailable(attempts: int, reason: str) -> ApiError:
    """503: every replacement replica the retry budget allows has failed."""
    return ApiError(
        503,
        f"{attempts} attempts on serving replicas failed, the last one because {reason}; try again shortly.",
        "server_error",
        "replicas_unavailable",
        headers={"Retry-After": "1"},
    )


def defect(error: Exception) -> ApiError:
    """500: an error nobody foresaw. It is logged under a reference; the answer carries the reference alone."""
    reference = f"error-{secrets.token_hex(6)}"
    logger.error("%s: %s", reference, error, exc_info=error)
    return ApiError(
        500,
        f"The server met an error it did not expect; its log has the details under {reference}.",
        "server_error",
        "internal_error",
    )
