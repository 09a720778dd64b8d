from dataclasses import asdict
from typing import Any

import pytest

from tidegate.client import InvalidCheck, verdict
from tidegate.client_address import client_address
from tidegate.fields import parse
from tidegate.schedule import Permit, Schedule, backoff

from .vectors import cases, joined

ORIGIN = "https://a.example"


def close(expected: float) -> Any:
    return pytest.approx(expected, abs=1e-6, rel=0)


@pytest.mark.parametrize("case", cases("fields"))
def test_fields(case: dict[str, Any]) -> None:
    found = parse(joined(case["headers"]), case.get("wall", 0))
    assert found.retry_after == case["retry_after"]
    if "names" in case:
        assert [item.name for item in found.policies] == case["names"]
    else:
        assert [asdict(item) for item in found.policies] == case["policies"]


@pytest.mark.parametrize("case", cases("backoff"))
def test_backoff(case: dict[str, Any]) -> None:
    wait = backoff(case["refusals"], case["least"], case["random"])
    assert wait == close(case["wait"])


@pytest.mark.parametrize("case", cases("pacing"))
def test_pacing(case: dict[str, Any]) -> None:
    schedule = Schedule()
    permits: list[Permit] = []
    for number, step in enumerate(case["steps"]):
        now = step["at"]
        if poll := step.get("poll"):
            found = schedule.poll(poll.get("origin", ORIGIN), poll.get("route", ""), now)
            if isinstance(found, Permit):
                permits.append(found)
            wait = 0 if isinstance(found, Permit) else found
            assert wait == close(poll["wait"]), f"step {number}: {step}"
        else:
            response = step["observe"]
            permit, fields = permits[response["permit"] - 1], parse(joined(response["headers"]), 0)
            random = response.get("random", 0)
            pause = schedule.observe(permit, response["status"], fields, now, random)
            expected = close(response.get("pause", 0))
            assert pause == expected, f"step {number}: {step}"


@pytest.mark.parametrize("case", cases("client_address"))
def test_client_address(case: dict[str, Any]) -> None:
    found = client_address(case["peer"], case["forwarded_for"], case["trusted_hops"])
    assert found == case["client"]


@pytest.mark.parametrize("case", cases("verdict"))
def test_verdict(case: dict[str, Any]) -> None:
    def found() -> Any:
        body = case["body"].encode()
        return verdict(case["status"], joined(case["headers"]), body, case.get("hits", 1))

    if case.get("is_invalid"):
        with pytest.raises(InvalidCheck):
            found()
        return
    answer = found()
    if case["verdict"] is None:
        assert answer is None
        return
    fields = {name: getattr(answer, name) for name in case["verdict"]}
    assert {**fields, "violated": list(fields["violated"])} == case["verdict"]
    if not answer.allowed:
        assert answer.problem() == case["problem"]
