package calls

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// Item names the bucket of a hit to the service of leases; how many tokens are asked for is left to
// the caller. The limit is the policy's, or the consumer's own in its place. The consumer, and the
// revision by which its limits were known, count where they may be others by now.
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
