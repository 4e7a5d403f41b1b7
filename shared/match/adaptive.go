package match

import (
	"github.com/weir-proxy/weir/shared/adaptive"
	"github.com/weir-proxy/weir/shared/policy"
)

// adaptiveOf is the limit of a policy that finds itself.
type adaptiveOf struct {
	policy uint32
	limit  policy.Adaptive
}

// Adaptive is the limit of the i-th policy, which must be one that finds itself.
func (ix *Index) Adaptive(i uint32) *policy.Adaptive {
	from, to := 0, len(ix.adaptives)-1
	for from < to {
		middle := (from + to) / 2
		if ix.adaptives[middle].policy < i {
			from = middle + 1
		} else {
			to = middle
		}
	}
	return &ix.adaptives[from].limit
}

// Classes is how many classes of requests there are, at least one.
func (ix *Index) Classes() int { return max(len(ix.classes), 1) }

// Class is the name of a class; nil where there is no name.
func (ix *Index) Class(i int) []byte {
	if i >= len(ix.classes) {
		return nil
	}
	return ix.Text(ix.classes[i].name)
}

// findRank finds what a policy needs of the request's class and of the cohort of its caller: that
// of its consumer or, if it has none, of its address. It uses the memory of the encoding, so it
// comes before the partition.
//
//go:noinline
func (c *collector) findRank(p *Policy, a *Attributes) {
	if !p.Adaptive && p.reserves.len() == 0 {
		return
	}
	c.findClass(a)
	if !p.Adaptive {
		return
	}
	who, known := c.consumerKey(a)
	if !known {
		c.key = append(c.key[:0], consumerFormat)
		c.putValue(a.ClientIP, true)
		who = c.hash()
	}
	c.rank = adaptive.Rank{Class: uint8(c.class), Cohort: who[0] % adaptive.Cohorts}
}
