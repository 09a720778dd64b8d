import type { FastifyPluginAsync, FastifyRequest } from "fastify";

import { type LimitOptions, limit } from "./limit.js";

/**
 * Plugin for Fastify:
 *
 * ```ts
 * await app.register(rateLimit, { client, trustedHops: 1 });
 * ```
 *
 * A request costs one hit on each of its descriptors. Both allowed and refused responses carry the
 * `RateLimit` fields; a refusal is a 429 with problem details and `Retry-After`. Register the CORS
 * plugin before it, so that browsers can read refusals; preflight requests are not counted.
 */
export const rateLimit: FastifyPluginAsync<LimitOptions<FastifyRequest>> = async (fastify, options) => {
  fastify.addHook("onRequest", async (request, reply) => {
    const { headers, problem } = await limit(request, options);
    reply.headers(headers);
    if (problem !== undefined) {
      return reply.code(problem.status).type("application/problem+json").send(JSON.stringify(problem));
    }
  });
};

// It is for the routes around it, not only for those inside of the plugin.
Object.assign(rateLimit, { [Symbol.for("skip-override")]: true });
