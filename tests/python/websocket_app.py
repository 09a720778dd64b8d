"""A WebSocket application, and a client that talks to it through a proxy.

    websocket_app.py serve HOST:PORT    serve until the process is ended
    websocket_app.py call HOST:PORT     use every part of the protocol; exit code 0 if all passed

`/limited` is to have a limit of two requests.
"""

import asyncio
import http
import os
import sys

from websockets.asyncio.client import connect
from websockets.asyncio.server import serve
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.extensions.permessage_deflate import PerMessageDeflate

MESSAGE_BYTES_MAX = 4 << 20
PROTOCOLS = ["chat.v2", "chat.v1"]

# How the last connection was closed by its client.
closed = asyncio.Queue()


async def handle(connection):
    assert connection.request.headers["x-forwarded-for"] == "127.0.0.1"
    path = connection.request.path
    if path == "/closes":
        await connection.close(4001, "the server: ü")
    elif path == "/closed":
        await connection.send(await closed.get())
    elif path == "/pings":
        waiter = await connection.ping(b"from the server")
        await connection.send(str(await waiter >= 0))
    else:
        await echo(connection)
        await closed.put(f"{connection.close_code} {connection.close_reason}")


async def echo(connection):
    """Sends each message back, in the fragments in which it came."""
    while True:
        try:
            fragments = [fragment async for fragment in connection.recv_streaming()]
        except Exception:
            return
        await connection.send(fragments if len(fragments) > 1 else fragments[0])


def refuse(connection, request):
    if request.path == "/forbidden":
        return connection.respond(http.HTTPStatus.FORBIDDEN, "not you\n")


def select(connection, offered):
    return next((protocol for protocol in PROTOCOLS if protocol in offered), None)


async def run(host, port):
    options = {"process_request": refuse, "select_subprotocol": select}
    async with serve(handle, host, port, max_size=MESSAGE_BYTES_MAX, **options) as server:
        await server.serve_forever()


async def call(host, port):
    def to(path, **options):
        # Not the proxy that the environment names.
        options = {"proxy": None, "max_size": MESSAGE_BYTES_MAX} | options
        return connect(f"ws://{host}:{port}{path}", **options)

    async with to("/") as connection:
        deflate = connection.response.headers["sec-websocket-extensions"]
        assert deflate.startswith("permessage-deflate"), deflate
        assert isinstance(connection.protocol.extensions[0], PerMessageDeflate)
        # What compresses, and what does not.
        for message in ["hello", "ü" * 1000, "", b"\0\xff\r\n\r\n", b"", "a" * 1_000_000]:
            await connection.send(message)
            assert await connection.recv() == message, message[:20]
        large = os.urandom(1 << 20)
        await connection.send(large)
        assert await connection.recv() == large

        for fragments in [["one ", "", "two ", "three"], [b"\0", large, b"\xff"]]:
            await connection.send(fragments)
            received = [part async for part in connection.recv_streaming()]
            # The library ends a message of fragments with an empty one, here on both ways.
            assert received == fragments + 2 * [fragments[0][:0]], [len(it) for it in received]
        assert await (await connection.ping(b"from the client")) >= 0
        await connection.close(4002, "the client")

    # The application has seen the code and the reason.
    async with to("/closed") as connection:
        assert await connection.recv() == "4002 the client"
    async with to("/pings") as connection:
        assert await connection.recv() == "True"
    async with to("/closes") as connection:
        try:
            await connection.recv()
            raise AssertionError("it was not closed")
        except ConnectionClosedError as error:
            assert (error.rcvd.code, error.rcvd.reason) == (4001, "the server: ü"), error

    async with to("/", compression=None, subprotocols=["chat.v1", "other"]) as connection:
        assert connection.subprotocol == "chat.v1", connection.subprotocol
        assert "sec-websocket-extensions" not in connection.response.headers
        await connection.send(large)
        assert await connection.recv() == large

    await asyncio.gather(*(chat(to("/"), number) for number in range(40)))

    assert (await status(to("/forbidden"))).status_code == 403
    for _ in range(2):
        async with to("/limited") as connection:
            await connection.send("within the limit")
            assert await connection.recv() == "within the limit"
    refused = await status(to("/limited"))
    assert refused.status_code == 429, refused
    assert 0 < int(refused.headers["retry-after"]) <= 86_400, refused.headers
    assert b"over the limit" in refused.body, refused.body


async def chat(connecting, number):
    async with connecting as connection:
        for turn in range(20):
            message = f"{number} {turn} ".encode() * turn
            await connection.send(message)
            assert await connection.recv() == message


async def status(connecting):
    """The response to a request that is not switched."""
    try:
        async with connecting:
            raise AssertionError("it was switched")
    except InvalidStatus as error:
        return error.response


if __name__ == "__main__":
    host, port = sys.argv[2].rsplit(":", 1)
    asyncio.run({"serve": run, "call": call}[sys.argv[1]](host, int(port)))
