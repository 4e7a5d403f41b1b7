package app_test

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// caller calls the gRPC rate limit service of a plane.
type caller struct {
	t      *testing.T
	conn   *grpc.ClientConn
	client rlspb.RateLimitServiceClient
}

func (p *plane) caller() *caller {
	p.t.Helper()
	conn, err := grpc.NewClient(p.app.AddrOf("calls").String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	return &caller{p.t, conn, rlspb.NewRateLimitServiceClient(conn)}
}

// call asks for one hit of a user.
func (c *caller) call(user string) (*rlspb.RateLimitResponse, error) {
	ctx := metadata.AppendToOutgoingContext(c.t.Context(), "authorization", "Bearer "+secret)
	return c.client.ShouldRateLimit(ctx, &rlspb.RateLimitRequest{
		Domain: "edge", Descriptors: []*ratelimitpb.RateLimitDescriptor{{
			Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "user", Value: user}},
		}},
	})
}

// until calls until an answer has a code.
func (c *caller) until(user string, want rlspb.RateLimitResponse_Code) {
	c.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		out, err := c.call(user)
		if err == nil && out.OverallCode == want {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("user %s: %v, %v", user, out, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

const callPolicies = `{"version": "weir/v1", "policies": [
	{"name": "users", "match": {"domain": "edge"}, "partition": ["descriptor:user"], "limit": {"quota": 2, "window": "1h"}, "mode": "strict"}]}`

// A policy set is in force for calls as soon as it is for Envoys, refusals are listed and counted,
// and a restart knows all at once.
func TestCalls(t *testing.T) {
	s := bare(t)
	s.Listeners.RLS = "127.0.0.1:0"
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	p.until("/readyz", 200)
	c := p.caller()
	if _, err := c.client.ShouldRateLimit(t.Context(),
		&rlspb.RateLimitRequest{Domain: "edge"}); status.Code(err) != codes.Unauthenticated {
		t.Errorf("without a token: %v", err)
	}
	if out, err := c.call("a"); err != nil || out.OverallCode != rlspb.RateLimitResponse_OK {
		t.Errorf("before the first policy set: %v, %v", out, err)
	}
	if a := p.do("PUT", "/v1/policyset", []byte(callPolicies), "If-Match", "*", "Content-Type",
		"application/json"); a.status != 200 && a.status != 201 {
		t.Fatalf("put: %d %s", a.status, a.body)
	}
	c.until("a", rlspb.RateLimitResponse_OVER_LIMIT)
	for end := time.Now().Add(10 * time.Second); ; {
		if a := p.do("GET", "/v1/decisions", nil); strings.Contains(string(a.body), `"node":"rls"`) {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no refusal is listed")
		}
		time.Sleep(20 * time.Millisecond)
	}
	text := string(p.do("GET", "/metrics", nil).body)
	for _, want := range []string{
		`weir_rls_decisions_total{outcome="allowed",policy="users"} 2`, `weir_rls_decided_total{source="central"} `,
		`weir_rls_calls_total{outcome="refused"} `, `weir_refused_total{policy="users",tier="all"} `,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	p.stop()
	p = startWith(t, s, slog.New(slog.DiscardHandler))
	if out, err := p.caller().call("a"); err != nil || out.OverallCode != rlspb.RateLimitResponse_OVER_LIMIT {
		t.Errorf("the first call after a restart: %v, %v", out, err)
	}
}

// An order ends for calls when it does for Envoys.
func TestOrdersForCalls(t *testing.T) {
	s := bare(t)
	s.Listeners.RLS, s.Listeners.RLSOpen = "127.0.0.1:0", true
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	p.until("/readyz", 200)
	p.do("PUT", "/v1/policyset", []byte(callPolicies), "If-Match", "*", "Content-Type", "application/json")
	c := p.caller()
	c.until("a", rlspb.RateLimitResponse_OVER_LIMIT)
	order := `{"orders": [{"state": "off", "reason": "test", "expires_at": "` +
		time.Now().Add(1500*time.Millisecond).UTC().Format(time.RFC3339Nano) + `"}]}`
	if a := p.do("PUT", "/v1/enforcement", []byte(order), "If-Match", "*", "Content-Type",
		"application/json"); a.status >= 300 {
		t.Fatalf("order: %d %s", a.status, a.body)
	}
	c.until("a", rlspb.RateLimitResponse_OK)
	c.until("a", rlspb.RateLimitResponse_OVER_LIMIT)
}

// While the control plane drains, health says that it is not to be called, and calls are answered.
func TestCallsWhileDraining(t *testing.T) {
	s := bare(t)
	s.Listeners.RLS, s.Drain = "127.0.0.1:0", time.Minute
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	p.until("/readyz", 200)
	c := p.caller()
	health := func() healthpb.HealthCheckResponse_ServingStatus {
		answer, err := healthpb.NewHealthClient(c.conn).Check(context.Background(),
			&healthpb.HealthCheckRequest{Service: "envoy.service.ratelimit.v3.RateLimitService"})
		if err != nil {
			t.Fatal(err)
		}
		return answer.Status
	}
	if got := health(); got != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %s", got)
	}
	p.leave()
	for end := time.Now().Add(10 * time.Second); health() != healthpb.HealthCheckResponse_NOT_SERVING; {
		if time.Now().After(end) {
			t.Fatal("health does not say that the control plane leaves")
		}
		time.Sleep(5 * time.Millisecond)
	}
	if _, err := c.call("a"); err != nil {
		t.Errorf("a call while it drains: %v", err)
	}
	p.hurry()
}
