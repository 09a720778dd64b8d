"""What a response says about limits, read from its header fields.

=============================================  =====================================
``RateLimit: "a";r=50;t=30``                   the IETF draft from -08 to -11
``RateLimit-Policy: "a";q=100;w=60``           its policies
``RateLimit: limit=100, remaining=50, reset=30``  draft -07
``RateLimit-Limit``, ``-Remaining``, ``-Reset``   drafts up to -06
``X-RateLimit-*``, ``X-Rate-Limit-*``          the convention before the draft
``Retry-After``                                RFC 9110, seconds or a date
=============================================  =====================================

The first form of which something is found counts. A malformed field is ignored, as the draft
demands. Source: draft-ietf-httpapi-ratelimit-headers-11 and -07.
"""

from __future__ import annotations

import base64
import email.utils
from collections.abc import Mapping
from dataclasses import dataclass

import http_sf

#: Most policies of one response; further ones are ignored.
ITEMS_MAX = 16
#: Longest time that is believed, in seconds: a day. A longer one counts as a day, after which one
#: request finds out whether it still holds.
TIME_MAX = 86_400.0
#: A reset above this is a point in time (seconds since 1970), below it a number of seconds.
_EPOCH_MIN = 1e9
#: Above this it is in milliseconds.
_EPOCH_MILLIS_MIN = 1e12


@dataclass(frozen=True)
class Item:
    """What remains of one policy."""

    name: str
    partition: str
    """The partition key in base64; empty if there is none."""
    limit: int | None
    window: float | None
    """Seconds."""
    remaining: int
    reset: float | None
    """Seconds within which no more than `remaining` may be used."""


@dataclass(frozen=True)
class Fields:
    policies: tuple[Item, ...] = ()
    retry_after: float | None = None
    """Seconds."""


def parse(headers: Mapping[str, str], wall: float) -> Fields:
    """Reads the fields of a response.

    `headers` finds values by lower-case name, and several fields of one name joined by a comma.
    `wall` is the time in seconds since 1970; it is needed for dates, where the response has no
    ``Date``.
    """
    wall = _date(headers.get("date")) or wall
    retry_after = _retry_after(headers.get("retry-after"), wall)
    age = _number(headers.get("age"))
    if age is not None and age > 0:
        # From a cache: true when it was stored.
        return Fields((), retry_after)
    policies = _draft(headers) or _draft_07(headers) or _separate(headers, wall)
    return Fields(policies, retry_after)


# === the forms ===


def _draft(headers: Mapping[str, str]) -> tuple[Item, ...]:
    quotas = {}
    for name, params in _items(headers.get("ratelimit-policy")):
        q, w = _count(params.get("q")), _count(params.get("w"))
        if isinstance(name, str) and q is not None:
            quotas[name, _partition(params)] = (q, _seconds(w) if w else None)
    found: dict[tuple[str, str], Item] = {}
    for name, params in _items(headers.get("ratelimit")):
        remaining, reset = _count(params.get("r")), _count(params.get("t"))
        if not isinstance(name, str) or remaining is None or (reset is None and "t" in params):
            return ()
        key = (name, _partition(params))
        limit, window = quotas.get(key) or quotas.get((name, "")) or (None, None)
        found.setdefault(key, Item(*key, limit, window, remaining, _seconds(reset)))
    return tuple(found.values())[:ITEMS_MAX]


def _draft_07(headers: Mapping[str, str]) -> tuple[Item, ...]:
    try:
        members = http_sf.parse((headers.get("ratelimit") or "").encode(), tltype="dictionary")
    except ValueError:
        return ()
    values: dict[str, int | None] = {}
    if isinstance(members, dict):
        values = {key: _count(item[0]) for key, item in members.items() if isinstance(item, tuple)}
    remaining, limit = values.get("remaining"), values.get("limit")
    if remaining is None:
        return ()
    window = _window_of(limit, _items(headers.get("ratelimit-policy")))
    return (Item("", "", limit, window, remaining, _seconds(values.get("reset"))),)


def _separate(headers: Mapping[str, str], wall: float) -> tuple[Item, ...]:
    for prefix in ("ratelimit", "x-ratelimit", "x-rate-limit"):
        remaining = _number(headers.get(f"{prefix}-remaining"))
        if remaining is None:
            continue
        limits = _items(headers.get(f"{prefix}-limit"))
        limit = _count(limits[0][0]) if limits else None
        window = _window_of(limit, limits[1:] + _items(headers.get("ratelimit-policy")))
        reset = _number(headers.get(f"{prefix}-reset"))
        if reset is not None and reset >= _EPOCH_MIN:
            reset = reset / 1e3 - wall if reset >= _EPOCH_MILLIS_MIN else reset - wall
        return (Item("", "", limit, window, int(remaining), _seconds(reset)),)
    return ()


def _window_of(limit: int | None, items: list[_Item]) -> float | None:
    """The window of the policy with this limit: ``100;w=60``."""
    for value, params in items:
        window = _count(params.get("w"))
        if window and limit is not None and value == limit:
            return _seconds(window)
    return None


# === values ===

_Item = tuple[object, dict[str, object]]


def _items(value: str | None) -> list[_Item]:
    """The items of a list; none if it is malformed."""
    try:
        members = http_sf.parse((value or "").encode(), tltype="list")
    except ValueError:
        return []
    items: list[_Item] = []
    for member in members if isinstance(members, list) else []:
        if not isinstance(member, tuple) or isinstance(member[0], list):
            return []
        bare: object = member[0]
        items.append((str(bare) if isinstance(bare, http_sf.Token) else bare, dict(member[1])))
    return items


def _partition(params: dict[str, object]) -> str:
    key = params.get("pk")
    return base64.b64encode(key).decode() if isinstance(key, bytes) else ""


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _number(text: str | None) -> float | None:
    """A decimal number of digits, with an optional fraction."""
    text = (text or "").strip()
    digits = text.replace(".", "", 1)
    return float(text) if len(text) <= 20 and digits.isascii() and digits.isdigit() else None


def _seconds(value: float | None) -> float | None:
    return None if value is None else min(max(float(value), 0.0), TIME_MAX)


def _date(text: str | None) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def _retry_after(text: str | None, wall: float) -> float | None:
    seconds = _number(text)
    if seconds is None and (date := _date(text)) is not None:
        seconds = date - wall
    return _seconds(seconds)
