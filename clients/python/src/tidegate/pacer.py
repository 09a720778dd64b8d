"""Pacers wait for the schedule: `Pacer` for threads, `AsyncPacer` for asyncio.

The transports use them; for HTTP clients other than httpx::

    permit = pacer.acquire("https://api.example.com")
    response = ...
    pacer.observe(permit, response.status, response.headers)
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Mapping

import httpx

from .fields import parse
from .schedule import Permit, Schedule

#: Default of the longest time that a request waits, in seconds: two windows of a minute.
MAX_WAIT = 120.0
#: What a longer one, and infinity, are taken for: a month.
_LONGEST_WAIT = 30 * 86_400.0


class WaitTooLong(httpx.TimeoutException):
    """A request would have to wait longer than it may. It was not sent."""

    def __init__(self, origin: str, wait: float) -> None:
        super().__init__(f"{origin} has no room for a request for {wait:.0f} s")
        self.origin = origin
        #: Seconds.
        self.wait = wait


class Pacer:
    """Paces the requests of all threads that share it."""

    def __init__(self, max_wait: float = MAX_WAIT) -> None:
        """`max_wait` is the longest time that a request waits, in seconds; a month at most."""
        self.max_wait = min(max_wait, _LONGEST_WAIT)
        self._schedule = Schedule()
        # Guards the schedule, and says when a response changed it.
        self._changed = threading.Condition()

    def acquire(self, origin: str, route: str = "") -> Permit:
        """Waits until a request may leave.

        Raises `WaitTooLong` if that takes longer than `max_wait`.
        """
        deadline = time.monotonic() + self.max_wait
        with self._changed:
            turn = self._schedule.scope(origin, route, time.monotonic()).turn(threading.Lock)
        if not turn.acquire(timeout=self.max_wait):
            raise WaitTooLong(origin, self.max_wait)
        try:
            with self._changed:
                while True:
                    now = time.monotonic()
                    permit = self._schedule.poll(origin, route, now)
                    if isinstance(permit, Permit):
                        return permit
                    if now + permit > deadline:
                        raise WaitTooLong(origin, permit)
                    self._changed.wait(permit)
        finally:
            turn.release()

    def observe(self, permit: Permit, status: int, headers: Mapping[str, str]) -> float:
        """Learns from a response; a request that got none needs no call.

        `headers` finds values by lower-case name. Returns the seconds for which requests are
        paused if this one was refused, otherwise 0.
        """
        fields = parse(headers, time.time())
        with self._changed:
            now = time.monotonic()
            pause = self._schedule.observe(permit, status, fields, now, random.random())
            self._changed.notify_all()
        return pause


class AsyncPacer:
    """Paces the requests of all tasks of an event loop that share it."""

    def __init__(self, max_wait: float = MAX_WAIT) -> None:
        """`max_wait` is the longest time that a request waits, in seconds; a month at most."""
        self.max_wait = min(max_wait, _LONGEST_WAIT)
        self._schedule = Schedule()
        self._changed = asyncio.Event()

    async def acquire(self, origin: str, route: str = "") -> Permit:
        """Waits until a request may leave. Cancelling it takes nothing.

        Raises `WaitTooLong` if that takes longer than `max_wait`.
        """
        deadline = time.monotonic() + self.max_wait
        turn = self._schedule.scope(origin, route, time.monotonic()).turn(asyncio.Lock)
        try:
            async with asyncio.timeout(self.max_wait):
                await turn.acquire()
        except TimeoutError:
            raise WaitTooLong(origin, self.max_wait) from None
        try:
            while True:
                now = time.monotonic()
                permit = self._schedule.poll(origin, route, now)
                if isinstance(permit, Permit):
                    return permit
                if now + permit > deadline:
                    raise WaitTooLong(origin, permit)
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(permit):
                        await self._changed.wait()
        finally:
            turn.release()

    def observe(self, permit: Permit, status: int, headers: Mapping[str, str]) -> float:
        """As `Pacer.observe`."""
        now = time.monotonic()
        fields = parse(headers, time.time())
        pause = self._schedule.observe(permit, status, fields, now, random.random())
        self._changed.set()
        return pause
