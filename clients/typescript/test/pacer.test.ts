import assert from "node:assert/strict";
import http from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import { Pacer, WaitTooLongError, pacedFetch } from "../src/index.js";
import { Recent } from "../src/schedule.js";

async function serve(handler: http.RequestListener, use: (url: string) => Promise<void>): Promise<void> {
  const server = http.createServer(handler).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  try {
    await use(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
  } finally {
    server.closeAllConnections();
    server.close();
  }
}

test("a refused request is sent again with its body", async () => {
  const bodies: string[] = [];
  const handler: http.RequestListener = async (request, response) => {
    bodies.push((await request.toArray()).join(""));
    response.writeHead(bodies.length === 1 ? 429 : 200, { "retry-after": "0" });
    response.end();
  };
  await serve(handler, async (url) => {
    const response = await pacedFetch()(url, { method: "POST", body: "hello" });
    assert.equal(response.status, 200);
    assert.deepEqual(bodies, ["hello", "hello"]);
  });
});

test("a request whose body is a stream is not sent again", async () => {
  let requests = 0;
  const handler: http.RequestListener = (_request, response) => {
    requests += 1;
    response.writeHead(429).end();
  };
  await serve(handler, async (url) => {
    const init = { method: "POST", body: new Blob(["hello"]).stream(), duplex: "half" };
    const response = await pacedFetch()(url, init as RequestInit);
    assert.deepEqual([response.status, requests], [429, 1]);
  });
});

test("a request that would wait too long is not sent", async () => {
  let requests = 0;
  const handler: http.RequestListener = (_request, response) => {
    requests += 1;
    response.writeHead(429, { "retry-after": "3600" }).end();
  };
  await serve(handler, async (url) => {
    const fetch = pacedFetch();
    // The pause is longer than requests wait, so the refusal is the answer.
    assert.equal((await fetch(url)).status, 429);
    await assert.rejects(fetch(url), (error) => error instanceof WaitTooLongError && error.waitMs > 3.5e6);
    assert.equal(requests, 1);
  });
});

test("waiting ends with the signal, and the others leave in the order of their arrival", async () => {
  const pacer = new Pacer();
  const origin = "https://a.example";
  const first = await pacer.acquire(origin);
  const aborted = new AbortController();
  const left: number[] = [];
  const waiters = [1, 2, 3, 4].map(async (number) => {
    const signal = number === 1 || number === 3 ? aborted.signal : undefined;
    await pacer.acquire(origin, "", signal);
    left.push(number);
  });
  aborted.abort(new Error("no longer needed"));
  const settled = Promise.allSettled(waiters);
  // No fields: requests are not paced.
  pacer.observe(first, 200, new Headers());
  const outcomes = (await settled).map((outcome) => outcome.status);
  assert.deepEqual(outcomes, ["rejected", "fulfilled", "rejected", "fulfilled"]);
  assert.deepEqual(left, [2, 4]);
});

test("the maps of a schedule are bounded, and forget what was not used for the longest", () => {
  const map = new Recent<string>(2);
  let created = 0;
  const get = (key: string) => map.get(key, () => `${(created += 1)}`);
  assert.deepEqual(["a", "b", "a", "c", "a", "b"].map(get), ["1", "2", "1", "3", "1", "4"]);
  assert.equal(map.size, 2);
});
