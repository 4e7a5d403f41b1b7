package regions

import (
	"maps"
	"slices"

	"github.com/weir-proxy/weir/shared/quota"
)

// Grace returns how long, after a part of a policy was lowered, the admissions of the larger part
// can still have an effect.
type Grace func(policy string, part Part) quota.Span

// lowerShares makes the first half of a round. It changes only the region's own record: it lowers
// shares that are above their target. In the document they stay unchanged until settleShares.
func lowerShares(r *Record, d *Document, region string, now int64) {
	weight := d.Weights[region]
	for _, policy := range policiesOf(r, d) {
		share := r.shareInUse(policy, weight)
		held := d.heldBy(policy, region)
		target := d.targetShare(policy, region)
		switch {
		case share.Using > held: // The document was lost and started again with the weights.
			r.setShare(policy, Share{Using: held}, weight)
		case share.Given == 0 && share.Using == held && held-target >= stepLeast:
			r.setShare(policy, Share{Using: max(target, held-stepMost), Given: now}, weight)
		}
	}
}

// settleShares makes the second half of a round. It changes only the document. It gives up shares
// that were lowered long enough ago, and takes the shares that the region wants from the part that
// no region holds. The region may use them once the document is stored; see takeShares.
func settleShares(r *Record, d *Document, region string, now int64, grace Grace) {
	weight := d.Weights[region]
	for _, policy := range policiesOf(r, d) {
		share := r.shareInUse(policy, weight)
		held, target := d.heldBy(policy, region), d.targetShare(policy, region)
		isGiven := share.Using < held && share.Given != 0
		switch {
		case isGiven && now-share.Given >= int64(grace(policy, Part{Rate: held, Burst: weight})):
			d.setHeld(policy, region, share.Using)
		case share.Using == held && share.Given == 0 && target > held:
			if more := min(target-held, stepMost, d.freeShare(policy)); more > 0 {
				d.setHeld(policy, region, held+more)
			}
		}
	}
}

// takeShares updates the record from the stored document: the region uses the shares that it holds,
// unless it is about to give some away.
func takeShares(r *Record, d *Document, region string) {
	weight := d.Weights[region]
	for _, policy := range policiesOf(r, d) {
		share, held := r.shareInUse(policy, weight), d.heldBy(policy, region)
		if share.Given == 0 && share.Using < held || share.Given != 0 && share.Using == held {
			r.setShare(policy, Share{Using: held}, weight)
		}
	}
}

// adoptShares makes a new record use the shares that its region holds in the document.
func adoptShares(r *Record, d *Document, region string) {
	for policy := range d.Held {
		r.setShare(policy, Share{Using: d.heldBy(policy, region)}, d.Weights[region])
	}
}

// policiesOf returns the policies that a round decides about, sorted.
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
