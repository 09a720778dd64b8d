"""Client of tidegate, a rate limiter.

- Asking a node: `Client`, `AsyncClient`, and `RateLimitMiddleware` for ASGI applications.
- Pacing requests to any server that names its limits: `PacedTransport` and `AsyncPacedTransport`
  for httpx, `Pacer` and `AsyncPacer` for anything else.
"""

from .asgi import RateLimitMiddleware
from .client import AsyncClient, Client, Descriptor, InvalidCheck, OnUnavailable, Verdict
from .client_address import client_address
from .pacer import AsyncPacer, Pacer, WaitTooLong
from .schedule import Permit
from .transport import AsyncPacedTransport, PacedTransport

__all__ = [
    "AsyncClient",
    "AsyncPacedTransport",
    "AsyncPacer",
    "Client",
    "Descriptor",
    "InvalidCheck",
    "OnUnavailable",
    "PacedTransport",
    "Pacer",
    "Permit",
    "RateLimitMiddleware",
    "Verdict",
    "WaitTooLong",
    "client_address",
]
