package controlplanetest

import (
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

// A rollout has two ledgers for each bucket, as in the stores; see lease.Twins. Loss, failover and
// planted faults are not for buckets with such.

// decideTwins answers an item of a bucket by its ledgers. The caller keeps the main one if the
// grant says that it has changed.
func decideTwins[L lease.Counted[L]](
	now quota.Instant, it leases.Item, look bool, before L, drafts *map[keyhash.Key]L,
	one func(L, quota.Instant, lease.Ask) (L, lease.Grant),
) (L, lease.Grant) {
	if *drafts == nil {
		*drafts = map[keyhash.Key]L{}
	}
	pair := lease.Twins[L]{Main: before, Draft: (*drafts)[it.Bucket]}
	if it.Twin == nil {
		return one(pair.Promoted(it.Ask), now, it.Ask)
	}
	if look {
		_, g := pair.Look(now, it.Draft, it.Ask)
		g.Changed = false
		return before, g
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
