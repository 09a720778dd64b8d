import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from tidegate import AsyncPacedTransport, AsyncPacer, PacedTransport, Pacer, WaitTooLong
from tidegate.schedule import Permit, _Recent

URL = "https://a.example/"


class Server:
    """Answers with what it is given, and keeps the bodies of the requests."""

    def __init__(self, *answers: httpx.Response) -> None:
        self.answers = list(answers)
        self.bodies: list[bytes] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.bodies.append(request.read())
        return self.answers.pop(0)


def refusal(seconds: int = 0) -> httpx.Response:
    return httpx.Response(429, headers={"retry-after": str(seconds)})


def test_a_refused_request_is_sent_again_with_its_body() -> None:
    server = Server(refusal(), httpx.Response(200))
    with httpx.Client(transport=PacedTransport(httpx.MockTransport(server))) as client:
        assert client.post(URL, content=b"hello").status_code == 200
    assert server.bodies == [b"hello", b"hello"]


async def test_with_asyncio_likewise() -> None:
    server = Server(refusal(), httpx.Response(200))

    async def handle(request: httpx.Request) -> httpx.Response:
        return server(request)

    transport = AsyncPacedTransport(httpx.MockTransport(handle))
    async with httpx.AsyncClient(transport=transport) as client:
        assert (await client.post(URL, content=b"hello")).status_code == 200
    assert server.bodies == [b"hello", b"hello"]


class Body(httpx.AsyncByteStream, httpx.SyncByteStream):
    """Of a refusal: holds a connection until it is closed."""

    def __init__(self) -> None:
        self.is_closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield b"slow down"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"slow down"

    def close(self) -> None:
        self.is_closed.set()

    async def aclose(self) -> None:
        self.is_closed.set()


async def test_a_request_that_waits_holds_no_connection() -> None:
    body = Body()
    refused = httpx.Response(429, headers={"retry-after": "60"}, stream=body)
    server = Server(refused)

    async def handle(request: httpx.Request) -> httpx.Response:
        return server(request)

    transport = AsyncPacedTransport(httpx.MockTransport(handle))
    async with httpx.AsyncClient(transport=transport) as client:
        waiting = asyncio.create_task(client.get(URL))
        assert await asyncio.to_thread(body.is_closed.wait, 10)
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


def test_a_thread_that_waits_holds_none_either() -> None:
    body = Body()
    refused = httpx.Response(429, headers={"retry-after": "1"}, stream=body)
    with httpx.Client(
        transport=PacedTransport(httpx.MockTransport(Server(refused, httpx.Response(200))))
    ) as client:
        answers: list[httpx.Response] = []
        thread = threading.Thread(target=lambda: answers.append(client.get(URL)))
        thread.start()
        assert body.is_closed.wait(10)
        assert not answers
        thread.join()
    assert answers[0].status_code == 200


@pytest.mark.parametrize("kind", ["broken", "endless"])
def test_a_refusal_with_a_bad_body_is_sent_again(kind: str) -> None:
    class Bad(Body):
        def __iter__(self) -> Iterator[bytes]:
            while kind == "endless":
                yield b"x" * 10_000
            raise httpx.RemoteProtocolError("cut off")

    refused = httpx.Response(429, headers={"retry-after": "0"}, stream=Bad())
    server = Server(refused, httpx.Response(200))
    with httpx.Client(transport=PacedTransport(httpx.MockTransport(server))) as client:
        assert client.get(URL).status_code == 200


def test_a_refusal_that_is_the_answer_has_its_body() -> None:
    class Once(Pacer):
        """Whose queue is full when the request is to be sent again."""

        is_used = False

        def acquire(self, origin: str, route: str = "") -> Permit:
            if self.is_used:
                raise WaitTooLong(origin, 200.0)
            self.is_used = True
            return super().acquire(origin, route)

    refused = httpx.Response(429, headers={"retry-after": "0"}, stream=Body())
    transport = PacedTransport(httpx.MockTransport(Server(refused)), pacer=Once())
    with httpx.Client(transport=transport) as client:
        answer = client.get(URL)
    assert (answer.status_code, answer.text) == (429, "slow down")


def test_a_request_whose_body_is_a_stream_is_not_sent_again() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"hello"

    class Streamed(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            assert isinstance(request.stream, httpx.SyncByteStream)
            assert b"".join(request.stream) == b"hello"
            return refusal()

    with httpx.Client(transport=PacedTransport(Streamed())) as client:
        assert client.post(URL, content=chunks()).status_code == 429


def test_a_request_that_would_wait_too_long_is_not_sent() -> None:
    server = Server(refusal(3600))
    with httpx.Client(transport=PacedTransport(httpx.MockTransport(server))) as client:
        # The pause is longer than requests wait, so the refusal is the answer.
        assert client.get(URL).status_code == 429
        with pytest.raises(WaitTooLong) as caught:
            client.get(URL)
    assert caught.value.wait > 3500
    assert isinstance(caught.value, httpx.TimeoutException)
    assert len(server.bodies) == 1


def test_a_request_may_wait_for_ever() -> None:
    pacer = Pacer(math.inf)
    permit = pacer.acquire(URL)
    threading.Timer(0.1, lambda: pacer.observe(permit, 200, {})).start()
    pacer.acquire(URL)


def test_threads_that_wait_behind_others_give_up_in_time_too() -> None:
    pacer = Pacer(max_wait=0.2)
    pacer.acquire(URL)
    caught: list[WaitTooLong] = []

    def work() -> None:
        try:
            pacer.acquire(URL)
        except WaitTooLong as error:
            caught.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Nothing is known, so one request a second may leave.
    assert len(caught) == 3


async def test_tasks_leave_in_the_order_of_their_arrival_and_can_be_cancelled() -> None:
    pacer = AsyncPacer()
    first = await pacer.acquire(URL)
    left: list[int] = []

    async def work(number: int) -> None:
        await pacer.acquire(URL)
        left.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(4)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    tasks[2].cancel()
    # No fields: requests are not paced.
    pacer.observe(first, 200, {})
    begun = time.monotonic()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, BaseException) for outcome in outcomes] == [
        True,
        False,
        True,
        False,
    ]
    assert left == [1, 3]
    assert time.monotonic() - begun < 5


def test_the_maps_of_a_schedule_are_bounded_and_forget_what_was_not_used_for_the_longest() -> None:
    recent: _Recent[int, str] = _Recent(2)
    recent.put(1, "a")
    recent.put(2, "b")
    assert recent.get(1) == "a"
    recent.put(3, "c")
    assert (recent.get(1), recent.get(2), recent.get(3)) == ("a", None, "c")
