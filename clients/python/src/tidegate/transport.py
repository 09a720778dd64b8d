"""httpx transports that pace.

::

    client = httpx.Client(transport=PacedTransport())

All requests of the client, from however many threads or tasks, share what the responses say. A
refused request (429) is sent again when its scope is open, at most `retries` times, if its body is
in memory. A request that would wait too long ends in `WaitTooLong`, an `httpx.TimeoutException`.
"""

from __future__ import annotations

from collections.abc import Callable

import httpx

from .pacer import AsyncPacer, Pacer, WaitTooLong

#: Names the part of its origin to which a request belongs, if limits differ within an origin.
Route = Callable[[httpx.Request], str]

RETRIES = 2
#: Bytes of the body of a refusal that are read before a request waits.
_BODY_MAX = 64 * 1024


def whole_origin(request: httpx.Request) -> str:
    return ""


class PacedTransport(httpx.BaseTransport):
    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        pacer: Pacer | None = None,
        route: Route = whole_origin,
        retries: int = RETRIES,
    ) -> None:
        self.pacer = pacer or Pacer()
        self._transport = transport or httpx.HTTPTransport()
        self._route = route
        self._retries = retries

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        scope = _origin(request.url), self._route(request)
        permit = self.pacer.acquire(*scope)
        retries = self._retries if _is_in_memory(request) else 0
        while True:
            response = self._transport.handle_request(request)
            pause = self.pacer.observe(permit, response.status_code, response.headers)
            if response.status_code != 429 or retries == 0 or pause > self.pacer.max_wait:
                return response
            response = _kept(response)
            try:
                permit = self.pacer.acquire(*scope)
            except WaitTooLong:
                return response
            retries -= 1

    def close(self) -> None:
        self._transport.close()


class AsyncPacedTransport(httpx.AsyncBaseTransport):
    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        pacer: AsyncPacer | None = None,
        route: Route = whole_origin,
        retries: int = RETRIES,
    ) -> None:
        self.pacer = pacer or AsyncPacer()
        self._transport = transport or httpx.AsyncHTTPTransport()
        self._route = route
        self._retries = retries

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        scope = _origin(request.url), self._route(request)
        permit = await self.pacer.acquire(*scope)
        retries = self._retries if _is_in_memory(request) else 0
        while True:
            response = await self._transport.handle_async_request(request)
            pause = self.pacer.observe(permit, response.status_code, response.headers)
            if response.status_code != 429 or retries == 0 or pause > self.pacer.max_wait:
                return response
            response = await _akept(response)
            try:
                permit = await self.pacer.acquire(*scope)
            except WaitTooLong:
                return response
            retries -= 1

    async def aclose(self) -> None:
        await self._transport.aclose()


def _origin(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


def _kept(response: httpx.Response) -> httpx.Response:
    """The response with its body in memory: while a request waits it holds no connection.

    The body is of use only if the request is not sent again: a long or broken one is left out.
    """
    assert isinstance(response.stream, httpx.SyncByteStream)
    body = b""
    try:
        for part in response.stream:
            body += part
            if len(body) > _BODY_MAX:
                body = b""
                break
    except httpx.HTTPError:
        body = b""
    finally:
        response.close()
    return _with_body(response, body)


async def _akept(response: httpx.Response) -> httpx.Response:
    assert isinstance(response.stream, httpx.AsyncByteStream)
    body = b""
    try:
        async for part in response.stream:
            body += part
            if len(body) > _BODY_MAX:
                body = b""
                break
    except httpx.HTTPError:
        body = b""
    finally:
        await response.aclose()
    return _with_body(response, body)


def _with_body(response: httpx.Response, body: bytes) -> httpx.Response:
    return httpx.Response(
        response.status_code,
        headers=response.headers,
        stream=httpx.ByteStream(body),
        extensions=response.extensions,
    )


def _is_in_memory(request: httpx.Request) -> bool:
    try:
        return isinstance(request.content, bytes)
    except httpx.RequestNotRead:
        return False
