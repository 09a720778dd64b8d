import assert from "node:assert/strict";
import { test } from "node:test";

import { clientAddress } from "../src/address.js";
import { InvalidCheckError, type Problem, problemOf, readVerdict } from "../src/client.js";
import { parseFields } from "../src/fields.js";
import { type Permit, Schedule, backoff } from "../src/schedule.js";
import { cases } from "./vectors.js";

type Pairs = [string, string][];

function isClose(found: number, expected: number, message: string): void {
  assert.ok(Math.abs(found - expected) < 1e-6, `${message}: ${found}, not ${expected}`);
}

interface FieldsCase {
  name: string;
  wall?: number;
  headers: Pairs;
  policies: object[];
  names?: string[];
  retry_after: number | null;
}

for (const vector of cases<FieldsCase>("fields")) {
  test(`fields: ${vector.name}`, () => {
    const found = parseFields(new Headers(vector.headers), vector.wall ?? 0);
    assert.equal(found.retryAfter, vector.retry_after);
    if (vector.names) {
      assert.deepEqual(found.policies.map((item) => item.name), vector.names);
    } else {
      assert.deepEqual(found.policies, vector.policies);
    }
  });
}

interface BackoffCase {
  refusals: number;
  least: number;
  random: number;
  wait: number;
}

for (const vector of cases<BackoffCase>("backoff")) {
  test(`backoff: ${JSON.stringify(vector)}`, () => {
    isClose(backoff(vector.refusals, vector.least, vector.random), vector.wait, "wait");
  });
}

interface PacingCase {
  name: string;
  steps: {
    at: number;
    poll?: { origin?: string; route?: string; wait: number };
    observe?: { permit: number; status: number; headers: Pairs; random?: number; pause?: number };
  }[];
}

for (const vector of cases<PacingCase>("pacing")) {
  test(`pacing: ${vector.name}`, () => {
    const schedule = new Schedule();
    const permits: Permit[] = [];
    for (const [number, { at, poll, observe }] of vector.steps.entries()) {
      if (poll) {
        const found = schedule.poll(poll.origin ?? "https://a.example", poll.route ?? "", at);
        if (typeof found !== "number") {
          permits.push(found);
        }
        isClose(typeof found === "number" ? found : 0, poll.wait, `step ${number}`);
      }
      if (observe) {
        const permit = permits[observe.permit - 1];
        assert.ok(permit);
        const fields = parseFields(new Headers(observe.headers), 0);
        const pause = schedule.observe(permit, observe.status, fields, at, observe.random ?? 0);
        isClose(pause, observe.pause ?? 0, `step ${number}`);
      }
    }
  });
}

interface AddressCase {
  peer: string;
  trusted_hops: number;
  forwarded_for: string[];
  client: string;
}

for (const vector of cases<AddressCase>("client_address")) {
  test(`client address: ${JSON.stringify(vector)}`, () => {
    assert.equal(clientAddress(vector.peer, vector.forwarded_for, vector.trusted_hops), vector.client);
  });
}

interface VerdictCase {
  name: string;
  status: number;
  hits?: number;
  headers: Pairs;
  body: string;
  is_invalid?: boolean;
  verdict?: { is_decided: boolean; retry_after: number | null } | null;
  problem?: Problem;
}

for (const vector of cases<VerdictCase>("verdict")) {
  test(`verdict: ${vector.name}`, () => {
    const read = () => readVerdict(vector.status, new Headers(vector.headers), vector.body, vector.hits ?? 1);
    if (vector.is_invalid) {
      assert.throws(read, InvalidCheckError);
      return;
    }
    const found = read();
    if (!vector.verdict) {
      assert.equal(found, undefined);
      return;
    }
    assert.ok(found);
    const { is_decided: isDecided, retry_after: retryAfter, ...others } = vector.verdict;
    assert.deepEqual(found, { ...others, isDecided, retryAfter });
    if (vector.problem) {
      assert.deepEqual(problemOf(found), vector.problem);
    }
  });
}
