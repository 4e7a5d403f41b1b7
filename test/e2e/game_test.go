package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/ackgame"
)

var (
	gameFor = flag.Duration("game", 0,
		"how long TestChaosGame draws faults from -seed, half of it with Sentinels; 0 is two short games")
	gameSeed = flag.Uint64("seed", 0, "the seed of the game; 0 draws a seed")
)

// The limits of the game: as much in each policy, whose callers ask for three times that.
const (
	gameBurst = 60
	gameRate  = 20
	// gameSlack is the slack of the optimistic limit: half of the burst, for each Envoy except the
	// first.
	gameSlack = gameBurst / 2
	// gameLeast is the share of a limit that callers get at least while all is well.
	gameLeast = 0.95
	// sharesLeast is the same share for the limit with shares, over the whole game: it pays back
	// the tokens that the shares let through, and nothing is lost.
	sharesLeast = 0.9
	// reportTakes is the age of the oldest use by an Envoy that the control plane may not know.
	reportTakes = 300 * time.Millisecond
	// healthy is for how long nothing happens between faults.
	healthy = 4 * time.Second
)

// waitCallers is how many callers wait as they are asked to, at each Envoy.
const waitCallers = 6

// waitModes are those whose waits are tested.
var waitModes = []string{"leased", "strict"}

// gameSet returns the policy set of the game, whose policies a and b are the policies of ackgame.
func gameSet(quota int) string {
	head, own, _ := strings.Cut(fmt.Sprintf(ackgame.Set, quota), "policies:\n")
	var limits strings.Builder
	for _, p := range [][2]string{
		{"shares", "mode: leased, on_failure: {then: local}"},
		{"leased", "mode: leased, on_failure: {then: deny}"},
		{"strict", "mode: strict, on_failure: {then: deny}"},
		{"optimistic", "mode: optimistic, on_failure: {then: deny}"},
		{"local", "mode: local"},
	} {
		fmt.Fprintf(&limits, "  - {name: %[1]s, match: {paths: [/%[1]s]}, partition: [], %[2]s, "+
			"limit: {quota: 60, window: 3s}}\n", p[0], p[1])
	}
	// A failure refuses here: requests that a share lets through are charged later, and make waits
	// wrong.
	for _, mode := range waitModes {
		fmt.Fprintf(&limits, "  - {name: waits-%[1]s, match: {paths: [/waits/%[1]s]}, partition: [header:x-caller], "+
			"mode: %[1]s, on_failure: {then: deny}, limit: {quota: 4, window: 4s}}\n", mode)
	}
	return head + "policies:\n" + own + limits.String() + others + within[1:]
}

// game is a fleet with the grants of its callers and the course of the game.
type game struct {
	*fleet
	// faults draws these alone, so that a seed draws the same ones whatever else happens.
	faults, random *rand.Rand
	acks           *ackgame.Game
	meters         map[string]*meter
	loads          []*background
	waits          waiting
	// places is the upstream of the requests in flight of both Envoys, and mostPlaces is the
	// largest number of them.
	places     *rushUpstream
	mostPlaces int
	good       good
	// penalties counts the callers with a penalty.
	penalties int

	rounds map[string]int
	// violations counts violated promises; the game goes on.
	violations int
	// obeyed counts looks at Envoys that refused a banned caller, or did not refuse a caller
	// without a ban.
	obeyed int
	// since is the beginning of the round before this round, and before is the allowance of its
	// fault.
	since  time.Time
	before allowance
}

// allowance has the tokens that a round allows beyond the bounds.
type allowance struct {
	lost, restarts float64
	// again is in seconds of the rate.
	again  float64
	shares float64
}

func (a allowance) plus(b allowance) allowance {
	return allowance{a.lost + b.lost, a.restarts + b.restarts, a.again + b.again, a.shares + b.shares}
}

// Faults, pushes and changes are drawn at random while callers ask without pause. In every interval
// each limit holds. While all is well callers get everything that the limits give, and callers
// within their limits always do. Each announced wait is true. In the end all acknowledged changes
// are in force.
func TestChaosGame(t *testing.T) {
	t.Parallel()
	seeds, during := []uint64{1, 2}, 35*time.Second
	if *gameFor > 0 {
		seed := *gameSeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		seeds, during = []uint64{seed, seed}, *gameFor/2
	}
	for i, store := range []string{"one Redis", "Sentinels"} {
		t.Run(store, func(t *testing.T) { play(t, seeds[i], during, i == 1) })
	}
}

func play(t *testing.T, seed uint64, during time.Duration, watched bool) {
	fmt.Printf("the seed of this game is %d\n", seed)
	places := &rushUpstream{}
	g := &game{fleet: startFleet(t, watched, servePlaces(places)), places: places,
		faults: rand.New(rand.NewPCG(seed, 0)), random: rand.New(rand.NewPCG(seed, 1)),
		meters: map[string]*meter{}, rounds: map[string]int{}}
	g.acks = &ackgame.Game{T: t, Random: g.random, Set: gameSet}
	for i := range g.planes {
		call := func(method, path string, body []byte, header ...string) (int, []byte, error) {
			ctx, cancel := context.WithTimeout(g.ctx, patience)
			defer cancel()
			a, err := g.planes[i].Call(ctx, method, path, body, header...)
			return a.Status, a.Body, err
		}
		g.acks.Planes = append(g.acks.Planes, call)
	}
	g.waits.calls, g.waits.bucket = g.calls, g.bucket
	g.acks.Begin()
	g.awaitApplied(1)
	g.ask()
	callers, rush := g.withinLimits(g.envoys...), g.rush()
	begin := time.Now()
	g.since = begin
	time.Sleep(time.Second)
	for n := 1; time.Since(begin) < during; n++ {
		what := g.round()
		at := time.Since(begin).Round(time.Second)
		fmt.Printf("%8v round %d: %s; %s; %s; %d violations\n", at, n, what, g.acks, g.waits.String(), g.violations)
	}
	requests := int64(g.waits.asked)
	for _, l := range g.loads {
		got := l.end()
		got.mustBe(t, 200, 429)
		requests += got.statuses[200] + got.statuses[429]
	}
	m := g.meters["shares"]
	if a, _ := m.counted(); float64(a) < sharesLeast*gameRate*time.Since(begin).Seconds() {
		g.violate("shares let %d through in %v", a, time.Since(begin))
	}
	noneRefused(t, "the game", callers)
	if c := rush(); c.failed > 0 || c.refused == 0 {
		t.Errorf("of requests in flight: %v", c)
	}
	g.waits.end(t)
	if t.Failed() {
		t.Logf("requests that took seconds, also where an Envoy stood still:\n%s", g.slow.String())
	}
	t.Logf("seed %d, %v, %d requests beside those, %d violations in rounds: %s; faults: %v", seed,
		time.Since(begin).Round(time.Second), requests, g.violations, g.figures(), g.rounds)
}

// ask starts the callers of each limit, which ask for three times its rate over both Envoys, and
// callers that wait for the announced time.
func (g *game) ask() {
	urls := []string{g.envoys[0].URL(), g.envoys[1].URL()}
	for _, name := range []string{"shares", "leased", "strict", "optimistic"} {
		m := &meter{name: name, burst: gameBurst, rate: gameRate}
		g.meters[name] = m
		g.loads = append(g.loads, load{clients: 16, rate: 3 * gameRate, request: func(i int) *http.Request {
			return request(http.MethodGet, urls[i/16%2]+"/"+name)
		}, note: func(_ int, a answer) { m.note(a) }}.background(g.ctx))
	}
	g.loads = append(g.loads, g.good.begin(g.ctx, urls))
	for i, url := range urls {
		m := &meter{name: fmt.Sprint("local at ", i), burst: gameBurst, rate: gameRate}
		g.meters[m.name] = m
		g.loads = append(g.loads, load{clients: 8, rate: 2 * gameRate, request: func(int) *http.Request {
			return request(http.MethodGet, url+"/local")
		}, note: func(_ int, a answer) { m.note(a) }}.background(g.ctx))
		for i := range waitCallers {
			g.waits.begin(g.ctx, url, waitModes[i%len(waitModes)], fmt.Sprint(url, i))
		}
	}
}

// calls describes how the calls of each Envoy to control planes went since it started. It includes
// how often it has sent a call again, which is decided twice if both control planes have heard it.
func (g *game) calls() string {
	var all []string
	for _, e := range g.envoys {
		text, err := e.Admin(g.ctx, `/stats?filter=^(cluster\.weir\.upstream_rq_retry|wasmcustom\.weir\.leases\..*)$`)
		if err != nil {
			text = []byte(err.Error())
		}
		words := strings.NewReplacer("cluster.weir.upstream_rq_", "", "wasmcustom.weir.leases.", "", "\n", ", ")
		all = append(all, e.Name+": "+words.Replace(strings.TrimSpace(string(text))))
	}
	return strings.Join(all, "; ")
}

// bucket returns the answers of both control planes about one bucket of a caller that waits.
func (g *game) bucket(mode, caller string) string {
	var all strings.Builder
	for _, p := range g.planes {
		a, err := p.Call(g.ctx, http.MethodGet,
			"/v1/keys/waits-"+mode+"?partition="+url.QueryEscape("header:x-caller:"+caller), nil)
		fmt.Fprintf(&all, "%s %d %s %v\n", time.Now().UTC().Format("05.000"), a.Status, bytes.TrimSpace(a.Body), err)
	}
	return all.String()
}

// round lets a fault happen, and then nothing, and checks callers and control planes.
func (g *game) round() (what string) {
	g.t.Helper()
	begin, shared, elected, envoys := time.Now(), g.decidedByShare(), g.elections(), slices.Clone(g.envoys)
	c := g.draw(g.faults)
	if c.forget || c.dies > 0 { // A change that only one control plane has read may be lost with Redis, or with it.
		g.awaitKept()
		time.Sleep(1500 * time.Millisecond)
	}
	g.waits.trouble()
	for p := range g.planes {
		if c.dies&(p+1) != 0 {
			g.acks.Dies(p)
		}
	}
	g.rounds[kind(c.name)]++
	c.begin()
	for end := time.Now().Add(time.Duration(1500+g.random.IntN(1500)) * time.Millisecond); time.Now().Before(end); {
		if !c.forget {
			g.acks.Draw()
		}
		time.Sleep(time.Duration(200+g.random.IntN(300)) * time.Millisecond)
	}
	c.end()
	g.awaitPlanes()
	g.awaitPolicies()
	g.awaitGround()
	away := time.Since(begin)
	time.Sleep(time.Second) // Shares' requests are charged after 0.7 s, as docs/internals/shares.md says.
	most := g.places.atMost()
	byShare, late := g.calm(c)
	again := max(c.again, electedAgain*float64(g.elections()-elected))
	now := allowance{lost: c.lost, restarts: c.restarts, again: again,
		shares: gameBurst + gameRate*away.Seconds() + byShare}
	if c.restarts == 0 { // A new process counts anew.
		now.shares = min(now.shares, float64(g.decidedByShare()-shared))
	}
	g.hold(c, now)
	g.holdPlaces(c, now, away, most, late, g.withoutPolicies(envoys))
	g.offend(c)
	g.since, g.before = begin, now
	return c.name
}

// kind returns the name of a fault without its details.
func kind(name string) string {
	what, _, _ := strings.Cut(name, ":")
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return 'N'
		}
		return r
	}, what)
}

// calm lets no fault happen, while changes go on. Callers must get everything that the limits give.
// It returns how many requests a share decided meanwhile because a call was late, and how many a
// failure refused.
func (g *game) calm(c calamity) (byShare float64, late int) {
	g.t.Helper()
	type counts struct{ admitted, refused int64 }
	before := map[string]counts{}
	for name, m := range g.meters {
		a, r := m.counted()
		before[name] = counts{a, r}
	}
	denied, shared, owed := g.late(), g.decidedByShare(), g.owed()
	g.waits.health()
	g.places.peaks()
	begin := time.Now()
	for time.Since(begin) < healthy {
		g.acks.Draw()
		time.Sleep(time.Duration(500+g.random.IntN(500)) * time.Millisecond)
	}
	took := time.Since(begin).Seconds()
	g.waits.trouble()
	denied, shared = g.late()-denied, g.decidedByShare()-shared
	g.waits.settle(denied > 0)
	for name, m := range g.meters {
		if name == "shares" {
			continue // The requests that shares have let through are paid back now.
		}
		a, r := m.counted()
		a, r = a-before[name].admitted, r-before[name].refused
		least := gameLeast*min(gameRate*took, float64(a+r)) - float64(denied)
		if name == "optimistic" {
			least -= owed // It pays back early uses of the Envoys.
		}
		m.scant(float64(a), least)
		if float64(a) < least {
			g.violate("after %q %s let %d through in %.1f s while all was well, and refused %d; at least %.0f must",
				c.name, name, a, took, r, least)
		}
	}
	return float64(shared), int(denied)
}

// owed returns how many tokens of the optimistic limit Envoys have used beyond its level. It
// includes the tokens that the control plane knows, and the tokens that it may not know yet.
func (g *game) owed() float64 {
	g.t.Helper()
	unknown := g.meters["optimistic"].lately(reportTakes)
	a, err := g.planes[0].Call(g.ctx, http.MethodGet, "/v1/keys/optimistic", nil)
	var key struct {
		Buckets []struct {
			FullAfter float64 `json:"full_after_seconds"`
		}
	}
	if err == nil {
		err = json.Unmarshal(a.Body, &key)
	}
	if err != nil || len(key.Buckets) != 1 {
		g.t.Fatalf("the optimistic bucket: %v %d %s", err, a.Status, a.Body)
	}
	return max(key.Buckets[0].FullAfter*gameRate-gameBurst, 0) + unknown
}

// violate notes that something was not as it must be.
func (g *game) violate(format string, values ...any) {
	g.t.Helper()
	g.violations++
	g.t.Errorf(format, values...)
}

// hold checks the bounds of all intervals of this round and the round before it, and the
// acknowledged changes.
func (g *game) hold(c calamity, now allowance) {
	g.t.Helper()
	all := now.plus(g.before)
	for name, m := range g.meters {
		extra := all.lost*gameBurst + all.again*gameRate
		switch {
		case name == "shares":
			extra += all.shares
		case name == "optimistic":
			extra += gameSlack * (1 + all.restarts)
			if all.lost > 0 { // The debt beyond the burst is lost, too.
				extra += gameSlack * float64(len(g.envoys))
			}
		case strings.HasPrefix(name, "local"):
			extra = gameBurst * all.restarts
		}
		if err := m.hold(g.since, extra); err != nil {
			g.violate("in the round of %q: %v", c.name, err)
		}
	}
	g.awaitKept()
	g.awaitObeyed()
}

// awaitObeyed waits until each Envoy refuses the callers that are banned, and no other one as such.
func (g *game) awaitObeyed() {
	g.t.Helper()
	bans := g.acks.Bans()
	g.obeyed += len(bans) * len(g.envoys)
	g.await("Envoys to obey", func(context.Context) error {
		for who, banned := range bans {
			for _, e := range g.envoys {
				a, err := send(&http.Client{Timeout: patience}, request(http.MethodGet, e.URL()+"/", "x-api-key", who))
				if err != nil || (a.status == http.StatusForbidden) != banned {
					return fmt.Errorf("%s: %s is banned: %t, and is answered %d %w", e.Name, who, banned, a.status, err)
				}
			}
		}
		return nil
	})
}

// awaitKept waits until all that was acknowledged is so at both control planes.
func (g *game) awaitKept() {
	g.t.Helper()
	g.await("all that was acknowledged to be so", func(context.Context) error {
		if wrong := g.acks.Wrong(); len(wrong) > 0 {
			return fmt.Errorf("%s", strings.Join(wrong, "\n"))
		}
		return nil
	})
}

// figures say how it went so far.
func (g *game) figures() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(g.meters)) {
		m := g.meters[name]
		admitted, refused := m.counted()
		parts = append(parts, fmt.Sprintf("%s %d of %d passed, %.0f %% of its bound at most, %.2f of its least", name,
			admitted, admitted+refused, 100*m.closest, m.scantest))
	}
	return fmt.Sprintf("%s; %s; %d times Envoys obeyed; %s; %d of %d places in flight at most; "+
		"%d callers have a penalty, and none for %d failures", strings.Join(parts, ", "), g.acks, g.obeyed,
		g.waits.String(), g.mostPlaces, gamePlaces, g.penalties, g.good.failed.Load())
}

// waiting are callers that wait as long as they are asked to, each at one Envoy.
type waiting struct {
	mu sync.Mutex
	// well counts the healthy times twice, at their begin and at their end: it is odd during a
	// healthy time.
	well    int
	callers sync.WaitGroup
	cancel  []context.CancelFunc
	kept    int
	wrong   []string
	// doubtful are untrue waits where an answer to the same caller named a failure while all was
	// well. The answer came too late, so that its granted tokens are lost, or it reports an earlier
	// loss of Redis.
	doubtful []string
	// late counts the doubtful waits during which answers of the control plane were late.
	late int
	// asked counts requests.
	asked int
	// calls are how calls to control planes went so far, before is the same when all was well at
	// first, bucket one of a caller in a mode.
	calls  func() string
	before string
	bucket func(mode, caller string) string
}

func (w *waiting) health() {
	calls := w.calls()
	w.turn(1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.before = calls
}

func (w *waiting) trouble() { w.turn(0) }

func (w *waiting) turn(odd int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.well%2 != odd {
		w.well++
	}
}

// now counts a request, and returns the number of the healthy time in which it was sent.
func (w *waiting) now() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	return w.well
}

// begin starts a caller that uses up its limit at an Envoy, waits for the time in the refusal, and
// asks again.
func (w *waiting) begin(ctx context.Context, url, mode, caller string) {
	ctx, cancel := context.WithCancel(ctx)
	w.cancel = append(w.cancel, cancel)
	w.callers.Go(func() {
		client := &http.Client{Timeout: patience}
		late := -1 // The last time in which an answer may have come too late.
		var seen []string
		ask := func() (begun int, a answer, err error) {
			begun = w.now()
			a, err = send(client, request(http.MethodGet, url+"/waits/"+mode, "x-caller", caller))
			if err != nil || byFailure(a) {
				late = begun
			}
			seen = append(seen[max(len(seen)-7, 0):], fmt.Sprintf("%s %d %v %s after %v", a.at.UTC().Format("05.000"),
				a.status, err, a.Get("RateLimit"), a.took.Round(time.Millisecond)))
			return begun, a, err
		}
		for ctx.Err() == nil {
			begun, first, err := ask()
			if err != nil || first.status != http.StatusTooManyRequests {
				time.Sleep(10 * time.Millisecond)
				continue
			}
			seconds, _ := strconv.Atoi(first.Get("Retry-After"))
			time.Sleep(time.Duration(seconds) * time.Second)
			_, again, err := ask()
			w.judge(begun, late == begun, func() string {
				return fmt.Sprintf("%s at %s waited %s s, in vain: %s\n%s\ncalls: %s\nbefore: %s\n%sstalls of %v", mode,
					url, first.Get("Retry-After"), again.body, strings.Join(seen, "\n"), w.calls(), w.before,
					w.bucket(mode, caller), stalls.between(first.at, again.at))
			}, again, err)
		}
	})
}

// byFailure reports whether an answer names a failure as the reason of a refusal.
func byFailure(a answer) bool { return strings.Contains(a.body, "#temporary-reduced-capacity") }

// judge notes a wait during which all was well, and how it went. Late: an answer to the caller may
// have been.
func (w *waiting) judge(begun int, late bool, say func() string, again answer, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if begun != w.well || begun%2 == 0 {
		return
	}
	if err == nil && again.status == http.StatusOK {
		w.kept++
		return
	}
	text := say()
	if err == nil && late {
		w.doubtful = append(w.doubtful, text)
	} else {
		fmt.Println(text)
		w.wrong = append(w.wrong, text)
	}
}

// settle ends a time in which all was well, and in which answers were late or not.
func (w *waiting) settle(late bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, text := range w.doubtful {
		fmt.Println(text)
	}
	if late {
		w.late += len(w.doubtful)
	} else {
		w.wrong = append(w.wrong, w.doubtful...)
	}
	w.doubtful = nil
}

func (w *waiting) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprintf("%d waits were true, %d were not, and %d were not of callers with late answers", w.kept,
		len(w.wrong), w.late)
}

func (w *waiting) end(t *testing.T) {
	t.Helper()
	for _, cancel := range w.cancel {
		cancel()
	}
	w.callers.Wait()
	if len(w.wrong) > 0 {
		t.Errorf("%d waits were untrue:\n%s", len(w.wrong), strings.Join(w.wrong, "\n"))
	}
	if w.kept == 0 {
		t.Error("no wait was tested")
	}
}
