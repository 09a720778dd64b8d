package tidegate

import (
	"math"
	"time"
)

const (
	// floor is the shortest wait at an empty quota, and the time between requests while nothing is
	// known.
	floor = time.Second
	// backoffMax is the most random time on top of the least wait after a refusal.
	backoffMax = 60 * time.Second
	// reserve is the part of a quota that is spread over what is left of the window in any case.
	reserve = 0.1
	// scopesMax and policiesMax: beyond them the one that was not used for the longest is forgotten.
	scopesMax, policiesMax = 1024, 1024
)

// never is later than any time of a schedule.
const never = time.Duration(math.MaxInt64)

// backoff is how long to wait after so many refusals in a row; random is in [0, 1).
func backoff(refusals int, least time.Duration, random float64) time.Duration {
	most := min(backoffMax, time.Second<<min(refusals-1, 6))
	return max(least, floor) + time.Duration(random*float64(most))
}

// schedule says when a request may leave: pure, without a clock, a lock or a source of randomness.
// now is the time since a fixed moment, by a monotonic clock.
//
// A policy with r requests left for another t lets them leave t / r apart. Each request that leaves
// takes one of r, so all that share the schedule share the quota. A response says what the server
// counted; requests that left after the one it answers are subtracted, and a response that was
// overtaken by a newer one is ignored.
//
// For example, with "a";r=10;t=20 at second 0, requests leave at 2, 3.8, 5.6, ... If none asks
// until second 11, eight remain for nine seconds, and the next ones are 1.125 s apart.
//
//   - Refills. A sliding window or a bucket gives back before t is over. So requests are no further
//     apart than w / q while a tenth of q remains.
//   - End of a window. t is rounded up, so each response is an upper bound of the end, and the lowest
//     one counts. With a known quota q and window w the next window is assumed to follow, with all of
//     q, its first request at a random point of its first interval.
//   - Nothing left. With r=0 nothing leaves before t, which counts as a second at least.
//   - Refused (429, or 503 with Retry-After): nothing of the scope leaves for
//     max(Retry-After or t, 1 s) and a random part of 1, 2, 4, ... 60 s more (full jitter).
//   - Nothing known. One request a second, until the first response. Without any field in it requests
//     are not paced.
//
// A scope is an origin and a route of it; the policies in the newest response of a scope apply to
// it. Policies are shared by all routes of an origin.
type schedule struct {
	scopes   recent[scopeKey, *scope]
	policies recent[sharedKey, *policy]
}

type scopeKey struct{ origin, route string }

type sharedKey struct {
	origin string
	policyKey
}

// Permit is the permission to send one request; [Pacer.Observe] takes it with the response.
type Permit struct {
	origin string
	scope  *scope
	number int64
	taken  map[*policy]int64
}

func newSchedule() *schedule {
	return &schedule{
		scopes:   recent[scopeKey, *scope]{sizeMax: scopesMax},
		policies: recent[sharedKey, *policy]{sizeMax: policiesMax},
	}
}

func (s *schedule) scope(origin, route string, now time.Duration) *scope {
	return s.scopes.get(scopeKey{origin, route}, func() *scope {
		return &scope{
			policies:  []*policy{newPolicy(now)},
			isUnknown: true,
			paused:    now,
			turn:      make(chan struct{}, 1),
		}
	})
}

// poll returns a permit for a request, or how long to wait before asking again.
func (s *schedule) poll(origin, route string, now time.Duration) (*Permit, time.Duration) {
	scope := s.scope(origin, route, now)
	wait := scope.paused - now
	for _, policy := range scope.policies {
		wait = max(wait, policy.wait(now))
	}
	if wait > 0 {
		return nil, wait
	}
	scope.granted++
	permit := &Permit{origin, scope, scope.granted, make(map[*policy]int64, len(scope.policies))}
	for _, policy := range scope.policies {
		permit.taken[policy] = policy.take(now)
	}
	return permit, 0
}

// observe learns from the response to a permitted request; random is in [0, 1). It returns how long
// the scope is paused because the request was refused, otherwise 0.
func (s *schedule) observe(permit *Permit, status int, found fields, now time.Duration, random float64) time.Duration {
	scope := permit.scope
	refused := status == 429 || (status == 503 && found.retryAfter != nil)
	switch {
	case len(found.policies) > 0:
		var instead *time.Duration
		if refused {
			instead = found.retryAfter
		}
		scope.policies = make([]*policy, 0, len(found.policies))
		for _, item := range found.policies {
			key := sharedKey{permit.origin, policyKey{item.name, item.partition}}
			policy := s.policies.get(key, func() *policy { return newPolicy(now) })
			policy.observe(item, permit.taken[policy], instead, now, random)
			scope.policies = append(scope.policies, policy)
		}
	case refused && len(scope.policies) == 0:
		// The server names no policy: after the pause one request finds out.
		scope.policies = []*policy{newPolicy(now)}
	case !refused && scope.isUnknown:
		scope.policies = nil
	}
	scope.isUnknown = false

	isNewer := permit.number > scope.grantedAtRefusal
	if !refused {
		if isNewer {
			scope.refusals = 0
		}
		return 0
	}
	if isNewer {
		// Requests that were under way together are refused together, and count once.
		scope.refusals++
		scope.grantedAtRefusal = scope.granted
	}
	var least time.Duration
	if found.retryAfter != nil {
		least = *found.retryAfter
	} else {
		for _, item := range found.policies {
			if item.remaining == 0 && item.reset != nil {
				least = max(least, *item.reset)
			}
		}
	}
	scope.paused = max(scope.paused, now+backoff(scope.refusals, least, random))
	return scope.paused - now
}

type scope struct {
	policies         []*policy
	isUnknown        bool
	paused           time.Duration
	granted          int64
	refusals         int
	grantedAtRefusal int64
	// turn is for the pacer: who holds it is the next one to leave.
	turn chan struct{}
}

// === policies ===

// policy is a quota whose remaining requests may leave until reset. As long as limit or window are
// not known, each window is one request a second.
type policy struct {
	limit     int64
	window    time.Duration
	reset     time.Duration
	remaining int64
	next      time.Duration
	phase     float64
	granted   int64
	newest    int64
}

func newPolicy(now time.Duration) *policy {
	return &policy{reset: now, next: never}
}

func (p *policy) wait(now time.Duration) time.Duration {
	if now >= p.reset {
		p.roll(now)
	}
	if p.remaining == 0 {
		return p.reset - now
	}
	return p.next - now
}

func (p *policy) take(now time.Duration) int64 {
	p.next = now + p.interval(now)
	p.remaining--
	p.granted++
	return p.granted
}

func (p *policy) interval(now time.Duration) time.Duration {
	spread := (p.reset - now) / time.Duration(max(p.remaining, 1))
	if p.limit > 0 && p.window > 0 && float64(p.remaining) >= reserve*float64(p.limit) {
		return min(spread, p.window/time.Duration(p.limit))
	}
	return spread
}

// observe: number is that of the request among those which took from this policy, 0 if it did not;
// instead is the time that takes precedence over t.
func (p *policy) observe(item item, number int64, instead *time.Duration, now time.Duration, random float64) {
	if item.limit != nil {
		p.limit = *item.limit
	}
	if item.window != nil {
		p.window = *item.window
	}
	p.phase = random
	remaining := item.remaining
	if number > 0 {
		if number <= p.newest {
			return
		}
		p.newest = number
		remaining -= p.granted - number
	} else if p.granted > 0 && now < p.reset {
		// Found by another route: what left since then is not known.
		remaining = min(remaining, p.remaining)
	}

	left := p.window
	if item.reset != nil {
		left = *item.reset
	}
	if item.remaining == 0 && instead != nil {
		left = *instead
	}
	end := now + max(left, floor)
	if item.remaining == 0 && left == 0 {
		end += time.Duration(random * float64(floor))
	}
	if item.remaining > 0 && now < p.reset && end <= p.reset+floor {
		end = min(end, p.reset)
	}
	p.reset = end
	p.remaining = max(remaining, 0)
	p.next = min(p.next, now+p.interval(now))
}

// roll begins the window that now is in.
func (p *policy) roll(now time.Duration) {
	if p.limit == 0 || p.window == 0 {
		p.remaining, p.next, p.reset = 1, now, now+floor
		return
	}
	start := p.reset + (now-p.reset)/p.window*p.window
	p.remaining, p.reset = p.limit, start+p.window
	p.next = start + time.Duration(p.phase*float64(p.window)/float64(p.limit))
	// Responses to earlier requests are about the last window.
	p.newest = p.granted
}

// === a bounded map ===

// recent is a map of bounded size, which forgets what was not used for the longest.
type recent[K comparable, V any] struct {
	sizeMax int
	uses    int64
	entries map[K]*used[V]
}

type used[V any] struct {
	value V
	at    int64
}

func (r *recent[K, V]) get(key K, create func() V) V {
	r.uses++
	if entry, ok := r.entries[key]; ok {
		entry.at = r.uses
		return entry.value
	}
	if r.entries == nil {
		r.entries = make(map[K]*used[V])
	}
	if len(r.entries) == r.sizeMax {
		// A scan, and only for each new key of a full map.
		var oldest K
		at := int64(math.MaxInt64)
		for key, entry := range r.entries {
			if entry.at < at {
				oldest, at = key, entry.at
			}
		}
		delete(r.entries, oldest)
	}
	entry := &used[V]{create(), r.uses}
	r.entries[key] = entry
	return entry.value
}
