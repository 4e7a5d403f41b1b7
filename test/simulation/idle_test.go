package simulation

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// What no request uses lies idle on Envoys for as long as the page says and no longer: after a
// quarter of a lease without a request it is back where several share the bucket, and when the
// lease ends where there is one. It is no more than a quarter of what was left and what the limit
// earns in a lease.
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
		// What is missing beyond what was used lies idle, but for what came back meanwhile.
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
		used := max(st.passed-p.Earned(quota.Span(st.now-last)), 0) + 1 // A part of a token counts as one.
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
