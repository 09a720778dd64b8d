/**
 * When a request may leave: pure, without a clock, a timer or a source of randomness.
 *
 * A policy with `r` requests left for another `t` seconds lets them leave `t / r` apart. Each request
 * that leaves takes one of `r`, so all that share the schedule share the quota. A response says what
 * the server counted; requests that left after the one it answers are subtracted, and a response that
 * was overtaken by a newer one is ignored.
 *
 * *Example*: `"a";r=10;t=20` at second 0. Requests leave at 2, 3.8, 5.6, ... If none asks until
 * second 11, eight remain for nine seconds, and the next ones are 1.125 s apart.
 *
 * - **Refills.** A sliding window or a bucket gives back before `t` is over. So requests are no further
 *   apart than `w / q` while a tenth of `q` remains.
 * - **End of a window.** `t` is rounded up, so each response is an upper bound of the end, and the
 *   lowest one counts. With a known quota `q` and window `w` the next window is assumed to follow, with
 *   all of `q`, its first request at a random point of its first interval.
 * - **Nothing left.** With `r=0` nothing leaves before `t`, which counts as a second at least.
 * - **Refused** (429, or 503 with `Retry-After`): nothing of the scope leaves for
 *   `max(Retry-After or t, 1 s)` and a random part of 1, 2, 4, ... 60 s more (full jitter).
 * - **Nothing known.** One request a second, until the first response. Without any field in it
 *   requests are not paced.
 *
 * A *scope* is an origin and a route of it; the policies in the newest response of a scope apply to it.
 * Policies are shared by all routes of an origin.
 */

import type { Fields, PolicyItem } from "./fields.js";

/** Shortest wait at an empty quota, and time between requests while nothing is known. Seconds. */
const FLOOR = 1;
/** Most random time on top of the least wait after a refusal. Seconds. */
const BACKOFF_MAX = 60;
/** The part of a quota that is spread over what is left of the window in any case. */
const RESERVE = 0.1;
/** Most scopes and most policies; beyond it the one that was not used for the longest is forgotten. */
const SCOPES_MAX = 1024;
const POLICIES_MAX = 1024;

/** Seconds to wait after so many refusals in a row; `random` is in [0, 1). */
export function backoff(refusals: number, least: number, random: number): number {
  return Math.max(least, FLOOR) + random * Math.min(BACKOFF_MAX, 2 ** Math.min(refusals - 1, 6));
}

/** Permission to send one request; `observe` takes it with the response. */
export interface Permit {
  readonly origin: string;
  /** @internal */
  readonly scope: Scope;
  /** @internal */
  readonly number: number;
  /** @internal */
  readonly taken: ReadonlyMap<Policy, number>;
}

/** All times are seconds of one monotonic clock. */
export class Schedule {
  #scopes = new Recent<Scope>(SCOPES_MAX);
  #policies = new Recent<Policy>(POLICIES_MAX);

  scope(origin: string, route: string, now: number): Scope {
    return this.#scopes.get(JSON.stringify([origin, route]), () => new Scope(now));
  }

  /** A permit for a request, or how long to wait before asking again. */
  poll(origin: string, route: string, now: number): Permit | number {
    const scope = this.scope(origin, route, now);
    const wait = Math.max(scope.pausedUntil - now, ...scope.policies.map((policy) => policy.wait(now)));
    if (wait > 0) {
      return wait;
    }
    scope.granted += 1;
    const taken = new Map(scope.policies.map((policy) => [policy, policy.take(now)]));
    return { origin, scope, number: scope.granted, taken };
  }

  /**
   * Learns from the response to a permitted request; `random` is in [0, 1).
   *
   * Returns how long the scope is paused because the request was refused, otherwise 0.
   */
  observe(permit: Permit, status: number, fields: Fields, now: number, random: number): number {
    const { origin, scope, taken } = permit;
    const { policies, retryAfter } = fields;
    const refused = status === 429 || (status === 503 && retryAfter !== null);
    if (policies.length > 0) {
      scope.policies = policies.map((item) => {
        const key = JSON.stringify([origin, item.name, item.partition]);
        const policy = this.#policies.get(key, () => new Policy(now));
        policy.observe(item, taken.get(policy), refused ? retryAfter : null, now, random);
        return policy;
      });
    } else if (refused && scope.policies.length === 0) {
      // The server names no policy: after the pause one request finds out.
      scope.policies = [new Policy(now)];
    } else if (!refused && scope.isUnknown) {
      scope.policies = [];
    }
    scope.isUnknown = false;

    const isNewer = permit.number > scope.grantedAtRefusal;
    if (!refused) {
      scope.refusals = isNewer ? 0 : scope.refusals;
      return 0;
    }
    if (isNewer) {
      // Requests that were under way together are refused together, and count once.
      scope.refusals += 1;
      scope.grantedAtRefusal = scope.granted;
    }
    const empty = policies.filter((item) => item.remaining === 0).map((item) => item.reset ?? 0);
    const until = now + backoff(scope.refusals, retryAfter ?? Math.max(0, ...empty), random);
    scope.pausedUntil = Math.max(scope.pausedUntil, until);
    return scope.pausedUntil - now;
  }
}

export class Scope {
  policies: Policy[];
  isUnknown = true;
  pausedUntil = -Infinity;
  granted = 0;
  refusals = 0;
  grantedAtRefusal = 0;
  /** For the pacer: whether somebody is about to leave, and who waits behind, in order of arrival. */
  readonly turn = { isTaken: false, waiting: new Set<() => void>() };

  constructor(now: number) {
    this.policies = [new Policy(now)];
  }
}

/**
 * A quota whose `remaining` requests may leave until `reset`.
 *
 * As long as limit or window are not known, each window is one request a second.
 */
class Policy {
  #limit: number | null = null;
  #window: number | null = null;
  #reset: number;
  #remaining = 0;
  #next = Infinity;
  #phase = 0;
  #granted = 0;
  #newest = 0;

  constructor(now: number) {
    this.#reset = now;
  }

  wait(now: number): number {
    if (now >= this.#reset) {
      this.#roll(now);
    }
    return (this.#remaining === 0 ? this.#reset : this.#next) - now;
  }

  take(now: number): number {
    this.#next = now + this.#interval(now);
    this.#remaining -= 1;
    this.#granted += 1;
    return this.#granted;
  }

  #interval(now: number): number {
    const spread = (this.#reset - now) / Math.max(this.#remaining, 1);
    if (this.#limit && this.#window && this.#remaining >= RESERVE * this.#limit) {
      return Math.min(spread, this.#window / this.#limit);
    }
    return spread;
  }

  /**
   * `number` is that of the request among those which took from this policy; `instead` is the time
   * that takes precedence over `t`.
   */
  observe(item: PolicyItem, number: number | undefined, instead: number | null, now: number, random: number): void {
    this.#limit = item.limit ?? this.#limit;
    this.#window = item.window ?? this.#window;
    this.#phase = random;
    let remaining = item.remaining;
    if (number !== undefined) {
      if (number <= this.#newest) {
        return;
      }
      this.#newest = number;
      remaining -= this.#granted - number;
    } else if (this.#granted > 0 && now < this.#reset) {
      // Found by another route: what left since then is not known.
      remaining = Math.min(remaining, this.#remaining);
    }

    const isEmpty = item.remaining === 0;
    const left = (isEmpty ? instead : null) ?? item.reset ?? this.#window ?? 0;
    let end = now + Math.max(left, FLOOR);
    if (isEmpty && left === 0) {
      end += random * FLOOR;
    }
    if (!isEmpty && now < this.#reset && end <= this.#reset + FLOOR) {
      end = Math.min(end, this.#reset);
    }
    this.#reset = end;
    this.#remaining = Math.max(remaining, 0);
    this.#next = Math.min(this.#next, now + this.#interval(now));
  }

  /** Begins the window that `now` is in. */
  #roll(now: number): void {
    if (!this.#limit || !this.#window) {
      [this.#remaining, this.#next, this.#reset] = [1, now, now + FLOOR];
      return;
    }
    const start = this.#reset + Math.floor((now - this.#reset) / this.#window) * this.#window;
    [this.#remaining, this.#reset] = [this.#limit, start + this.#window];
    this.#next = start + (this.#phase * this.#window) / this.#limit;
    // Responses to earlier requests are about the last window.
    this.#newest = this.#granted;
  }
}

/** A map of bounded size, which forgets what was not used for the longest. */
export class Recent<V> {
  readonly #sizeMax: number;
  readonly #map = new Map<string, V>();

  constructor(sizeMax: number) {
    this.#sizeMax = sizeMax;
  }

  get size(): number {
    return this.#map.size;
  }

  get(key: string, create: () => V): V {
    const value = this.#map.get(key) ?? create();
    this.#map.delete(key);
    this.#map.set(key, value);
    if (this.#map.size > this.#sizeMax) {
      const { value: oldest } = this.#map.keys().next();
      this.#map.delete(oldest as string);
    }
    return value;
  }
}
