// Asks nodes what Gubernator was asked, with generated stubs, and compares the answers.
//
//	gubernator_client CASES GRPC,GRPC,...
//
// CASES is tests/golden/gubernator.json, of which the cases of class compat are asked, each step at
// the next node. Times of cases that sleep are five times as long, for a busy machine.
// scripts/check-gubernator-go makes the stubs and runs it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	pb "tidegate.example/client/pb"
)

const slower = 5

type step struct {
	Hits, Limit, Duration, Burst int64
	Behavior                     int32
	Algorithm                    string
	Sleep                        int64  `json:"sleep_before_ms"`
	CreatedAt                    *int64 `json:"created_at_offset_ms"`
	Expect                       struct {
		Status           string
		Remaining, Limit int64
	}
}

type golden struct {
	Cases []struct {
		ID, Klass string
		Steps     []step
	}
}

func main() {
	text, err := os.ReadFile(os.Args[1])
	check(err)
	var cases golden
	check(json.Unmarshal(text, &cases))
	var nodes []pb.V1Client
	for _, addr := range strings.Split(os.Args[2], ",") {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		check(err)
		nodes = append(nodes, pb.NewV1Client(conn))
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	health, err := nodes[0].HealthCheck(ctx, &pb.HealthCheckReq{})
	check(err)
	if health.Status != "healthy" || int(health.PeerCount) != len(nodes) {
		fail("health: %v", health)
	}
	many := make([]*pb.RateLimitReq, 1001)
	for i := range many {
		many[i] = &pb.RateLimitReq{Name: "go", UniqueKey: "many", Limit: 10, Duration: 1000}
	}
	_, err = nodes[0].GetRateLimits(ctx, &pb.GetRateLimitsReq{Requests: many})
	if status.Code(err) != codes.OutOfRange {
		fail("1,001 requests: %v", err)
	}
	var group sync.WaitGroup
	asked := 0
	for _, one := range cases.Cases {
		if one.Klass != "compat" {
			continue
		}
		asked++
		group.Add(1)
		go func() {
			defer group.Done()
			run(ctx, nodes, one.ID, one.Steps)
		}()
	}
	group.Wait()
	fmt.Printf("%d cases with Go's gRPC %s at %d nodes\n", asked, grpc.Version, len(nodes))
}

func run(ctx context.Context, nodes []pb.V1Client, id string, steps []step) {
	times := int64(1)
	for _, step := range steps {
		if step.Sleep > 0 {
			times = slower
		}
	}
	begun := time.Now().UnixMilli()
	for number, step := range steps {
		time.Sleep(time.Duration(step.Sleep*times) * time.Millisecond)
		request := &pb.RateLimitReq{
			Name:      "go",
			UniqueKey: id,
			Hits:      step.Hits,
			Limit:     step.Limit,
			Duration:  step.Duration * times,
			Algorithm: pb.Algorithm(pb.Algorithm_value[step.Algorithm]),
			Behavior:  pb.Behavior(step.Behavior),
			Burst:     step.Burst,
		}
		if step.CreatedAt != nil {
			at := begun + *step.CreatedAt
			request.CreatedAt = &at
		}
		message := &pb.GetRateLimitsReq{Requests: []*pb.RateLimitReq{request}}
		answer, err := nodes[number%len(nodes)].GetRateLimits(ctx, message)
		check(err)
		got, want := answer.Responses[0], step.Expect
		if got.Status.String() != want.Status || got.Remaining != want.Remaining || got.Limit != want.Limit || got.Error != "" {
			fail("%s step %d: %v is not %v", id, number, got, want)
		}
	}
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func fail(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}
