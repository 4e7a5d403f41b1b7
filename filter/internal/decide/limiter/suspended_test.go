package limiter_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// A quota of 0 refuses each request in every mode and algorithm, without a wait, without a call and
// without a penalty, also a request with a cost of 0 or without a valid cost; a refused request is
// charged at no other bucket.
func TestAQuotaOfZero(t *testing.T) {
	for _, algorithm := range []string{
		"token_bucket", "sliding_window", "sliding_window_counter", "fixed_window", "sliding_log", "leaky_bucket",
	} {
		for _, mode := range []string{"local", "leased", "strict", "optimistic"} {
			set := fmt.Sprintf(`
				{"name":"other","partition":[],"limit":{"quota":5,"window":"1h"},"mode":"local"},
				{"name":"p","partition":["client_ip"],"algorithm":%q,"limit":{"quota":0,"window":"1h"},"mode":%q,
				 "cost":{"header":"x-cost","max":9,"invalid":"deny"}%s}`, algorithm, mode, firstRefusal)
			if _, err := decode(set); err != nil {
				continue // No mode has every algorithm.
			}
			n := newNode(t, mode != "local", set)
			box := n.penalised()
			for _, cost := range []string{"1", "0", "9", "all"} {
				req, status := n.begin("x-cost", cost)
				if status != limiter.Refused || req.Reason != policy.ReasonSuspended || req.Refusing != 1 ||
					req.Hits[1].Retry != quota.Never {
					t.Fatalf("%s %s, cost %s: %v %v %+v", algorithm, mode, cost, status, req.Reason, req.Hits)
				}
			}
			if len(n.calls) > 0 || box.Stats.Begun > 0 || n.limiter.Stats.ChargedInVain > 0 {
				t.Errorf("%s %s: %d calls, %d penalties", algorithm, mode, len(n.calls), box.Stats.Begun)
			}
			n.push(2, `{"name":"other","partition":[],"limit":{"quota":5,"window":"1h"},"mode":"local"}`)
			if passed := n.count(); passed != 5 {
				t.Errorf("%s %s: %d of 5 are left of the other policy", algorithm, mode, passed)
			}
		}
	}
}

// A caller's own figure of 0 means 0, and not the default; the next caller has its own.
func TestACallersOwnZero(t *testing.T) {
	for _, burst := range []string{``, `,"burst":{"header":"x-burst","trusted":true,"max":20,"default":3}`} {
		n := newNode(t, false, `{"name":"p","partition":[],"mode":"local","limit":{"quota":{"header":"x-limit","trusted":true,"max":600,"default":60},"window":"1m"`+burst+`}}`)
		for _, c := range []struct {
			limit, burst string
			suspended    bool
		}{
			{"0", "1", true}, {"00", "1", true}, {"-1", "1", false}, {"x", "1", false}, {"5", "0", burst != ""},
			{"5", "", false},
		} {
			req, status := n.begin("x-limit", c.limit, "x-burst", c.burst)
			if got := status == limiter.Refused && req.Reason == policy.ReasonSuspended; got != c.suspended {
				t.Errorf("%+v: %v %v", c, status, req.Reason)
			}
			if limit := req.LimitOf(&req.Hits[0].Hit); c.suspended && (limit.Quota != 0 || limit.Params.Burst != 0) {
				t.Errorf("%+v: %+v", c, limit)
			}
		}
		n.push(2, `{"name":"p","partition":[],"mode":"local","limit":{"quota":{"header":"x-limit","trusted":true,"max":600,"default":0},"window":"1m"}}`)
		if req, status := n.begin(); status != limiter.Refused || req.Reason != policy.ReasonSuspended {
			t.Errorf("a default of 0: %v", status)
		}
		if _, status := n.begin("x-limit", "5"); status == limiter.Refused {
			t.Errorf("beside a default of 0, 5: %v", status)
		}
	}
}

// A policy in shadow and a candidate count the requests that a quota of 0 would refuse, and no
// penalty begins.
func TestAQuotaOfZeroInShadow(t *testing.T) {
	n := newNode(t, false, `
		{"name":"shadow","partition":["client_ip"],"limit":{"quota":0,"window":"1h"},"mode":"local","enforcement":"shadow"`+firstRefusal+`},
		{"name":"draft","partition":[],"limit":{"quota":9,"window":"1h"},"mode":"local","candidate":{"limit":{"quota":0,"window":"1h"}}}`)
	box := n.penalised()
	if _, status := n.begin(); status != limiter.Allowed {
		t.Fatal(status)
	}
	if s := n.limiter.Stats; s.ShadowRefused != 1 || s.CandidateRefused != 1 || box.Stats.ShadowBegun > 0 {
		t.Errorf("%+v, %d penalties", s, box.Stats.ShadowBegun)
	}
}

func decode(policies string) (*policy.Set, error) {
	doc, err := policy.ParseJSON([]byte(`{"version":"weir/v1","policies":[` + policies + `]}`))
	if err != nil {
		return nil, err
	}
	return policy.Decode(doc)
}
