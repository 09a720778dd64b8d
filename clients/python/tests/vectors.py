"""The test vectors that the clients of all languages share."""

import json
import pathlib
from typing import Any

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "vectors"


def cases(name: str) -> Any:
    found = json.loads((FOLDER / f"{name}.json").read_text())["cases"]
    return [pytest.param(case, id=case.get("name")) for case in found]


def joined(headers: list[list[str]]) -> dict[str, str]:
    """Values by lower-case name, those of one name joined by a comma."""
    found: dict[str, str] = {}
    for name, value in headers:
        key = name.lower()
        found[key] = f"{found[key]}, {value}" if key in found else value
    return found
