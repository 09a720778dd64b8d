"""Asks a node what envoyproxy/ratelimit was asked, and compares the answers.

    check_client.py rules FOLDER CASES SCENARIO...   write the rules of the scenarios, one file each
    check_client.py ask HOST:PORT CASES SCENARIO...  ask a node that runs with them

CASES is tests/golden/sequence_cases.json. The client is generated: grpcio, and the modules that
the gRPC project makes of Envoy's published protos (xds-protos). Each scenario gets a domain of its
own. The cases were made with a clock that stands still, so a scenario is asked within one minute,
and the seconds until a reset are computed anew from the clock. The cases say nothing about the names of limits.
"""

import json
import re
import sys
import time
from pathlib import Path

import grpc
from envoy.extensions.common.ratelimit.v3 import ratelimit_pb2
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

UNIT_SECS = {
    "SECOND": 1,
    "MINUTE": 60,
    "HOUR": 3_600,
    "DAY": 86_400,
    "WEEK": 7 * 86_400,
    "MONTH": 30 * 86_400,
    "YEAR": 365 * 86_400,
}
# Longer than a scenario takes.
SCENARIO_SECS = 5


def main(verb, where, cases, *names):
    scenarios = {case["name"].split()[0]: case for case in json.loads(Path(cases).read_text())}
    chosen = [(name, scenarios[name]) for name in names]
    if verb == "rules":
        for name, scenario in chosen:
            rules, count = re.subn(r"(?m)^domain: .*$", f"domain: {name}", scenario["yaml"])
            assert count == 1, f"{name}: {count} domains"
            (Path(where) / f"{name}.yaml").write_text(rules)
        return 0
    failures, asked = [], 0
    with grpc.insecure_channel(where) as channel:
        service = rls_pb2_grpc.RateLimitServiceStub(channel)
        for name, scenario in chosen:
            within_one_minute()
            for number, step in enumerate(scenario["steps"], 1):
                asked += 1
                difference = check(service, name, step)
                if difference:
                    failures.append(f"{scenario['name']}, request {number}: {difference}")
    for failure in failures:
        print(failure)
    print(f"{asked} requests of {len(chosen)} scenarios, {asked - len(failures)} answered alike")
    return 1 if failures else 0


def check(service, domain, step):
    """What differs, or nothing."""
    wanted, started = step["req"], time.time()
    message = request(wanted, domain if wanted["domain"] else "")
    try:
        answer = service.ShouldRateLimit(message, timeout=5)
    except grpc.RpcError as error:
        got = (error.code(), error.details())
        expected = (grpc.StatusCode.UNKNOWN, step.get("grpc_error"))
        return None if got == expected else f"{got}, not {expected}"
    if "grpc_error" in step:
        return f"{answer}, not the error {step['grpc_error']!r}"
    got = (code(answer.overall_code), [status(one, started) for one in answer.statuses])
    expected = (step["overall"], [expected_status(one) for one in step["statuses"]])
    return None if got == expected else f"{got}, not {expected}"


def request(wanted, domain):
    message = rls_pb2.RateLimitRequest(domain=domain, hits_addend=wanted["hits_addend"])
    for wanted_descriptor in wanted["descriptors"]:
        descriptor = message.descriptors.add()
        for key, value in wanted_descriptor["E"]:
            descriptor.entries.add(key=key, value=value)
        if wanted_descriptor["Limit"] is not None:
            limit = wanted_descriptor["Limit"]
            descriptor.limit.CopyFrom(
                ratelimit_pb2.RateLimitDescriptor.RateLimitOverride(
                    requests_per_unit=limit["Rpu"], unit=limit["Unit"]
                )
            )
        if wanted_descriptor["Hits"] is not None:
            descriptor.hits_addend.value = wanted_descriptor["Hits"]
    return message


def status(got, started):
    """Code, limit, unit, what is left, and whether the reset is when the window ends."""
    if not got.HasField("current_limit"):
        has_reset = got.HasField("duration_until_reset")
        return (code(got.code), None, None, got.limit_remaining, not has_reset)
    limit = got.current_limit
    unit = rls_pb2.RateLimitResponse.RateLimit.Unit.Name(limit.unit)
    reset = got.duration_until_reset
    # The node decided between two looks at the clock; its own may be in the second beside.
    seconds = range(int(started) - 1, int(time.time()) + 2)
    on_time = reset.seconds in {UNIT_SECS[unit] - now % UNIT_SECS[unit] for now in seconds}
    is_reset_right = on_time and reset.nanos == 0
    return (
        code(got.code),
        limit.requests_per_unit,
        unit,
        got.limit_remaining,
        is_reset_right,
    )


def expected_status(case):
    if "unit" not in case:
        return (case["code"], None, None, case["limit_remaining"], True)
    assert 1 <= case["reset_s"] <= UNIT_SECS[case["unit"]]
    return (
        case["code"],
        case["requests_per_unit"],
        case["unit"],
        case["limit_remaining"],
        True,
    )


def code(number):
    return rls_pb2.RateLimitResponse.Code.Name(number)


def within_one_minute():
    left = 60 - time.time() % 60
    if left < SCENARIO_SECS:
        time.sleep(left + 0.1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
