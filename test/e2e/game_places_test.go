package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// gamePlaces is the game's limit of requests in flight. A caller uses one place at a time, and the
// number of callers is twice the limit.
const gamePlaces = 12

// others are policies of the game that are not a rate. A failure refuses requests of all but the
// last: places that a share gives count later, and no refusal by a failure may lead to a penalty.
var others = fmt.Sprintf(`
  - {name: places, match: {paths: [/places/**]}, partition: [], mode: leased, on_failure: [deny],
     limit: {in_flight: %d}}
  - {name: good, match: {paths: [/good]}, partition: [header:x-caller], mode: strict, on_failure: [deny],
     limit: {quota: 100, window: 10s}, penalty: {after: {refusals: 2, within: 1m}, for: 1h}}
  - {name: bad, match: {paths: [/bad]}, partition: [header:x-caller], mode: local,
     limit: {quota: 1, window: 24h}, penalty: {after: {refusals: 2, within: 1m}, for: 1h}}
`, gamePlaces)[1:]

// servePlaces returns the service of the game, which counts the requests of places that it has in
// hand.
func servePlaces(places *rushUpstream) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/places/") {
			places.ServeHTTP(w, r)
			return
		}
		stack.Echo(w, r)
	}
}

// rush makes clients of both Envoys ask for places until the returned function is called, which
// returns the outcome of their requests.
func (g *game) rush() (end func() rushed) {
	urls := [2]string{g.envoys[0].URL() + "/places", g.envoys[1].URL() + "/places"}
	ctx, cancel := context.WithCancel(g.ctx)
	done := make(chan rushed, 1)
	go func() {
		done <- g.places.rush(ctx, 2*gamePlaces, func(client int) (string, int) { return urls[client%2], client % 2 })
	}()
	return func() rushed {
		cancel()
		return <-done
	}
}

// withoutPolicies counts the requests that Envoys have let through because they had no policy set
// yet. It leaves out the Envoys of before, which had one.
func (g *game) withoutPolicies(before []*stack.Envoy) (n int) {
	g.t.Helper()
	for _, e := range g.envoys {
		if !slices.Contains(before, e) {
			n += int(g.measured(e)["requests.before_snapshot"])
		}
	}
	return n
}

// holdPlaces wants no more requests in flight than the limit in a round, in which the most were
// these until all was well, besides requests without a policy set. It wants each Envoy to have had
// its share of places since then, less the requests that failures refused meanwhile.
func (g *game) holdPlaces(c calamity, now allowance, away time.Duration, most, late, unlimited int) {
	g.t.Helper()
	may := gamePlaces + unlimited
	// Its clock says that all leases have ended; or so it is; or another Redis knows of none.
	if c.lost == 1 || away > permitLease || c.both {
		may += gamePlaces
	}
	by := g.places.peaks()
	most = max(most, g.places.atMost())
	g.mostPlaces = max(g.mostPlaces, most)
	if most > may {
		g.violate("in the round of %q %d were in flight, at most %d may be", c.name, most, may)
	}
	if now.restarts+g.before.restarts > 0 { // The old process' permits are gone for 10 s.
		return
	}
	for envoy, had := range by {
		if had < gamePlaces/2-2-late {
			g.violate("after %q Envoy %d had %d in flight at most while all was well; its share is %d, and %d were "+
				"late", c.name, envoy, had, gamePlaces/2, late)
		}
	}
}

// good are callers that stay within their limit, which are refused by failures alone: how often,
// and how often for a penalty, which none may be.
type good struct {
	failed, penalised atomic.Int64
}

// begin starts the callers, which ask both Envoys.
func (b *good) begin(ctx context.Context, urls []string) *background {
	return load{clients: 8, rate: 8, request: func(i int) *http.Request {
		return request(http.MethodGet, urls[i%2]+"/good", "x-caller", fmt.Sprint(i/2%4))
	}, note: func(_ int, a answer) {
		switch {
		case inPenalty(a):
			b.penalised.Add(1)
		case byFailure(a):
			b.failed.Add(1)
		}
	}}.background(ctx)
}

// offend makes a new caller offend until it has a penalty, which both Envoys must know then. The
// penalty of the round before must still be in force, unless the store may have lost it.
func (g *game) offend(c calamity) {
	g.t.Helper()
	ask := func(envoy int, caller string) answer {
		return ask(g.t, http.MethodPost, g.envoys[envoy].URL()+"/bad", "x-caller", caller)
	}
	if g.penalties > 0 && !c.forget {
		g.awaitPenalties(fmt.Sprint("bad-", g.penalties), ask)
	}
	if n := g.good.penalised.Swap(0); n > 0 {
		g.violate("after %q callers within their limits were refused %d times for a penalty", c.name, n)
	}
	g.penalties++
	caller, at := fmt.Sprint("bad-", g.penalties), g.penalties%2
	for range 4 { // One passes, and two refusals lead to it.
		ask(at, caller)
	}
	if a := ask(at, caller); !inPenalty(a) {
		g.violate("after %q four requests of %s led to no penalty: %d %s", c.name, caller, a.status, a.body)
	}
	g.awaitPenalties(caller, ask)
}

// awaitPenalties waits until both Envoys refuse a caller by a penalty.
func (g *game) awaitPenalties(caller string, ask func(int, string) answer) {
	g.t.Helper()
	g.await("a penalty of "+caller+" to be in force", func(context.Context) error {
		for i, e := range g.envoys {
			if a := ask(i, caller); !inPenalty(a) {
				return fmt.Errorf("%s answers %d %s", e.Name, a.status, a.body)
			}
		}
		return nil
	})
}
