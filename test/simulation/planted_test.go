package simulation

import (
	"sync/atomic"
	"testing"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// planted is a fault in the pieces around the product's code, as a fault in it would be.
type planted uint8

const (
	nothing planted = iota
	stoppedClock
	forgottenMargin
	uncounted
	doubledReply
	bothRates
	fullAfterLoss
	emptyShares
	forgivenUse
	mixedAnswers
	swappedReplies
	takenTwice
	usedComeBack
)

// plant puts the fault in.
func (w *world) plant() {
	switch w.planted {
	case forgottenMargin:
		for _, n := range w.nodes {
			n.drift = -300_000
		}
	case uncounted:
		w.store.Before = func(l *lease.Ledger, _ quota.Instant, _ lease.Ask) { l.Pairs = nil }
	case bothRates:
		w.store.Before = func(l *lease.Ledger, now quota.Instant, ask lease.Ask) {
			if l.Params != ask.Params && now > l.Last {
				l.Debt = max(0, l.Debt-l.Params.UnitsFor(ask.Params.Earned(quota.Span(now-l.Last))))
			}
		}
	case forgivenUse:
		w.store.Before = func(l *lease.Ledger, _ quota.Instant, ask lease.Ask) {
			if ask.Most.Den > 0 {
				l.Debt = l.Params.UnitsFor(min(l.Params.TokensIn(l.Debt), ask.Params.Burst))
			}
		}
	case fullAfterLoss:
		w.store.Fill = 100
	case takenTwice:
		w.store.TakesAgain = true
	case usedComeBack:
		w.store.TakesUsed = true
	}
}

// The simulation must find each of these faults: each breaks a law, and some seed sees it. The
// search begins at the seed that saw it last. When runs change, a new seed is found and can take
// its place.
func TestPlantedFaultsAreFound(t *testing.T) {
	for name, p := range map[string]struct {
		planted
		seed uint64
	}{
		"a node's clock stops while it is paused":                            {stoppedClock, 807},
		"clocks run slower than a lease's margin covers":                     {forgottenMargin, 518},
		"the control plane does not count leased tokens":                     {uncounted, 13},
		"a reply is taken in twice":                                          {doubledReply, 2},
		"a change of limits earns at both rates":                             {bothRates, 37},
		"a store that lost its state fills buckets to the brim":              {fullAfterLoss, 8},
		"a caller with a small figure is forgiven the use of larger figures": {forgivenUse, 29},
		"requests that share a call to the store get another's answer":       {swappedReplies, 5},
		"a share begins without a token":                                     {emptyShares, 5},
		"the answers of a shared call change places":                         {mixedAnswers, 5},
		"tokens that go back are taken twice":                                {takenTwice, 5},
		"tokens go back that were used":                                      {usedComeBack, 8},
	} {
		t.Run(name, func(t *testing.T) {
			var runs atomic.Int64
			var found atomic.Pointer[world]
			begin := func(seed uint64) *world { return newWorld(seed, p.planted) }
			runSeeds(*first-1+p.seed, 1000, begin, func(w *world) bool {
				runs.Add(1)
				if w.problem != "" {
					found.Store(w)
				}
				return w.problem == ""
			})
			if w := found.Load(); w == nil {
				t.Errorf("not found by %d seeds", runs.Load())
			} else {
				t.Logf("found by seed %d after %d: %.200s", w.seed, runs.Load(), w.problem)
			}
		})
	}
}
