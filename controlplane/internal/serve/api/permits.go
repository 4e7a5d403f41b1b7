package api

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/quota"
)

// maxHolders is the largest number of nodes that an answer lists.
const maxHolders = 100

// describePermits says who holds the permits of a bucket.
func describePermits(b *gen.Bucket, held leases.Permits) {
	slices.SortFunc(held.Holdings, func(x, y inflight.Holding) int {
		return cmp.Or(cmp.Compare(y.Permits, x.Permits), cmp.Compare(x.Node.ID, y.Node.ID),
			cmp.Compare(x.Node.Boot, y.Node.Boot))
	})
	last := held.Now
	for _, h := range held.Holdings {
		if h.Permits == 0 { // It only says that the node has been there.
			continue
		}
		b.Used += h.Permits
		last = max(last, h.Until)
		if len(b.Holders) < maxHolders {
			b.Holders = append(b.Holders, gen.PermitHolder{
				Node: nodes.Node{ID: h.Node.ID}.Clean().ID, Boot: strconv.FormatUint(h.Node.Boot, 16),
				Permits: h.Permits, EndsAfterSeconds: seconds(quota.Span(h.Until - held.Now)),
			})
		}
	}
	b.Leased, b.Level = b.Used, max(held.Limit-b.Used, 0)
	b.FullAfterSeconds = seconds(quota.Span(last - held.Now))
}
