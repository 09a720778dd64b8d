package tidegate

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestARefusedRequestIsSentAgainWithItsBody(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		if requests.Add(1) == 1 {
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(429)
			return
		}
		w.Write(body)
	}))
	defer server.Close()
	client := &http.Client{Transport: &Transport{}}
	response, err := client.Post(server.URL, "text/plain", strings.NewReader("hello"))
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	if response.StatusCode != 200 || string(body) != "hello" || requests.Load() != 2 {
		t.Errorf("%d %q after %d requests", response.StatusCode, body, requests.Load())
	}
}

func TestARequestThatWouldWaitTooLongIsNotSent(t *testing.T) {
	var requests atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Retry-After", "3600")
		w.WriteHeader(429)
	}))
	defer server.Close()
	client := &http.Client{Transport: &Transport{}}
	// The pause is longer than requests wait, so the refusal is the answer.
	response, err := client.Get(server.URL)
	if err != nil || response.StatusCode != 429 {
		t.Fatalf("%v, %v", response, err)
	}
	_, err = client.Get(server.URL)
	var tooLong *WaitError
	if !errors.As(err, &tooLong) || tooLong.Wait < time.Hour-time.Minute || requests.Load() != 1 {
		t.Errorf("%v after %d requests", err, requests.Load())
	}
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	pacer := NewPacer(0)
	permit, err := pacer.Acquire(context.Background(), "https://a.example", "")
	if err != nil {
		t.Fatal(err)
	}
	pacer.Observe(permit, 200, http.Header{"Ratelimit": {`"a";r=0;t=60`}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	for range 2 {
		// One waits for the quota, the other one for its turn.
		go func() {
			_, err := pacer.Acquire(ctx, "https://a.example", "")
			ended <- err
		}()
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

func TestTheSizeOfASchedulesMapsIsBounded(t *testing.T) {
	created, map3 := 0, recent[int, int]{sizeMax: 3}
	create := func() int { created++; return created }
	for _, key := range []int{1, 2, 3, 1, 4, 1, 5} {
		map3.get(key, create)
	}
	// 2 and 3 were not used for the longest.
	if map3.get(1, create); created != 5 || len(map3.entries) != 3 {
		t.Errorf("%d created, %d kept", created, len(map3.entries))
	}
}
