package app_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	quotapb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// filter is a rate_limit_quota filter that reports by hand.
type filter struct {
	t      *testing.T
	stream quotapb.RateLimitQuotaService_StreamRateLimitQuotasClient
}

func (p *plane) filter() *filter {
	p.t.Helper()
	conn, err := grpc.NewClient(p.app.AddrOf("quotas").String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() })
	stream, err := quotapb.NewRateLimitQuotaServiceClient(conn).StreamRateLimitQuotas(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	return &filter{p.t, stream}
}

func (f *filter) report(admitted uint64, bucket ...string) {
	f.t.Helper()
	id := &quotapb.BucketId{Bucket: map[string]string{}}
	for i := 0; i < len(bucket); i += 2 {
		id.Bucket[bucket[i]] = bucket[i+1]
	}
	err := f.stream.Send(&quotapb.RateLimitQuotaUsageReports{
		Domain: "edge", BucketQuotaUsages: []*quotapb.RateLimitQuotaUsageReports_BucketQuotaUsage{
			{BucketId: id, NumRequestsAllowed: admitted},
		},
	})
	if err != nil {
		f.t.Fatal(err)
	}
}

// until receives actions until one of a user is wanted.
func (f *filter) until(user, want string) *typepb.TokenBucket {
	f.t.Helper()
	for {
		response, err := f.stream.Recv()
		if err != nil {
			f.t.Fatalf("waiting for %s: %v", want, err)
		}
		for _, a := range response.BucketAction {
			strategy := a.GetQuotaAssignmentAction().GetRateLimitStrategy()
			got := strategy.GetBlanketRule().String()
			if strategy.GetTokenBucket() != nil {
				got = "tokens"
			}
			if a.BucketId.Bucket["user"] == user && got == want {
				return strategy.GetTokenBucket()
			}
		}
	}
}

const quotaPolicies = `{"version": "weir/v1", "policies": [
	{"name": "users", "match": {"domain": "edge"}, "partition": ["descriptor:user"], "limit": {"quota": 60, "window": "1m"}},
	{"name": "other", "match": {"domain": "elsewhere"}, "partition": ["descriptor:user"], "limit": {"quota": 1, "window": "1h"}},
	{"name": "queues", "match": {"descriptors": [{"name": "queue", "present": true}]}, "partition": [],
	 "limit": {"quota": 60, "window": "1m"}, "algorithm": "sliding_window_counter", "mode": "strict"}]}`

// Filters are assigned tokens according to the policies of their buckets, and orders reach them.
func TestQuotas(t *testing.T) {
	s := bare(t)
	s.Listeners.RLQS, s.Listeners.RLQSOpen = "127.0.0.1:0", true
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	p.until("/readyz/store", 200)
	if a := p.do("PUT", "/v1/policyset", []byte(quotaPolicies), "If-Match", "*", "Content-Type",
		"application/json"); a.status >= 300 {
		t.Fatalf("put: %d %s", a.status, a.body)
	}
	f := p.filter()
	f.report(1, "user", "a")
	tokens := f.until("a", "tokens")
	if tokens.MaxTokens < 1 || tokens.MaxTokens > 60 || tokens.FillInterval.Nanos != 0 ||
		tokens.FillInterval.Seconds < 100 {
		t.Errorf("assigned %v", tokens)
	}
	// A bucket that cannot be assigned is left alone.
	f.report(1, "queue", "q")
	f.report(1)
	// A bucket with one more entry is a different bucket. No policy is for it, so it is not
	// limited.
	f.report(1, "user", "b", "route", "x")
	f.until("b", "ALLOW_ALL")
	order := `{"orders": [{"state": "off", "reason": "test"}]}`
	if a := p.do("PUT", "/v1/enforcement", []byte(order), "If-Match", "*", "Content-Type",
		"application/json"); a.status >= 300 {
		t.Fatalf("order: %d %s", a.status, a.body)
	}
	f.until("a", "ALLOW_ALL")
	for end := time.Now().Add(10 * time.Second); ; {
		text := string(p.do("GET", "/metrics", nil).body)
		missing := ""
		for _, want := range []string{
			"weir_rlqs_streams 1", "weir_rlqs_buckets 3", `weir_rlqs_requests_total{outcome="admitted"} 3`,
			`weir_rlqs_assignments_total{kind="tokens"} `, `weir_rlqs_assignments_total{kind="allow"} `,
			`weir_rlqs_ignored_total{reason="unfit"} `, `weir_rlqs_ignored_total{reason="invalid"} 1`,
		} {
			if !strings.Contains(text, want) {
				missing = want
			}
		}
		if missing == "" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("metrics lack %s", missing)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

const penaltyPolicies = `{"version": "weir/v1", "identity": {"consumer": [{"header": "x-api-key"}]}, "policies": [
	{"name": "login", "match": {"domain": "logins"}, "partition": ["consumer"], "mode": "strict", "limit": {"quota": 1, "window": "1h"},
	 "penalty": {"after": {"refusals": 2, "within": "1m"}, "for": "1h", "scope": "all"}},
	{"name": "users", "match": {"domain": "edge"}, "partition": ["consumer"], "limit": {"quota": 6000, "window": "1m"}}]}`

// A penalty that one door has begun holds at the other, until it is pardoned.
func TestPenaltiesAtBothDoors(t *testing.T) {
	s := bare(t)
	s.Listeners.RLQS, s.Listeners.RLQSOpen = "127.0.0.1:0", true
	s.Listeners.RLS, s.Listeners.RLSOpen = "127.0.0.1:0", true
	p := startWith(t, s, slog.New(slog.DiscardHandler))
	p.until("/readyz/store", 200)
	if a := p.do("PUT", "/v1/policyset", []byte(penaltyPolicies), "If-Match", "*", "Content-Type",
		"application/json"); a.status >= 300 {
		t.Fatalf("put: %d %s", a.status, a.body)
	}
	f, c := p.filter(), p.caller()
	eve := []string{"header:x-api-key", "eve", "user", "eve"}
	f.report(1, eve...)
	f.until("eve", "tokens")
	for end := time.Now().Add(10 * time.Second); ; {
		out, err := c.client.ShouldRateLimit(t.Context(), &rlspb.RateLimitRequest{
			Domain: "logins", Descriptors: []*ratelimitpb.RateLimitDescriptor{{
				Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: eve[0], Value: eve[1]}},
			}},
		})
		if err == nil && out.DynamicMetadata.GetFields()["reason"].GetStringValue() == "penalty" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no penalty: %v, %v", out, err)
		}
	}
	f.report(1, eve...)
	f.until("eve", "DENY_ALL")
	a := p.do("POST", "/v1/penalties/pardon?policy=login", []byte(`{"reason":"a mistake"}`), "Content-Type", "application/json")
	if a.status >= 300 {
		t.Fatalf("pardon: %d %s", a.status, a.body)
	}
	f.report(1, eve...)
	f.until("eve", "tokens")
}
