package regions

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

var errAway = errors.New("away")

// cell is a Cell in memory that fails on demand.
type cell struct {
	value    []byte
	revision uint64
	now      func() quota.Instant
	// fails reports whether the next call fails, and whether a swap that fails was made all the
	// same.
	fails func() (failed, made bool)
}

func (c *cell) Load(context.Context) ([]byte, uint64, quota.Instant, error) {
	if failed, _ := c.fails(); failed {
		return nil, 0, 0, errAway
	}
	return c.value, c.revision, c.now(), nil
}

func (c *cell) Swap(_ context.Context, revision uint64, value []byte) (bool, error) {
	failed, made := c.fails()
	if failed && !made {
		return false, errAway
	}
	won := revision == c.revision
	if won {
		c.value, c.revision = value, c.revision+1
	}
	if failed {
		return false, errAway
	}
	return won, nil
}

// world is several regions of two replicas each, in virtual time.
type world struct {
	random   *rand.Rand
	now      quota.Instant
	policy   policy.Policy
	document *cell
	own      map[string]*cell
	replicas map[string][]*Service
	ledgers  map[string]lease.Ledger
	windows  map[string]lease.WindowLedger
	// faulty is how many calls of a hundred fail; cut are the regions that do not reach the
	// document.
	faulty int
	cut    map[string]bool
}

func newWorld(t *testing.T, seed uint64, weights map[string]int64, counting policy.Counting, tokens int64,
	window quota.Span, burst int64) *world {
	t.Helper()
	limit, err := policy.NewLimit(counting, tokens, window, burst)
	if err != nil {
		t.Fatal(err)
	}
	shares, err := Normalise(weights)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{
		random: rand.New(rand.NewPCG(seed, 1)),
		policy: policy.Policy{Name: "p", Counting: counting, Limits: []policy.Limit{limit}},
		own:    map[string]*cell{}, replicas: map[string][]*Service{}, ledgers: map[string]lease.Ledger{},
		windows: map[string]lease.WindowLedger{},
		cut:     map[string]bool{}, now: quota.Instant(quota.Second),
	}
	clock := func() time.Time { return time.Unix(0, int64(w.now)*1000) }
	fails := func() (bool, bool) { return w.random.IntN(100) < w.faulty, w.random.IntN(2) == 0 }
	w.document = &cell{now: func() quota.Instant { return w.now }, fails: fails}
	for i, region := range []string{"eu", "us", "ap"}[:len(weights)] {
		ahead := quota.Instant(i) * 7_777_777_777 // Regions compare no clocks.
		w.own[region] = &cell{now: func() quota.Instant { return w.now + ahead }, fails: fails}
		for range 2 {
			w.replicas[region] = append(w.replicas[region], New(Config{Region: region, Weights: shares}, w.own[region],
				&line{w.document, func() bool { return w.cut[region] }},
				func(_ string, part Part) quota.Span {
					return part.Grace(&w.policy)
				}, slog.New(slog.NewTextHandler(io.Discard, nil)), clock))
		}
	}
	return w
}

// line is the way to a cell that may be cut.
type line struct {
	*cell
	cut func() bool
}

func (l *line) Load(ctx context.Context) ([]byte, uint64, quota.Instant, error) {
	if l.cut() {
		return nil, 0, 0, errAway
	}
	return l.cell.Load(ctx)
}

func (l *line) Swap(ctx context.Context, revision uint64, value []byte) (bool, error) {
	if l.cut() {
		return false, errAway
	}
	return l.cell.Swap(ctx, revision, value)
}

// step lets every replica look once.
func (w *world) step(t *testing.T) {
	for _, region := range []string{"eu", "us", "ap"} {
		for _, s := range w.replicas[region] {
			_ = s.doStep(t.Context())
		}
	}
}

// ask takes up to n tokens in a region and returns how many it got. Half of them are leased, and
// taken to be used when they come.
func (w *world) ask(region string, n int64) int64 {
	replica := w.replicas[region][w.random.IntN(2)]
	part, ok := replica.Part("p")
	if !ok {
		return 0
	}
	replica.Want("p", n)
	whole := w.policy.Limits[0]
	limit := part.Of(whole)
	a := lease.Ask{
		Params: limit.Params, Windows: limit.WindowsOf(keyhash.Key{}), Version: part.Epoch, Waiting: n - n/2, Cost: 1,
		Deadline: lease.Deadline, Keep: n / 2, Nodes: 1,
		Hold: lease.TTL(whole.Params),
	}
	now := w.own[region].now()
	var g lease.Grant
	if limit.Algorithm.Windowed() {
		l := w.windows[region]
		if l.Windows.Quota != 0 && l.Forgettable() <= now {
			l = lease.WindowLedger{}
		}
		w.windows[region], g = l.Grant(now, a)
	} else {
		l := w.ledgers[region]
		if l.Params.Den != 0 && l.Forgettable() <= now {
			l = lease.Ledger{}
		}
		w.ledgers[region], g = l.Grant(now, a)
	}
	return g.Waiting + g.Keep
}

type use struct {
	at quota.Instant
	n  int64
}

// The sum over all regions keeps the bound of the whole limit in every interval, whatever fails,
// and whichever region tries to use a share that was given away a moment ago.
func TestRegionsKeepTheBoundTogether(t *testing.T) {
	bucket := policy.Counting{}
	window := policy.Counting{Algorithm: quota.SlidingWindow, Subwindows: 10}
	for _, c := range []struct {
		name     string
		counting policy.Counting
		tokens   int64
		window   quota.Span
		burst    int64
	}{
		{"fast bucket", bucket, 1000, quota.Second, 1000},
		{"slow bucket", bucket, 100, quota.Minute, 100},
		{"deep bucket", bucket, 60, quota.Minute, 600},
		{"window", window, 1000, 10 * quota.Second, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			best := 0.0
			for seed := range uint64(40) {
				w := newWorld(t, seed, map[string]int64{"eu": 5, "us": 3, "ap": 2}, c.counting, c.tokens, c.window,
					c.burst)
				w.faulty = w.random.IntN(30)
				uses := w.play(t, 1200)
				limit := w.policy.Limits[0]
				worst, kept := worstBucket(uses, limit.Params)
				if limit.Algorithm.Windowed() {
					most := worstWindow(uses, limit.Window)
					worst, kept = float64(most)/float64(limit.Quota), most <= limit.Quota
				}
				if !kept {
					t.Fatalf("seed %d: %.4f of the bound", seed, worst)
				}
				best = max(best, worst)
			}
			t.Logf("at most %.1f %% of the bound was used", 100*best)
			if best < 0.9 {
				t.Errorf("only %.2f of the bound was ever used: the regions strand too much, or the test does not try",
					best)
			}
		})
	}
}

// play asks the regions for some seconds, while the demand wanders from one region to the other,
// and returns each use with its time.
func (w *world) play(t *testing.T, seconds int) (uses []use) {
	busy := 0
	names := []string{"eu", "us", "ap"}
	for second := range seconds {
		if second%60 == 0 {
			busy = w.random.IntN(len(names))
			w.cut[names[w.random.IntN(3)]] = w.random.IntN(3) == 0
		}
		w.step(t)
		for range 4 {
			for i, region := range names {
				if i == busy || w.random.IntN(20) == 0 {
					if n := w.ask(region, 1+w.random.Int64N(2000)); n > 0 {
						uses = append(uses, use{w.now, n})
					}
				}
			}
			w.now += quota.Instant(w.random.Int64N(500_000))
		}
	}
	return uses
}

// worstBucket is the largest use of any interval over burst + rate·length, and whether it keeps to
// that exactly.
func worstBucket(uses []use, p quota.Params) (worst float64, kept bool) {
	kept = true
	for i := range uses {
		sum := int64(0)
		for j := i; j < len(uses) && j < i+400; j++ {
			sum += uses[j].n
			bound := p.Burst*p.Den + int64(uses[j].at-uses[i].at)*p.Num
			worst, kept = max(worst, float64(sum*p.Den)/float64(bound)), kept && sum*p.Den <= bound
		}
	}
	return worst, kept
}

func worstWindow(uses []use, length quota.Span) (worst int64) {
	sum, from := int64(0), 0
	for _, u := range uses {
		sum += u.n
		for uses[from].at <= u.at-quota.Instant(length) {
			sum -= uses[from].n
			from++
		}
		worst = max(worst, sum)
	}
	return worst
}

// A region with all the demand gets most of the rate, and gives it back when the others' clients
// return.
func TestSharesFollowDemand(t *testing.T) {
	w := newWorld(t, 1, map[string]int64{"eu": 1, "us": 1}, policy.Counting{}, 1000, quota.Second, 1000)
	rate := func(region string) int64 {
		part, ok := w.replicas[region][0].Part("p")
		if !ok {
			t.Fatal("the part is not known")
		}
		return part.Rate
	}
	run := func(seconds int, busy ...string) {
		for range seconds {
			w.step(t)
			for _, region := range busy {
				w.ask(region, 5000)
			}
			w.now += quota.Instant(quota.Second)
		}
	}
	run(5, "eu", "us")
	if rate("eu") != 500 || rate("us") != 500 {
		t.Fatalf("the weights give %d and %d", rate("eu"), rate("us"))
	}
	run(180, "eu")
	if eu, us := rate("eu"), rate("us"); eu < 840 || eu+us < 980 {
		t.Errorf("after three minutes of demand in one region it has %d, the other %d; want nearly 875 and 125",
			rate("eu"), rate("us"))
	}
	run(300, "eu", "us")
	if eu, us := rate("eu"), rate("us"); eu < 450 || eu > 550 || us < 450 || us > 550 {
		t.Errorf("five minutes after the other's clients came back they have %d and %d", eu, us)
	}
}

// A region that is cut off keeps its last share, however long it lasts, and the others do not take
// it.
func TestACutOffRegionKeepsItsShare(t *testing.T) {
	w := newWorld(t, 1, map[string]int64{"eu": 1, "us": 1}, policy.Counting{}, 1000, quota.Second, 1000)
	w.step(t)
	w.cut["us"] = true
	for range 300 {
		w.step(t)
		w.ask("eu", 5000)
		w.now += quota.Instant(quota.Second)
	}
	for _, region := range []string{"eu", "us"} {
		if part, ok := w.replicas[region][0].Part("p"); !ok || part.Rate != 500 {
			t.Errorf("%s has %+v, %v", region, part, ok)
		}
	}
	if v := w.replicas["us"][0].View(); v.Trouble != "" || v.Age < 290 {
		t.Errorf("the cut off region says %+v", v)
	}
}

// Trouble lasts until the document of all regions can be written again, on each replica, and is
// logged once.
func TestTroubleLasts(t *testing.T) {
	w := newWorld(t, 1, map[string]int64{"eu": 1, "us": 1}, policy.Counting{}, 1000, quota.Second, 1000)
	var log bytes.Buffer
	for _, s := range w.replicas["us"] {
		s.log = slog.New(slog.NewTextHandler(&log, nil))
	}
	away, readOnly := false, false
	w.cut["us"] = false
	shared := &line{w.document, func() bool { return away }}
	for _, s := range w.replicas["us"] {
		s.shared = &oneWay{shared, &readOnly}
	}
	pass := func(seconds int) (troubled []int) {
		for range seconds {
			n := 0
			for _, s := range w.replicas["us"] {
				s.runPass(t.Context())
				if s.View().Trouble != "" {
					n++
				}
			}
			troubled = append(troubled, n)
			w.now += quota.Instant(quota.Second)
		}
		return troubled
	}
	if got := slices.Max(pass(30)); got != 0 {
		t.Fatalf("%d replicas are in trouble before anything happens", got)
	}
	for name, broken := range map[string]*bool{"away": &away, "read-only": &readOnly} {
		log.Reset()
		*broken = true
		pass(11) // Until a round was due.
		if got := pass(60); slices.Min(got) < 1 {
			t.Errorf("%s: replicas in trouble, second by second: %v", name, got)
		}
		if warned := strings.Count(log.String(), "level=WARN"); warned < 1 || warned > 2 ||
			strings.Contains(log.String(), "level=INFO") {
			t.Errorf("%s: log\n%s", name, log.String())
		}
		*broken = false
		if got := pass(3); got[2] != 0 {
			t.Errorf("%s, and well again: %v", name, got)
		}
	}
}

// oneWay is a cell that can be read and, while the test says so, not be written.
type oneWay struct {
	*line
	readOnly *bool
}

func (o *oneWay) Swap(ctx context.Context, revision uint64, value []byte) (bool, error) {
	if *o.readOnly {
		return false, errAway
	}
	return o.line.Swap(ctx, revision, value)
}

// A replica that cannot read its region's share grants nothing after three seconds: the share may
// have been given away.
func TestAPartIsForgotten(t *testing.T) {
	w := newWorld(t, 1, map[string]int64{"eu": 1, "us": 1}, policy.Counting{}, 1000, quota.Second, 1000)
	if _, ok := w.replicas["eu"][0].Part("p"); ok {
		t.Error("a part was known before anything was read")
	}
	w.step(t)
	w.faulty = 100
	for _, c := range []struct {
		pass time.Duration
		want bool
	}{{0, true}, {2999 * time.Millisecond, true}, {time.Millisecond, false}} {
		w.now += quota.Instant(c.pass.Microseconds())
		w.step(t)
		if _, ok := w.replicas["eu"][0].Part("p"); ok != c.want {
			t.Errorf("at %d µs known: %v", w.now, ok)
		}
	}
}

// Regions that were given different weights move nothing, and say so.
func TestDifferentWeightsAreRefused(t *testing.T) {
	w := newWorld(t, 1, map[string]int64{"eu": 1, "us": 1}, policy.Counting{}, 1000, quota.Second, 1000)
	w.step(t)
	text, err := json.Marshal(Document{Weights: map[string]int64{"eu": 900, "us": 100}})
	if err != nil {
		t.Fatal(err)
	}
	w.document.value = text
	w.now += quota.Instant(roundEvery)
	err = w.replicas["eu"][0].doStep(t.Context())
	if err == nil || !strings.Contains(err.Error(), "give all the same") {
		t.Errorf("%v", err)
	}
}

// A region whose store has lost its record goes on with its share in the document, and grants
// nothing before it knows the share.
func TestALostRecordIsReadFromTheDocument(t *testing.T) {
	w := newWorld(t, 1, map[string]int64{"eu": 1, "us": 1}, policy.Counting{}, 1000, quota.Second, 1000)
	for range 120 {
		w.step(t)
		w.ask("eu", 5000)
		w.now += quota.Instant(quota.Second)
	}
	s := w.replicas["us"][0]
	before, ok := s.Part("p")
	if !ok || before.Rate > 200 {
		t.Fatalf("%+v %v: nothing has moved", before, ok)
	}
	w.own["us"].value, w.own["us"].revision = nil, 0
	w.cut["us"] = true
	if err := s.doStep(t.Context()); err == nil {
		t.Error("no error without a record and a document")
	}
	if part, ok := s.Part("p"); ok {
		t.Errorf("it goes by %+v without knowing", part)
	}
	w.cut["us"] = false
	if err := s.doStep(t.Context()); err != nil {
		t.Error(err)
	}
	if part, ok := s.Part("p"); !ok || part.Rate > before.Rate {
		t.Errorf("it has %+v (%v), and had %+v", part, ok, before)
	}
}

// Damaged values are an error, not a panic, and leave the last good parts in use.
func TestDamagedValues(t *testing.T) {
	w := newWorld(t, 1, map[string]int64{"eu": 1, "us": 1}, policy.Counting{}, 1000, quota.Second, 1000)
	w.step(t)
	w.now += quota.Instant(roundEvery)
	for _, c := range []*cell{w.document, w.own["eu"]} {
		before := c.value
		c.value = []byte("{")
		if err := w.replicas["eu"][0].doStep(t.Context()); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("%v", err)
		}
		c.value = before
		w.now += quota.Instant(roundEvery)
	}
}

// A planted bug: a region that gives away writes the document without waiting.
func TestWithoutGraceTheBoundBreaks(t *testing.T) {
	broken := 0
	for seed := range uint64(20) {
		w := newWorld(t, seed, map[string]int64{"eu": 5, "us": 3, "ap": 2},
			policy.Counting{Algorithm: quota.SlidingWindow, Subwindows: 10}, 1000, quota.Minute, 0)
		for _, replicas := range w.replicas {
			for _, s := range replicas {
				s.grace = func(string, Part) quota.Span { return 0 }
			}
		}
		if worstWindow(w.play(t, 600), quota.Minute) > 1000 {
			broken++
		}
	}
	if broken == 0 {
		t.Error("no seed breaks the bound without the grace: the test of the bound proves nothing")
	}
}

func TestNormalise(t *testing.T) {
	got, err := Normalise(map[string]int64{"eu": 500, "us": 300, "ap": 200})
	if want := (map[string]int64{"eu": 500, "us": 300, "ap": 200}); err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err = Normalise(map[string]int64{"a": 1, "b": 1, "c": 1}); err != nil || got["a"] != 333 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err = Normalise(map[string]int64{"a": 1000, "b": 1}); err == nil ||
		!strings.Contains(err.Error(), "region b") {
		t.Errorf("%v", err)
	}
}
