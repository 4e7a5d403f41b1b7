package api_test

import (
	"fmt"
	"math"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// lie is a message with one field that no working node sends so.
type lie[M any] struct {
	// field is its name. Say puts the lie into an honest message.
	field string
	say   func(*M)
	// refused is a part of the sentence that refuses the message. If the message is accepted,
	// operators see the same as after the honest message, with each second text of shown in place
	// of the text before it.
	refused string
	shown   []string
}

const outOfRange, tooEarly = "is out of range", "ends too early"

// nodeSet has a policy whose limits depend on the tier, a policy with a penalty, and a policy with
// neither.
const nodeSet = `
version: weir/v1
show: [path]
tiers: [free, gold]
identity: {consumer: [{header: x-api-key}], tier: [assignment], default_tier: free}
policies:
  - {name: tiers, partition: [consumer], limits: {free: {quota: 10, window: 1m}, gold: {quota: 100, window: 1m}}}
  - name: login
    partition: [consumer]
    limit: {quota: 10, window: 1m}
    penalty: {after: {refusals: 5, within: 1m}, for: 1m, factor: 2, max: 10m, forget: 1h, jitter: 0%}
  - {name: plain, partition: [consumer], limit: {quota: 10, window: 1m}}
`

// eachField calls a function with the fields of a message and of the elements of its lists.
func eachField(of reflect.Type, do func(field string)) {
	for i := range of.NumField() {
		field := of.Field(i)
		inner := field.Type
		if inner.Kind() == reflect.Slice {
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Pointer { // A section has lies of its own.
			continue
		}
		if inner.Kind() == reflect.Struct && inner != reflect.TypeFor[time.Time]() {
			eachField(inner, do)
			continue
		}
		do(of.Name() + "." + field.Name)
	}
}

// trial tries each lie of a kind of message.
type trial[M any] struct {
	honest func() M
	lies   []lie[M]
	// begin, if not nil, is called before send, which sends the message. see returns the view of
	// operators after the message was accepted, or before any message.
	begin func(*plane)
	send  func(*plane, *M) *httptest.ResponseRecorder
	see   func(*plane, *httptest.ResponseRecorder) string
	// of are the messages that have the fields.
	of []reflect.Type
}

// run sends each lie. Each accepted lie has its own control plane. Each field of the messages must
// be in a lie.
func (r *trial[M]) run(t *testing.T) {
	missing := map[string]bool{}
	for _, one := range r.of {
		eachField(one, func(field string) { missing[field] = true })
	}
	quiet := r.start(t)
	nothing, usual := r.see(quiet, nil), r.shown(r.start(t), func(*M) {})
	if usual == nothing {
		t.Fatalf("an honest message changes nothing: %s", usual)
	}
	for _, one := range r.lies {
		delete(missing, one.field)
		if one.refused == "" {
			t.Run(one.field, func(t *testing.T) {
				t.Parallel()
				want := strings.TrimSpace(strings.NewReplacer(one.shown...).Replace(usual))
				if shown := strings.TrimSpace(r.shown(r.start(t), one.say)); shown != want {
					t.Errorf("it is believed:\n%s\nwant\n%s", shown, want)
				}
			})
			continue
		}
		m := r.honest()
		one.say(&m)
		if got := quiet.problem(r.send(quiet, &m), 400, "bad-request"); !strings.Contains(got.Detail, one.refused) {
			t.Errorf("%s: the answer is %q, want %q", one.field, got.Detail, one.refused)
		}
	}
	if shown := r.see(quiet, nil); shown != nothing {
		t.Errorf("messages that are refused show\n%s\nwant\n%s", shown, nothing)
	}
	for field := range missing {
		t.Errorf("%s says something that no row tries beyond its bound: add one, with the believed value", field)
	}
}

// start is a control plane of which nothing was said yet.
func (r *trial[M]) start(t *testing.T) *plane {
	t.Helper()
	p := newPlane(t)
	if w := p.put(`"0"`, nodeSet); w.Code != 200 {
		t.Fatal(w.Body)
	}
	if r.begin != nil {
		r.begin(p)
	}
	return p
}

// shown returns the view of operators after a message was accepted.
func (r *trial[M]) shown(p *plane, say func(*M)) string {
	p.t.Helper()
	m := r.honest()
	say(&m)
	w := r.send(p, &m)
	if w.Code >= 300 {
		p.t.Fatalf("%d %s", w.Code, w.Body)
	}
	return r.see(p, w)
}

// reported is a report with one section.
func reported(section any) string {
	var r wire.Report
	switch s := section.(type) {
	case *wire.Report:
		r = *s
	case *wire.Offences:
		r.Node, r.Offences = s.Node, s
	case *wire.Ladder:
		r.Ladder = s
	case *wire.Decisions:
		r.Node, r.Decisions = s.Node, s
	case *wire.Measures:
		r.Node, r.Measures = s.Node, s
	}
	return string(wire.AppendReport(nil, &r))
}

// postReport sends a report with one section as a node.
func (p *plane) postReport(section any) *httptest.ResponseRecorder {
	p.t.Helper()
	return p.do(call{"envoy", "POST", "/node/v1/report", nil, reported(section)})
}

// read is an answer to an operator.
func read[A any](p *plane, path string) A {
	p.t.Helper()
	return decoded[A](p.t, p.do(call{"eyes", "GET", path, nil, ""}))
}

// counted are the totals of the last hour.
func (p *plane) counted() string {
	p.t.Helper()
	if err := p.past.Tick(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	var all []string
	for _, by := range []string{"policy", "node"} {
		for _, outcome := range []string{"refused", "requests", "shadow_refused", "candidate_refused",
			"shadow_undetermined", "candidate_undetermined", "utilisation", "in_flight"} {
			for _, one := range read[api.SeriesAnswer](p, "/v1/series?by="+by+"&outcome="+outcome).Series {
				if one.Total > 0 {
					all = append(all, fmt.Sprintf("%s%s %s=%.0f", one.Policy, one.Node, outcome, one.Total))
				}
			}
		}
	}
	return strings.Join(all, " ")
}

// badName is a name that no terminal is to get, and cleanName how it is shown.
const badName, cleanName = "n\x1b[31m\xff", "n?[31m?"

// A refusal that does not fit the policy set is dropped, and no figure goes beyond its bound.
func TestNoFieldOfDecisionsIsBelievedBeyondItsBound(t *testing.T) {
	type M = wire.Decisions
	honest := func() M {
		who := wire.CallerCount{Policy: 0, Tier: 1, Bucket: keyhash.Key{1}, Count: 7, Over: 2,
			Identity: wire.Identity{Consumer: keyhash.Key{2}, Shown: append([]byte{0, 2}, "/x"...)}}
		heavy := who
		heavy.Count = 40
		return M{Node: []byte("n"), Version: 1, Callers: []wire.CallerCount{heavy},
			Counts: []wire.RefusedCount{{Policy: 0, Tier: 1, Refused: 9}},
			Refusals: []wire.Refusal{{CallerCount: who, Reason: uint8(policy.ReasonQuota), Source: 3, Cost: 2, Left: 1,
				Retry: 6 * quota.Second}}}
	}
	const (
		list  = "tiers free: 10 per 1m quota x5 cost 2 left 1 wait 6s /x by n;"
		top   = " refused 9: tiers free 7/2;"
		heavy = " requests: tiers free 40/2"
		few   = " tiers refused=9"
		many  = " tiers requests=40"
	)
	of := func(say func(*wire.Refusal)) func(*M) { return func(m *M) { say(&m.Refusals[0]) } }
	called := func(say func(*wire.CallerCount)) func(*M) { return func(m *M) { say(&m.Callers[0]) } }
	counts := func(say func(*wire.RefusedCount)) func(*M) { return func(m *M) { say(&m.Counts[0]) } }
	noRefusal := []string{list, "", " tiers free 7/2;", ";"}
	noCaller := []string{heavy, " requests:", "requests=40", "requests=9"} // Refused ones were sent.
	noCount := []string{" refused 9:", " refused 0:", few, "", " n refused=9", ""}
	nothing := []string{list, "", top, " refused 0:;", heavy, " requests:", few, "", many, "", " n refused=9", "",
		" n requests=40", ""}
	lies := []lie[M]{
		{field: "Decisions.Node", say: func(m *M) { m.Node = nil }, refused: "does not name the node"},
		{field: "Decisions.Node", say: func(m *M) { m.Node = make([]byte, wire.MaxNodeID+1) }, refused: outOfRange},
		{field: "Decisions.Node", say: func(m *M) { m.Node = []byte(badName) },
			shown: []string{"by n;", "by " + cleanName + ";", " n ", " " + cleanName + " "}},
		{field: "Decisions.Version", say: func(m *M) { m.Version = 2 }, shown: nothing},
		{field: "Decisions.Version", say: func(m *M) { m.Version = math.MaxUint64 }, refused: outOfRange},
		{field: "RefusedCount.Policy", say: counts(func(c *wire.RefusedCount) { c.Policy = 3 }), shown: noCount},
		{field: "RefusedCount.Policy", say: counts(func(c *wire.RefusedCount) { c.Policy = math.MaxUint32 }),
			refused: outOfRange},
		{field: "RefusedCount.Tier", say: counts(func(c *wire.RefusedCount) { c.Tier = 3 }), shown: noCount},
		{field: "RefusedCount.Refused", say: counts(func(c *wire.RefusedCount) { c.Refused = -1 }),
			refused: outOfRange},
		{field: "RefusedCount.Refused", say: counts(func(c *wire.RefusedCount) { c.Refused = 1<<40 + 1 }),
			refused: outOfRange},
		{field: "RefusedCount.Refused", say: counts(func(c *wire.RefusedCount) { c.Refused = 1 << 40 }),
			shown: []string{" refused 9:", " refused 1099511627776:", "refused=9", "refused=4294967295",
				"requests=40", "requests=4294967295"}},
		{field: "Refusal.Limit", say: of(func(r *wire.Refusal) { r.Limit = 2 }), shown: noRefusal},
		{field: "Refusal.Limit", say: of(func(r *wire.Refusal) { r.Limit = 99 }), shown: noRefusal},
		{field: "Refusal.Limit", say: of(func(r *wire.Refusal) { r.Limit = math.MaxUint32 }), refused: outOfRange},
		{field: "Refusal.Reason", say: of(func(r *wire.Refusal) { r.Reason = 255 }),
			shown: []string{"quota x5", "unknown 255 x5"}},
		{field: "Refusal.Source", say: of(func(r *wire.Refusal) { r.Source = 255 })},
		{field: "Refusal.Cost", say: of(func(r *wire.Refusal) { r.Cost = -1 }), refused: outOfRange},
		{field: "Refusal.Cost", say: of(func(r *wire.Refusal) { r.Cost = policy.MaxCost + 1 }), refused: outOfRange},
		{field: "Refusal.Left", say: of(func(r *wire.Refusal) { r.Left = -1 }), refused: outOfRange},
		{field: "Refusal.Left", say: of(func(r *wire.Refusal) { r.Left = quota.MaxUnits + 1 }), refused: outOfRange},
		{field: "Refusal.Retry", say: of(func(r *wire.Refusal) { r.Retry = -1 }), refused: outOfRange},
		{field: "Refusal.Retry", say: of(func(r *wire.Refusal) { r.Retry = quota.MaxWindow + 1 }), refused: outOfRange},
		{field: "Refusal.Ago", say: of(func(r *wire.Refusal) { r.Ago = -1 }), refused: outOfRange},
		{field: "Refusal.Ago", say: of(func(r *wire.Refusal) { r.Ago = quota.Hour + 1 }), refused: outOfRange},
		{field: "CallerCount.Policy", say: of(func(r *wire.Refusal) { r.Policy = 2 }), shown: noRefusal},
		{field: "CallerCount.Policy", say: called(func(c *wire.CallerCount) { c.Policy = 3 }), shown: noCaller},
		{field: "CallerCount.Tier", say: of(func(r *wire.Refusal) { r.Tier = 3 }), shown: noRefusal},
		{field: "CallerCount.Tier", say: of(func(r *wire.Refusal) { r.Tier = 0 }), shown: noRefusal},
		{field: "CallerCount.Tier", say: of(func(r *wire.Refusal) { r.Tier = 2 }), // It may be a limit of its own.
			shown: []string{"tiers free: 10", "tiers gold: 10", "tiers free 7", "tiers gold 7"}},
		{field: "CallerCount.Tier", say: called(func(c *wire.CallerCount) { c.Tier = 3 }), shown: noCaller},
		{field: "CallerCount.Bucket", say: of(func(r *wire.Refusal) { r.Bucket = keyhash.Key{9} })},
		{field: "CallerCount.Count", say: of(func(r *wire.Refusal) { r.Count = -1 }), refused: outOfRange},
		{field: "CallerCount.Count", say: of(func(r *wire.Refusal) { r.Count = 1<<40 + 1 }), refused: outOfRange},
		{field: "CallerCount.Over", say: of(func(r *wire.Refusal) { r.Over = 8 }), refused: outOfRange},
		{field: "Identity.Consumer", say: of(func(r *wire.Refusal) { r.Consumer = keyhash.Key{9} })},
		{field: "Identity.Shown", say: of(func(r *wire.Refusal) { r.Shown = []byte{1, 2, 'a', 'b'} }),
			shown: []string{" /x by", "  by"}},
		{field: "Identity.Shown", say: of(func(r *wire.Refusal) { r.Shown = []byte{0, 3, '\x1b', 0xff, 'a'} }),
			shown: []string{" /x by", " ..a by"}},
		{field: "Identity.Shown", say: of(func(r *wire.Refusal) { r.Shown = []byte{0, 200, 'a'} }),
			refused: outOfRange},
		{field: "Identity.Shown", say: of(func(r *wire.Refusal) { r.Shown = []byte{policy.MaxShown, 0} }),
			refused: outOfRange},
	}
	send := func(p *plane, m *M) *httptest.ResponseRecorder {
		return p.postReport(m)
	}
	see := func(p *plane, _ *httptest.ResponseRecorder) (text string) {
		for _, d := range read[api.DecisionsAnswer](p, "/v1/decisions").Decisions {
			text += fmt.Sprintf("%s %s: %s %s x%d cost %d left %d wait %s %s by %s;", d.Policy, d.Tier, d.Limit,
				d.Reason, d.Count, d.Cost, d.Left, d.Ends.Sub(d.At), d.Shown["path"], d.Node)
		}
		top := read[api.TopAnswer](p, "/v1/top")
		text += fmt.Sprintf(" refused %d:", top.Refused)
		for _, c := range top.Callers {
			text += fmt.Sprintf(" %s %s %d/%d", c.Policy, c.Tier, c.Count, c.Over)
		}
		text += "; requests:"
		for _, c := range read[api.TopAnswer](p, "/v1/top?by=requests").Callers {
			text += fmt.Sprintf(" %s %s %d/%d", c.Policy, c.Tier, c.Count, c.Over)
		}
		return text + "; " + p.counted()
	}
	(&trial[M]{honest: honest, lies: lies, send: send, see: see, of: []reflect.Type{reflect.TypeFor[M]()}}).run(t)
}

// A rule in force must allow a penalty. The penalty lasts no longer, and is remembered no longer,
// than the rule says.
func TestNoFieldOfOffencesIsBelievedBeyondTheRule(t *testing.T) {
	type M = wire.Offences
	honest := func() M {
		until := time.Now().Add(2 * time.Minute).UnixMilli()
		return M{Node: []byte("n"), Items: []wire.Offence{{Key: keyhash.Key{1}, Policy: []byte("login"), Level: 2,
			Until: until, Forgotten: until + 2*time.Hour.Milliseconds(), Version: 1,
			Identity: wire.Identity{Consumer: keyhash.Key{2}, Shown: append([]byte{0, 2}, "/x"...)}}}}
	}
	of := func(say func(*wire.Offence)) func(*M) { return func(m *M) { say(&m.Items[0]) } }
	hour := time.Hour.Milliseconds()
	const all = "login 01 level 2 for 2m0s remembered 2h0m0s 02 /x by n"
	nothing := []string{all, ""}
	lies := []lie[M]{
		{field: "Offences.Node", say: func(m *M) { m.Node = nil }, refused: "does not name the node"},
		{field: "Offences.Node", say: func(m *M) { m.Node = make([]byte, wire.MaxNodeID+1) }, refused: outOfRange},
		{field: "Offences.Node", say: func(m *M) { m.Node = []byte(badName) },
			shown: []string{"by n", "by " + cleanName}},
		{field: "Offence.Key", say: of(func(o *wire.Offence) { o.Key = keyhash.Key{9} }),
			shown: []string{" 01 ", " 09 "}},
		{field: "Offence.Known", say: of(func(o *wire.Offence) { o.Known = 1<<53 + 1 }), refused: outOfRange},
		{field: "Offence.Known", say: of(func(o *wire.Offence) { o.Known = 1 << 53 })},
		{field: "Offence.Policy", say: of(func(o *wire.Offence) { o.Policy = nil }), refused: outOfRange},
		{field: "Offence.Policy", say: of(func(o *wire.Offence) { o.Policy = make([]byte, 4096) }),
			refused: outOfRange},
		{field: "Offence.Policy", say: of(func(o *wire.Offence) { o.Policy = []byte("plain") }), shown: nothing},
		{field: "Offence.Policy", say: of(func(o *wire.Offence) { o.Policy = []byte("login\xff") }), shown: nothing},
		{field: "Offence.Level", say: of(func(o *wire.Offence) { o.Level = 0 }), refused: outOfRange},
		{field: "Offence.Level", say: of(func(o *wire.Offence) { o.Level = wire.MaxPenaltyLevel + 1 }),
			refused: outOfRange},
		{field: "Offence.Level", say: of(func(o *wire.Offence) { o.Level = wire.MaxPenaltyLevel }),
			shown: []string{"level 2", "level 5"}},
		{field: "Offence.Level", say: of(func(o *wire.Offence) { o.Level = 1 }), // Of level 1 it is at most a minute.
			shown: []string{"level 2 for 2m0s remembered 2h", "level 1 for 1m0s remembered 1h"}},
		{field: "Offence.Until", say: of(func(o *wire.Offence) { o.Until = -1 }), refused: outOfRange},
		{field: "Offence.Until", say: of(func(o *wire.Offence) { o.Until += hour; o.Forgotten += hour })},
		{field: "Offence.Until", say: of(func(o *wire.Offence) { o.Until = 1 << 44; o.Forgotten = 1 << 44 }),
			shown: nothing},
		{field: "Offence.Until", say: of(func(o *wire.Offence) { o.Until = 1; o.Forgotten = 1 }), shown: nothing},
		{field: "Offence.Forgotten", say: of(func(o *wire.Offence) { o.Forgotten = o.Until - 1 }), refused: outOfRange},
		{field: "Offence.Forgotten", say: of(func(o *wire.Offence) { o.Forgotten += hour })},
		{field: "Offence.Forgotten", say: of(func(o *wire.Offence) { o.Forgotten = 1 << 45 }), shown: nothing},
		{field: "Offence.Shadow", say: of(func(o *wire.Offence) { o.Shadow = true }),
			shown: []string{" for", " shadow for"}},
		{field: "Offence.Prolonged", say: of(func(o *wire.Offence) { o.Prolonged = true })},
		{field: "Offence.Version", say: of(func(o *wire.Offence) { o.Version = 7 }), shown: []string{" /x", " "}},
		{field: "Offence.Version", say: of(func(o *wire.Offence) { o.Version = math.MaxUint64 }), refused: outOfRange},
		{field: "Identity.Consumer", say: of(func(o *wire.Offence) { o.Consumer = keyhash.Key{9} }),
			shown: []string{" 02 ", " 09 "}},
		{field: "Identity.Shown", say: of(func(o *wire.Offence) { o.Shown = []byte{1, 2, 'a', 'b'} }),
			shown: []string{" /x", " "}},
		{field: "Identity.Shown", say: of(func(o *wire.Offence) { o.Shown = []byte{0, 2, '\x1b', 0xff} }),
			shown: []string{" /x", " .."}},
		{field: "Identity.Shown", say: of(func(o *wire.Offence) { o.Shown = []byte{0} }), refused: outOfRange},
	}
	send := func(p *plane, m *M) *httptest.ResponseRecorder {
		return p.postReport(m)
	}
	see := func(p *plane, _ *httptest.ResponseRecorder) (text string) {
		if err := p.punished.Refresh(p.t.Context()); err != nil {
			p.t.Fatal(err)
		}
		for _, one := range read[api.PenaltiesAnswer](p, "/v1/penalties").Penalties {
			shadow := ""
			if one.Shadow {
				shadow = " shadow"
			}
			text += fmt.Sprintf("%s %s level %d%s for %s remembered %s %s %s by %s", one.Policy, one.Key[:2], one.Level,
				shadow, time.Until(one.Until).Round(time.Minute), one.Forgotten.Sub(one.Until), one.Consumer[:2],
				one.Shown["path"], one.Node)
		}
		return text
	}
	(&trial[M]{honest: honest, lies: lies, send: send, see: see, of: []reflect.Type{reflect.TypeFor[M]()}}).run(t)
}

// A measure of a policy or a version that is not in force is dropped, and no figure goes beyond its
// bound.
func TestNoFieldOfMeasuresIsBelievedBeyondItsBound(t *testing.T) {
	type M = wire.Measures
	honest := func() M {
		return M{Node: []byte("n"), Covers: 10 * quota.Second, Items: []wire.Measure{{Policy: []byte("plain"),
			CandidateRefused: 1, ShadowRefused: 2, Busy: 1, Used: 3, CandidateUndetermined: 4, ShadowUndetermined: 5,
			Decided: 9, Refused: 6, Unsure: 7, Waited: 8, Held: 10, Version: 2}}}
	}
	of := func(say func(*wire.Measure)) func(*M) { return func(m *M) { say(&m.Items[0]) } }
	const (
		all = "plain shadow_refused=2 plain candidate_refused=1 plain shadow_undetermined=5 " +
			"plain candidate_undetermined=4 plain utilisation=3 n shadow_refused=2 n candidate_refused=1 " +
			"n shadow_undetermined=5 n candidate_undetermined=4 n utilisation=3"
		rollout = "; plain 6 of 9 refused, 7 errors, 8 waited 10 ms"
	)
	nothing := []string{all, "", rollout, ";"}
	lies := []lie[M]{
		{field: "Measures.Node", say: func(m *M) { m.Node = nil }, refused: "does not name the node"},
		{field: "Measures.Node", say: func(m *M) { m.Node = make([]byte, wire.MaxNodeID+1) }, refused: outOfRange},
		{field: "Measures.Node", say: func(m *M) { m.Node = []byte(badName) },
			shown: []string{" n ", " " + cleanName + " "}},
		{field: "Measures.Covers", say: func(m *M) { m.Covers = -quota.Second }, refused: outOfRange},
		{field: "Measures.Covers", say: func(m *M) { m.Covers = wire.MaxCovers + quota.Second }, refused: outOfRange},
		{field: "Measure.Policy", say: of(func(one *wire.Measure) { one.Policy = nil }), refused: outOfRange},
		{field: "Measure.Policy", say: of(func(one *wire.Measure) { one.Policy = make([]byte, 4096) }),
			refused: outOfRange},
		{field: "Measure.Policy", say: of(func(one *wire.Measure) { one.Policy = []byte("nope") }), shown: nothing},
		{field: "Measure.Policy", say: of(func(one *wire.Measure) { one.Policy = []byte("plain\xff") }),
			shown: nothing},
		{field: "Measure.Refused", say: of(func(one *wire.Measure) { one.Refused = 10 }), refused: outOfRange},
		{field: "Measure.Version", say: of(func(one *wire.Measure) { one.Version = 9 }), shown: []string{rollout, ";"}},
		{field: "Measure.Version", say: of(func(one *wire.Measure) { one.Version = math.MaxUint64 }),
			refused: outOfRange},
	}
	for field, most := range map[string]int64{"CandidateRefused": 1 << 40, "ShadowRefused": 1 << 40, "Busy": 1 << 45,
		"Used": wire.MaxUsed, "CandidateUndetermined": 1 << 40, "ShadowUndetermined": 1 << 40, "Decided": 1 << 40,
		"Refused": 1 << 40, "Unsure": 1 << 40, "Waited": 1 << 40, "Held": 1 << 45} {
		for _, n := range []int64{-1, most + 1, math.MaxInt64} {
			lies = append(lies, lie[M]{field: "Measure." + field, refused: outOfRange, say: func(m *M) {
				reflect.ValueOf(&m.Items[0]).Elem().FieldByName(field).SetInt(n)
			}})
		}
	}
	begin := func(p *plane) {
		w := p.do(call{"root", "PUT", "/v1/policyset?nodes=50%25", map[string]string{"If-Match": `"1"`},
			strings.Replace(nodeSet, "quota: 100", "quota: 200", 1)})
		if w.Code != 200 {
			t.Fatal(w.Body)
		}
	}
	send := func(p *plane, m *M) *httptest.ResponseRecorder {
		return p.postReport(m)
	}
	see := func(p *plane, _ *httptest.ResponseRecorder) string {
		text := p.counted() + ";"
		for _, one := range read[api.RolloutAnswer](p, "/v1/rollout").Policies {
			text += fmt.Sprintf(" %s %d of %d refused, %d errors, %d waited %d ms", one.Policy, one.Its.Refused,
				one.Its.Requests, one.Its.Errors, one.Its.Waited, one.Its.WaitedMs)
		}
		return text
	}
	(&trial[M]{honest, lies, begin, send, see, []reflect.Type{reflect.TypeFor[M]()}}).run(t)
}

// A report is about the node that sends it, and about the policies of its version.
func TestNoFieldOfAReportIsBelievedOfAnother(t *testing.T) {
	type M = wire.Report
	honest := func() M {
		return M{Node: []byte("n"), Boot: 1, Ladder: &wire.Ladder{Version: 1, Worst: policy.StepDeny,
			Steps: []wire.PolicyStep{{Policy: 1, Step: policy.StepDeny}}}}
	}
	of := func(say func(*wire.PolicyStep)) func(*M) { return func(m *M) { say(&m.Ladder.Steps[0]) } }
	noStep := []string{" map[login:deny]", " map[]"}
	nothing := []string{" deny map[login:deny]", "  map[]"}
	lies := []lie[M]{
		{field: "Report.Node", say: func(m *M) { m.Node = nil }, refused: "does not name the node"},
		{field: "Report.Node", say: func(m *M) { m.Node = make([]byte, wire.MaxNodeID+1) }, refused: outOfRange},
		{field: "Report.Node", say: func(m *M) { m.Node = []byte(badName) }, shown: nothing},
		{field: "Report.Boot", say: func(m *M) { m.Boot = math.MaxUint64 }, shown: nothing},
		{field: "Ladder.Version", say: func(m *M) { m.Ladder.Version = math.MaxUint64 }, shown: noStep},
		{field: "Ladder.Worst", say: func(m *M) { m.Ladder.Worst = policy.Steps }, refused: outOfRange},
		{field: "PolicyStep.Policy", say: of(func(s *wire.PolicyStep) { s.Policy = 3 }), shown: noStep},
		{field: "PolicyStep.Policy", say: of(func(s *wire.PolicyStep) { s.Policy = math.MaxUint32 }),
			refused: outOfRange},
		{field: "PolicyStep.Step", say: of(func(s *wire.PolicyStep) { s.Step = policy.Steps }), refused: outOfRange},
	}
	send := func(p *plane, m *M) *httptest.ResponseRecorder {
		return p.postReport(m)
	}
	see := func(p *plane, _ *httptest.ResponseRecorder) string {
		p.do(call{"envoy", "GET", "/node/v1/snapshot?node=n&boot=1", nil, ""})
		return p.listedNodes()
	}
	types := []reflect.Type{reflect.TypeFor[M](), reflect.TypeFor[wire.Ladder]()}
	(&trial[M]{honest: honest, lies: lies, send: send, see: see, of: types}).run(t)
}

// first is a node that shows a test the answers to polls.
const first = "first"

// listedNodes are the other nodes as operators see them.
func (p *plane) listedNodes() (text string) {
	p.t.Helper()
	for _, n := range read[api.NodesAnswer](p, "/v1/nodes").Nodes {
		if n.ID == first {
			continue
		}
		text += fmt.Sprintf(" %s %s applied %d orders %d refused %d: %s filter %s zone %s %s %v", n.ID, n.Boot,
			n.Applied, n.Enforcement, n.Refused, n.Reason, n.Filter, n.Zone, n.State, n.Steps)
	}
	return text
}

// A poll is about the node that sends it, which gets no less than it lacks, whatever it says.
func TestNoFieldOfAPollIsBelievedOfAnother(t *testing.T) {
	type M = url.Values
	honest := func() M { return M{"node": {"n"}, "boot": {"1"}, "after": {"1"}, "applied": {"1"}} }
	set := func(pairs ...string) func(*M) {
		return func(m *M) {
			for i := 0; i < len(pairs); i += 2 {
				m.Set(pairs[i], pairs[i+1])
			}
		}
	}
	const most = "18446744073709551615"
	long := strings.Repeat("z", 1000)
	fresh := []string{"204 ", "200 1"} // It gets the set of the version in force.
	news := []string{"204 ", "200 "}   // It gets all changes.
	no := "must be a whole number"
	lies := []lie[M]{
		{field: "Node.ID", say: set("node", ""), refused: "node must name the node"},
		{field: "Node.ID", say: set("node", badName), shown: []string{" n ", " " + cleanName + " "}},
		{field: "Node.ID", say: set("node", long), shown: []string{" n ", " " + long[:wire.MaxNodeID] + " "}},
		{field: "Node.Boot", say: set("boot", long), shown: []string{" n 1", " n " + long[:16]}},
		{field: "Node.Applied", say: set("applied", "-1"), refused: no},
		{field: "Node.Applied", say: set("applied", most), shown: []string{"applied 1", "applied " + most}},
		{field: "Node.Mark", say: set("applied_mark", "\xff")},
		{field: "Node.Enforcement", say: set("enforcement", "-1"), refused: no},
		{field: "Node.Refused", say: set("refused", "x"), refused: no},
		{field: "Node.Reason", say: set("reason", badName), shown: []string{"0: ", "0: " + cleanName}},
		{field: "Node.Reason", say: set("reason", long), shown: []string{"0: ", "0: " + long[:256]}},
		{field: "Node.Filter", say: set("filter", long), shown: []string{"filter ", "filter " + long[:64]}},
		{field: "Node.Zone", say: set("zone", long), shown: []string{"zone ", "zone " + long[:64]}},
		{field: "Node.Door", say: set("door", "true")},
		{field: "Node.Seen", say: set("last_seen", "2099-01-01T00:00:00Z")},
		{field: "Reported.State", say: set("state", "deny")},
		{field: "Reported.Steps", say: set("steps", "{}")},
		{field: "Reported.MoreSteps", say: set("more_steps", "1")},
		{field: "Seen.Node", say: set("node", long), shown: []string{" n ", " " + long[:wire.MaxNodeID] + " "}},
		{field: "Seen.Version", say: set("after", "-1"), refused: no},
		{field: "Seen.Version", say: set("after", most, "wait", "10s"), shown: fresh},
		{field: "Seen.Mark", say: set("mark", "another", "wait", "10s"), shown: fresh},
		{field: "Seen.Consumers", say: set("consumers", "x"), refused: no},
		{field: "Seen.Consumers", say: set("consumers", most, "wait", "10s"), shown: news},
		{field: "Seen.WantsConsumers", say: set("consumers", "1x"), refused: no},
		{field: "Seen.Penalties", say: set("penalties", "-1"), refused: no},
		{field: "Seen.Penalties", say: set("penalties", most)},
		{field: "Seen.WantsPenalties", say: set("penalties", "1x"), refused: no},
		{field: "Seen.Enforcement", say: set("enforcement", most, "wait", "10s"),
			shown: append([]string{"orders 0", "orders " + most}, news...)},
		{field: "Seen.WantsEnforcement", say: set("enforcement", "1x"), refused: no},
		{field: "Seen.Outdated", say: set("nodes", "-1"), refused: no},
	}
	send := func(p *plane, m *M) *httptest.ResponseRecorder {
		if !m.Has("mark") {
			known := p.do(call{"envoy", "GET", "/node/v1/snapshot?boot=1&node=" + first, nil, ""})
			m.Set("mark", known.Header().Get("Weir-Mark"))
		}
		return p.do(call{"envoy", "GET", "/node/v1/snapshot?" + m.Encode(), nil, ""})
	}
	see := func(p *plane, w *httptest.ResponseRecorder) string {
		answer := ""
		if w != nil {
			answer = fmt.Sprint(w.Code, " ", w.Header().Get("Weir-Version"), ";")
		}
		return answer + p.listedNodes()
	}
	(&trial[M]{honest, lies, nil, send, see,
		[]reflect.Type{reflect.TypeFor[nodes.Node](), reflect.TypeFor[push.Seen]()}}).run(t)
}
