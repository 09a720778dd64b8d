import type { IncomingHttpHeaders } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";

import { clientAddress } from "./address.js";
import { type Client, type Descriptor, InvalidCheckError, type Problem, type Verdict, joined, plainProblem, problemOf } from "./client.js";

/** Options of the Express and the Fastify middleware. */
export interface LimitOptions<Request> {
  client: Client;
  /** The descriptors of a request, of it and the client's address; none: not limited. Default: `byAddress`. */
  descriptors?: (request: Request, client: string) => Descriptor[];
  /** Number of own proxies that append to `X-Forwarded-For`; default 0. */
  trustedHops?: number;
  /** Longest time that a queue may hold a request, which is refused if that is not enough; default 10,000. */
  holdMaxMs?: number;
}

/** Limits clients by their address: the descriptor `remote_address`. */
export function byAddress(_request: unknown, client: string): Descriptor[] {
  return [{ remote_address: client }];
}

interface Received {
  method?: string | undefined;
  headers: IncomingHttpHeaders;
  socket: { remoteAddress?: string | undefined };
}

/** The header fields for the response to a request, and the problem if it must not pass. */
export async function limit<Request extends Received>(
  request: Request,
  options: LimitOptions<Request>,
): Promise<{ headers: Record<string, string>; problem?: Problem }> {
  const { method, headers, socket } = request;
  if (method === "OPTIONS" && headers["access-control-request-method"] !== undefined) {
    return { headers: {} };
  }
  const forwardedFor = joined(headers["x-forwarded-for"]);
  const hops = forwardedFor === null ? [] : [forwardedFor];
  const address = clientAddress(socket.remoteAddress ?? "", hops, options.trustedHops ?? 0);
  const descriptors = (options.descriptors ?? byAddress)(request, address);
  if (descriptors.length === 0) {
    return { headers: {} };
  }
  let verdict: Verdict;
  try {
    verdict = await options.client.check(...descriptors);
  } catch (error) {
    if (!(error instanceof InvalidCheckError)) {
      throw error;
    }
    const detail = `not taken by the rate limiter: ${error.message}`;
    return { headers: {}, problem: plainProblem(400, "Bad Request", detail) };
  }
  if (!verdict.allowed) {
    return { headers: verdict.headers, problem: problemOf(verdict) };
  }
  const delayMs = verdict.delay * 1e3;
  if (delayMs > (options.holdMaxMs ?? 10_000)) {
    // The request will not wait, so its hit is returned to the queue. Of several descriptors it is
    // not known which have counted it: one may be of a quota that is used up.
    if (descriptors.length === 1) {
      await options.client.checkHits(-1, ...descriptors);
    }
    const detail = "the queue is too long; try again later";
    return { headers: verdict.headers, problem: plainProblem(429, "Too Many Requests", detail) };
  }
  if (delayMs > 0) {
    await sleep(delayMs);
  }
  return { headers: verdict.headers };
}
