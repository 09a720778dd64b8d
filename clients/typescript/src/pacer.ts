import { performance } from "node:perf_hooks";

import { type HeaderValues, parseFields } from "./fields.js";
import { type Permit, Schedule } from "./schedule.js";

/** Default of the longest time that a request waits: two windows of a minute. */
export const MAX_WAIT_MS = 120_000;
/** The longest that a timer can wait, 24.8 days: one that is set to more fires at once. */
const TIMER_MAX_MS = 2 ** 31 - 1;

/** A request would have to wait longer than it may. It was not sent. */
export class WaitTooLongError extends Error {
  override readonly name = "WaitTooLongError";

  constructor(
    readonly origin: string,
    readonly waitMs: number,
  ) {
    super(`${origin} has no room for a request for ${Math.ceil(waitMs / 1e3)} s`);
  }
}

/**
 * Paces all requests that share it. `pacedFetch` uses one; for HTTP clients other than fetch:
 *
 * ```ts
 * const permit = await pacer.acquire("https://api.example.com");
 * const response = ...;
 * pacer.observe(permit, response.status, response.headers);
 * ```
 */
export class Pacer {
  readonly maxWaitMs: number;
  readonly #schedule = new Schedule();
  /** Those who wait for their time, one of each scope: a response may change it. */
  readonly #waiting = new Set<() => void>();

  constructor(options: { maxWaitMs?: number } = {}) {
    this.maxWaitMs = Math.min(options.maxWaitMs ?? MAX_WAIT_MS, TIMER_MAX_MS);
  }

  /**
   * Waits until a request to an origin, and a route of it if limits differ within the origin, may
   * leave.
   *
   * @throws WaitTooLongError if that takes longer than `maxWaitMs`, or the reason of `signal`.
   */
  async acquire(origin: string, route = "", signal?: AbortSignal | null): Promise<Permit> {
    const deadline = now() + this.maxWaitMs / 1e3;
    const { turn } = this.#schedule.scope(origin, route, now());
    if (turn.isTaken) {
      if (!(await sleep(this.maxWaitMs, turn.waiting, signal))) {
        throw new WaitTooLongError(origin, this.maxWaitMs);
      }
    }
    turn.isTaken = true;
    try {
      for (;;) {
        const permit = this.#schedule.poll(origin, route, now());
        if (typeof permit !== "number") {
          return permit;
        }
        if (now() + permit > deadline) {
          throw new WaitTooLongError(origin, permit * 1e3);
        }
        await sleep(permit * 1e3, this.#waiting, signal);
      }
    } finally {
      const [next] = turn.waiting;
      turn.isTaken = next !== undefined;
      next?.();
    }
  }

  /**
   * Learns from a response; a request that got none needs no call. Returns the milliseconds for which
   * requests are paused if this one was refused, otherwise 0.
   */
  observe(permit: Permit, status: number, headers: HeaderValues): number {
    const fields = parseFields(headers, Date.now() / 1e3);
    const pause = this.#schedule.observe(permit, status, fields, now(), Math.random());
    for (const wake of [...this.#waiting]) {
      wake();
    }
    return pause * 1e3;
  }
}

function now(): number {
  return performance.now() / 1e3;
}

/** Whether it was woken through `wakers` before the time was over. Rejects when aborted. */
function sleep(ms: number, wakers: Set<() => void>, signal?: AbortSignal | null): Promise<boolean> {
  return new Promise((resolve, reject) => {
    const settle = (then: () => void) => {
      clearTimeout(timer);
      wakers.delete(wake);
      signal?.removeEventListener("abort", abort);
      then();
    };
    const wake = () => settle(() => resolve(true));
    const abort = () => settle(() => reject(signal?.reason));
    const timer = setTimeout(() => settle(() => resolve(false)), ms);
    wakers.add(wake);
    signal?.addEventListener("abort", abort);
    if (signal?.aborted) {
      abort();
    }
  });
}
