package simulation

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// Unused tokens lie idle on Envoys no longer than the page says. If several Envoys share the
// bucket, they are back after a quarter of a lease without a request. With one Envoy they are back
// when the lease ends. They are at most a quarter of the tokens that were left, and the tokens that
// the limit earns in a lease.
func TestWhatLiesIdleGoesBack(t *testing.T) {
	idled, most := 0, 0.0
	for seed := range max(*seeds/20, 20) {
		r := rand.New(rand.NewPCG(seed, 3))
		s := anyShape(r)
		s.algorithm, s.quota = "token_bucket", max(s.quota, 50)
		envoys := pick(r, 1, 2, 3, 10)
		st := newStage(t, seed, envoys, s)
		st.learnBucket()
		p := st.limit.Params
		begin, burst := st.now, 1+r.Int64N(s.quota*3/4)
		for range burst {
			st.send(r.IntN(envoys), 1)
			st.run(pick[quota.Span](r, 0, 1000, 20_000))
		}
		st.run(20 * quota.Millisecond)
		missing := func() int64 { return s.quota - st.store.Holds(st.bucket, s.quota) }
		// Missing tokens lie idle, except used tokens that are not earned back yet.
		last, before := st.now, missing()
		idle := before - max(st.passed-p.Earned(quota.Span(st.now-begin)), 0)
		if idle > 0 {
			idled++
			most = max(most, float64(idle)/float64(s.quota))
		}
		limit := (s.quota+3)/4 + p.Earned(lease.TTL(p)+quota.Span(st.now-begin)) + 1
		if idle > limit {
			t.Errorf("seed %d: %d Envoys, %+v: %d lie idle, more than %d", seed, envoys, s, idle, limit)
		}
		ends := lease.TTL(p)
		if envoys > 1 && s.window >= quota.Minute { // Of less, used tokens that count as leased hold up the refill.
			ends /= 4
		}
		st.run(ends + 100*quota.Millisecond)
		used := max(st.passed-p.Earned(quota.Span(st.now-last)), 0) + 1 // A part of a token counts as a token.
		if s.quota >= 64*int64(envoys) {                                // Each may keep one of very many.
			used += int64(envoys)
		}
		if left := missing(); left > used {
			t.Errorf("seed %d: %d Envoys, %+v: %d passed, %d are missing %d ms after, %d were at once", seed, envoys, s,
				st.passed, left, (st.now-last)/quota.Instant(quota.Millisecond), before)
		}
	}
	t.Logf("tokens lay idle in %d games, %.0f %% of the limit at most", idled, 100*most)
	if idled == 0 {
		t.Error("none ever lay idle")
	}
}
