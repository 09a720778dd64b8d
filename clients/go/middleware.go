package tidegate

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"time"
)

// Middleware limits the requests of a net/http server:
//
//	limited := tidegate.Middleware{Client: client, TrustedHops: 1}
//	http.ListenAndServe(":8000", limited.Wrap(mux))
//
// A request costs one hit on each of its descriptors. Both allowed and refused responses carry the
// RateLimit fields; a refusal is a 429 with problem details and Retry-After. Wrap it into the CORS
// middleware, so that browsers can read refusals; preflight requests are not counted.
type Middleware struct {
	Client *Client
	// Descriptors of a request, of it and the client's address; none: not limited. nil is
	// [ByAddress].
	Descriptors func(request *http.Request, client string) []Descriptor
	// TrustedHops is the number of own proxies that append to X-Forwarded-For.
	TrustedHops int
	// HoldMax is the longest time that a queue may hold a request; it is refused if that is not
	// enough. 0 is [DefaultHoldMax].
	HoldMax time.Duration
}

// DefaultHoldMax is the longest time that a queue may hold a request by default.
const DefaultHoldMax = 10 * time.Second

// ByAddress limits clients by their address: the descriptor remote_address.
func ByAddress(_ *http.Request, client string) []Descriptor {
	return []Descriptor{{{Key: "remote_address", Value: client}}}
}

// Wrap returns a handler that passes on what may pass.
func (m Middleware) Wrap(next http.Handler) http.Handler {
	of := m.Descriptors
	if of == nil {
		of = ByAddress
	}
	holdMax := m.HoldMax
	if holdMax == 0 {
		holdMax = DefaultHoldMax
	}
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		var descriptors []Descriptor
		if !isPreflight(request) {
			forwardedFor := request.Header.Values("X-Forwarded-For")
			descriptors = of(request, ClientAddress(request.RemoteAddr, forwardedFor, m.TrustedHops))
		}
		if len(descriptors) == 0 {
			next.ServeHTTP(w, request)
			return
		}
		// A client that is gone still pays: otherwise the check would end undecided, and be allowed.
		ctx := context.WithoutCancel(request.Context())
		verdict, err := m.Client.Check(ctx, descriptors...)
		if errors.Is(err, ErrInvalidCheck) {
			plainProblem(http.StatusBadRequest, err.Error()).Write(w)
			return
		}
		maps.Copy(w.Header(), verdict.Header)
		if !verdict.Allowed {
			verdict.Problem().Write(w)
			return
		}
		if verdict.Delay > holdMax {
			// The request will not wait, so its hit is returned to the queue. Of several
			// descriptors it is not known which have counted it: one may be of a quota that is used up.
			if len(descriptors) == 1 {
				_, _ = m.Client.CheckHits(ctx, -1, descriptors...)
			}
			plainProblem(http.StatusTooManyRequests, "the queue is too long; try again later").Write(w)
			return
		}
		if verdict.Delay > 0 {
			select {
			case <-time.After(verdict.Delay):
			case <-request.Context().Done():
				return
			}
		}
		next.ServeHTTP(w, request)
	})
}

func isPreflight(request *http.Request) bool {
	return request.Method == http.MethodOptions &&
		request.Header.Get("Access-Control-Request-Method") != ""
}
