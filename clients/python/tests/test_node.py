"""Against a real node, whose address is in `NODE_URL`: `scripts/check-clients` starts one."""

import asyncio
import contextlib
import json
import os
import threading
import time
import uuid
from typing import Any

import httpx
import pytest

from tidegate import (
    AsyncClient,
    AsyncPacedTransport,
    Client,
    InvalidCheck,
    PacedTransport,
    RateLimitMiddleware,
)

NODE = os.environ.get("NODE_URL", "")
pytestmark = pytest.mark.skipif(not NODE, reason="no node: scripts/check-clients starts one")

WORKERS = 10
# Longer than the default: a busy machine must not make a test fail.
TIMEOUT = 2.0
# Nothing listens on this port.
NOBODY = "http://127.0.0.1:9"


def name() -> str:
    return uuid.uuid4().hex


# === asking ===


def test_a_check_counts_and_is_refused_over_the_limit() -> None:
    with Client(NODE, "clients", timeout=TIMEOUT) as client:
        few = {"few": name()}
        assert client.check(few, hits=0).remaining == 2
        first = client.check(few)
        assert (first.allowed, first.is_decided, first.limit, first.remaining) == (True, True, 2, 1)
        assert client.check(few, hits=-1).remaining == 2
        assert client.check(few, hits=2).allowed
        refused = client.check(few)
        assert not refused.allowed and refused.violated == ("few",)
        assert refused.retry_after and refused.headers["ratelimit"].startswith('"few";r=0')
        assert client.unavailable == 0


async def test_an_asyncio_check_likewise() -> None:
    async with AsyncClient(NODE, "clients", timeout=TIMEOUT) as client:
        few = {"few": name()}
        verdicts = [await client.check(few) for _ in range(3)]
        assert [verdict.allowed for verdict in verdicts] == [True, True, False]


async def test_a_queue_says_how_long_to_wait() -> None:
    async with AsyncClient(NODE, "clients", timeout=TIMEOUT) as client:
        queue = {"queue": name()}
        verdicts = await asyncio.gather(*(client.check(queue) for _ in range(5)))
        assert max(verdict.delay for verdict in verdicts) > 0


def test_a_check_that_the_node_does_not_take_is_an_error() -> None:
    with Client(NODE, "clients", timeout=TIMEOUT) as client:
        with pytest.raises(InvalidCheck, match="value"):
            client.check({"few": "x" * 5000})
        assert client.unavailable == 0


def test_without_a_node_checks_are_counted_and_allowed_or_denied() -> None:
    with Client(NOBODY, "clients") as client:
        verdict = client.check({"few": "x"})
        assert (verdict.allowed, verdict.is_decided, client.unavailable) == (True, False, 1)
    with Client(NOBODY, "clients", on_unavailable="deny") as client:
        verdict = client.check({"few": "x"})
        assert (verdict.allowed, verdict.status, client.unavailable) == (False, 503, 1)


async def test_a_check_ends_at_its_deadline() -> None:
    # Accepts connections and never answers.
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    begun = time.monotonic()
    async with AsyncClient(url, "clients") as client:
        assert not (await client.check({"few": "x"})).is_decided
    with Client(url, "clients") as sync:
        assert not (await asyncio.to_thread(sync.check, {"few": "x"})).is_decided
    assert time.monotonic() - begun < 5
    silent.close()


async def test_a_node_that_did_not_answer_in_time_decides_again() -> None:
    answers = asyncio.Event()
    body = b'{"overallCode":"OK"}'
    reply = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that does not wait any longer closes its connection.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                await answers.wait()
                writer.write(reply)
        writer.close()

    node = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{node.sockets[0].getsockname()[1]}"
    async with AsyncClient(url, "clients") as client:

        async def ask() -> None:
            for _ in range(20):
                await client.check({"few": "x"})

        # More than have a connection each in a pool of the usual size.
        await asyncio.gather(*(ask() for _ in range(200)))
        answers.set()
        begun = time.monotonic()
        while not (await client.check({"few": "x"})).is_decided:
            assert time.monotonic() - begun < 10, "no check is decided any more"
    node.close()


async def test_the_middleware_limits_clients_by_their_address() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async with AsyncClient(NODE, "clients", timeout=TIMEOUT) as client:
        limited = RateLimitMiddleware(app, client, trusted_hops=1)
        address = f"2001:db8:{name()[:4]}:{name()[:4]}::1"
        headers = {"x-forwarded-for": f"1.1.1.1, {address}"}
        transport = httpx.ASGITransport(limited)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
            answers = [await http.get("/", headers=headers) for _ in range(3)]
            other = await http.get("/", headers={"x-forwarded-for": f"2001:db8::{name()[:4]}"})
            preflight = await http.options(
                "/", headers={**headers, "access-control-request-method": "POST"}
            )
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["ratelimit"].startswith('"addresses";r=1')
    refused = answers[2]
    assert refused.headers["content-type"] == "application/problem+json"
    assert int(refused.headers["retry-after"]) > 0
    assert refused.headers["ratelimit-policy"] == '"addresses";q=2;w=86400'
    assert json.loads(refused.content)["violated-policies"] == ["addresses"]
    assert (other.status_code, preflight.status_code) == (200, 200)


async def test_the_middleware_does_not_hold_a_request_for_longer_than_it_may() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    async with AsyncClient(NODE, "clients", timeout=TIMEOUT) as client:
        queue = {"slow_queue": name()}
        limited = RateLimitMiddleware(app, client, descriptors=lambda scope, address: [queue])
        transport = httpx.ASGITransport(limited)
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
            statuses = [(await http.get("/")).status_code]
            before = await client.check(queue, hits=0)
            statuses.append((await http.get("/")).status_code)
            after = await client.check(queue, hits=0)
    assert statuses == [200, 429]
    assert after.remaining == before.remaining


async def test_the_middleware_lets_requests_pass_without_a_node() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"hello"})

    for on_unavailable, status in (("allow", 200), ("deny", 503)):
        client = AsyncClient(NOBODY, "clients", on_unavailable=on_unavailable)  # type: ignore[arg-type]
        transport = httpx.ASGITransport(RateLimitMiddleware(app, client))
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
            answer = await http.get("/")
        assert (answer.status_code, client.unavailable) == (status, 1)
        await client.aclose()


# === pacing ===


def window() -> tuple[str, float]:
    """The rule to be paced by, as a header, and its window. `PACED_MINUTE`: the long one."""
    return ("x-minute", 60.0) if os.environ.get("PACED_MINUTE") else ("x-six-seconds", 6.0)


def until_next_window(length: float) -> float:
    return length - time.time() % length


def report(kind: str, statuses: list[int], windows: int) -> None:
    useful, refused = statuses.count(200), statuses.count(429)
    print(f"\npython, {kind}: {useful} useful, {refused} refused in {windows} window(s) of 100")
    assert len(statuses) == useful + refused
    assert useful >= 98 * windows
    assert refused <= 2


def test_ten_threads_that_share_a_client_use_a_limit_and_are_not_refused() -> None:
    header, length = window()
    windows = 1 if length == 60 else 2
    # Retries would hide refusals.
    client = httpx.Client(transport=PacedTransport(retries=0), headers={header: name()})
    statuses: list[int] = []
    time.sleep(until_next_window(length))
    end = time.monotonic() + windows * length

    def work() -> None:
        while time.monotonic() < end:
            status = client.get(f"{NODE}/auth/").status_code
            if time.monotonic() < end:
                statuses.append(status)

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    report("ten threads", statuses, windows)


async def test_ten_tasks_that_share_a_client_use_a_limit_and_are_not_refused() -> None:
    header, length = window()
    windows = 1 if length == 60 else 2
    statuses: list[int] = []
    transport = AsyncPacedTransport(retries=0)
    async with httpx.AsyncClient(transport=transport, headers={header: name()}) as client:
        await asyncio.sleep(until_next_window(length))
        end = time.monotonic() + windows * length

        async def work() -> None:
            while time.monotonic() < end:
                status = (await client.get(f"{NODE}/auth/")).status_code
                if time.monotonic() < end:
                    statuses.append(status)

        await asyncio.gather(*(work() for _ in range(WORKERS)))
    report("ten tasks", statuses, windows)
