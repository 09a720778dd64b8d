// Package tidegate is a client of tidegate, a rate limiter.
//
// It asks a node whether requests may pass: [Client], and [Middleware] for net/http servers.
//
// It paces requests to any server that names its limits in RateLimit, X-RateLimit-* or
// Retry-After, before the server refuses them: [Transport] for net/http clients, and [Pacer] for
// others.
package tidegate
