/**
 * What a response says about limits, read from its header fields, in this order of precedence:
 *
 * | field | of |
 * |---|---|
 * | `RateLimit: "a";r=50;t=30`, `RateLimit-Policy: "a";q=100;w=60` | the IETF draft from -08 to -11 |
 * | `RateLimit: limit=100, remaining=50, reset=30` | draft -07 |
 * | `RateLimit-Limit`, `-Remaining`, `-Reset` | drafts up to -06 |
 * | `X-RateLimit-*`, `X-Rate-Limit-*` | the convention before the draft |
 *
 * A malformed field is ignored, as the draft demands.
 * Source: draft-ietf-httpapi-ratelimit-headers-11 and -07.
 */

import { type BareItem, type Item, type Parameters, Token, parseDictionary, parseList } from "structured-headers";

/** Most policies of one response; further ones are ignored. */
const ITEMS_MAX = 16;
/** Longest time that is believed, in seconds. A longer one counts as a day, after which one request
 * finds out whether it still holds. */
const TIME_MAX = 86_400;
/** A reset above this is a point in time (seconds since 1970), below it a number of seconds. */
const EPOCH_MIN = 1e9;
/** Above this it is in milliseconds. */
const EPOCH_MILLIS_MIN = 1e12;

/** What remains of one policy. */
export interface PolicyItem {
  name: string;
  /** The partition key in base64; empty if there is none. */
  partition: string;
  limit: number | null;
  /** Seconds. */
  window: number | null;
  remaining: number;
  /** Seconds within which no more than `remaining` may be used. */
  reset: number | null;
}

export interface Fields {
  policies: PolicyItem[];
  /** Seconds. */
  retryAfter: number | null;
}

/** Finds a value by name, several fields of one name joined by a comma. `Headers` is one. */
export interface HeaderValues {
  get(name: string): string | null;
}

/** `wall` is the time in seconds since 1970; it is needed for dates, where there is no `Date`. */
export function parseFields(headers: HeaderValues, wall: number): Fields {
  const now = date(headers.get("date")) ?? wall;
  const retryAfter = parseRetryAfter(headers.get("retry-after"), now);
  // From a cache: true when it was stored.
  if ((number(headers.get("age")) ?? 0) > 0) {
    return { policies: [], retryAfter };
  }
  return { policies: draft(headers) ?? draft07(headers) ?? separate(headers, now) ?? [], retryAfter };
}

// === the forms ===

function draft(headers: HeaderValues): PolicyItem[] | undefined {
  const keyOf = (name: string, partition: string) => JSON.stringify([name, partition]);
  const quotas = new Map<string, { limit: number; window: number | null }>();
  for (const [bare, params] of list(headers.get("ratelimit-policy"))) {
    const [name, limit] = [text(bare), count(params.get("q"))];
    if (name !== null && limit !== null) {
      quotas.set(keyOf(name, partitionOf(params)), { limit, window: windowOf(params) });
    }
  }
  const found = new Map<string, PolicyItem>();
  for (const [bare, params] of list(headers.get("ratelimit"))) {
    const [name, remaining, reset] = [text(bare), count(params.get("r")), count(params.get("t"))];
    if (name === null || remaining === null || (reset === null && params.has("t"))) {
      return undefined;
    }
    const partition = partitionOf(params);
    const key = keyOf(name, partition);
    const { limit, window } = quotas.get(key) ?? quotas.get(keyOf(name, "")) ?? { limit: null, window: null };
    if (!found.has(key)) {
      found.set(key, { name, partition, limit, window, remaining, reset: seconds(reset) });
    }
  }
  return found.size > 0 ? [...found.values()].slice(0, ITEMS_MAX) : undefined;
}

function draft07(headers: HeaderValues): PolicyItem[] | undefined {
  const members = parsed(() => parseDictionary(headers.get("ratelimit") ?? ""));
  const value = (name: string) => count(members?.get(name)?.[0]);
  const [limit, remaining] = [value("limit"), value("remaining")];
  if (remaining === null) {
    return undefined;
  }
  const window = windowFor(limit, list(headers.get("ratelimit-policy")));
  return [{ name: "", partition: "", limit, window, remaining, reset: seconds(value("reset")) }];
}

function separate(headers: HeaderValues, now: number): PolicyItem[] | undefined {
  for (const prefix of ["ratelimit", "x-ratelimit", "x-rate-limit"]) {
    const remaining = number(headers.get(`${prefix}-remaining`));
    if (remaining === null) {
      continue;
    }
    const limits = list(headers.get(`${prefix}-limit`));
    const limit = count(limits[0]?.[0]);
    const window = windowFor(limit, [...limits.slice(1), ...list(headers.get("ratelimit-policy"))]);
    let reset = number(headers.get(`${prefix}-reset`));
    if (reset !== null && reset >= EPOCH_MIN) {
      reset = (reset >= EPOCH_MILLIS_MIN ? reset / 1e3 : reset) - now;
    }
    return [{ name: "", partition: "", limit, window, remaining: Math.floor(remaining), reset: seconds(reset) }];
  }
  return undefined;
}

/** The window of the policy with this limit: `100;w=60`. */
function windowFor(limit: number | null, policies: Item[]): number | null {
  for (const [value, params] of policies) {
    const window = windowOf(params);
    if (window !== null && limit !== null && value === limit) {
      return window;
    }
  }
  return null;
}

// === values ===

function parsed<T>(parse: () => T): T | undefined {
  try {
    return parse();
  } catch {
    return undefined;
  }
}

/** The items of a list; none if it is malformed. */
function list(value: string | null): Item[] {
  const members = parsed(() => parseList(value ?? "")) ?? [];
  const items = members.filter((member): member is Item => !Array.isArray(member[0]));
  return items.length === members.length ? items : [];
}

function text(bare: BareItem): string | null {
  return typeof bare === "string" ? bare : bare instanceof Token ? bare.toString() : null;
}

function partitionOf(params: Parameters): string {
  const key = params.get("pk");
  return key instanceof ArrayBuffer ? Buffer.from(key).toString("base64") : "";
}

function windowOf(params: Parameters): number | null {
  return seconds(count(params.get("w")) || null);
}

function count(value: unknown): number | null {
  return typeof value === "number" && Number.isSafeInteger(value) && value >= 0 ? value : null;
}

/** A decimal number of digits, with an optional fraction. */
export function number(text: string | null | undefined): number | null {
  const digits = (text ?? "").trim();
  return digits.length <= 20 && /^(\d+\.?\d*|\.\d+)$/.test(digits) ? Number(digits) : null;
}

function seconds(value: number | null): number | null {
  return value === null ? null : Math.min(Math.max(value, 0), TIME_MAX);
}

function date(text: string | null): number | null {
  // Date.parse takes much that is no date of HTTP.
  const millis = text !== null && /[A-Za-z].*\d\d:\d\d:\d\d/.test(text) ? Date.parse(text) : NaN;
  return Number.isNaN(millis) ? null : millis / 1e3;
}

function parseRetryAfter(text: string | null, now: number): number | null {
  const at = date(text);
  return seconds(number(text) ?? (at === null ? null : at - now));
}
