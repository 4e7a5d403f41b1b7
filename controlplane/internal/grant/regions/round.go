package regions

import (
	"maps"
	"slices"

	"github.com/weir-proxy/weir/shared/quota"
)

// Grace is how long after a part of a policy was lowered the admissions of the larger part can
// still matter.
type Grace func(policy string, part Part) quota.Span

// give is the first half of a round and changes only the region's own record: it lowers shares
// above their target. In the document they stay as they are until settle.
func give(r *Record, d *Document, region string, now int64) {
	weight := d.Weights[region]
	for _, policy := range policiesOf(r, d) {
		share := r.using(policy, weight)
		held := d.held(policy, region)
		target := d.target(policy, region)
		switch {
		case share.Using > held: // The document was lost and began anew with the weights.
			r.use(policy, Share{Using: held}, weight)
		case share.Given == 0 && share.Using == held && held-target >= stepLeast:
			r.use(policy, Share{Using: max(target, held-stepMost), Given: now}, weight)
		}
	}
}

// settle is the second half and changes only the document: it gives up what was lowered long enough
// ago, and takes what the region wants of the part that no region holds. The region may use it once
// the document is stored; see take.
func settle(r *Record, d *Document, region string, now int64, grace Grace) {
	weight := d.Weights[region]
	for _, policy := range policiesOf(r, d) {
		share := r.using(policy, weight)
		held, target := d.held(policy, region), d.target(policy, region)
		isGiven := share.Using < held && share.Given != 0
		switch {
		case isGiven && now-share.Given >= int64(grace(policy, Part{Rate: held, Burst: weight})):
			d.hold(policy, region, share.Using)
		case share.Using == held && share.Given == 0 && target > held:
			if more := min(target-held, stepMost, d.free(policy)); more > 0 {
				d.hold(policy, region, held+more)
			}
		}
	}
}

// take updates the record from the stored document: the region uses what it holds, unless it is
// about to give some away.
func take(r *Record, d *Document, region string) {
	weight := d.Weights[region]
	for _, policy := range policiesOf(r, d) {
		share, held := r.using(policy, weight), d.held(policy, region)
		if share.Given == 0 && share.Using < held || share.Given != 0 && share.Using == held {
			r.use(policy, Share{Using: held}, weight)
		}
	}
}

// adopt makes a new record use what its region holds by the document.
func adopt(r *Record, d *Document, region string) {
	for policy := range d.Held {
		r.use(policy, Share{Using: d.held(policy, region)}, d.Weights[region])
	}
}

// policiesOf are the policies that a round decides about, in order.
func policiesOf(r *Record, d *Document) []string {
	names := map[string]bool{}
	for policy := range r.Shares {
		names[policy] = true
	}
	for policy := range d.Held {
		names[policy] = true
	}
	for _, demand := range d.Demand {
		for policy := range demand {
			names[policy] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}
