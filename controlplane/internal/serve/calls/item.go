package calls

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Item returns the lease item for the bucket of a hit. The caller sets the number of tokens. l is
// the policy's limit, or the consumer's own limit in its place. For a policy by consumers the item
// has the revision at which the limits were known. If they may be out of date, it also has the
// consumer.
func Item(h *match.Hit, p *policy.Policy, l *policy.Limit, consumer keyhash.Key, revision uint64) wire.LeaseItem {
	it := wire.LeaseItem{Bucket: h.Key, Limit: h.Limit}
	if l.Own > 0 {
		it.Quota, it.Burst = l.Quota, l.Params.Burst
	}
	if p.ByConsumer() {
		it.ExceptionsRevision = revision
		if h.Certainty != match.Certain {
			it.Consumer, it.Position, it.Root = consumer, h.Position+1, l.Root
		}
		if h.Certainty == match.GuessedTier {
			it.Position = wire.TierGuessed
		}
	}
	return it
}
