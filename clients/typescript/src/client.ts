import http from "node:http";
import https from "node:https";

import { type HeaderValues, number, parseFields } from "./fields.js";

/** Default deadline of a check. */
const TIMEOUT_MS = 10;
/** Largest answer that is read, in bytes. */
const ANSWER_MAX = 64 * 1024;
/** The fields of a node's answer that are meant for the client of a service. */
const FIELDS = [
  "ratelimit",
  "ratelimit-policy",
  "x-ratelimit-limit",
  "x-ratelimit-remaining",
  "x-ratelimit-reset",
  "x-ratelimit-soft-breach",
  "retry-after",
];

/** Keys with their values, in the order of the rule. Keys that look like numbers need the second form. */
export type Descriptor = Readonly<Record<string, string>> | readonly (readonly [string, string])[];

/** The node does not take the check; the message says why. */
export class InvalidCheckError extends Error {
  override readonly name = "InvalidCheckError";
}

/** Problem details, RFC 9457. */
export interface Problem {
  type: string;
  title: string;
  status: number;
  detail: string;
  "violated-policies"?: string[];
}

export interface Verdict {
  allowed: boolean;
  /** False if no node decided, and `allowed` is `onUnavailable`. */
  isDecided: boolean;
  /** Hits per window of the most restrictive limit; none if no rule matched. */
  limit: number | null;
  remaining: number | null;
  /** Seconds until the whole limit is available again. */
  reset: number | null;
  /** Seconds; none if allowed, or if waiting does not help. */
  retryAfter: number | null;
  /** Seconds that an allowed request has to wait, from a rule with a queue. */
  delay: number;
  /** The names of the policies that refused. */
  violated: string[];
  /** Fields for the response to a client that is limited, by lower-case name. */
  headers: Record<string, string>;
}

export interface ClientOptions {
  /** The address of a node's HTTP listener: `http://127.0.0.1:8080`. */
  url: string;
  /** The domain of the rules. */
  domain: string;
  /** Deadline of a check; default 10. */
  timeoutMs?: number;
  /** What becomes of a check that no node decides; default `"allow"`. */
  onUnavailable?: "allow" | "deny";
}

/**
 * Asks a node whether requests may pass.
 *
 * A node that does not answer within the deadline, or with an error, leaves the check undecided. It is
 * allowed then (`onUnavailable: "deny"` denies it), `Verdict.isDecided` is false, and `unavailable`
 * counts it. A check that the node does not take, such as one with an overlong value, throws
 * `InvalidCheckError`: if it were allowed, a client could send a value that evades the limit.
 */
export class Client {
  /** Checks that no node decided. */
  unavailable = 0;
  readonly #options: ClientOptions;
  readonly #url: URL;
  // fetch takes some 40 ms for its first request, which is more than the deadline.
  readonly #http: typeof http | typeof https;
  readonly #agent: http.Agent;

  constructor(options: ClientOptions) {
    this.#options = options;
    this.#url = new URL("/v1/check", options.url);
    this.#http = this.#url.protocol === "https:" ? https : http;
    this.#agent = new this.#http.Agent({ keepAlive: true });
  }

  /**
   * Counts a hit on every descriptor, and says whether all of their limits allow it.
   *
   * @throws InvalidCheckError
   */
  check(...descriptors: Descriptor[]): Promise<Verdict> {
    return this.checkHits(1, ...descriptors);
  }

  /** As `check`, for several hits. 0 hits only look, negative ones give back. */
  async checkHits(hits: number, ...descriptors: Descriptor[]): Promise<Verdict> {
    const body = checkBody(this.#options.domain, hits, descriptors);
    const answer = await this.#post(body).catch(() => undefined);
    const found = answer && readVerdict(answer.status, answer.headers, answer.body, hits);
    return found ?? this.#undecided();
  }

  /** Closes the connections to the node. */
  close(): void {
    this.#agent.destroy();
  }

  #undecided(): Verdict {
    this.unavailable += 1;
    const allowed = (this.#options.onUnavailable ?? "allow") === "allow";
    const wait = allowed ? {} : { retryAfter: 1, headers: { "retry-after": "1" } };
    return { ...UNDECIDED, allowed, ...wait };
  }

  #post(body: string): Promise<{ status: number; headers: HeaderValues; body: string }> {
    return new Promise((resolve, reject) => {
      const headers = { "content-type": "application/json", "content-length": Buffer.byteLength(body) };
      const request = this.#http.request(this.#url, { method: "POST", agent: this.#agent, headers }, (response) => {
        let text = "";
        response.setEncoding("utf8");
        response.on("data", (chunk: string) => {
          text += chunk;
          if (text.length > ANSWER_MAX) {
            request.destroy(new Error("the answer is too large"));
          }
        });
        response.on("error", reject);
        response.on("end", () => {
          clearTimeout(timer);
          const get = (name: string) => joined(response.headers[name]);
          resolve({ status: response.statusCode ?? 0, headers: { get }, body: text });
        });
      });
      const late = () => request.destroy(new Error("no answer in time"));
      const timer = setTimeout(late, this.#options.timeoutMs ?? TIMEOUT_MS);
      request.on("error", (error) => {
        clearTimeout(timer);
        reject(error);
      });
      request.end(body);
    });
  }
}

const UNDECIDED: Verdict = {
  allowed: false,
  isDecided: false,
  limit: null,
  remaining: null,
  reset: null,
  retryAfter: null,
  delay: 0,
  violated: [],
  headers: {},
};

export function joined(value: string | string[] | undefined): string | null {
  return Array.isArray(value) ? value.join(", ") : (value ?? null);
}

/** The body of a refusal. */
export function problemOf(verdict: Verdict): Problem {
  if (!verdict.isDecided) {
    return plainProblem(503, "Service Unavailable", "The rate limiter is not available.");
  }
  const wait = verdict.retryAfter;
  return {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
    status: 429,
    detail: wait === null ? "over the limit" : `over the limit; try again in ${wait} s`,
    "violated-policies": verdict.violated,
  };
}

export function plainProblem(status: number, title: string, detail: string): Problem {
  return { type: "about:blank", title, status, detail };
}

// === the messages ===

/** `RateLimitRequest` of Envoy's rate limit service, in JSON. */
function checkBody(domain: string, hits: number, descriptors: Descriptor[]): string {
  const counted = hits === 1 ? {} : { hitsAddend: Math.abs(hits), isNegativeHits: hits < 0 };
  const messages = descriptors.map((descriptor) => {
    const pairs = isPairs(descriptor) ? descriptor : Object.entries(descriptor);
    return { entries: pairs.map(([key, value]) => ({ key, value })), ...counted };
  });
  return JSON.stringify({ domain, descriptors: messages });
}

function isPairs(descriptor: Descriptor): descriptor is readonly (readonly [string, string])[] {
  return Array.isArray(descriptor);
}

/**
 * The verdict in a node's answer; none if there is no verdict in it.
 *
 * @throws InvalidCheckError
 */
export function readVerdict(status: number, headers: HeaderValues, body: string, hits: number): Verdict | undefined {
  const message = jsonObject(body);
  const code = message["overallCode"];
  if (code === undefined && (status === 400 || status === 413)) {
    throw new InvalidCheckError(String(message["error"] ?? `status ${status}`));
  }
  if (code !== "OK" && code !== "OVER_LIMIT") {
    return undefined;
  }
  const allowed = code === "OK";
  const over = parseFields(headers, 0).policies.filter((item) => item.remaining < Math.max(hits, 1));
  const passed = FIELDS.flatMap((name): [string, string][] => {
    const value = headers.get(name);
    return value === null ? [] : [[name, value]];
  });
  return {
    allowed,
    isDecided: true,
    limit: number(headers.get("x-ratelimit-limit")),
    remaining: number(headers.get("x-ratelimit-remaining")),
    reset: number(headers.get("x-ratelimit-reset")),
    retryAfter: allowed ? null : number(headers.get("retry-after")),
    delay: number(headers.get("x-ratelimit-delay")) ?? 0,
    violated: allowed ? [] : over.map((item) => item.name),
    headers: Object.fromEntries(passed),
  };
}

function jsonObject(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
  } catch {
    return {};
  }
}
