"""Asks a node whether a user may do something.

tidegate serve &
python examples/ask.py
"""

from tidegate import Client


def main() -> None:
    with Client("http://127.0.0.1:8080", domain="demo", timeout=0.1) as limiter:
        for _ in range(12):
            verdict = limiter.check({"user": "ann"})
            if verdict.allowed:
                print("allowed, remaining:", verdict.remaining)
            else:
                print("refused:", verdict.problem()["detail"])


if __name__ == "__main__":
    main()
