// Package regions splits each policy's quota between several groups of control planes, each with
// its own store. It moves the quota towards demand through one small document that all regions can
// reach.
//
// One rule keeps the sum at the quota at every moment: the share that a region may use is in the
// document (held), and a region takes more only from the part that no region holds. A region that
// gives a share away first stops using it in its own store. Then it waits until no admission of the
// larger share counts any more. Only then it writes the smaller number into the document. A region
// that cannot reach the document keeps its share.
//
// The burst of a token bucket is split by the weights and stays; the rate moves. So no move creates
// a token: over all regions at most burst + rate·t tokens pass in any interval t, as with one
// region (a burst below one token in a region counts as one token). For a window algorithm the
// quota of the window moves.
package regions

import "maps"

// Whole is the whole quota of a policy, in the unit of shares.
const Whole = 1000

const (
	// stepMost is the largest share that a region gives away or takes in one round.
	stepMost = 100
	// stepLeast is the smallest share that a region gives away, because measured demand always
	// varies a little.
	stepLeast = 25
	// leastShare is the smallest share of a region.
	leastShare = 10
	// weightPercent is the part of the target that the weights decide, in percent; demand decides
	// the rest. So each region always has a share when its clients come back, and if the total
	// demand is above the quota, the regions end at their weights.
	weightPercent = 25
	// maxMoved bounds the policies whose shares differ from the weights.
	maxMoved = 1000
)

// Document is the data that the regions share.
type Document struct {
	// Weights are by region; their sum is at most Whole. A region with other weights moves no
	// share.
	Weights map[string]int64 `json:"weights"`
	// Held has the shares, by policy and region, if they differ from the weights.
	Held map[string]map[string]int64 `json:"held,omitempty"`
	// Demand has the tokens that each region was asked for in a round, by policy: a moving average
	// in which the last round counts a quarter.
	Demand map[string]map[string]int64 `json:"demand,omitempty"`
}

// Record is the data that the control planes of one region share.
type Record struct {
	// Epoch grows with each change of Shares.
	Epoch uint64 `json:"epoch"`
	// Round is the time of the last round, in microseconds of the region's store.
	Round int64 `json:"round"`
	// Shares has the policies whose share in use differs from the weights, or is being given away.
	Shares map[string]Share `json:"shares,omitempty"`
	// Demand has the tokens asked for since the last round, by policy.
	Demand map[string]int64 `json:"demand,omitempty"`
}

// Share is a policy's share in use in one region.
type Share struct {
	Using int64 `json:"using"`
	// Given is the time since which Using is below the share in the document, in microseconds of
	// the region's store; 0 if it is not.
	Given int64 `json:"given,omitempty"`
}

// heldBy returns the share that a region may use of a policy.
func (d *Document) heldBy(policy, region string) int64 {
	if shares, ok := d.Held[policy]; ok {
		return shares[region]
	}
	return d.Weights[region]
}

// freeShare returns the share that no region holds.
func (d *Document) freeShare(policy string) int64 {
	left := int64(Whole)
	for region := range d.Weights {
		left -= d.heldBy(policy, region)
	}
	return left
}

// setHeld sets the share that a region may use of a policy. If the shares of maxMoved other
// policies differ from the weights, it returns false and changes nothing.
func (d *Document) setHeld(policy, region string, share int64) bool {
	if d.Held[policy] == nil {
		if len(d.Held) >= maxMoved {
			return false
		}
		if d.Held == nil {
			d.Held = map[string]map[string]int64{}
		}
		d.Held[policy] = maps.Clone(d.Weights)
	}
	d.Held[policy][region] = share
	if maps.Equal(d.Held[policy], d.Weights) { // Held has only shares that differ from the weights.
		delete(d.Held, policy)
	}
	return true
}

// addDemand adds the demand of a region in a round.
func (d *Document) addDemand(region string, round map[string]int64) {
	if d.Demand == nil {
		d.Demand = map[string]map[string]int64{}
	}
	demand := map[string]int64{}
	for policy, tokens := range d.Demand[region] {
		if tokens > 3 {
			demand[policy] = tokens - tokens/4
		}
	}
	for policy, tokens := range round {
		if _, known := demand[policy]; known || len(demand) < maxMoved {
			addDemand(demand, policy, (tokens+3)/4)
		}
	}
	d.Demand[region] = demand
}

// targetShare returns the share of a policy that a region should have, from the demand of all
// regions.
func (d *Document) targetShare(policy, region string) int64 {
	weight, all := d.Weights[region], int64(0)
	for name := range d.Weights {
		all += d.Demand[name][policy]
	}
	if all == 0 {
		return weight
	}
	// addDemand bounds each demand, so the product fits.
	byDemand := Whole * d.Demand[region][policy] / all
	return max(leastShare, (weight*weightPercent+byDemand*(100-weightPercent))/100)
}

// shareInUse returns the share that the region uses of a policy.
func (r *Record) shareInUse(policy string, weight int64) Share {
	if share, ok := r.Shares[policy]; ok {
		return share
	}
	return Share{Using: weight}
}

// setShare changes the share that the region uses.
func (r *Record) setShare(policy string, share Share, weight int64) {
	if r.Shares == nil {
		r.Shares = map[string]Share{}
	}
	r.Shares[policy] = share
	if share == (Share{Using: weight}) {
		delete(r.Shares, policy)
	}
	r.Epoch++
}

// maxDemand bounds a demand, so that Whole times the sum over 1000 regions fits in 63 bits.
const maxDemand = 1 << 40

// addDemand adds tokens to a demand.
func addDemand(demand map[string]int64, policy string, tokens int64) {
	demand[policy] = min(demand[policy]+min(max(tokens, 0), maxDemand), maxDemand)
}
