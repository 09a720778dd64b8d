package tidegate

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"
	"time"
)

// cases reads the test vectors that the clients of all languages share.
func cases[T any](t *testing.T, name string) []T {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "vectors", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Cases []T }
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) == 0 {
		t.Fatalf("%s has no cases", name)
	}
	return file.Cases
}

func headerOf(pairs [][2]string) http.Header {
	header := http.Header{}
	for _, pair := range pairs {
		header.Add(pair[0], pair[1])
	}
	return header
}

func inSeconds(span *time.Duration) *float64 {
	if span == nil {
		return nil
	}
	found := span.Seconds()
	return &found
}

func span(seconds float64) time.Duration {
	return time.Duration(seconds * float64(time.Second))
}

func isClose(a, b time.Duration) bool {
	return (a - b).Abs() < time.Microsecond
}

type itemVector struct {
	Name, Partition string
	Limit           *int64
	Window          *float64
	Remaining       int64
	Reset           *float64
}

func TestFields(t *testing.T) {
	for _, vector := range cases[struct {
		Name       string
		Wall       float64
		Headers    [][2]string
		Policies   []itemVector
		Names      []string
		RetryAfter *float64 `json:"retry_after"`
	}](t, "fields") {
		t.Run(vector.Name, func(t *testing.T) {
			found := parseFields(headerOf(vector.Headers), time.Unix(int64(vector.Wall), 0))
			if got := inSeconds(found.retryAfter); !reflect.DeepEqual(got, vector.RetryAfter) {
				t.Errorf("Retry-After: %v", found.retryAfter)
			}
			policies, names := []itemVector{}, []string{}
			for _, item := range found.policies {
				policies = append(policies, itemVector{
					item.name, item.partition, item.limit, inSeconds(item.window), item.remaining, inSeconds(item.reset),
				})
				names = append(names, item.name)
			}
			if vector.Names != nil {
				if !reflect.DeepEqual(names, vector.Names) {
					t.Errorf("names: %q", names)
				}
			} else if !reflect.DeepEqual(policies, vector.Policies) {
				t.Errorf("got %+v", policies)
			}
		})
	}
}

func TestBackoff(t *testing.T) {
	for number, vector := range cases[struct {
		Refusals            int
		Least, Random, Wait float64
	}](t, "backoff") {
		t.Run(strconv.Itoa(number), func(t *testing.T) {
			found := backoff(vector.Refusals, span(vector.Least), vector.Random)
			if !isClose(found, span(vector.Wait)) {
				t.Errorf("%+v: %s", vector, found)
			}
		})
	}
}

func TestPacing(t *testing.T) {
	for _, vector := range cases[struct {
		Name  string
		Steps []struct {
			At   float64
			Poll *struct {
				Origin, Route string
				Wait          float64
			}
			Observe *struct {
				Permit, Status int
				Random, Pause  float64
				Headers        [][2]string
			}
		}
	}](t, "pacing") {
		t.Run(vector.Name, func(t *testing.T) {
			schedule, permits := newSchedule(), []*Permit{}
			for number, step := range vector.Steps {
				now := span(step.At)
				if poll := step.Poll; poll != nil {
					origin := poll.Origin
					if origin == "" {
						origin = "https://a.example"
					}
					permit, wait := schedule.poll(origin, poll.Route, now)
					if permit != nil {
						permits = append(permits, permit)
					}
					if !isClose(wait, span(poll.Wait)) {
						t.Fatalf("step %d: %+v: waits %s", number, *poll, wait)
					}
				} else {
					of := step.Observe
					found := parseFields(headerOf(of.Headers), time.Unix(0, 0))
					pause := schedule.observe(permits[of.Permit-1], of.Status, found, now, of.Random)
					if !isClose(pause, span(of.Pause)) {
						t.Fatalf("step %d: %+v: pauses %s", number, *of, pause)
					}
				}
			}
		})
	}
}

func TestClientAddress(t *testing.T) {
	for number, vector := range cases[struct {
		Peer, Client string
		TrustedHops  int      `json:"trusted_hops"`
		ForwardedFor []string `json:"forwarded_for"`
	}](t, "client_address") {
		t.Run(strconv.Itoa(number), func(t *testing.T) {
			found := ClientAddress(vector.Peer, vector.ForwardedFor, vector.TrustedHops)
			if found != vector.Client {
				t.Errorf("%+v: %s", vector, found)
			}
		})
	}
	if found := ClientAddress("192.0.2.1:4711", nil, 0); found != "192.0.2.1" {
		t.Errorf("a peer with a port: %s", found)
	}
}

func TestVerdict(t *testing.T) {
	type verdictVector struct {
		Allowed    bool
		IsDecided  bool `json:"is_decided"`
		Limit      *int64
		Remaining  *int64
		Reset      *float64
		RetryAfter *float64 `json:"retry_after"`
		Delay      float64
		Violated   []string
		Headers    map[string]string
	}
	for _, vector := range cases[struct {
		Name      string
		Status    int
		Hits      *int
		Headers   [][2]string
		Body      string
		Verdict   *verdictVector
		Problem   *Problem
		IsInvalid bool `json:"is_invalid"`
	}](t, "verdict") {
		t.Run(vector.Name, func(t *testing.T) {
			hits := 1
			if vector.Hits != nil {
				hits = *vector.Hits
			}
			found, err := readVerdict(vector.Status, headerOf(vector.Headers), []byte(vector.Body), hits)
			if errors.Is(err, ErrInvalidCheck) != vector.IsInvalid {
				t.Fatalf("error: %v", err)
			}
			if vector.Verdict == nil {
				if err == nil {
					t.Fatalf("got %+v", found)
				}
				return
			}
			headers := map[string]string{}
			for name := range vector.Verdict.Headers {
				headers[name] = found.Header.Get(name)
			}
			got := verdictVector{
				found.Allowed, found.IsDecided, found.Limit, found.Remaining, inSeconds(found.Reset),
				inSeconds(found.RetryAfter), found.Delay.Seconds(), append([]string{}, found.Violated...), headers,
			}
			if err != nil || !reflect.DeepEqual(got, *vector.Verdict) || len(found.Header) != len(headers) {
				t.Errorf("got %+v, %v", got, err)
			}
			if vector.Problem != nil && !reflect.DeepEqual(found.Problem(), *vector.Problem) {
				t.Errorf("problem: %+v", found.Problem())
			}
		})
	}
}

func FuzzFields(f *testing.F) {
	f.Add(`"a";q=100;w=60`, `"a";r=50;t=30`, "limit=100, remaining=50, reset=30", "Fri, 15 Jan 2027 08:00:30 GMT")
	f.Add("10, 10;w=1", "99999999999999999999", "1800000000500", "-1")
	f.Fuzz(func(t *testing.T, policy, limit, number, date string) {
		schedule, now := newSchedule(), time.Duration(0)
		for _, header := range []http.Header{
			headerOf([][2]string{{"RateLimit-Policy", policy}, {"RateLimit", limit}, {"Retry-After", date}}),
			headerOf([][2]string{{"RateLimit", number}, {"Date", date}}),
			headerOf([][2]string{{"X-RateLimit-Limit", policy}, {"X-RateLimit-Remaining", limit}, {"X-RateLimit-Reset", number}}),
		} {
			permit, wait := schedule.poll("https://a.example", "", now)
			if permit == nil {
				if wait <= 0 || wait > timeMax+floor+backoffMax {
					t.Fatalf("waits %s", wait)
				}
				now += 2 * timeMax
				if permit, wait = schedule.poll("https://a.example", "", now); permit == nil {
					t.Fatalf("waits %s after two days", wait)
				}
			}
			schedule.observe(permit, 429, parseFields(header, time.Unix(1.8e9, 0)), now, 0.5)
			now += time.Minute
		}
	})
}
