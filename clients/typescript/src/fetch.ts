import { MAX_WAIT_MS, Pacer } from "./pacer.js";

export interface PacedFetchOptions {
  /** Sends the requests; default: the global `fetch`. */
  fetch?: typeof fetch;
  /** May be shared; default: one of its own. */
  pacer?: Pacer;
  /** Names the part of its origin to which a request belongs, if limits differ within an origin. */
  route?: (url: URL) => string;
  /** How often a refused request is sent again; default 2. */
  retries?: number;
}

/**
 * A `fetch` that paces:
 *
 * ```ts
 * const fetch = pacedFetch();
 * ```
 *
 * All requests through it share what the responses say. A refused request (429) is sent again when its
 * scope is open, unless its body is a stream. A request that would wait too long ends in
 * `WaitTooLongError`. Waiting ends with the signal of the request.
 */
export function pacedFetch(options: PacedFetchOptions = {}): typeof fetch {
  const { fetch: send = fetch, pacer = new Pacer({ maxWaitMs: MAX_WAIT_MS }), route = () => "" } = options;
  return async (input, init) => {
    const request = input instanceof Request ? input : undefined;
    const url = new URL(request?.url ?? String(input));
    const signal = init?.signal ?? request?.signal;
    let retries = isReplayable(init?.body ?? request?.body) ? (options.retries ?? 2) : 0;
    let permit = await pacer.acquire(url.origin, route(url), signal);
    for (;;) {
      const response = await send(input, init);
      // After a redirect to another origin the fields are about that one.
      const isOther = response.redirected && new URL(response.url).origin !== url.origin;
      const pause = pacer.observe(permit, response.status, isOther ? new Headers() : response.headers);
      if (response.status !== 429 || retries === 0 || pause > pacer.maxWaitMs) {
        return response;
      }
      try {
        permit = await pacer.acquire(url.origin, route(url), signal);
      } catch {
        return response;
      }
      await response.body?.cancel();
      retries -= 1;
    }
  };
}

/** Whether a body can be sent more than once: anything but a stream or another sequence of chunks. */
function isReplayable(body: unknown): boolean {
  const isStream = typeof body === "object" && body !== null && (body instanceof ReadableStream || Symbol.asyncIterator in body);
  return !isStream;
}
