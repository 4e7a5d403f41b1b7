// Package regions splits each policy's quota between several groups of control planes, each with a
// store of its own, and moves it towards demand through one small document that all regions can
// reach.
//
// One rule keeps the sum at the quota at every moment: what a region may use is in the document
// (held), and a region takes more only from the part that no region holds. A region that gives a
// part away first stops using it in its own store, waits until nothing counts any more that the
// larger share admitted, and only then writes the smaller number into the document. A region that
// cannot reach the document keeps what it holds.
//
// The burst of a token bucket is split by the weights and stays; the rate moves. So no move creates
// a token: over all regions at most burst + rate·t passes in any interval t, as with one region
// (bursts of less than one token a region count as one). For a window algorithm the quota of the
// window moves.
package regions

import "maps"

// Whole is a policy's whole quota, in the unit of shares.
const Whole = 1000

const (
	// stepMost is how much of the whole a region gives away or takes in one round.
	stepMost = 100
	// stepLeast is the least that a region gives away, because measured demand always moves a
	// little.
	stepLeast = 25
	// leastShare is the smallest share of a region.
	leastShare = 10
	// weightPercent is the part of the target that the weights decide; demand decides the rest. So
	// each region always has a part when its clients come back, and if all regions want more than
	// there is, they end at their weights.
	weightPercent = 25
	// maxMoved bounds the policies whose shares are not the weights.
	maxMoved = 1000
)

// Document is what the regions share.
type Document struct {
	// Weights are by region; their sum is at most Whole. A region with other weights moves nothing.
	Weights map[string]int64 `json:"weights"`
	// Held are the shares, by policy and region, that differ from the weights.
	Held map[string]map[string]int64 `json:"held,omitempty"`
	// Demand is the tokens that each region was asked for in a round, by policy: a moving average,
	// in which the last round counts a quarter.
	Demand map[string]map[string]int64 `json:"demand,omitempty"`
}

// Record is what the control planes of one region share.
type Record struct {
	// Epoch grows with each change of Shares.
	Epoch uint64 `json:"epoch"`
	// Round is when the last round was, in microseconds of the region's store.
	Round int64 `json:"round"`
	// Shares are the policies whose share in use differs from the weights, or is about to be given
	// away.
	Shares map[string]Share `json:"shares,omitempty"`
	// Demand are the tokens asked for since the last round, by policy.
	Demand map[string]int64 `json:"demand,omitempty"`
}

// Share is a policy's share in use in one region.
type Share struct {
	Using int64 `json:"using"`
	// Given is since when Using has been less than what is held, in microseconds of the region's
	// store; 0 if it is not.
	Given int64 `json:"given,omitempty"`
}

// held is what a region may use of a policy.
func (d *Document) held(policy, region string) int64 {
	if shares, ok := d.Held[policy]; ok {
		return shares[region]
	}
	return d.Weights[region]
}

// free is the part that no region holds.
func (d *Document) free(policy string) int64 {
	left := int64(Whole)
	for region := range d.Weights {
		left -= d.held(policy, region)
	}
	return left
}

// hold notes what a region may use. It reports false and changes nothing if the bound on moved
// policies is reached.
func (d *Document) hold(policy, region string, share int64) bool {
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
	if maps.Equal(d.Held[policy], d.Weights) {
		delete(d.Held, policy)
	}
	return true
}

// wanted takes in what a region was asked for in a round.
func (d *Document) wanted(region string, round map[string]int64) {
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
			count(demand, policy, (tokens+3)/4)
		}
	}
	d.Demand[region] = demand
}

// target is the share of a policy that a region should have, by the demand of all regions.
func (d *Document) target(policy, region string) int64 {
	weight, all := d.Weights[region], int64(0)
	for name := range d.Weights {
		all += d.Demand[name][policy]
	}
	if all == 0 {
		return weight
	}
	// count bounds demands, so the product fits.
	byDemand := Whole * d.Demand[region][policy] / all
	return max(leastShare, (weight*weightPercent+byDemand*(100-weightPercent))/100)
}

// using is what the region uses of a policy.
func (r *Record) using(policy string, weight int64) Share {
	if share, ok := r.Shares[policy]; ok {
		return share
	}
	return Share{Using: weight}
}

// use changes what the region uses.
func (r *Record) use(policy string, share Share, weight int64) {
	if r.Shares == nil {
		r.Shares = map[string]Share{}
	}
	r.Shares[policy] = share
	if share == (Share{Using: weight}) {
		delete(r.Shares, policy)
	}
	r.Epoch++
}

// maxDemand bounds a demand so that Whole times the sum over 1000 regions fits in 63 bits.
const maxDemand = 1 << 40

// count adds tokens to a demand.
func count(demand map[string]int64, policy string, tokens int64) {
	demand[policy] = min(demand[policy]+min(max(tokens, 0), maxDemand), maxDemand)
}
