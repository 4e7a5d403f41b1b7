package penalties_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/report"
	"github.com/weir-proxy/weir/filter/internal/base/ruleset"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/load/penalties"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const sec = quota.Instant(quota.Second)

// ahead is how far Unix time is ahead of the process's clock.
const ahead = 1_800_000_000 * quota.Second

// process is an Envoy with some workers, which count by one shared data.
type process struct {
	*testing.T
	now     quota.Instant
	data    shareddatatest.Data
	boxes   []*penalties.Box
	reports []*report.Reporter
	workers []*limiter.Limiter
	rules   *ruleset.Rules
	ix      *match.Index
	// sent are the reports under way, with the calls that end them. unsent: none can be sent.
	sent   []wire.Offences
	ends   []func(status int, answer []byte)
	unsent bool
}

func start(t *testing.T, workers, sets int, document string) *process {
	t.Helper()
	return startWith(t, workers, sets, 4096, document)
}

// startWith is start with a table of a number of buckets.
func startWith(t *testing.T, workers, sets, buckets int, document string) *process {
	t.Helper()
	p := &process{T: t, now: 1000 * sec}
	for i := range workers {
		store := bucketstore.New(&p.data, [4]byte{}, buckets, 0)
		box := penalties.New(penalties.Config{
			Shared: &p.data, Sets: sets, Reports: true, Clock: p, Seed: uint64(i) + 1,
		})
		box.Ahead = ahead
		l := limiter.New(limiter.Config{Store: store, Penalties: box})
		p.boxes, p.workers = append(p.boxes, box), append(p.workers, l)
		p.reports = append(p.reports, report.New(p, p, "e", 1, uint64(i)+1, report.Parts{wire.SectionOffences: box}))
	}
	p.push(document)
	return p
}

func (p *process) push(document string) {
	p.Helper()
	doc, err := policy.ParseJSON([]byte(document))
	if err != nil {
		p.Fatal(err)
	}
	set, err := policy.Decode(doc)
	if err != nil {
		p.Fatal(err)
	}
	p.rules = &ruleset.Rules{Generation: 1}
	if err := p.rules.Load(wire.AppendSnapshot(nil, wire.Snapshot{Version: 1, Set: set})); err != nil {
		p.Fatal(err)
	}
	p.ix = &p.rules.Index
}

// Now implements rpc.Clock.
func (p *process) Now() quota.Instant { return p.now }

// Call implements rpc.Client.
func (p *process) Call(_ string, body []byte, _ quota.Span, done func(int, []byte)) error {
	if p.unsent {
		return errors.New("no healthy host")
	}
	m, err := wire.DecodeReport(append([]byte(nil), body...))
	if err != nil || m.Sections() != 1<<wire.SectionOffences {
		p.Fatalf("%+v: %v", m, err)
	}
	p.sent, p.ends = append(p.sent, *m.Offences), append(p.ends, done)
	return nil
}

// request is one request of a caller at a worker, in words: allowed, or why it was refused and for
// how many seconds.
func (p *process) request(worker int, caller, path string) string {
	p.Helper()
	var req limiter.Request
	a := match.Attributes{Method: []byte("GET"), Path: []byte(path), Host: []byte("h"),
		Headers: []match.Header{{Name: []byte("x-api-key"), Value: []byte(caller)}}}
	status := p.workers[worker].Begin(&req, p.rules, &a, p.now)
	p.boxes[worker].Name(&wire.Identity{Shown: []byte("\x00\x01/")})
	switch status {
	case limiter.Allowed:
		return "allowed"
	case limiter.Refused:
		h := &req.Hits[req.Refusing]
		text := req.Reason.String()
		if req.Reason == policy.ReasonPenalty {
			text += fmt.Sprintf(" %d by %s", h.Retry/quota.Second, p.ix.Text(p.ix.Policy(h.Policy).Name))
		}
		return text
	}
	return fmt.Sprint("status ", status)
}

// rule is a document with a policy for /a, whose bucket has one token a minute, and a policy for
// /b.
func rule(penalty, more string) string {
	return `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"}]},"policies":[
		{"name":"a","match":{"paths":["/a"]},"partition":["consumer"],"mode":"local","limit":{"quota":1,"window":"1m"},
		 "penalty":{"after":{"refusals":3,"within":"10s"},"jitter":"0%"` + penalty + `}` + more + `},
		{"name":"b","match":{"paths":["/b"]},"partition":["consumer"],"mode":"local","limit":{"quota":1000,"window":"1m"}}]}`
}

// exempt is everything that is not limited by /a and /b.
func TestTimelines(t *testing.T) {
	type step struct {
		at     int // in seconds
		worker int
		who    string // caller and path
		want   string
	}
	for name, c := range map[string]struct {
		document string
		line     []step
	}{
		"refusals at any worker count together, and every worker refuses at once": {rule("", ""), []step{
			{0, 0, "eve /a", "allowed"}, {0, 0, "eve /a", "quota"}, {1, 1, "eve /a", "quota"},
			{2, 0, "eve /a", "quota"},
			{2, 1, "eve /a", "penalty 60 by a"}, {2, 0, "bob /a", "allowed"}, {31, 0, "eve /a", "penalty 31 by a"},
			{31, 1, "eve /b", "allowed"}, {61, 1, "eve /a", "penalty 1 by a"}, {62, 1, "eve /a", "allowed"},
		}},
		"the second offence doubles the time": {rule("", ""), []step{
			{0, 0, "eve /a", "allowed"}, {0, 0, "eve /a", "quota"}, {0, 0, "eve /a", "quota"},
			{0, 0, "eve /a", "quota"},
			{60, 0, "eve /a", "allowed"}, {60, 0, "eve /a", "quota"}, {60, 1, "eve /a", "quota"},
			{60, 0, "eve /a", "quota"},
			{61, 1, "eve /a", "penalty 119 by a"}, {180, 1, "eve /a", "allowed"},
		}},
		"refusals that are too old do not count": {rule("", ""), []step{
			{0, 0, "eve /a", "allowed"}, {0, 0, "eve /a", "quota"}, {9, 0, "eve /a", "quota"},
			{10, 0, "eve /a", "quota"},
			{11, 0, "eve /a", "quota"}, {11, 0, "eve /a", "penalty 60 by a"},
		}},
		"with extend it starts over": {rule(`,"extend":true`, ""), []step{
			{0, 0, "eve /a", "allowed"}, {0, 0, "eve /a", "quota"}, {0, 0, "eve /a", "quota"},
			{0, 0, "eve /a", "quota"},
			{30, 1, "eve /a", "penalty 60 by a"}, {89, 0, "eve /a", "penalty 60 by a"}, {149, 0, "eve /a", "allowed"},
		}},
		"for all policies": {rule(`,"scope":"all"`, ""), []step{
			{0, 0, "eve /a", "allowed"}, {0, 0, "eve /a", "quota"}, {0, 0, "eve /a", "quota"},
			{0, 0, "eve /a", "quota"},
			{1, 1, "eve /b", "penalty 59 by a"}, {1, 1, "eve /a", "penalty 59 by a"}, {1, 1, "bob /b", "allowed"},
			{1, 1, "eve /c", "status 0"}, {60, 1, "eve /b", "allowed"},
		}},
		"a penalty in shadow refuses nothing": {rule(`,"shadow":true`, ""), []step{
			{0, 0, "eve /a", "allowed"}, {0, 0, "eve /a", "quota"}, {0, 0, "eve /a", "quota"},
			{0, 0, "eve /a", "quota"},
			{1, 1, "eve /a", "quota"}, {60, 1, "eve /a", "allowed"},
		}},
		"nor does that of a policy in shadow": {rule("", `,"enforcement":"shadow"`), []step{
			{0, 0, "eve /a", "status 0"}, {0, 0, "eve /a", "status 0"}, {0, 0, "eve /a", "status 0"},
			{0, 0, "eve /a", "status 0"}, {1, 1, "eve /a", "status 0"},
		}},
		"too high a cost is no offence": {strings.Replace(rule("", `,"cost":{"header":"x-api-key","max":9}`), `"partition":["consumer"],"mode":"local","limit":{"quota":1,`, `"partition":["consumer"],"mode":"local","limit":{"quota":2,`, 1), []step{
			{0, 0, "9 /a", "too_dear"}, {0, 0, "9 /a", "too_dear"}, {0, 0, "9 /a", "too_dear"},
			{0, 0, "9 /a", "too_dear"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, 2, 64, c.document)
			begin := p.now
			for i, s := range c.line {
				p.now = begin + quota.Instant(s.at)*sec
				caller, path, _ := strings.Cut(s.who, " ")
				if got := p.request(s.worker, caller, path); got != s.want {
					t.Fatalf("step %d at %d, %s: %s, want %s", i, s.at, s.who, got, s.want)
				}
			}
		})
	}
}

// punish brings a caller under a penalty.
func (p *process) punish(caller string) {
	p.Helper()
	for range 4 {
		p.request(0, caller, "/a")
	}
}

// news is a message from the poll, at one worker.
func (p *process) news(worker int, m wire.Penalties) {
	p.Helper()
	if err := p.boxes[worker].Learn(wire.AppendPenalties(nil, &m)); err != nil {
		p.Fatal(err)
	}
}

func TestShadowSaysWhomItWouldHit(t *testing.T) {
	for name, document := range map[string]string{
		"the penalty": rule(`,"shadow":true`, ""), "the policy": rule("", `,"enforcement":"shadow"`),
	} {
		p := start(t, 1, 64, document)
		p.punish("eve")
		p.request(0, "eve", "/a")
		p.reports[0].Tick(p.now+sec, nil)
		s := p.boxes[0].Stats
		if s.ShadowBegun != 1 || s.ShadowRefused != 1 || s.Begun != 0 || s.Refused != 0 {
			t.Errorf("%s: %+v", name, s)
		}
		if len(p.sent) != 1 || !p.sent[0].Items[0].Shadow || string(p.sent[0].Items[0].Shown) != "\x00\x01/" {
			t.Errorf("%s: reported %+v", name, p.sent)
		}
	}
}

func TestPardonsReachEveryWorker(t *testing.T) {
	p := start(t, 2, 64, rule("", ""))
	p.news(0, wire.Penalties{Revision: 5})
	p.punish("eve")
	p.reports[0].Tick(p.now, nil)
	if len(p.sent) != 1 || len(p.sent[0].Items) != 1 || p.sent[0].Items[0].Known != 5 {
		t.Fatalf("reported %+v", p.sent)
	}
	eve := p.sent[0].Items[0]
	p.ends[0](204, nil)
	p.news(1, wire.Penalties{Revision: 7, Items: []wire.Penalty{{Key: eve.Key, Level: 1, Until: eve.Until}}})
	if got := p.request(1, "eve", "/a"); got != "penalty 60 by a" {
		t.Errorf("with the control plane's word: %s", got)
	}
	p.news(1, wire.Penalties{Revision: 8, Items: []wire.Penalty{{Key: eve.Key}}})
	// An older message that comes late does not take the pardon back.
	p.news(0, wire.Penalties{Revision: 7, Items: []wire.Penalty{{Key: eve.Key, Level: 1, Until: eve.Until}}})
	for worker := range 2 {
		if got := p.request(worker, "eve", "/a"); got != "quota" {
			t.Errorf("pardoned at worker %d: %s", worker, got)
		}
	}
	p.request(0, "eve", "/a") // The third refusal since.
	if got := p.request(1, "eve", "/a"); got != "penalty 60 by a" {
		t.Errorf("after a new offence, the first again: %s", got)
	}
	p.news(0, wire.Penalties{Revision: 20, Cleared: 20})
	p.boxes[1].Follow()
	for worker := range 2 {
		if got := p.request(worker, "eve", "/a"); got != "quota" {
			t.Errorf("all are pardoned, at worker %d: %s", worker, got)
		}
	}
}

// Penalties that do not arrive are sent again, with newer penalties, and in messages of a bounded
// size.
func TestReportsArrive(t *testing.T) {
	p := start(t, 1, 4096, rule("", ""))
	b := p.boxes[0]
	p.punish("early")
	p.reports[0].Tick(p.now, nil)
	if due := p.reports[0].NextDue(p.now); len(p.sent) != 0 || due != p.now+sec/4 {
		t.Fatalf("%d reports before the control plane could send its penalties, the first one due at %v", len(p.sent),
			due)
	}
	p.now += sec / 4
	p.unsent = true
	p.reports[0].Tick(p.now, nil)
	p.unsent = false
	due := p.reports[0].NextDue(p.now)
	if due <= p.now || due > p.now+sec {
		t.Errorf("due %v after a failure at %v", due, p.now)
	}
	const all = 300
	for i := range all {
		p.punish(fmt.Sprint("caller ", i))
	}
	reported := map[keyhash.Key]bool{}
	for status, calls := 0, 0; ; calls++ {
		p.now = max(p.now, p.reports[0].NextDue(p.now))
		p.reports[0].Tick(p.now, nil)
		if len(p.ends) == calls {
			break
		}
		status = []int{503, 204}[calls%2]
		for _, it := range p.sent[calls].Items {
			reported[it.Key] = reported[it.Key] || status == 204
			if string(it.Policy) != "a" || it.Level != 1 || it.Forgotten != it.Until+3_600_000 {
				t.Fatalf("reported %+v", it)
			}
		}
		p.ends[calls](status, nil)
		if p.reports[0].NextDue(p.now) == quota.Forever {
			break
		}
	}
	arrived := 0
	for _, ok := range reported {
		if ok {
			arrived++
		}
	}
	if arrived != all+1 || p.reports[0].Taken[0] != 3 || p.reports[0].Failed[0] != 4 || b.Stats.Dropped != 0 {
		t.Errorf("%d arrived, %+v, %+v", arrived, p.reports[0].Stats, b.Stats)
	}
}

// A control plane that does not know penalties is left alone.
func TestAnOlderControlPlaneIsLeftAlone(t *testing.T) {
	p := start(t, 1, 64, rule("", ""))
	p.punish("eve")
	p.now += sec / 4
	p.reports[0].Tick(p.now, nil)
	p.ends[0](404, nil)
	if due := p.reports[0].NextDue(p.now); due < p.now+60*sec {
		t.Errorf("due again after %v", due-p.now)
	}
}

// A flood of offenders takes bounded memory, and no other caller is touched by it. All buckets have
// a place: a caller that starts with the possible debt of an evicted bucket gets no penalty.
func TestAFloodOfOffenders(t *testing.T) {
	const sets, all, buckets = 2048, 100_000, 1 << 19
	p := startWith(t, 1, sets, buckets, strings.Replace(rule("", ""), `"refusals":3`, `"refusals":1`, 1))
	b := p.boxes[0]
	for i := range all {
		caller := fmt.Sprint("bot ", i)
		p.request(0, caller, "/a")
		p.request(0, caller, "/a")
		if i%1000 == 0 {
			for _, path := range []string{"/a", "/b"} {
				if got := p.request(0, fmt.Sprint("good ", i), path); strings.HasPrefix(got, "penalty") {
					t.Fatalf("a caller without refusals: %s", got)
				}
			}
		}
	}
	if keys := p.data.Len(); keys > sets+buckets/8+16 {
		t.Errorf("%d values in the shared data", keys)
	}
	s := b.Stats
	if s.Begun+s.Lost < all/2 || s.Begun < 4*sets || s.Dropped == 0 {
		t.Errorf("%+v", s)
	}
	p.push(strings.Replace(rule("", ""), `"refusals":3`, `"refusals":1000`, 1)) // Looking begins no penalty.
	held := 0
	for i := range all {
		if strings.HasPrefix(p.request(0, fmt.Sprint("bot ", i), "/b"), "penalty") {
			t.Fatal("a penalty of one policy holds under another policy")
		}
		if strings.HasPrefix(p.request(0, fmt.Sprint("bot ", i), "/a"), "penalty") {
			held++
		}
	}
	if held < 4*sets*9/10 {
		t.Errorf("%d of %d penalties are in force", held, 4*sets)
	}
}

// Two workers that write at the same moment count each refusal once.
func TestRefusalsAreCountedExactly(t *testing.T) {
	const refusals = 100
	p := start(t, 2, 1, strings.Replace(rule("", ""), `"refusals":3`, fmt.Sprintf(`"refusals":%d`, refusals), 1))
	random := rand.New(rand.NewPCG(1, 2))
	made, nested := 0, false
	p.data.Before = func(op string, key []byte) {
		if op == "set" && !nested && len(key) == 9 && key[4] == byte(shareddata.PenaltySet) && random.IntN(2) == 0 &&
			made < refusals-1 {
			nested = true
			if p.request(1, "eve", "/a") == "quota" {
				made++
			}
			nested = false
		}
	}
	p.request(0, "eve", "/a")
	for made < refusals {
		if got := p.request(0, "eve", "/a"); got != "quota" {
			t.Fatalf("after %d refusals: %s", made, got)
		}
		made++
	}
	if got := p.request(0, "eve", "/a"); !strings.HasPrefix(got, "penalty") ||
		p.boxes[0].Stats.Lost+p.boxes[1].Stats.Lost > 0 {
		t.Errorf("after %d refusals: %s", made, got)
	}
}

func FuzzLearn(f *testing.F) {
	f.Add(wire.AppendPenalties(nil,
		&wire.Penalties{Revision: 9, Cleared: 3, Items: []wire.Penalty{{Key: keyhash.Key{1}, Level: 2, Until: 5}}}),
		[]byte("a value"))
	f.Fuzz(func(t *testing.T, message, value []byte) {
		var data shareddatatest.Data
		b := penalties.New(penalties.Config{Shared: &data, Sets: 1, Clock: &process{T: t}})
		prefix := shareddata.Space{}.Key(shareddata.PenaltySet)
		data.Put(binary.LittleEndian.AppendUint32(prefix[:], 0), value)
		if b.Learn(message) == nil {
			b.Known()
		}
	})
}
