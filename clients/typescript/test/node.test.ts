// Against a real node, whose address is in `NODE_URL`: scripts/check-clients starts one.

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import http from "node:http";
import net, { type AddressInfo } from "node:net";
import { test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import express from "express";
import fastify from "fastify";

import { rateLimit as expressLimit } from "../src/express.js";
import { rateLimit as fastifyLimit } from "../src/fastify.js";
import { limit } from "../src/limit.js";
import { Client, InvalidCheckError, type Problem, pacedFetch } from "../src/index.js";

const NODE = process.env["NODE_URL"] ?? "";
const needsNode = { skip: NODE === "" && "no node: scripts/check-clients starts one" };
const WORKERS = 10;
/** Longer than the default: a busy machine must not make a test fail. */
const PATIENT = { domain: "clients", timeoutMs: 2000 };
/** Nothing listens on this port. */
const NOBODY = { domain: "clients", url: "http://127.0.0.1:9" };

function name(): string {
  return randomBytes(8).toString("hex");
}

// === asking ===

test("a check counts, and is refused over the limit", needsNode, async (context) => {
  const client = new Client({ ...PATIENT, url: NODE });
  context.after(() => client.close());
  const few = { few: name() };
  assert.equal((await client.checkHits(0, few)).remaining, 2);
  const { allowed, isDecided, limit, remaining } = await client.check(few);
  assert.deepEqual([allowed, isDecided, limit, remaining], [true, true, 2, 1]);
  assert.equal((await client.checkHits(-1, few)).remaining, 2);
  assert.ok((await client.checkHits(2, few)).allowed);
  const refused = await client.check([["few", few.few]]);
  assert.deepEqual([refused.allowed, refused.violated], [false, ["few"]]);
  assert.ok(refused.retryAfter);
  assert.match(refused.headers["ratelimit"] ?? "", /^"few";r=0/);
  assert.equal(client.unavailable, 0);
});

test("a queue says how long to wait", needsNode, async (context) => {
  const client = new Client({ ...PATIENT, url: NODE });
  context.after(() => client.close());
  const queue = { queue: name() };
  const verdicts = await Promise.all(Array.from({ length: 5 }, () => client.check(queue)));
  assert.ok(Math.max(...verdicts.map((verdict) => verdict.delay)) > 0);
});

test("a check that the node does not take is an error", needsNode, async (context) => {
  const client = new Client({ ...PATIENT, url: NODE });
  context.after(() => client.close());
  await assert.rejects(client.check({ few: "x".repeat(5000) }), InvalidCheckError);
  assert.equal(client.unavailable, 0);
});

test("without a node checks are counted, and allowed or denied", async () => {
  for (const onUnavailable of ["allow", "deny"] as const) {
    const client = new Client({ ...NOBODY, onUnavailable });
    const { allowed, isDecided } = await client.check({ few: "x" });
    assert.deepEqual([allowed, isDecided, client.unavailable], [onUnavailable === "allow", false, 1]);
  }
});

test("a check ends at its deadline", async (context) => {
  // Accepts connections and never answers.
  const sockets: net.Socket[] = [];
  const silent = net.createServer((socket) => sockets.push(socket)).listen(0, "127.0.0.1");
  await new Promise((resolve) => silent.once("listening", resolve));
  context.after(() => {
    silent.close();
    sockets.forEach((socket) => socket.destroy());
  });
  const client = new Client({ domain: "clients", url: `http://127.0.0.1:${(silent.address() as AddressInfo).port}` });
  const begun = performance.now();
  assert.equal((await client.check({ few: "x" })).isDecided, false);
  assert.ok(performance.now() - begun < 5000);
});

test("the middleware does not hold a request for longer than it may", needsNode, async (context) => {
  const client = new Client({ ...PATIENT, url: NODE });
  context.after(() => client.close());
  const queue = { slow_queue: name() };
  const options = { client, descriptors: () => [queue] };
  const request = { method: "GET", headers: {}, socket: { remoteAddress: "127.0.0.1" } };
  assert.equal((await limit(request, options)).problem, undefined);
  const { remaining } = await client.checkHits(0, queue);
  assert.equal((await limit(request, options)).problem?.status, 429);
  assert.equal((await client.checkHits(0, queue)).remaining, remaining);
});

interface Server {
  url: string;
  close: () => unknown;
}

async function expressServer(client: Client): Promise<Server> {
  const app = express();
  app.use(expressLimit({ client, trustedHops: 1 }));
  app.use((_request, response) => {
    response.send("hello");
  });
  const server = http.createServer(app).listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`, close: () => server.close() };
}

async function fastifyServer(client: Client): Promise<Server> {
  const app = fastify();
  await app.register(fastifyLimit, { client, trustedHops: 1 });
  app.all("/", () => "hello");
  const url = await app.listen({ port: 0, host: "127.0.0.1" });
  return { url, close: () => app.close() };
}

for (const [kind, start] of Object.entries({ express: expressServer, fastify: fastifyServer })) {
  test(`${kind} limits clients by their address`, needsNode, async (context) => {
    const client = new Client({ ...PATIENT, url: NODE });
    const { url, close } = await start(client);
    context.after(close);
    context.after(() => client.close());
    const id = name();
    const headers = { "x-forwarded-for": `1.1.1.1, 2001:db8:${id.slice(0, 4)}:${id.slice(4, 8)}::1`, connection: "close" };
    const statuses = [];
    let refused = await fetch(url, { headers });
    for (; refused.status === 200; refused = await fetch(url, { headers })) {
      statuses.push(refused.status);
      assert.equal(await refused.text(), "hello");
      assert.match(refused.headers.get("ratelimit") ?? "", /^"addresses";r=[01]/);
    }
    assert.deepEqual([...statuses, refused.status], [200, 200, 429]);
    // Fastify appends a charset.
    assert.match(refused.headers.get("content-type") ?? "", /^application\/problem\+json/);
    assert.equal(refused.headers.get("ratelimit-policy"), '"addresses";q=2;w=86400');
    assert.ok(Number(refused.headers.get("retry-after")) > 0);
    assert.deepEqual(((await refused.json()) as Problem)["violated-policies"], ["addresses"]);

    const other = { ...headers, "x-forwarded-for": `2001:db8:ffff:${id.slice(0, 4)}::1` };
    assert.equal((await fetch(url, { headers: other })).status, 200);
    const preflight = { method: "OPTIONS", headers: { ...headers, "access-control-request-method": "POST" } };
    assert.equal((await fetch(url, preflight)).status, 200);
  });

  test(`${kind} lets requests pass without a node`, async (context) => {
    for (const [onUnavailable, status] of [["allow", 200], ["deny", 503]] as const) {
      const client = new Client({ ...NOBODY, onUnavailable });
      const { url, close } = await start(client);
      context.after(close);
      assert.equal((await fetch(url, { headers: { connection: "close" } })).status, status);
      assert.equal(client.unavailable, 1);
    }
  });
}

// === pacing ===

test("ten workers that share a client use a limit and are not refused", needsNode, async () => {
  const [header, length, windows] = process.env["PACED_MINUTE"] ? (["x-minute", 60e3, 1] as const) : (["x-six-seconds", 6e3, 2] as const);
  // Retries would hide refusals.
  const paced = pacedFetch({ retries: 0 });
  const headers = { [header]: name() };
  const statuses: number[] = [];
  await sleep(length - (Date.now() % length));
  const end = performance.now() + windows * length;
  const work = async () => {
    while (performance.now() < end) {
      const response = await paced(`${NODE}/auth/`, { headers });
      await response.arrayBuffer();
      if (performance.now() < end) {
        statuses.push(response.status);
      }
    }
  };
  await Promise.all(Array.from({ length: WORKERS }, work));
  const useful = statuses.filter((status) => status === 200).length;
  const refused = statuses.filter((status) => status === 429).length;
  console.log(`typescript, ten workers: ${useful} useful, ${refused} refused in ${windows} window(s) of 100`);
  assert.ok(useful >= 98 * windows);
  assert.ok(refused <= 2);
  assert.equal(useful + refused, statuses.length);
});
