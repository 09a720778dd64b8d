"""Middleware for ASGI applications: Starlette, FastAPI, Litestar, Django.

::

    app.add_middleware(RateLimitMiddleware, client=AsyncClient(NODE, "http"), trusted_hops=1)

A request costs one hit on each of its descriptors. Both allowed and refused responses carry the
``RateLimit`` fields; a refusal is a 429 with problem details and ``Retry-After``. Put CORS outside
of it, so that browsers can read refusals; preflight requests are not counted.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from .client import AsyncClient, Descriptor, InvalidCheck, Verdict, problem
from .client_address import client_address

_Scope = MutableMapping[str, Any]
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

#: Default of the longest time that a queue may hold a request, in seconds.
HOLD_MAX = 10.0

#: The descriptors of a request, of the ASGI scope and the client's address; none: not limited.
Descriptors = Callable[[_Scope, str], Sequence[Descriptor]]


def by_address(scope: _Scope, client: str) -> Sequence[Descriptor]:
    return [{"remote_address": client}]


class RateLimitMiddleware:
    def __init__(
        self,
        app: _App,
        client: AsyncClient,
        *,
        descriptors: Descriptors = by_address,
        trusted_hops: int = 0,
        hold_max: float = HOLD_MAX,
    ) -> None:
        """`trusted_hops` is the number of own proxies that append to ``X-Forwarded-For``.

        A request that a queue would hold for longer than `hold_max` seconds is refused.
        """
        self.app = app
        self.client = client
        self.descriptors = descriptors
        self.trusted_hops = trusted_hops
        self.hold_max = hold_max

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] != "http" or _is_preflight(scope):
            return await self.app(scope, receive, send)
        peer = (scope.get("client") or ("",))[0]
        address = client_address(peer, _values(scope, b"x-forwarded-for"), self.trusted_hops)
        descriptors = self.descriptors(scope, address)
        if not descriptors:
            return await self.app(scope, receive, send)
        try:
            verdict = await self.client.check(*descriptors)
        except InvalidCheck as error:
            body = problem(400, "Bad Request", f"not taken by the rate limiter: {error}")
            return await _respond(send, 400, body, Verdict(False, is_decided=True))
        if not verdict.allowed:
            return await _respond(send, verdict.status, verdict.problem(), verdict)
        if verdict.delay > self.hold_max:
            # The request will not wait, so its hit is returned to the queue. Of several descriptors
            # it is not known which have counted it: one may be of a quota that is used up.
            if len(descriptors) == 1:
                await self.client.check(*descriptors, hits=-1)
            body = problem(429, "Too Many Requests", "the queue is too long; try again later")
            return await _respond(send, 429, body, verdict)
        if verdict.delay > 0:
            await asyncio.sleep(verdict.delay)

        async def with_fields(message: _Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_fields(verdict)]
            await send(message)

        await self.app(scope, receive, with_fields)


async def _respond(send: _Send, status: int, body: dict[str, Any], verdict: Verdict) -> None:
    content = json.dumps(body).encode()
    length = (b"content-length", str(len(content)).encode())
    headers = [(b"content-type", b"application/problem+json"), length, *_fields(verdict)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def _fields(verdict: Verdict) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in verdict.headers.items()]


def _is_preflight(scope: _Scope) -> bool:
    return scope["method"] == "OPTIONS" and bool(_values(scope, b"access-control-request-method"))


def _values(scope: _Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]
