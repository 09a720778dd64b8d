package tidegate

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	workers = 10
	// patience is longer than the default: a busy machine must not make a test fail.
	patience = 2 * time.Second
	// unreachable: nothing listens on this port.
	unreachable = "http://127.0.0.1:9"
)

// node is the address of a real node.
func node(t *testing.T) string {
	t.Helper()
	url := os.Getenv("NODE_URL")
	if url == "" {
		t.Skip("no node: scripts/check-clients starts one")
	}
	return url
}

func name() string {
	bytes := make([]byte, 8)
	rand.Read(bytes)
	return fmt.Sprintf("%x", bytes)
}

// === asking ===

func TestACheckCountsAndIsRefusedOverTheLimit(t *testing.T) {
	client, ctx := &Client{URL: node(t), Domain: "clients", Timeout: patience}, context.Background()
	few := Descriptor{{"few", name()}}
	check := func(hits int) Verdict {
		found, err := client.CheckHits(ctx, hits, few)
		if err != nil || !found.IsDecided {
			t.Fatalf("%+v, %v", found, err)
		}
		return found
	}
	if found := check(0); *found.Remaining != 2 {
		t.Errorf("a look: %+v", found)
	}
	if found := check(1); !found.Allowed || *found.Limit != 2 || *found.Remaining != 1 {
		t.Errorf("the first: %+v", found)
	}
	if found := check(-1); *found.Remaining != 2 {
		t.Errorf("given back: %+v", found)
	}
	if found := check(2); !found.Allowed {
		t.Errorf("both: %+v", found)
	}
	found := check(1)
	if found.Allowed || found.RetryAfter == nil || found.Violated[0] != "few" ||
		!strings.HasPrefix(found.Header.Get("RateLimit"), `"few";r=0`) {
		t.Errorf("over the limit: %+v", found)
	}
}

func TestAQueueSaysHowLongToWait(t *testing.T) {
	client := &Client{URL: node(t), Domain: "clients", Timeout: patience}
	queue, longest := Descriptor{{"queue", name()}}, time.Duration(0)
	for range 5 {
		found, _ := client.Check(context.Background(), queue)
		longest = max(longest, found.Delay)
	}
	if longest == 0 {
		t.Error("no delay")
	}
}

func TestACheckThatTheNodeDoesNotTakeIsAnError(t *testing.T) {
	client := &Client{URL: node(t), Domain: "clients", Timeout: patience}
	_, err := client.Check(context.Background(), Descriptor{{"few", strings.Repeat("x", 5000)}})
	if !errors.Is(err, ErrInvalidCheck) || client.Unavailable() != 0 {
		t.Errorf("%v, %d", err, client.Unavailable())
	}
}

func TestWithoutANodeChecksAreCountedAndAllowedOrDenied(t *testing.T) {
	for _, deny := range []bool{false, true} {
		client := &Client{URL: unreachable, Domain: "clients", DenyUnavailable: deny}
		found, err := client.Check(context.Background(), Descriptor{{"few", "x"}})
		if err != nil || found.Allowed == deny || found.IsDecided || client.Unavailable() != 1 {
			t.Errorf("deny %v: %+v, %v", deny, found, err)
		}
	}
}

func TestACheckEndsAtItsDeadline(t *testing.T) {
	// Accepts connections and never answers.
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client := &Client{URL: "http://" + silent.Addr().String(), Domain: "clients"}
	begun := time.Now()
	found, err := client.Check(context.Background(), Descriptor{{"few", "x"}})
	if err != nil || found.IsDecided || time.Since(begun) > 5*time.Second {
		t.Errorf("%+v, %v, after %s", found, err, time.Since(begun))
	}
}

// serve passes a request to a handler that is limited.
func serve(limited Middleware, method string, header http.Header) *httptest.ResponseRecorder {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	recorder, request := httptest.NewRecorder(), httptest.NewRequest(method, "/", nil)
	request.Header = header
	limited.Wrap(hello).ServeHTTP(recorder, request)
	return recorder
}

func TestTheMiddlewareLimitsClientsByTheirAddress(t *testing.T) {
	client := &Client{URL: node(t), Domain: "clients", Timeout: patience}
	limited := Middleware{Client: client, TrustedHops: 1}
	id := name()
	of := func(address string) http.Header {
		return http.Header{"X-Forwarded-For": {"1.1.1.1, " + address}}
	}
	address := fmt.Sprintf("2001:db8:%s:%s::1", id[:4], id[4:8])
	var found *httptest.ResponseRecorder
	for _, status := range []int{200, 200, 429} {
		found = serve(limited, "GET", of(address))
		if found.Code != status || !strings.HasPrefix(found.Header().Get("RateLimit"), `"addresses";r=`) {
			t.Errorf("%d, %v", found.Code, found.Header())
		}
	}
	var problem Problem
	if err := json.Unmarshal(found.Body.Bytes(), &problem); err != nil {
		t.Error(err)
	}
	if found.Header().Get("Content-Type") != "application/problem+json" || found.Header().Get("Retry-After") == "" ||
		found.Header().Get("RateLimit-Policy") != `"addresses";q=2;w=86400` || problem.ViolatedPolicies[0] != "addresses" {
		t.Errorf("%+v, %v", problem, found.Header())
	}
	if other := serve(limited, "GET", of("2001:db8:ffff:"+id[:4]+"::1")); other.Code != 200 {
		t.Errorf("another client: %d", other.Code)
	}
	preflight := of(address)
	preflight.Set("Access-Control-Request-Method", "POST")
	if found := serve(limited, "OPTIONS", preflight); found.Code != 200 {
		t.Errorf("preflight: %d", found.Code)
	}
}

func TestTheMiddlewareDoesNotHoldARequestForLongerThanItMay(t *testing.T) {
	client := &Client{URL: node(t), Domain: "clients", Timeout: patience}
	queue := Descriptor{{"slow_queue", name()}}
	limited := Middleware{Client: client, Descriptors: func(*http.Request, string) []Descriptor {
		return []Descriptor{queue}
	}}
	remaining := func() int64 {
		found, err := client.CheckHits(context.Background(), 0, queue)
		if err != nil || found.Remaining == nil {
			t.Fatalf("%+v, %v", found, err)
		}
		return *found.Remaining
	}
	first, before := serve(limited, "GET", nil), remaining()
	second, after := serve(limited, "GET", nil), remaining()
	if first.Code != 200 || second.Code != 429 || before != after {
		t.Errorf("%d, %d; %d and %d remaining", first.Code, second.Code, before, after)
	}
}

func TestTheMiddlewareLetsRequestsPassWithoutANode(t *testing.T) {
	for deny, status := range map[bool]int{false: 200, true: 503} {
		client := &Client{URL: unreachable, Domain: "clients", DenyUnavailable: deny}
		found := serve(Middleware{Client: client}, "GET", http.Header{})
		if found.Code != status || client.Unavailable() != 1 {
			t.Errorf("deny %v: %d", deny, found.Code)
		}
	}
}

func TestAClientThatIsGoneStillPays(t *testing.T) {
	client := &Client{URL: node(t), Domain: "clients", Timeout: patience}
	few := name()
	limited := Middleware{Client: client, Descriptors: func(*http.Request, string) []Descriptor {
		return []Descriptor{{{"few", few}}}
	}}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	handler := limited.Wrap(http.NotFoundHandler())
	for _, status := range []int{404, 404, 429} {
		recorder, request := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		handler.ServeHTTP(recorder, request.WithContext(gone))
		if recorder.Code != status {
			t.Errorf("%d, not %d", recorder.Code, status)
		}
	}
}

// === pacing ===

func TestTenWorkersThatShareAClientUseALimitAndAreNotRefused(t *testing.T) {
	header, length, windows := "X-Six-Seconds", 6*time.Second, 2
	if os.Getenv("PACED_MINUTE") != "" {
		header, length, windows = "X-Minute", time.Minute, 1
	}
	url, key := node(t)+"/auth/", name()
	// Retries would hide refusals.
	client := &http.Client{Transport: &Transport{Retries: -1}}
	time.Sleep(time.Until(time.Now().Truncate(length).Add(length)))
	end := time.Now().Add(time.Duration(windows) * length)
	var mu sync.Mutex
	statuses := map[int]int{}
	var group sync.WaitGroup
	for range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			for time.Now().Before(end) {
				request, _ := http.NewRequest("GET", url, nil)
				request.Header.Set(header, key)
				response, err := client.Do(request)
				if err != nil {
					t.Error(err)
					return
				}
				response.Body.Close()
				if time.Now().Before(end) {
					mu.Lock()
					statuses[response.StatusCode]++
					mu.Unlock()
				}
			}
		}()
	}
	group.Wait()
	useful, refused := statuses[200], statuses[429]
	fmt.Printf("go, ten goroutines: %d useful, %d refused in %d window(s) of 100\n", useful, refused, windows)
	if useful < 98*windows || refused > 2 || len(statuses) > 2 {
		t.Errorf("%v", statuses)
	}
}
