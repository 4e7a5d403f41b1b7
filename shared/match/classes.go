package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
)

// Classes returns the number of classes of requests, at least one.
func (ix *Index) Classes() int { return max(len(ix.classes), 1) }

// Class returns the name of a class; nil if it has none.
func (ix *Index) Class(i int) []byte {
	if i >= len(ix.classes) {
		return nil
	}
	return ix.Text(ix.classes[i].name)
}

// cutClasses splits the matches in the trie into policies and classes.
func cutClasses(found []pathMatch) (policies, classes []pathMatch) {
	n := len(found)
	for n > 0 && found[n-1].policy >= policy.MaxPolicies {
		n--
	}
	return found[:n], found[n:]
}

// findClass finds the request's class: the first class with matching host and path whose conditions
// the request meets.
func (c *collector) findClass(a *Attributes) {
	if c.class != unknownClass {
		return
	}
	c.class = int(c.ix.rest)
	for _, found := range c.classMatches {
		number := found.policy - policy.MaxPolicies
		one := &c.ix.classes[number].Policy
		byPath := found.pattern.Len > 0
		if byPath && a.Vague && number < uint32(c.ix.rest) || !c.meetsConditions(one, a) {
			continue
		}
		if one.tiers != 0 {
			c.findTier(a)
			if one.tiers>>c.tier&1 == 0 {
				continue
			}
		}
		c.class = int(number)
		return
	}
}

// countsForClass reports whether the n-th limit in a policy's list of limits counts for the
// request's class. The list has the document's limits, and then for each reserve the limits for the
// classes after its class.
func (c *collector) countsForClass(p *Policy, n, of uint32) bool {
	named := of / (1 + p.reserves.len())
	if n < named || named == 0 {
		return true
	}
	return c.class > int(c.ix.reserves[p.reserves.from+n/named-1])
}

// reserveSteps returns how many of a policy's reserves are kept from a request of its class.
func (c *collector) reserveSteps(p *Policy) (n int) {
	for _, class := range c.ix.reserves[p.reserves.from:p.reserves.to] {
		if c.class > int(class) {
			n++
		}
	}
	return n
}

// beginWith returns a bucket whose windows begin with the windows of another bucket: see
// policy.Limit.WindowsOf. All limits of a key begin like this. Otherwise a part of a limit could
// use its next window while the whole limit is still in the window before, and a draft would act
// differently once it is enforced.
func beginWith(k, first keyhash.Key) keyhash.Key {
	copy(k[8:], first[8:])
	return k
}

// After returns the name of the class of the reserve that a hit's limit excludes; nil for a limit
// that the document names.
func (ix *Index) After(h *Hit) []byte {
	p := &ix.policies[h.Policy]
	steps := 1 + p.reserves.len()
	if steps == 1 || h.Own > 0 {
		return nil
	}
	number := uint32(0)
	if p.ByTier {
		number = uint32(h.Tier) - 1
	}
	named := ix.runOf(p, number).len() / steps
	if uint32(h.Position) < named || named == 0 {
		return nil
	}
	class := int(ix.reserves[p.reserves.from+uint32(h.Position)/named-1])
	if class >= len(ix.classes) {
		return nil
	}
	return ix.Text(ix.classes[class].name)
}
