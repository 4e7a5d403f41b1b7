package policy_test

import (
	"encoding/binary"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// figured is a policy set with one limit of the fields, and more fields of the policy.
func figured(limit, more string) string {
	return `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"window":"1m",` + limit + `}` + more + `}]}`
}

func TestFiguresOfRequestsAreRead(t *testing.T) {
	jwt := policy.Source{Kind: policy.SourceJWT, Name: "plan.rpm"}
	metadata := policy.Source{Kind: policy.SourceMetadata, Name: "envoy.filters.http.ext_authz/quota"}
	for doc, want := range map[string]struct {
		figures      policy.Figures
		quota, burst int64
		usual        int64
	}{
		figured(`"quota":{"jwt":"plan.rpm","max":6000,"default":60}`, ""): {policy.Figures{Quota: policy.Figure{Source: jwt, Default: 60}}, 6000, 6000, 60},
		figured(`"quota":{"metadata":"envoy.filters.http.ext_authz/quota","max":6000,"default":60},"burst":9`, ""): {
			policy.Figures{Quota: policy.Figure{Source: metadata, Default: 60}, Burst: policy.Figure{Default: 9}}, 6000,
			9, 9},
		figured(`"quota":100,"burst":{"header":"X-Burst","trusted":true,"max":50,"default":5}`, ""): {policy.Figures{
			Quota: policy.Figure{Default: 100},
			Burst: policy.Figure{Source: policy.Source{Kind: policy.SourceHeader, Name: "x-burst"}, Default: 5},
		}, 100, 50, 5},
	} {
		set, err := decode(t, doc)
		if err != nil {
			t.Errorf("%s: %v", doc, err)
			continue
		}
		p := set.Policies[0]
		l := p.Limits[0]
		usual := p.Usual(l)
		if !reflect.DeepEqual(p.Figures, []policy.Figures{want.figures}) || l.Own != 1 || l.Quota != want.quota ||
			l.Params.Burst != want.burst ||
			usual.Params.Burst != want.usual {
			t.Errorf("%s: %+v, %+v, usually %+v", doc, p.Figures, l, usual)
		}
	}
}

// Figures are in the order of the limits, whatever the order of the document is. A tier that is not
// named has the figures of the default tier.
func TestFiguresAreInTheOrderOfLimits(t *testing.T) {
	set, err := decode(t, `{"version":"weir/v1","tiers":["a","b","c"],"identity":{"default_tier":"a"},"policies":[{"name":"p","partition":[],"mode":"local",
		"candidate":{"limit":{"quota":{"jwt":"draft","max":9,"default":1},"window":"1m"}},
		"limits":{"b":{"quota":{"jwt":"b","max":9,"default":1},"window":"1m"},"a":{"quota":{"jwt":"a","max":9,"default":1},"window":"1m"}}}]}`)
	if err != nil {
		t.Fatal(err)
	}
	p := set.Policies[0]
	var names []string
	for _, l := range append(p.Limits, p.Candidate...) {
		names = append(names, p.Figures[l.Own-1].Quota.Source.Name)
	}
	if got := strings.Join(names, " "); got != "a b a draft" || len(p.Figures) != 3 ||
		p.Figures[0].Quota.Source.Name != "a" {
		t.Errorf("the figures are %s, %+v", got, p.Figures)
	}
}

func TestFiguresThatAreRefused(t *testing.T) {
	for _, c := range []struct{ name, doc, want string }{
		{"no max", figured(`"quota":{"jwt":"a","default":1}`, ""), "limit.quota.max: is missing: write the most"},
		{"no default", figured(`"quota":{"jwt":"a","max":1}`, ""), "limit.quota.default: is missing: write the value"},
		{"no source", figured(`"quota":{"max":1,"default":1}`, ""), "limit.quota: must have exactly one of jwt, metadata, header"},
		{"two sources", figured(`"quota":{"jwt":"a","metadata":"a/b","max":1,"default":1}`, ""), "must have exactly one of"},
		{"a header of clients", figured(`"quota":{"header":"x","max":1,"default":1}`, ""), "limit.quota.trusted: is missing: a client can send"},
		{"trusted false", figured(`"quota":{"header":"x","trusted":false,"max":1,"default":1}`, ""), "limit.quota.trusted: must be true"},
		{"trusted without a header", figured(`"quota":{"jwt":"x","trusted":true,"max":1,"default":1}`, ""), "limit.quota.trusted: is for header only"},
		{"default above max", figured(`"quota":{"jwt":"a","max":5,"default":6}`, ""), "limit.quota.default: is above max"},
		{"max above all quotas", figured(`"quota":{"jwt":"a","max":4503599627370497,"default":6}`, ""), "limit.quota.max: must be a whole number from 1 to 4503599627370496"},
		{"max beyond exact arithmetic", figured(`"quota":{"jwt":"a","max":4503599627370495,"default":6}`, ""), "limit: quota, window and burst need more"},
		{"default -1", figured(`"quota":{"jwt":"a","max":5,"default":-1}`, ""), "limit.quota.default: must be a whole number from 0"},
		{"metadata without a key", figured(`"quota":{"metadata":"quotas","max":5,"default":1}`, ""), "must be a name space and a key"},
		{"an unknown field", figured(`"quota":{"jwt":"a","max":5,"defalt":1}`, ""), "unknown field: did you mean default?"},
		{"a burst of windows", figured(`"quota":5,"burst":{"jwt":"a","max":5,"default":1}`, `,"algorithm":"fixed_window"`), "limit.burst: is for token_bucket"},
		{"a queue", figured(`"quota":{"jwt":"a","max":5,"default":1}`, `,"algorithm":"leaky_bucket"`), "limit: cannot take figures from requests with leaky_bucket"},
		{"a log", figured(`"quota":{"jwt":"a","max":500,"default":1}`, `,"algorithm":"sliding_log"`), "limit: a sliding_log remembers"},
		{"a counter", figured(`"quota":{"jwt":"a","max":80000000,"default":1}`, `,"algorithm":"sliding_window_counter"`), "limit.quota.max: is too large for this window"},
		{"a cost above what most have", figured(`"quota":{"jwt":"a","max":500,"default":4}`, `,"cost":5`), "cost: is above the burst of 4"},
	} {
		if _, err := decode(t, c.doc); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	set, err := decode(t, figured(`"quota":10`, ""))
	if err != nil {
		t.Fatal(err)
	}
	n, _ := policy.ParseJSON([]byte(`{"quota":{"jwt":"a","max":5,"default":1},"window":"1m"}`))
	if _, problems := policy.DecodeOverride("limit", n, &set.Policies[0]); !strings.Contains(problems.Error(),
		"limit: must have numbers") {
		t.Errorf("an override: %v", problems)
	}
}

func TestTheBoundIsThatOfTheMost(t *testing.T) {
	set, err := decode(t, figured(`"quota":{"jwt":"plan.rpm","max":6000,"default":60},"burst":{"header":"x-b","trusted":true,"max":50,"default":5}`, `,"mode":"local"`))
	if err != nil {
		t.Fatal(err)
	}
	p := set.Policies[0]
	if got, want := p.Bound(nil), "at most 50 at once + 6 000 per 1m on each Envoy, in every interval"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	notes := strings.Join(p.Notes(3), "\n")
	want := "the quota is the caller's own by jwt:plan.rpm, up to 6 000, else 60\n" +
		"the burst is the caller's own by header:x-b, up to 50, else 5"
	if notes != want {
		t.Errorf("notes:\n%s\nwant\n%s", notes, want)
	}
}

func TestParseFigure(t *testing.T) {
	number := func(f float64) string {
		return string(binary.LittleEndian.AppendUint64(nil, math.Float64bits(f)))
	}
	for text, want := range map[string]int64{
		"1": 1, "600": 600, "007": 7, "12345678": 12345678, "99999999": 99999999, "4503599627370496": quota.MaxUnits,
		number(1): 1, number(600): 600, number(quota.MaxUnits): quota.MaxUnits,
		"0": 0, "00000000": 0, number(0): 0,
		"": -1, "-5": -1, "+5": -1, " 5": -1, "5.0": -1, "1e3": -1, "0x10": -1,
		"4503599627370497": quota.MaxUnits, "9223372036854775808": quota.MaxUnits,
		"99999999999999999999": quota.MaxUnits, number(quota.MaxUnits * 2): quota.MaxUnits,
		number(1e30): quota.MaxUnits, number(math.Inf(1)): quota.MaxUnits,
		number(-1): -1, number(0.5): -1, number(600.5): -1, number(math.Inf(-1)): -1, number(math.NaN()): -1,
		"premium1": -1,
	} {
		if got, ok := policy.ParseFigure([]byte(text)); ok != (want >= 0) || ok && got != want {
			t.Errorf("%q is %d, %v; want %d", text, got, ok, want)
		}
	}
}

// Any figure makes a limit that is no more than the largest, and exact arithmetic holds it.
func TestForIsWithinTheMost(t *testing.T) {
	most, err := policy.NewLimit(policy.Counting{}, 100_000, quota.Day, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	if l := most.For(0, 5); !l.Suspended() || l.Params.Burst != 0 || l.Refill() != quota.Day {
		t.Errorf("of 0: %+v", l)
	}
	for _, units := range []int64{-1, 1, 2, 7, 99_991, 100_000, 100_001, math.MaxInt64} {
		for _, burst := range []int64{-1, 0, 1, 100_000, math.MaxInt64} {
			l := most.For(units, burst)
			p := l.Params
			if p.Num < 1 || p.Den < 1 || p.Burst < 1 || p.Burst > 100_000 || p.Burst > quota.MaxUnits/p.Den ||
				most.Params.SlowerThan(p) || l.Quota > 100_000 || l.Quota < 1 {
				t.Errorf("%d, %d: %+v", units, burst, l)
			}
		}
	}
}
