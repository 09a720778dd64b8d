"""What a program with redis-py does with a node: redis_client.py PORT PASSWORD"""

import sys

import redis

port, password = int(sys.argv[1]), sys.argv[2]


def check(found, expected):
    assert found == expected, f"{found} is not {expected}"


for protocol in (2, 3):
    client = redis.Redis(port=port, password=password, protocol=protocol, client_name="tests")
    check(client.ping(), True)
    assert client.client_getname() in ("tests", b"tests")
    key = f"user:{protocol}"
    for remaining in (2, 1, 0):
        found = client.execute_command("CL.THROTTLE", key, 2, 1, 3600)
        check(found[:4], [0, 3, remaining, -1])
    limited, limit, remaining, retry_after, reset_after = client.execute_command(
        "CL.THROTTLE", key, 2, 1, 3600
    )
    check((limited, limit, remaining), (1, 3, 0))
    assert 3500 < retry_after <= 3600 and 3 * 3500 < reset_after <= 3 * 3600

    with client.pipeline(transaction=False) as pipeline:
        for number in range(1000):
            pipeline.execute_command("THROTTLE", f"many:{protocol}:{number % 10}", 9, 1, 3600)
        found = pipeline.execute()
    check([reply[0] for reply in found], [0] * 100 + [1] * 900)

    check(client.execute_command("TG.CHECK", "edge", "user", key)[:3], [0, 3, 2])
    try:
        client.execute_command("CL.THROTTLE", key, "x", 1, 1)
    except redis.ResponseError as error:
        check(str(error), "Cell error: Couldn't parse as integer: x")
    else:
        raise AssertionError("no error")
    check(client.info()["redis_mode"], "standalone")
    client.close()

try:
    redis.Redis(port=port, password="wrong").ping()
except redis.AuthenticationError as error:
    print("refused:", error)
else:
    raise AssertionError("a wrong password was let in")
print("redis-py", redis.__version__, "is served")
