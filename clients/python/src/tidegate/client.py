"""Asks a node whether requests may pass: `Client`, and `AsyncClient` for asyncio.

::

    limiter = Client("http://127.0.0.1:8080", domain="api")
    if not limiter.check({"user": "ann"}).allowed:
        ...

A node that does not answer within the deadline, or with an error, leaves the check undecided. It is
allowed then (`on_unavailable="deny"` denies it), `Verdict.is_decided` is false, and `unavailable`
counts it. A check that the node does not take, such as one with an overlong value, raises
`InvalidCheck`: if it were allowed, a client could send a value that evades the limit.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import httpx

from .fields import parse

log = logging.getLogger("tidegate")

#: Default deadline of a check, in seconds.
TIMEOUT = 0.010
#: No check waits for the connection of another one: httpcore loses a connection that it gives to a
#: request which stops waiting. There are as many as checks at once, and those that are ending.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)
#: Requests of an `AsyncClient` at once, with those that nothing waits for any more.
GOING_ON_MAX = 1_000
#: The fields of a node's answer that are meant for the client of a service.
FIELDS = (
    "ratelimit",
    "ratelimit-policy",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-soft-breach",
    "retry-after",
)

OnUnavailable = Literal["allow", "deny"]
#: Keys with their values, in the order of the rule.
Descriptor = Mapping[str, str]


class InvalidCheck(ValueError):
    """The node does not take the check; the text says why."""


@dataclass(frozen=True)
class Verdict:
    allowed: bool
    is_decided: bool
    """False if no node decided, and `allowed` is `on_unavailable`."""
    limit: int | None = None
    """Hits per window of the most restrictive limit; none if no rule matched."""
    remaining: int | None = None
    reset: int | None = None
    """Seconds until the whole limit is available again."""
    retry_after: int | None = None
    """Seconds; none if allowed, or if waiting does not help."""
    delay: float = 0.0
    """Seconds that an allowed request has to wait, from a rule with a queue."""
    violated: tuple[str, ...] = ()
    """The names of the policies that refused."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Fields for the response to a client that is limited, by lower-case name."""

    @property
    def status(self) -> int:
        """The status of a refusal."""
        return 429 if self.is_decided else 503

    def problem(self) -> dict[str, Any]:
        """The body of a refusal: problem details (RFC 9457)."""
        if not self.is_decided:
            return problem(503, "Service Unavailable", "The rate limiter is not available.")
        title = "Request cannot be satisfied as assigned quota has been exceeded"
        wait = self.retry_after
        detail = "over the limit" if wait is None else f"over the limit; try again in {wait} s"
        return {
            **problem(429, title, detail),
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "violated-policies": list(self.violated),
        }


def problem(status: int, title: str, detail: str) -> dict[str, Any]:
    return {"type": "about:blank", "title": title, "status": status, "detail": detail}


class _Asker:
    def __init__(self, domain: str, on_unavailable: OnUnavailable) -> None:
        self.domain = domain
        self.on_unavailable = on_unavailable
        #: Checks that no node decided.
        self.unavailable = 0
        self._count = threading.Lock()

    def undecided(self, error: object) -> Verdict:
        with self._count:
            self.unavailable += 1
        log.debug("not decided: %r", error)
        if self.on_unavailable == "allow":
            return Verdict(allowed=True, is_decided=False)
        return Verdict(False, is_decided=False, retry_after=1, headers={"retry-after": "1"})

    def answer(self, response: httpx.Response, hits: int) -> Verdict:
        found = verdict(response.status_code, response.headers, response.content, hits)
        return self.undecided(response.status_code) if found is None else found


class Client(_Asker):
    """Checks by HTTP, from any thread.

    `timeout` is the deadline of a check in seconds. It applies to connecting, to sending and to
    each part of the answer, which is one part as a rule.
    """

    def __init__(
        self,
        url: str,
        domain: str,
        *,
        timeout: float = TIMEOUT,
        on_unavailable: OnUnavailable = "allow",
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        super().__init__(domain, on_unavailable)
        self._http = httpx.Client(
            base_url=url, timeout=timeout, limits=LIMITS, transport=transport, trust_env=False
        )

    def check(self, *descriptors: Descriptor, hits: int = 1) -> Verdict:
        """Counts `hits` on every descriptor, and says whether all of their limits allow it.

        0 hits only look, negative ones give back. Raises `InvalidCheck`.
        """
        try:
            body = check_body(self.domain, descriptors, hits)
            response = self._http.post("/v1/check", content=body, headers=_JSON)
        except httpx.HTTPError as error:
            return self.undecided(error)
        return self.answer(response, hits)

    def close(self) -> None:
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncClient(_Asker):
    """Checks by HTTP, from any task of one event loop. `timeout` is the deadline of a whole check
    in seconds.

    A request that goes on after its deadline, or after the task that waits for it was cancelled, is
    not cancelled: it ends by itself, when a step of it lasts for as long as the deadline. httpcore
    loses the connections of requests that are cancelled from outside, and with all of them lost no
    check would be decided any more. While `GOING_ON_MAX` requests go on, no further check is sent,
    and it stays undecided.
    """

    def __init__(
        self,
        url: str,
        domain: str,
        *,
        timeout: float = TIMEOUT,
        on_unavailable: OnUnavailable = "allow",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(domain, on_unavailable)
        self._timeout = timeout
        self._http = httpx.AsyncClient(
            base_url=url, timeout=timeout, limits=LIMITS, transport=transport, trust_env=False
        )
        self._asked: set[asyncio.Task[httpx.Response]] = set()

    async def check(self, *descriptors: Descriptor, hits: int = 1) -> Verdict:
        """As `Client.check`."""
        body = check_body(self.domain, descriptors, hits)
        if len(self._asked) >= GOING_ON_MAX:
            return self.undecided(f"{GOING_ON_MAX} requests go on")
        posting = self._http.post("/v1/check", content=body, headers=_JSON)
        asked = asyncio.create_task(posting)
        self._asked.add(asked)
        asked.add_done_callback(self._answered)
        done, _ = await asyncio.wait({asked}, timeout=self._timeout)
        if not done:
            return self.undecided(TimeoutError(f"no answer within {self._timeout} s"))
        try:
            response = asked.result()
        except httpx.HTTPError as error:
            return self.undecided(error)
        return self.answer(response, hits)

    def _answered(self, asked: asyncio.Task[httpx.Response]) -> None:
        self._asked.discard(asked)
        if not asked.cancelled():
            # An exception that nobody asks for would be logged.
            asked.exception()

    async def aclose(self) -> None:
        if self._asked:
            await asyncio.wait(self._asked)
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


# === the messages ===

_JSON = {"content-type": "application/json"}


def check_body(domain: str, descriptors: Iterable[Descriptor], hits: int) -> bytes:
    """`RateLimitRequest` of Envoy's rate limit service, in JSON."""

    def message(descriptor: Descriptor) -> dict[str, Any]:
        entries = [{"key": key, "value": value} for key, value in descriptor.items()]
        counted: dict[str, Any] = {} if hits == 1 else {"hitsAddend": abs(hits)}
        if hits < 0:
            counted["isNegativeHits"] = True
        return {"entries": entries, **counted}

    messages = [message(descriptor) for descriptor in descriptors]
    return json.dumps({"domain": domain, "descriptors": messages}).encode()


def verdict(status: int, headers: Mapping[str, str], body: bytes, hits: int = 1) -> Verdict | None:
    """The verdict in a node's answer; none if there is no verdict in it.

    `headers` finds values by lower-case name. Raises `InvalidCheck`.
    """
    try:
        message = json.loads(body)
    except ValueError:
        message = None
    code = message.get("overallCode") if isinstance(message, dict) else None
    if status in (400, 413) and code is None:
        text = message.get("error") if isinstance(message, dict) else None
        raise InvalidCheck(text or f"status {status}")
    if code not in ("OK", "OVER_LIMIT"):
        return None
    allowed = code == "OK"
    fields = parse(headers, 0)
    violated = [item.name for item in fields.policies if item.remaining < max(hits, 1)]
    delay = headers.get("x-ratelimit-delay", "")
    return Verdict(
        allowed,
        is_decided=True,
        limit=_int(headers.get("x-ratelimit-limit")),
        remaining=_int(headers.get("x-ratelimit-remaining")),
        reset=_int(headers.get("x-ratelimit-reset")),
        retry_after=None if allowed else _int(headers.get("retry-after")),
        delay=float(delay) if delay.replace(".", "", 1).isdecimal() else 0.0,
        violated=() if allowed else tuple(violated),
        headers={name: headers[name] for name in FIELDS if name in headers},
    )


def _int(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) < 20 else None
