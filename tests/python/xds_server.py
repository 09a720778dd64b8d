"""A management server made of the published protos: two configurations and a bad one.

Prints `listening ADDR`, reads the address of the node's rate limit service from standard input, and
then prints what the node says to each configuration and what it answers under it. Ends with 0 when
the conversation came to its end, and with a traceback otherwise.
"""

import pathlib
import queue
import sys
import tempfile
from concurrent import futures

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc
from grpc_tools import protoc

PROTOS = pathlib.Path(__file__).parent / "protos"
TYPE_URL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
PATIENCE_S = 50


def main():
    conf = generated("ratelimit/config/ratelimit/v3/rls_conf.proto")
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
    discovery = Discovery()
    ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(discovery, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    say(f"listening 127.0.0.1:{port}")
    node = sys.stdin.readline().strip()

    first = discovery.said()
    say(f"subscribed node={first.node.id} names={list(first.resource_names)}")
    assert first.type_url == TYPE_URL, first
    discovery.send("1", rules(conf, 5, conf.YEAR))
    say(verdict(discovery.said()))
    say(asked(node, 2))
    discovery.send("2", rules(conf, 7, conf.YEAR))
    say(verdict(discovery.said()))
    say(asked(node, 1))
    discovery.send("3", rules(conf, 9, conf.UNKNOWN))
    say(verdict(discovery.said()))
    say(asked(node, 1))
    discovery.end()
    server.stop(grace=1).wait()


class Discovery(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    """One stream, driven from outside."""

    def __init__(self):
        self.requests = queue.Queue()
        self.responses = queue.Queue()

    def StreamAggregatedResources(self, request_iterator, context):
        futures.ThreadPoolExecutor(max_workers=1).submit(self._listen, request_iterator)
        while (response := self.responses.get()) is not None:
            yield response

    def _listen(self, request_iterator):
        try:
            for request in request_iterator:
                self.requests.put(request)
        except grpc.RpcError:
            # The stream ended, as every stream does.
            pass

    def said(self):
        return self.requests.get(timeout=PATIENCE_S)

    def send(self, version, config):
        response = discovery_pb2.DiscoveryResponse(
            version_info=version, nonce=f"n{version}", type_url=TYPE_URL
        )
        response.resources.add().Pack(config)
        self.responses.put(response)

    def end(self):
        self.responses.put(None)


def rules(conf, limit, unit):
    policy = conf.RateLimitPolicy(unit=unit, requests_per_unit=limit)
    descriptor = conf.RateLimitDescriptor(key="k", rate_limit=policy)
    return conf.RateLimitConfig(name="shop-config", domain="shop", descriptors=[descriptor])


def verdict(request):
    said = f"version={request.version_info} nonce={request.response_nonce}"
    if request.HasField("error_detail"):
        return f"NACK {said} detail={request.error_detail.message}"
    return f"ACK {said}"


def asked(node, hits):
    """What the node answers to some hits, by a client that was generated too."""
    entry = ratelimit_pb2.RateLimitDescriptor.Entry(key="k", value="v")
    request = rls_pb2.RateLimitRequest(
        domain="shop",
        descriptors=[ratelimit_pb2.RateLimitDescriptor(entries=[entry])],
        hits_addend=hits,
    )
    with grpc.insecure_channel(node) as channel:
        stub = rls_pb2_grpc.RateLimitServiceStub(channel)
        answer = stub.ShouldRateLimit(request, timeout=PATIENCE_S, wait_for_ready=True)
    status = answer.statuses[0]
    code = rls_pb2.RateLimitResponse.Code.Name(status.code)
    limit = status.current_limit.requests_per_unit
    return f"{code} limit={limit} remaining={status.limit_remaining}"


def generated(proto):
    """The module of a .proto file, generated on the spot."""
    with tempfile.TemporaryDirectory() as out:
        code = protoc.main(["protoc", f"-I{PROTOS}", *includes(), f"--python_out={out}", proto])
        assert code == 0, f"protoc ended with {code}"
        path = pathlib.Path(out) / proto.replace(".proto", "_pb2.py")
        module = type(sys)("rls_conf_pb2")
        exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
        return module


def includes():
    """Where google/protobuf/struct.proto is: grpcio-tools brings it along."""
    import grpc_tools

    return [f"-I{pathlib.Path(grpc_tools.__file__).parent / '_proto'}"]


def say(line):
    print(line, flush=True)


if __name__ == "__main__":
    main()
