"""Ten tasks fetch pages of a server as fast as it allows, and no faster.

python examples/pace.py https://api.example.com/items/
"""

import asyncio
import sys

import httpx

from tidegate import AsyncPacedTransport


async def main(url: str) -> None:
    pages = iter(range(100))
    async with httpx.AsyncClient(transport=AsyncPacedTransport()) as client:

        async def worker() -> None:
            for page in pages:
                response = await client.get(f"{url}{page}")
                print(page, response.status_code, response.headers.get("ratelimit"))

        await asyncio.gather(*(worker() for _ in range(10)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
