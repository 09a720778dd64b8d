/**
 * Client of tidegate, a rate limiter.
 *
 * - Asking a node: `Client`, and middleware in `tidegate/express` and `tidegate/fastify`.
 * - Pacing requests to any server that names its limits: `pacedFetch`, and `Pacer` for anything else.
 */

export { clientAddress } from "./address.js";
export {
  Client,
  type ClientOptions,
  type Descriptor,
  InvalidCheckError,
  type Problem,
  type Verdict,
  problemOf,
} from "./client.js";
export { type PacedFetchOptions, pacedFetch } from "./fetch.js";
export { byAddress, type LimitOptions } from "./limit.js";
export { Pacer, WaitTooLongError } from "./pacer.js";
export type { Permit } from "./schedule.js";
