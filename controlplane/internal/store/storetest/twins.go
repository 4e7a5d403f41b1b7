package storetest

import (
	"math/rand/v2"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// testTwins plays games in which most buckets have two ledgers, against lease.Twins. Nodes of two
// versions ask in turn, alone and in groups, while limits change and rollouts begin and end.
func testTwins(t *testing.T, s *Instance) {
	const batches = 60
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx, now := testContext(t), Base
	for n := range uint64(s.some(120)) {
		l := &limits{r: rand.New(rand.NewPCG(seed+n, 2)), now: now, version: 10 << lease.EpochBits, salt: 1<<33 + n}
		for i := range l.all {
			l.all[i] = l.figures()
			l.old[i] = l.all[i]
		}
		ref := newReference()
		drafts := [len(l.all)]lease.Ask{}
		for i := range drafts {
			drafts[i] = l.similar(l.all[i])
		}
		for range batches {
			l.pass(ref, s.StepsBack)
			s.SetClock(l.now)
			items := l.batch()
			for i := range items {
				which := int(items[i].Bucket[1])
				if l.r.IntN(30) == 0 {
					l.version += 1 << lease.EpochBits
				}
				if l.r.IntN(60) == 0 {
					drafts[which] = l.similar(l.all[which])
				}
				items[i] = l.twin(items[i], drafts[which])
			}
			got := must[[]lease.Grant](t)(s.Grant(ctx, items))
			want := ref.grant(l.now, items)
			for i, it := range items {
				got[i].Changed = false
				if got[i] != want[i] {
					t.Fatalf("game %d (seed %d) at %d: item %d of %+v, twin %+v\n got %+v\nwant %+v", n, seed, l.now, i,
						items, it.Twin, got[i], want[i])
				}
			}
		}
		now = l.now
		if s.StepsBack {
			now = Base
		}
	}
}

// similar draws another limit of the same kind.
func (l *limits) similar(a lease.Ask) lease.Ask {
	for {
		if b := l.figures(); (b.Windows.Quota == 0) == (a.Windows.Quota == 0) &&
			(b.Params != a.Params || b.Windows != a.Windows) {
			return b
		}
	}
}

// twin gives most items a bucket with two ledgers. Some of them are asked by a node that has the
// draft.
func (l *limits) twin(it leases.Item, draft lease.Ask) leases.Item {
	if (it.Ask.Windows.Quota == 0) != (draft.Windows.Quota == 0) || l.r.IntN(8) == 0 {
		return it
	}
	if l.r.IntN(12) == 0 { // As after a promotion.
		it.Ask.Params, it.Ask.Windows, it.Ask.Version = draft.Params, draft.Windows, l.next(it.Ask.Version)
		return it
	}
	other := lease.Ask{Params: draft.Params, Windows: draft.Windows, Version: l.next(it.Ask.Version)}
	it.Draft = l.r.IntN(2) == 0
	if it.Draft {
		main := lease.Ask{
			Params: it.Ask.Params, Windows: it.Ask.Windows, Version: it.Ask.Version, Most: it.Ask.Most,
		}
		it.Ask.Most = quota.Params{}
		it.Ask.Params, it.Ask.Windows, it.Ask.Version = other.Params, other.Windows, other.Version
		other = main
	}
	if it.Ask.Most.Den > 0 || l.r.IntN(4) == 0 { // Callers' own limits may exist in one version or in both.
		other = l.own(other)
	}
	it.Twin = &other
	return it
}

// next returns the version of a draft over another version: the next policy set, or sometimes a
// later one.
func (l *limits) next(version uint64) uint64 {
	return version>>lease.EpochBits<<lease.EpochBits + uint64(1+l.r.IntN(8)/7)<<lease.EpochBits
}

// twins are the second ledgers of buckets.
type twins struct {
	tokens  map[keyhash.Key]lease.Ledger
	windows map[keyhash.Key]lease.WindowLedger
}

func (r *reference) answerTwin(now quota.Instant, it leases.Item, look bool) lease.Grant {
	if it.Ask.Windows.Quota == 0 {
		return answerBy(now, it, look, r.tokens, r.drafts.tokens)
	}
	return answerBy(now, it, look, r.windows, r.drafts.windows)
}

func answerBy[L lease.Counted[L]](now quota.Instant, it leases.Item, look bool, main,
	draft map[keyhash.Key]L) (g lease.Grant) {
	pair := lease.Twins[L]{Main: main[it.Bucket], Draft: draft[it.Bucket]}
	booked := false
	if look {
		pair, g = pair.Look(now, it.Draft, it.Ask)
	} else {
		pair, g, booked = pair.Grant(now, it.Draft, it.Ask, *it.Twin)
	}
	if booked || g.Changed && !it.Draft {
		main[it.Bucket] = pair.Main
	}
	_, known := draft[it.Bucket]
	if g.Changed && it.Draft || booked && known {
		draft[it.Bucket] = pair.Draft
	}
	g.Changed = false
	return g
}
