package localstore

import (
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// pairs holds the tables of buckets with two ledgers; see lease.Twins.
type pairs[L lease.Counted[L]] struct {
	main, draft *table[L]
	// lost is the time of the last loss of state; percent is the initial fill of a lost bucket.
	lost    quota.Instant
	percent int64
	// fresh returns a ledger with this percentage of its limit.
	fresh func(ask lease.Ask, percent int64) L
}

// grant answers an item of a bucket that has two ledgers.
func (p pairs[L]) grant(now quota.Instant, it leases.Item, look bool) lease.Grant {
	if !p.openLedgers(now, it) {
		return lease.Grant{NotBefore: quota.Second}
	}
	pair := lease.Twins[L]{Main: p.main.all[it.Bucket], Draft: p.draft.all[it.Bucket]}
	var g lease.Grant
	booked := false
	if look {
		pair, g = pair.Look(now, it.Draft, it.Ask)
	} else {
		pair, g, booked = pair.Grant(now, it.Draft, it.Ask, *it.Twin)
	}
	if g.Changed && !it.Draft || booked && it.Draft {
		p.main.put(it.Bucket, pair.Main)
	}
	if g.Changed && it.Draft || booked && !it.Draft {
		p.draft.put(it.Bucket, pair.Draft)
	}
	return g
}

// openLedgers removes tokens from a bucket's ledgers that a crash may have lost track of, and
// reports whether there is room for the ledgers. Each lacks a share of its own limit: a draft's
// ledger that starts as a copy of the main one would lack a share of the main limit, which may be
// all that the draft allows.
func (p pairs[L]) openLedgers(now quota.Instant, it leases.Item) bool {
	key, ask, draftAsk := it.Bucket, it.Ask, *it.Twin
	if it.Draft {
		ask, draftAsk = draftAsk, ask
	}
	main, counted := p.main.all[key]
	draft, drafted := p.draft.all[key]
	pair := lease.Twins[L]{Main: main, Draft: draft}
	_, damaged := p.main.damaged[key]
	_, unsure := p.main.unsure[key]
	doubt, draftDoubt := p.inDoubt(now, ask), p.inDoubt(now, draftAsk) || damaged
	begins := (!counted && (doubt || draftDoubt) || unsure) && !pair.HasDraft(draftAsk)
	if !counted && p.main.room.lacks(len(p.main.all)) ||
		(begins || it.Draft) && !drafted && p.draft.room.lacks(len(p.draft.all)) {
		return false
	}
	if begins {
		p.beginDraft(now, key, pair, draftAsk, counted, draftDoubt)
	}
	switch {
	case !counted && (doubt || damaged):
		p.main.put(key, p.fresh(ask, p.percent))
	case doubt:
		p.main.doubt(key, now, ask, p.percent)
	}
	if draftDoubt {
		p.draft.doubt(key, now, draftAsk, p.percent)
	}
	return true
}

func (p pairs[L]) inDoubt(now quota.Instant, a lease.Ask) bool {
	return now < leases.DoubtfulUntil(p.lost, a)
}

// beginDraft makes the draft's ledger of a bucket: from the certain part of the main ledger, or
// fresh.
func (p pairs[L]) beginDraft(
	now quota.Instant, key hash, pair lease.Twins[L], ask lease.Ask, counted, doubt bool,
) {
	percent := int64(100)
	if doubt {
		percent = p.percent
	}
	draft := p.fresh(ask, percent)
	if counted {
		ask.Waiting, ask.Keep, ask.Used = 0, 0, 0
		pair, _ = pair.Look(now, true, ask)
		draft = pair.Draft.Doubted(now, ask, percent)
	}
	delete(p.draft.unsure, key)
	p.draft.put(key, draft)
}
