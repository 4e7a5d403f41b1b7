package controlplanetest

import (
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A rollout has two ledgers for each bucket, as in the stores; see lease.Twins. Store.Fail and
// Store.Before know the main ledgers only.

// decideTwins answers an item of a bucket by its ledgers, without a charge if look is true. decide
// answers it if there is no rollout. The caller stores the returned main ledger if the grant has
// Changed.
func decideTwins[L lease.Counted[L]](
	now quota.Instant, it leases.Item, look bool, main L, drafts *map[keyhash.Key]L,
	decide func(L, quota.Instant, lease.Ask) (L, lease.Grant),
) (L, lease.Grant) {
	if *drafts == nil {
		*drafts = map[keyhash.Key]L{}
	}
	pair := lease.Twins[L]{Main: main, Draft: (*drafts)[it.Bucket]}
	if it.Twin == nil {
		return decide(pair.Promoted(it.Ask), now, it.Ask)
	}
	if look {
		_, g := pair.Look(now, it.Draft, it.Ask)
		g.Changed = false
		return main, g
	}
	pair, g, booked := pair.Grant(now, it.Draft, it.Ask, *it.Twin)
	if it.Draft && g.Changed || !it.Draft && booked {
		(*drafts)[it.Bucket] = pair.Draft
	}
	g.Changed = g.Changed && !it.Draft || booked && it.Draft
	return pair.Main, g
}

// takeBackDraft takes tokens back in the draft's ledger, if it exists.
func takeBackDraft[L lease.Counted[L]](now quota.Instant, it leases.Item, drafts map[keyhash.Key]L) {
	if l, known := drafts[it.Bucket]; known {
		drafts[it.Bucket], _ = l.TakeBack(now, it.Returns.Term, it.Returns.Back)
	}
}
