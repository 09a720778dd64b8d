package tidegate

import (
	"io"
	"net/http"
	"sync"
)

// DefaultRetries is how often a refused request is sent again by default.
const DefaultRetries = 2

// drainMax is how much of a refused response is read, so that its connection can be used again.
const drainMax = 64 << 10

// Transport is a RoundTripper that paces:
//
//	client := &http.Client{Transport: &tidegate.Transport{}}
//
// All requests of the client, from however many goroutines, share what the responses say. A refused
// request (429) is sent again when its scope is open, if its body can be had again
// ([http.Request.GetBody]). A request that would wait too long ends in a [*WaitError]. Waiting ends
// with the context of the request.
type Transport struct {
	// Base sends the requests; nil is [http.DefaultTransport].
	Base http.RoundTripper
	// Pacer may be shared with other transports; nil is one of its own.
	Pacer *Pacer
	// Route names the part of its origin to which a request belongs, if limits differ within an
	// origin; nil is the whole origin.
	Route func(*http.Request) string
	// Retries is how often a refused request is sent again; 0 is [DefaultRetries], negative never.
	Retries int

	once  sync.Once
	pacer *Pacer
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(request *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	retries := t.Retries
	if retries == 0 {
		retries = DefaultRetries
	}
	if request.Body != nil && request.Body != http.NoBody && request.GetBody == nil {
		retries = 0
	}
	pacer, origin, route := t.shared(), request.URL.Scheme+"://"+request.URL.Host, ""
	if t.Route != nil {
		route = t.Route(request)
	}
	permit, err := pacer.Acquire(request.Context(), origin, route)
	if err != nil {
		if request.Body != nil {
			request.Body.Close()
		}
		return nil, err
	}
	for {
		response, err := base.RoundTrip(request)
		if err != nil {
			return nil, err
		}
		pause := pacer.Observe(permit, response.StatusCode, response.Header)
		if response.StatusCode != http.StatusTooManyRequests || retries <= 0 || pause > pacer.maxWait {
			return response, nil
		}
		if permit, err = pacer.Acquire(request.Context(), origin, route); err != nil {
			return response, nil
		}
		again := request.Clone(request.Context())
		if request.GetBody != nil {
			if again.Body, err = request.GetBody(); err != nil {
				return response, nil
			}
		}
		io.CopyN(io.Discard, response.Body, drainMax)
		response.Body.Close()
		request = again
		retries--
	}
}

func (t *Transport) shared() *Pacer {
	t.once.Do(func() {
		t.pacer = t.Pacer
		if t.pacer == nil {
			t.pacer = NewPacer(0)
		}
	})
	return t.pacer
}
