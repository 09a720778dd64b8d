package tidegate

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// DefaultTimeout is the deadline of a check.
	DefaultTimeout = 10 * time.Millisecond
	// answerMax is the largest answer that is read, in bytes.
	answerMax = 64 << 10
)

// answerFields are the fields of a node's answer that are meant for the client of a service.
var answerFields = []string{
	"RateLimit",
	"RateLimit-Policy",
	"X-RateLimit-Limit",
	"X-RateLimit-Remaining",
	"X-RateLimit-Reset",
	"X-RateLimit-Soft-Breach",
	"Retry-After",
}

// ErrInvalidCheck is returned for a check that the node does not take, such as one with an overlong
// value. Answer 400: if it were allowed, a client could send a value that evades the limit.
var ErrInvalidCheck = errors.New("the rate limiter does not take the check")

// Entry is a key with its value.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Descriptor has entries in the order of the rule.
type Descriptor []Entry

// Client asks a node whether requests may pass. It may be used by several goroutines.
//
// A node that does not answer within the deadline, or with an error, leaves the check undecided. It is
// allowed then, unless DenyUnavailable is set; [Verdict.IsDecided] is false, and [Client.Unavailable]
// counts it.
type Client struct {
	// URL of a node's HTTP listener: http://127.0.0.1:8080.
	URL string
	// Domain of the rules.
	Domain string
	// Timeout is the deadline of a check; 0 is [DefaultTimeout].
	Timeout time.Duration
	// DenyUnavailable denies undecided checks.
	DenyUnavailable bool
	// HTTP sends the checks; nil is a client that keeps connections to the node open.
	HTTP *http.Client

	unavailable atomic.Uint64
}

// nodes keeps as many connections open as checks are usually under way.
var nodes = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute}}

// Verdict is the answer to a check.
type Verdict struct {
	Allowed bool
	// IsDecided is false if no node decided.
	IsDecided bool
	// Limit is in hits per window, of the most restrictive limit; nil if no rule matched.
	Limit     *int64
	Remaining *int64
	// Reset is the time until the whole limit is available again.
	Reset *time.Duration
	// RetryAfter is nil if the check is allowed, or if waiting does not help.
	RetryAfter *time.Duration
	// Delay is how long an allowed request has to wait, from a rule with a queue.
	Delay time.Duration
	// Violated are the names of the policies that refused.
	Violated []string
	// Header has the fields for the response to a client that is limited.
	Header http.Header
}

// Unavailable is the number of checks that no node decided.
func (c *Client) Unavailable() uint64 { return c.unavailable.Load() }

// Check counts a hit on every descriptor, and says whether all of their limits allow it. The error is
// [ErrInvalidCheck] or nil.
func (c *Client) Check(ctx context.Context, descriptors ...Descriptor) (Verdict, error) {
	return c.CheckHits(ctx, 1, descriptors...)
}

// CheckHits is [Client.Check] for several hits. 0 hits only look, negative ones give back.
func (c *Client) CheckHits(ctx context.Context, hits int, descriptors ...Descriptor) (Verdict, error) {
	found, err := c.ask(ctx, hits, descriptors)
	if err == nil || errors.Is(err, ErrInvalidCheck) {
		return found, err
	}
	c.unavailable.Add(1)
	slog.Debug("tidegate: not decided", "error", err)
	if c.DenyUnavailable {
		wait := time.Second
		return Verdict{RetryAfter: &wait, Header: http.Header{"Retry-After": {"1"}}}, nil
	}
	return Verdict{Allowed: true, Header: http.Header{}}, nil
}

func (c *Client) ask(ctx context.Context, hits int, descriptors []Descriptor) (Verdict, error) {
	timeout, client := c.Timeout, c.HTTP
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	if client == nil {
		client = nodes
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := checkBody(c.Domain, hits, descriptors)
	if err != nil {
		return Verdict{}, fmt.Errorf("%w: %w", ErrInvalidCheck, err)
	}
	url := strings.TrimSuffix(c.URL, "/") + "/v1/check"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return Verdict{}, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return Verdict{}, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, answerMax))
	if err != nil {
		return Verdict{}, err
	}
	return readVerdict(response.StatusCode, response.Header, answer, hits)
}

// checkBody is RateLimitRequest of Envoy's rate limit service, in JSON.
func checkBody(domain string, hits int, descriptors []Descriptor) ([]byte, error) {
	type message struct {
		Entries        Descriptor `json:"entries"`
		HitsAddend     *int       `json:"hitsAddend,omitempty"`
		IsNegativeHits bool       `json:"isNegativeHits,omitempty"`
	}
	messages := make([]message, 0, len(descriptors))
	for _, descriptor := range descriptors {
		of := message{Entries: descriptor, IsNegativeHits: hits < 0}
		if hits != 1 {
			amount := max(hits, -hits)
			of.HitsAddend = &amount
		}
		messages = append(messages, of)
	}
	return json.Marshal(map[string]any{"domain": domain, "descriptors": messages})
}

// readVerdict finds the verdict in a node's answer. Its errors are [ErrInvalidCheck], and others if
// there is no verdict.
func readVerdict(status int, header http.Header, body []byte, hits int) (Verdict, error) {
	var message struct{ OverallCode, Error string }
	// What is not such a message has no code.
	_ = json.Unmarshal(body, &message)
	if message.OverallCode == "" && (status == 400 || status == 413) {
		return Verdict{}, fmt.Errorf("%w: status %d: %s", ErrInvalidCheck, status, message.Error)
	}
	if message.OverallCode != "OK" && message.OverallCode != "OVER_LIMIT" {
		return Verdict{}, fmt.Errorf("status %d: %s", status, message.Error)
	}
	found := Verdict{
		Allowed:   message.OverallCode == "OK",
		IsDecided: true,
		Limit:     integer(header.Get("X-RateLimit-Limit")),
		Remaining: integer(header.Get("X-RateLimit-Remaining")),
		Reset:     duration(header.Get("X-RateLimit-Reset")),
		Header:    http.Header{},
	}
	if delay, ok := number(header.Get("X-RateLimit-Delay")); ok {
		found.Delay = *seconds(delay)
	}
	if !found.Allowed {
		found.RetryAfter = duration(header.Get("Retry-After"))
		for _, item := range parseFields(header, time.Time{}).policies {
			if item.remaining < int64(max(hits, 1)) {
				found.Violated = append(found.Violated, item.name)
			}
		}
	}
	for _, name := range answerFields {
		if value := strings.Join(header.Values(name), ", "); value != "" {
			found.Header.Set(name, value)
		}
	}
	return found, nil
}

func integer(text string) *int64 {
	if found, err := strconv.ParseInt(text, 10, 64); err == nil && found >= 0 {
		return &found
	}
	return nil
}

func duration(text string) *time.Duration {
	if found := integer(text); found != nil {
		span := time.Duration(min(*found, int64(math.MaxInt64/time.Second))) * time.Second
		return &span
	}
	return nil
}
