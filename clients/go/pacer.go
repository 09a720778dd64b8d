package tidegate

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// DefaultMaxWait is the longest time that a request waits by default: two windows of a minute.
const DefaultMaxWait = 2 * time.Minute

// longestWait keeps times in the range of a time.Duration.
const longestWait = 30 * 24 * time.Hour

// WaitError means that a request would have to wait longer than it may. It was not sent.
type WaitError struct {
	Origin string
	Wait   time.Duration
}

func (e *WaitError) Error() string {
	return fmt.Sprintf("%s has no room for a request for %s", e.Origin, e.Wait.Round(time.Millisecond))
}

// Timeout is true, so that callers of net/http see a timeout.
func (e *WaitError) Timeout() bool { return true }

// Pacer paces the requests of all goroutines that share it. [Transport] uses one; for HTTP clients
// other than net/http:
//
//	permit, err := pacer.Acquire(ctx, "https://api.example.com", "")
//	...
//	pacer.Observe(permit, response.StatusCode, response.Header)
type Pacer struct {
	maxWait time.Duration
	start   time.Time

	mu       sync.Mutex
	schedule *schedule
	// changed is closed, and replaced, when a response changed the schedule.
	changed chan struct{}
}

// NewPacer returns a pacer with which a request waits for maxWait at most; 0 is [DefaultMaxWait], and
// more than a month is a month.
func NewPacer(maxWait time.Duration) *Pacer {
	if maxWait == 0 {
		maxWait = DefaultMaxWait
	}
	return &Pacer{
		maxWait:  min(maxWait, longestWait),
		start:    time.Now(),
		schedule: newSchedule(),
		changed:  make(chan struct{}),
	}
}

// Acquire waits until a request to an origin, and a route of it if limits differ within the origin,
// may leave. It returns a [*WaitError] if that takes longer than the pacer allows, or the error of
// ctx if that ends before.
func (p *Pacer) Acquire(ctx context.Context, origin, route string) (*Permit, error) {
	deadline := p.now() + p.maxWait
	timer := time.NewTimer(p.maxWait)
	defer timer.Stop()
	turn := p.turn(origin, route)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-timer.C:
		return nil, &WaitError{origin, p.maxWait}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	for {
		permit, wait, changed := p.poll(origin, route)
		if permit != nil {
			return permit, nil
		}
		if p.now()+wait > deadline {
			return nil, &WaitError{origin, wait}
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Observe learns from a response; a request that got none needs no call. It returns how long requests
// are paused if this one was refused, otherwise 0.
func (p *Pacer) Observe(permit *Permit, status int, header http.Header) time.Duration {
	found := parseFields(header, time.Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	pause := p.schedule.observe(permit, status, found, p.now(), rand.Float64())
	close(p.changed)
	p.changed = make(chan struct{})
	return pause
}

func (p *Pacer) now() time.Duration { return time.Since(p.start) }

// turn is held by the goroutine that leaves next; the others wait in the order of their arrival.
func (p *Pacer) turn(origin, route string) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.schedule.scope(origin, route, p.now()).turn
}

func (p *Pacer) poll(origin, route string) (*Permit, time.Duration, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	permit, wait := p.schedule.poll(origin, route, p.now())
	return permit, wait, p.changed
}
