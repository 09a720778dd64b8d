"""When a request may leave: pure, without a clock, a lock or a source of randomness.

A policy with `r` requests left for another `t` seconds lets them leave `t / r` apart. Each request
that leaves takes one of `r`, so all that share the schedule share the quota. A response says what
the server counted; requests that left after the one it answers are subtracted, and a response
that was overtaken by a newer one is ignored.

*Example*: ``"a";r=10;t=20`` at second 0. Requests leave at 2, 3.8, 5.6, ... If none asks until
second 11, eight remain for nine seconds, and the next ones are 1.125 s apart.

- **Refills.** A sliding window or a bucket gives back before `t` is over. So requests are no
  further apart than ``w / q`` while a tenth of `q` remains.
- **End of a window.** `t` is rounded up, so each response is an upper bound of the end, and the
  lowest one counts. With a known quota `q` and window `w` the next window is assumed to follow,
  with all of `q`, its first request at a random point of its first interval.
- **Nothing left.** With ``r=0`` nothing leaves before `t`, which counts as a second at least.
- **Refused** (429, or 503 with ``Retry-After``): nothing of the scope leaves for
  ``max(Retry-After or t, 1 s)`` and a random part of 1, 2, 4, ... 60 s more (full jitter).
- **Nothing known.** One request a second, until the first response. Without any field in it
  requests are not paced.

A *scope* is an origin and a route of it; the policies in the newest response of a scope apply to
it. Policies are shared by all routes of an origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar, cast

from .fields import Fields, Item

#: Shortest wait at an empty quota, and time between requests while nothing is known. Seconds.
FLOOR = 1.0
#: Most random time on top of the least wait after a refusal. Seconds.
BACKOFF_MAX = 60.0
#: The part of a quota that is spread over what is left of the window in any case.
RESERVE = 0.1
#: Most scopes and most policies; beyond it the one that was not used for the longest is forgotten.
SCOPES_MAX = POLICIES_MAX = 1024


def backoff(refusals: int, least: float, random: float) -> float:
    """Seconds to wait after so many refusals in a row; `random` is in [0, 1)."""
    return max(least, FLOOR) + random * min(BACKOFF_MAX, 2.0 ** min(refusals - 1, 6))


@dataclass
class Permit:
    """Permission to send one request; `Schedule.observe` takes it with the response."""

    origin: str
    scope: Scope
    number: int
    taken: list[tuple[Policy, int]]


class Schedule:
    """All times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._scopes: _Recent[tuple[str, str], Scope] = _Recent(SCOPES_MAX)
        self._policies: _Recent[tuple[str, str, str], Policy] = _Recent(POLICIES_MAX)

    def scope(self, origin: str, route: str, now: float) -> Scope:
        scope = self._scopes.get((origin, route))
        if scope is None:
            scope = self._scopes.put((origin, route), Scope(now))
        return scope

    def poll(self, origin: str, route: str, now: float) -> Permit | float:
        """A permit for a request, or how long to wait before asking again."""
        scope = self.scope(origin, route, now)
        wait = max([scope.paused_until - now, *(policy.wait(now) for policy in scope.policies)])
        if wait > 0:
            return wait
        scope.granted += 1
        taken = [(policy, policy.take(now)) for policy in scope.policies]
        return Permit(origin, scope, scope.granted, taken)

    def observe(
        self, permit: Permit, status: int, fields: Fields, now: float, random: float
    ) -> float:
        """Learns from the response to a permitted request; `random` is in [0, 1).

        Returns how long the scope is paused because the request was refused, otherwise 0.
        """
        scope, retry_after = permit.scope, fields.retry_after
        refused = status == 429 or (status == 503 and retry_after is not None)
        if fields.policies:
            taken = {id(policy): number for policy, number in permit.taken}
            scope.policies = []
            for item in fields.policies:
                key = (permit.origin, item.name, item.partition)
                policy = self._policies.get(key) or self._policies.put(key, Policy(now))
                instead = retry_after if refused else None
                policy.observe(item, taken.get(id(policy)), instead, now, random)
                scope.policies.append(policy)
        elif refused and not scope.policies:
            # The server names no policy: after the pause one request finds out.
            scope.policies = [Policy(now)]
        elif not refused and scope.is_unknown:
            scope.policies = []
        scope.is_unknown = False

        is_newer = permit.number > scope.granted_at_refusal
        if not refused:
            if is_newer:
                scope.refusals = 0
            return 0.0
        if is_newer:
            # Requests that were under way together are refused together, and count once.
            scope.refusals += 1
            scope.granted_at_refusal = scope.granted
        empty = [item.reset or 0.0 for item in fields.policies if item.remaining == 0]
        least = max(empty, default=0.0) if retry_after is None else retry_after
        until = now + backoff(scope.refusals, least, random)
        scope.paused_until = max(scope.paused_until, until)
        return scope.paused_until - now


L = TypeVar("L")


class Scope:
    def __init__(self, now: float) -> None:
        self.policies = [Policy(now)]
        self.is_unknown = True
        self.paused_until = -math.inf
        self.granted = 0
        self.refusals = 0
        self.granted_at_refusal = 0
        self._turn: object = None

    def turn(self, lock: Callable[[], L]) -> L:
        """The lock of a pacer, whose holder is the next one to leave."""
        if self._turn is None:
            self._turn = lock()
        return cast(L, self._turn)


@dataclass
class Policy:
    """A quota whose `remaining` requests may leave until `reset`.

    As long as limit or window are not known, each window is one request a second.
    """

    reset: float
    remaining: int = 0
    next: float = math.inf
    limit: int | None = None
    window: float | None = None
    phase: float = 0.0
    granted: int = 0
    newest: int = 0

    def wait(self, now: float) -> float:
        if now >= self.reset:
            self._roll(now)
        return self.reset - now if self.remaining == 0 else self.next - now

    def take(self, now: float) -> int:
        self.next = now + self._interval(now)
        self.remaining -= 1
        self.granted += 1
        return self.granted

    def _interval(self, now: float) -> float:
        spread = (self.reset - now) / max(self.remaining, 1)
        if self.limit and self.window and self.remaining >= RESERVE * self.limit:
            return min(spread, self.window / self.limit)
        return spread

    def observe(
        self, item: Item, number: int | None, instead: float | None, now: float, random: float
    ) -> None:
        """`number` is that of the request among those which took from this policy; `instead` is
        the time that takes precedence over `t`."""
        self.limit = self.limit if item.limit is None else item.limit
        self.window = self.window if item.window is None else item.window
        self.phase = random
        remaining = item.remaining
        if number is not None:
            if number <= self.newest:
                return
            self.newest = number
            remaining -= self.granted - number
        elif self.granted > 0 and now < self.reset:
            # Found by another route: what left since then is not known.
            remaining = min(remaining, self.remaining)

        left = item.reset if item.reset is not None else self.window or 0.0
        if item.remaining == 0 and instead is not None:
            left = instead
        end = now + max(left, FLOOR)
        if item.remaining == 0 and left == 0:
            end += random * FLOOR
        if item.remaining > 0 and now < self.reset and end <= self.reset + FLOOR:
            end = min(end, self.reset)
        self.reset = end
        self.remaining = max(remaining, 0)
        self.next = min(self.next, now + self._interval(now))

    def _roll(self, now: float) -> None:
        """Begins the window that `now` is in."""
        if not self.limit or not self.window:
            self.remaining, self.next, self.reset = 1, now, now + FLOOR
            return
        start = self.reset + (now - self.reset) // self.window * self.window
        self.remaining, self.reset = self.limit, start + self.window
        self.next = start + self.phase * self.window / self.limit
        # Responses to earlier requests are about the last window.
        self.newest = self.granted


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Recent(Generic[K, V]):
    """A map of bounded size, which forgets what was not used for the longest."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._map: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        value = self._map.pop(key, None)
        return None if value is None else self.put(key, value)

    def put(self, key: K, value: V) -> V:
        self._map[key] = value
        if len(self._map) > self._size_max:
            del self._map[next(iter(self._map))]
        return value
