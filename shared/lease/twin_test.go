package lease_test

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// holder is a node with tokens that it may use until they expire, whenever it hurts most.
type holder struct {
	until  quota.Instant
	tokens int64
}

// Nodes ask in any order and in any way, and hoard their leased tokens. All nodes of both versions
// together never use more than a bucket of the larger burst and the larger rate would allow, in any
// interval. Each ledger starts full, in doubt, or as a copy of the other ledger.
func TestTwinsAdmitNoMoreThanTheLargerLimit(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for game := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, game))
		p, err := quota.NewParams(1+r.Int64N(200),
			[]quota.Span{quota.Second, 10 * quota.Second, quota.Minute}[r.IntN(3)], 1+r.Int64N(200))
		if err != nil {
			t.Fatal(err)
		}
		q, err := quota.NewParams(1+r.Int64N(200),
			[]quota.Span{quota.Second, 10 * quota.Second, quota.Minute}[r.IntN(3)], 1+r.Int64N(200))
		if err != nil {
			t.Fatal(err)
		}
		faster := p
		if p.SlowerThan(q) {
			faster = q
		}
		larger := quota.Params{Num: faster.Num, Den: faster.Den, Burst: max(p.Burst, q.Burst)}
		figures := [2]quota.Params{p, q}
		var pair lease.Twins[lease.Ledger]
		var bound quota.State
		now := quota.Instant(1e15)
		var held []holder
		use := func(n int64) {
			var result quota.Result
			for range n {
				if bound, result = larger.Take(bound, now, 1); !result.Allowed {
					t.Fatalf("game %d (seed %d): %+v and %+v together passed %+v", game, seed, p, q, larger)
				}
			}
		}
		for range 300 {
			now += quota.Instant([]int64{0, 1, 1000, 50_000, int64(figures[r.IntN(2)].Window()) / 10,
				1 + r.Int64N(5_000_000)}[r.IntN(6)])
			if r.IntN(60) == 0 && pair.Draft.Params.Den != 0 && pair.Main.Params.Den != 0 &&
				pair.Main.Forgettable() <= now && pair.Draft.Forgettable() <= now {
				pair = lease.Twins[lease.Ledger]{} // A store forgets both.
			}
			version := r.IntN(2)
			ask := lease.Ask{Params: figures[version], Version: uint64(1+version) << lease.EpochBits,
				Waiting: r.Int64N(4), Cost: 1 + r.Int64N(3),
				Deadline: lease.Deadline, Keep: r.Int64N(60), Nodes: 2}
			other := lease.Ask{Params: figures[1-version], Version: uint64(2-version) << lease.EpochBits}
			var g lease.Grant
			pair, g, _ = pair.Grant(now, version == 1, ask, other)
			held = append(held, holder{now + quota.Instant(lease.Deadline), g.Waiting * ask.Cost},
				holder{now + quota.Instant(ask.TTL()), g.Keep})
			kept := held[:0]
			for _, h := range held {
				switch {
				case h.until <= now:
				case r.IntN(3) == 0:
					use(h.tokens)
				default:
					kept = append(kept, h)
				}
			}
			held = kept
		}
	}
}

// The same of a window algorithm, in any window.
func TestTwinsOfWindowsAdmitNoMoreThanTheLargerQuota(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for game := range uint64(1000) {
		r := rand.New(rand.NewPCG(seed, game))
		var asks [2]lease.Ask
		for i := range asks {
			limit := 1 + r.Int64N(40)
			w, err := quota.NewWindows([]quota.Algorithm{quota.SlidingWindow, quota.SlidingLog}[r.IntN(2)], limit,
				10*quota.Second, 10)
			if err != nil {
				t.Fatal(err)
			}
			p, err := quota.NewParams(limit, 10*quota.Second, limit)
			if err != nil {
				t.Fatal(err)
			}
			asks[i] = lease.Ask{Params: p, Windows: w, Version: uint64(1+i) << lease.EpochBits,
				Deadline: lease.Deadline, Cost: 1, Nodes: 2}
		}
		most := max(asks[0].Windows.Quota, asks[1].Windows.Quota)
		var pair lease.Twins[lease.WindowLedger]
		now := quota.Instant(1e15)
		var used []quota.Instant
		for range 400 {
			now += quota.Instant(r.Int64N(500_000))
			version := r.IntN(2)
			ask := asks[version]
			ask.Waiting = r.Int64N(5)
			var g lease.Grant
			pair, g, _ = pair.Grant(now, version == 1, ask, asks[1-version])
			for range g.Waiting {
				used = append(used, now)
			}
			for len(used) > 0 && used[0] <= now-quota.Instant(10*quota.Second) {
				used = used[1:]
			}
			if int64(len(used)) > most {
				t.Fatalf("game %d (seed %d): %d within a window of limits %d and %d", game, seed, len(used),
					asks[0].Windows.Quota, asks[1].Windows.Quota)
			}
		}
	}
}

// A node is refused only by its own version's limit, counted over all nodes. The requests that the
// other version admits never leave it worse off than empty: it earns at its own rate at once.
func TestTwinsRefuseByTheirOwnLimit(t *testing.T) {
	small, err := quota.NewParams(10, quota.Second, 10)
	if err != nil {
		t.Fatal(err)
	}
	large, err := quota.NewParams(100, quota.Second, 100)
	if err != nil {
		t.Fatal(err)
	}
	ask := func(p quota.Params, version uint64, n int64) lease.Ask {
		return lease.Ask{Params: p, Version: version << lease.EpochBits, Waiting: n, Cost: 1, Nodes: 1}
	}
	var pair lease.Twins[lease.Ledger]
	grant := func(at quota.Span, draft bool, n, want int64) {
		t.Helper()
		a, other := ask(small, 1, n), ask(large, 2, 0)
		if draft {
			a, other = ask(large, 2, n), ask(small, 1, 0)
		}
		var g lease.Grant
		if pair, g, _ = pair.Grant(quota.Instant(at), draft, a, other); g.Waiting != want {
			t.Errorf("at %d draft %t: %d of %d, want %d", at, draft, g.Waiting, n, want)
		}
	}
	grant(1, false, 4, 4)
	grant(1, true, 100, 96) // Starts with the used tokens.
	grant(1, false, 1, 0)   // All that the draft's nodes had counts.
	grant(100_001, false, 3, 1)
	grant(100_001, true, 20, 9) // Ten were earned, one is used.
	grant(200_001, false, 1, 1)
	// Another draft that is like it starts anew, as the limit in force.
	third := ask(large, 3, 200)
	// It has counted all that the draft admitted, and earned by its own rate.
	if _, g, _ := pair.Grant(300_001, true, third, ask(small, 1, 0)); g.Waiting != 10 {
		t.Errorf("another draft has %d, want 10", g.Waiting)
	}
	// If the draft were promoted, no use of it would be forgotten: of the 99 tokens that are
	// missing 10 are back after a tenth.
	promoted := ask(large, 2, 200)
	if _, g := pair.Promoted(promoted).Grant(300_001, promoted); g.Waiting != 19 {
		t.Errorf("promoted it has %d, want 19", g.Waiting)
	}
	// The draft is taken back: the limit in force has counted everything all along.
	var g lease.Grant
	if pair.Main, g = pair.Main.Grant(1_200_001, ask(small, 1, 20)); g.Waiting != 10 {
		t.Errorf("a second after the end %d, want a full bucket of 10", g.Waiting)
	}
}
