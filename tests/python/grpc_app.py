"""A gRPC application, and a client that calls it through a proxy.

    grpc_app.py serve HOST:PORT    serve until the process is ended
    grpc_app.py call HOST:PORT     call every kind of method; exit code 0 if all is as it was sent

The messages are bytes, so that no code has to be generated. `/test.Echo/Limited` is to have a limit
of two calls.
"""

import sys
from concurrent import futures

import grpc

PARTS = 200
LARGE = bytes(range(256)) * 4096
TRAILER = ("x-after", "the end")


class Echo(grpc.GenericRpcHandler):
    def service(self, details):
        handlers = {
            "/test.Echo/Unary": grpc.unary_unary_rpc_method_handler(echo),
            "/test.Echo/Limited": grpc.unary_unary_rpc_method_handler(echo),
            "/test.Echo/Fail": grpc.unary_unary_rpc_method_handler(fail),
            "/test.Echo/Parts": grpc.unary_stream_rpc_method_handler(parts),
            "/test.Echo/Both": grpc.stream_stream_rpc_method_handler(both),
        }
        return handlers.get(details.method)


def echo(request, context):
    seen = dict(context.invocation_metadata())
    context.send_initial_metadata([("x-seen-for", seen["x-forwarded-for"])])
    context.set_trailing_metadata([TRAILER])
    return request


def fail(request, context):
    context.set_trailing_metadata([TRAILER])
    context.abort(grpc.StatusCode.NOT_FOUND, "nothing here: 100% ü")


def parts(request, context):
    for number in range(PARTS):
        yield request + str(number).encode()
    context.set_trailing_metadata([TRAILER])


def both(requests, context):
    for request in requests:
        yield request
    context.set_trailing_metadata([TRAILER])


def serve(where):
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    server.add_generic_rpc_handlers([Echo()])
    assert server.add_insecure_port(where) != 0, where
    server.start()
    server.wait_for_termination()


def call(where):
    with grpc.insecure_channel(where) as channel:
        reply, done = channel.unary_unary("/test.Echo/Unary").with_call(LARGE, timeout=20)
        assert reply == LARGE and done.code() == grpc.StatusCode.OK
        assert ("x-seen-for", "127.0.0.1") in done.initial_metadata(), done.initial_metadata()
        assert TRAILER in done.trailing_metadata(), done.trailing_metadata()

        stream = channel.unary_stream("/test.Echo/Parts")(b"part ", timeout=20)
        assert list(stream) == [b"part %d" % number for number in range(PARTS)]
        assert TRAILER in stream.trailing_metadata(), stream.trailing_metadata()

        # Each message is answered before the next is sent.
        sent = iter(range(20))
        requests = (b"ping %d" % number for number in sent)
        stream = channel.stream_stream("/test.Echo/Both")(requests, timeout=20)
        assert list(stream) == [b"ping %d" % number for number in range(20)]
        assert TRAILER in stream.trailing_metadata(), stream.trailing_metadata()

        error = refused(channel, "/test.Echo/Fail")
        assert error.code() == grpc.StatusCode.NOT_FOUND, error
        assert error.details() == "nothing here: 100% ü", error
        assert TRAILER in error.trailing_metadata(), error

        limited = channel.unary_unary("/test.Echo/Limited")
        assert [limited(b"1", timeout=20), limited(b"2", timeout=20)] == [b"1", b"2"]
        error = refused(channel, "/test.Echo/Limited")
        assert error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED, error
        assert error.details().startswith("over the limit; try again in "), error
        pushback = dict(error.trailing_metadata())["grpc-retry-pushback-ms"]
        assert 0 < int(pushback) <= 86_400_000, pushback

        # The connection goes on.
        assert channel.unary_unary("/test.Echo/Unary")(b"after", timeout=20) == b"after"


def refused(channel, method):
    try:
        channel.unary_unary(method)(b"x", timeout=20)
    except grpc.RpcError as error:
        return error
    raise AssertionError(f"{method} did not fail")


if __name__ == "__main__":
    {"serve": serve, "call": call}[sys.argv[1]](sys.argv[2])
