import type { IncomingMessage, ServerResponse } from "node:http";

import { type LimitOptions, limit } from "./limit.js";

/**
 * Middleware for Express, and for any server of `(request, response, next)`:
 *
 * ```ts
 * app.use(rateLimit({ client, trustedHops: 1 }));
 * ```
 *
 * A request costs one hit on each of its descriptors. Both allowed and refused responses carry the
 * `RateLimit` fields; a refusal is a 429 with problem details and `Retry-After`. Use the CORS
 * middleware before it, so that browsers can read refusals; preflight requests are not counted.
 */
export function rateLimit<Request extends IncomingMessage = IncomingMessage>(
  options: LimitOptions<Request>,
): (request: Request, response: ServerResponse, next: (error?: unknown) => void) => void {
  return (request, response, next) => {
    limit(request, options).then(({ headers, problem }) => {
      for (const [name, value] of Object.entries(headers)) {
        response.setHeader(name, value);
      }
      if (problem === undefined) {
        next();
        return;
      }
      response.writeHead(problem.status, { "content-type": "application/problem+json" });
      response.end(JSON.stringify(problem));
    }).catch(next);
  };
}
