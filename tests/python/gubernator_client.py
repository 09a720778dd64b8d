"""Asks nodes what Gubernator was asked, with generated stubs and with curl, and compares the answers.

    gubernator_client.py PROTO CASES GRPC,GRPC,... HTTP,HTTP,...

PROTO is crates/proto/proto/gubernator/v1.proto, from which grpcio-tools makes the client. CASES is
tests/golden/gubernator.json, of which the cases of class `compat` are asked, each step at the next
node. Times of cases that sleep are five times as long, for a busy machine.
"""

import importlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import grpc
from grpc_tools import protoc

SLOWER = 5


def main(proto, cases, grpc_nodes, http_nodes):
    with tempfile.TemporaryDirectory() as folder:
        proto = Path(proto)
        made = protoc.main(
            ["", f"-I{proto.parent}", f"--python_out={folder}", f"--grpc_python_out={folder}", str(proto)]
        )
        assert made == 0, "protoc failed"
        sys.path.insert(0, folder)
        pb, stubs = importlib.import_module("v1_pb2"), importlib.import_module("v1_pb2_grpc")
    nodes = [stubs.V1Stub(grpc.insecure_channel(addr)) for addr in grpc_nodes.split(",")]
    calls(pb, nodes)
    compat = [case for case in json.loads(Path(cases).read_text())["cases"] if case["klass"] == "compat"]
    wrong = []
    threads = [threading.Thread(target=run, args=(pb, nodes, case, wrong)) for case in compat]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, "\n".join(wrong)
    for addr in http_nodes.split(","):
        curl_calls(addr)
    print(f"{len(compat)} cases over grpcio {grpc.__version__}, and curl, at {len(nodes)} nodes")


def run(pb, nodes, case, wrong):
    """Runs a case; what is wrong is added to the list."""
    slower = SLOWER if any(step["sleep_before_ms"] for step in case["steps"]) else 1
    begun = int(time.time() * 1000)
    for number, step in enumerate(case["steps"]):
        time.sleep(step["sleep_before_ms"] * slower / 1000)
        is_calendar = step["behavior"] & 4
        request = pb.RateLimitReq(
            name="python",
            unique_key=case["id"],
            hits=step["hits"],
            limit=step["limit"],
            duration=step["duration"] * (1 if is_calendar else slower),
            algorithm=step["algorithm"],
            behavior=step["behavior"],
            burst=step.get("burst", 0),
        )
        if "created_at_offset_ms" in step:
            request.created_at = begun + step["created_at_offset_ms"]
        answer = nodes[number % len(nodes)].GetRateLimits(pb.GetRateLimitsReq(requests=[request]))
        got = answer.responses[0]
        expect = step["expect"]
        if (pb.Status.Name(got.status), got.remaining, got.limit, got.error) != (
            expect["status"],
            expect["remaining"],
            expect["limit"],
            "",
        ):
            wrong.append(f"{case['id']} step {number}: {got} is not {expect}")
            return


def calls(pb, nodes):
    """What is no case: health, bounds, a batch."""
    for node in nodes:
        health = node.HealthCheck(pb.HealthCheckReq())
        assert health.status == "healthy" and health.peer_count == len(nodes), health
        node.LiveCheck(pb.LiveCheckReq())
    request = pb.RateLimitReq(name="python", unique_key="batch", hits=1, limit=999, duration=3_600_000)
    batch = nodes[0].GetRateLimits(pb.GetRateLimitsReq(requests=[request] * 1_000)).responses
    assert [answer.remaining for answer in batch] == list(range(998, -1, -1)) + [0], batch[-1]
    assert batch[-1].status == pb.OVER_LIMIT
    try:
        nodes[0].GetRateLimits(pb.GetRateLimitsReq(requests=[request] * 1_001))
        raise AssertionError("1,001 requests were answered")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.OUT_OF_RANGE, error


def curl_calls(addr):
    """The gateway, as a script asks it."""

    def curl(*args):
        run = subprocess.run(["curl", "-sS", *args], capture_output=True, text=True, check=True)
        return run.stdout

    body = '{"requests":[{"name":"curl","unique_key":"%s","hits":"1","limit":"10","duration":"60000"}]}' % addr
    answer = json.loads(curl("-d", body, f"http://{addr}/v1/GetRateLimits"))
    first = answer["responses"][0]
    assert first["status"] == "UNDER_LIMIT" and first["remaining"] == "9", answer
    code = curl("-o", "/dev/null", "-w", "%{http_code}", f"http://{addr}/v1/GetRateLimits")
    assert code == "501", code
    health = json.loads(curl(f"http://{addr}/v1/HealthCheck"))
    assert health["status"] == "healthy", health
    assert curl(f"http://{addr}/v1/LiveCheck") == "{}"
    assert "gubernator_getratelimit_counter" in curl(f"http://{addr}/metrics")


if __name__ == "__main__":
    main(*sys.argv[1:])
