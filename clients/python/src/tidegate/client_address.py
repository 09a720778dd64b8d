"""The address of a client behind trusted proxies.

Each proxy appends the address that it was called from to ``X-Forwarded-For``, so our own proxies
wrote its right end and the client its left end. With ``trusted_hops=2`` the second address from the
right is the client's. IPv6 clients are counted by their /64, which one customer usually has.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

IPV6_PREFIX = 64

_Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def client_address(
    peer: str, forwarded_for: Sequence[str], trusted_hops: int, ipv6_prefix: int = IPV6_PREFIX
) -> str:
    """The value under which a client is counted.

    `peer` is the address that the request came from, `forwarded_for` the values of all
    ``X-Forwarded-For`` fields in their order. What does not parse falls back to `peer`, so that a
    client cannot choose under what it is counted.
    """
    address = _parse(peer)
    if trusted_hops > 0 and forwarded_for:
        hops = ",".join(forwarded_for).split(",")
        if trusted_hops <= len(hops):
            address = _parse(hops[-trusted_hops]) or address
    if address is None:
        return peer
    if address.version == 4 or ipv6_prefix >= 128:
        return str(address)
    return str(ipaddress.ip_network((address, ipv6_prefix), strict=False))


def _parse(text: str) -> _Address | None:
    """An address, with or without a port, brackets or quotes."""
    text = text.strip()
    if len(text) >= 2 and text[0] == text[-1] == '"':
        text = text[1:-1]
    if text.startswith("["):
        text, _, port = text[1:].partition("]")
        if port and not _is_port(port):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(":" + port):
            return None
    if "%" in text:
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return (address.ipv4_mapped if address.version == 6 else None) or address


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isdecimal() and int(text[1:]) < 65_536
