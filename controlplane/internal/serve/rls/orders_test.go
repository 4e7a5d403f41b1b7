package rls_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/rls"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// known is the knowledge about one consumer.
type known struct {
	tier       string
	exceptions wire.Exceptions
	now        func() time.Time
}

// Exceptions implements match.Consumers.
func (known) Exceptions() (bool, uint64) { return true, 1 }

// Find implements match.Consumers.
func (k known) Find(c *match.Consumer) {
	c.Now, c.Sure = k.now().UnixMilli(), true
	c.Tier, c.Exceptions = []byte(k.tier), wire.AppendExceptions(nil, k.exceptions)
	c.Banned, c.Bypass = k.exceptions.Banned > c.Now, k.exceptions.Bypass > c.Now
	if c.BanEnds = k.exceptions.Banned; c.BanEnds == wire.ForGood {
		c.BanEnds = 0
	}
}

const ordered = `
version: weir/v1
headers: {standard: "off"}
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
tiers: [free, premium]
exempt: {client_ips: [10.9.0.0/16]}
banned: {client_ips: [192.0.2.1]}
policies:
  - {name: a, partition: ["descriptor:user"], limits: {free: {quota: 1, window: 1h}, premium: {quota: 2, window: 1h}}, mode: strict}
  - {name: b, partition: ["descriptor:user", consumer], limit: {quota: 1, window: 1h}, mode: strict, if_absent: deny}
  - {name: c, match: {domain: other}, partition: [consumer], limit: {quota: 1, window: 1h}, mode: strict}
`

// Bans, exemptions, tiers and orders count as they do at an Envoy.
func TestWhatOperatorsOrder(t *testing.T) {
	w := begin(t, ordered)
	who := func(tier string, x wire.Exceptions) {
		w.consumers = known{tier, x, func() time.Time { return w.now }}
	}
	const user = "user=u|header:x-api-key=k"
	later := start.Add(time.Hour).UnixMilli()
	step := func(name, descriptors, want string) {
		t.Helper()
		out := w.ask(request("edge", descriptors))
		got := out.OverallCode.String()
		for _, s := range out.Statuses {
			if s.CurrentLimit != nil {
				got += fmt.Sprintf(" %s %d", s.CurrentLimit.Name, s.LimitRemaining)
			}
		}
		if got += " " + string(out.RawBody); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	step("banned", "remote_address=192.0.2.1|user=u", `OVER_LIMIT {"type":"about:blank","title":"Forbidden","detail":"Requests from this address are banned."}`)
	step("exempt", "remote_address=10.9.1.1|user=u", "OK ")
	step("absent", "user=u", "OVER_LIMIT ")
	who("premium", wire.Exceptions{Banned: later})
	step("a banned consumer", user, `OVER_LIMIT {"type":"about:blank","title":"Forbidden","detail":"The key or identity`)
	who("premium", wire.Exceptions{Bypass: later})
	step("one with a bypass", user, "OK ")
	w.put(ordered, wire.Order{State: policy.EnforcedOff, Percent: 100})
	who("premium", wire.Exceptions{Banned: later})
	step("the kill switch", "remote_address=192.0.2.1|user=u", "OK ")
	w.put(ordered, wire.Order{State: policy.EnforcedOff, Percent: 100, Policy: []byte("b")})
	who("premium", wire.Exceptions{})
	step("the first of a tier", user, "OK a 1 ")
	step("the second", user, "OK a 0 ")
	step("the third", user, "OVER_LIMIT a 0 ")
	who("", wire.Exceptions{})
	step("the first of another tier", user, "OK a 0 ")
	w.put(ordered, wire.Order{State: policy.EnforcedShadow, Percent: 100})
	step("shadow", user, "OK ")
	if got := fmt.Sprint(w.counted); !strings.Contains(got, "a candidate=false allowed:1") ||
		!strings.Contains(got, "bypassed:1") || !strings.Contains(got, "exempt:2") {
		t.Error(got)
	}
}

// A ban of a key comes before an exemption, also where only a policy for calls knows the key.
func TestABannedKeyIsNotExempt(t *testing.T) {
	const document = `
version: weir/v1
exempt: {client_ips: [10.9.0.0/16]}
policies:
  - {name: users, match: {domain: d, descriptors: [{name: user, present: true}]}, partition: ["descriptor:user"], limit: {quota: 1, window: 1h}, mode: strict}
`
	w := begin(t, document)
	var m match.Matcher
	user := match.Attributes{Headers: []match.Header{
		{Name: []byte(policy.Descriptor("user").Name), Value: []byte("bad")},
	}}
	key := m.MatchOne(&w.view.Index, &user, 0, match.Open).Hits[0].Key
	for _, bans := range [][]wire.Ban{nil, {{Key: key}}} {
		w.putOrdered(document, &wire.Enforcement{Bans: bans})
		for who, want := range map[string]string{"bad": "OK", "good": "OK"} {
			if who == "bad" && bans != nil {
				want = "OVER_LIMIT"
			}
			for range 3 { // An exempt call is not counted.
				out := w.ask(request("d", "remote_address=10.9.1.1|user="+who))
				if got := out.OverallCode.String(); got != want {
					t.Errorf("%d bans: %s is answered %s, want %s", len(bans), who, got, want)
				}
			}
		}
	}
	if w.counted["exempt"] != 9 || w.counted["banned"] != 3 {
		t.Error(w.counted)
	}
	report := w.service.Take()
	if report == nil || len(report.Refusals) != 1 {
		t.Fatalf("%+v", report)
	}
	if r := report.Refusals[0]; r.Count != 3 || r.Bucket != key || r.Reason != wire.BanReason+uint8(match.KeyBan) {
		t.Errorf("reported %+v, the banned key is %v", r, key)
	}
}

// A ban that ends by itself names its end, as at an Envoy: the ban of a consumer, and the ban of a
// key that only a policy for calls knows. If there are several bans, it names the last end.
func TestWhenABanEnds(t *testing.T) {
	const document = `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
responses: {ban: {body: 'banned {retry_after}'}}
policies:
  - {name: users, match: {domain: d}, partition: ["descriptor:user"], limit: {quota: 1, window: 1h}, mode: strict}
`
	w := begin(t, document)
	key := func(user string) keyhash.Key {
		var m match.Matcher
		return m.MatchOne(&w.view.Index, &match.Attributes{Headers: []match.Header{
			{Name: []byte(policy.Descriptor("user").Name), Value: []byte(user)},
		}}, 0, match.Open).Hits[0].Key
	}
	in := func(d time.Duration) int64 { return start.Add(d).UnixMilli() }
	bans := []wire.Ban{{Key: key("brief"), Expires: in(61_001 * time.Millisecond)},
		{Key: key("long"), Expires: in(time.Hour)}, {Key: key("ever")}}
	slices.SortFunc(bans, func(a, b wire.Ban) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	w.putOrdered(document, &wire.Enforcement{Bans: bans})
	for _, c := range []struct {
		call   string
		banned int64
		want   string
	}{
		{"user=brief", 0, "banned 62"},
		{"user=brief|user=long", 0, "banned 3600"},
		{"user=long|user=brief", 0, "banned 3600"},
		{"user=brief|user=ever", 0, "banned never"},
		{"user=ever|user=brief", 0, "banned never"},
		{"header:x-api-key=k", in(time.Millisecond), "banned 1"},
		{"header:x-api-key=k", in(90 * time.Second), "banned 90"},
		{"header:x-api-key=k", wire.ForGood, "banned never"},
	} {
		w.consumers = known{"", wire.Exceptions{Banned: c.banned}, func() time.Time { return w.now }}
		out, want := w.ask(request("d", c.call)), "cache-control: no-store\ncontent-type: text/plain; charset=utf-8"
		if seconds := strings.TrimPrefix(c.want, "banned "); seconds != "never" {
			want = "retry-after: " + seconds + "\n" + want
		}
		if got := headersOf(out); string(out.RawBody) != c.want || got != want {
			t.Errorf("%s until %d: %s\n%s\nwant %s\n%s", c.call, c.banned, out.RawBody, got, c.want, want)
		}
	}
}

const watched = `
version: weir/v1
headers: {standard: "off"}
policies:
  - {name: real, partition: [], match: {domain: d}, limit: {quota: 3, window: 1h}, mode: strict, candidate: {limit: {quota: 2, window: 1h}}}
  - {name: draft, partition: [], match: {domain: d}, limit: [{quota: 1, window: 1h}, {quota: 5, window: 24h}], mode: strict, enforcement: shadow}
`

// A policy in shadow and a candidate refuse nothing, and are counted beside.
func TestShadow(t *testing.T) {
	w := begin(t, strings.ReplaceAll(watched, "24h", "1d"))
	for i, want := range []string{
		"map[allowed:1 draft candidate=false allowed:1 real candidate=true allowed:1 real central refused=false:1]",
		"map[allowed:2 draft candidate=false allowed:1 draft candidate=false refused:1 real candidate=true allowed:2 " +
			"real central refused=false:2]",
		"map[allowed:3 draft candidate=false allowed:1 draft candidate=false refused:2 real candidate=true allowed:2 " +
			"real candidate=true refused:1 real central refused=false:3]",
		"map[allowed:3 draft candidate=false allowed:1 draft candidate=false refused:2 real candidate=true allowed:2 " +
			"real candidate=true refused:2 real central refused=false:3 real central refused=true:1 refused:1]",
	} {
		w.ask(request("d", "any=1"))
		if got := fmt.Sprint(w.counted); got != want {
			t.Errorf("after %d: %s, want %s", i+1, got, want)
		}
	}
	if got, want := fmt.Sprint(w.would), "map[draft false:2 real true:2]"; got != want {
		t.Errorf("they would have refused %s, want %s", got, want)
	}
	w.store.Down = true
	clear(w.counted)
	w.now = w.now.Add(2 * time.Hour)
	w.ask(request("d", "any=1"))
	if got := fmt.Sprint(w.counted); !strings.Contains(got, "draft candidate=false undetermined:1") {
		t.Errorf("without a store: %s", got)
	}
}

// While the store is away each policy uses its own on_failure, and the answer says so.
func TestFailure(t *testing.T) {
	const set = `
version: weir/v1
headers: {standard: "off"}
policies:
  - {name: share, partition: ["descriptor:s"], limit: {quota: 4, window: 1h}, on_failure: [{share: 30s}, deny]}
  - {name: open, partition: ["descriptor:o"], limit: {quota: 1, window: 1h}, on_failure: [allow]}
  - {name: shut, partition: ["descriptor:d"], limit: {quota: 9, window: 1h}, on_failure: [deny]}
`
	w := begin(t, set)
	w.store.Down = true
	for _, c := range []struct {
		at          time.Duration
		descriptors string
		want        string
	}{
		{0, "o=1", "OK failure_allow"}, {0, "o=1", "OK failure_allow"}, {0, "d=1", "OVER_LIMIT failure_deny"},
		{0, "s=1|d=1", "OVER_LIMIT failure_deny"}, // Charged nowhere.
		{1 * time.Second, "s=1", "OK share"}, {1 * time.Second, "s=1|s=2", "OK share"},
		{2 * time.Second, "s=1", "OVER_LIMIT share"},
		{2 * time.Second, "s=2", "OK share"}, {31 * time.Second, "s=3", "OVER_LIMIT failure_deny"},
	} {
		w.now = start.Add(c.at)
		out := w.ask(request("d", c.descriptors))
		if got := out.OverallCode.String() + " " + out.DynamicMetadata.AsMap()["source"].(string); got != c.want {
			t.Errorf("%s %s: %s, want %s", c.at, c.descriptors, got, c.want)
		}
	}
	w.store.Down = false
	w.now = start.Add(40 * time.Second)
	if got := shown(w.ask(request("d", "s=3"))); got != "OK: OK(share 3/4 HOUR 15m0s)" {
		t.Errorf("once the store answers: %s", got)
	}
	w.service.Full()
	if got := w.ask(request("d", "o=1|s=4")).DynamicMetadata.AsMap()["source"]; got != "share" {
		t.Errorf("with too many calls at the store: %s", got)
	}
	if got := w.ask(request("d", "d=1")).OverallCode.String(); got != "OVER_LIMIT" {
		t.Errorf("and a policy that denies: %s", got)
	}
}

// A caller that goes away gets no answer.
func TestGone(t *testing.T) {
	w := begin(t, users)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.store.Down = true
	if out, err := w.service.ShouldRateLimit(ctx, request("edge", "api=v1 user=a")); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, %v", out, err)
	}
}

// Reports say who was refused, and who calls most.
func TestReports(t *testing.T) {
	w := begin(t, strings.Replace(users, "headers:", "show: [\"descriptor:user\"]\nheaders:", 1))
	for range 200 {
		w.ask(request("edge", "api=v1 user=a"))
	}
	m := w.service.Take()
	if m == nil || len(m.Counts) != 1 || m.Counts[0].Refused != 198 || len(m.Refusals) != 1 ||
		m.Refusals[0].Count != 198 ||
		m.Version != 1 || len(m.Callers) != 1 {
		t.Fatalf("%+v", m)
	}
	if got := string(m.Refusals[0].Shown); got != "\x00\x01a" {
		t.Errorf("shown %q", got)
	}
	if _, err := wire.DecodeReport(wire.AppendReport(nil, &wire.Report{Decisions: m})); err != nil {
		t.Error(err)
	}
	if m := w.service.Take(); m != nil {
		t.Errorf("again: %+v", m)
	}
}

var _ match.Consumers = known{}
var _ rls.Meter = (*world)(nil)

// Calls that a ban refuses are reported in the same way as the filter reports them: with the ban in
// place of a policy, and with the consumer if the call names a consumer.
func TestBansAreReported(t *testing.T) {
	const document = `
version: weir/v1
banned: {client_ips: [192.0.2.1]}
policies:
  - {name: users, match: {domain: d}, partition: ["descriptor:user"], limit: {quota: 1, window: 1h}, mode: strict}
`
	w := begin(t, document)
	for range 3 {
		if out := w.ask(request("d", "remote_address=192.0.2.1|user=u")); out.OverallCode.String() != "OVER_LIMIT" {
			t.Fatal(out)
		}
	}
	m := w.service.Take()
	if m == nil || len(m.Counts) != 1 || m.Counts[0] != (wire.RefusedCount{Policy: wire.BanPolicy, Refused: 3}) ||
		len(m.Refusals) != 1 {
		t.Fatalf("%+v", m)
	}
	r := m.Refusals[0]
	if r.Count != 3 || r.Policy != wire.BanPolicy || r.Reason != wire.BanReason+uint8(match.AddressBan) ||
		r.Retry != 0 || policy.DecisionSource(r.Source) != policy.ByRequest {
		t.Errorf("%+v", r)
	}
	if _, err := wire.DecodeReport(wire.AppendReport(nil, &wire.Report{Decisions: m})); err != nil {
		t.Error(err)
	}
}
