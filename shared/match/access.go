package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// findBan returns the ban of the request's address or consumer, whatever policies apply.
func (c *caller) findBan(a *Attributes) Ban {
	if len(a.ClientIP) > 0 && policy.Contains(c.ix.banned, a.Address) {
		return AddressBan
	}
	if c.exceptions {
		c.findConsumer(a)
	}
	if c.consumer.Banned || c.othersBanned {
		if !c.othersBanned { // Otherwise it is unknown which ban ends last.
			c.banEnds = c.consumer.BanEnds
		}
		return ConsumerBan
	}
	if c.unsure && c.exceptions {
		return PossibleBan
	}
	return NoBan
}

// isExempt reports whether the request is never limited: by its consumer's bypass, or by the policy
// set's lists.
func (c *caller) isExempt(a *Attributes, s *search) bool {
	if c.exceptions {
		c.findConsumer(a)
	}
	return c.consumer.Bypass ||
		len(a.ClientIP) > 0 && policy.Contains(c.ix.exempt, a.Address) ||
		c.isExemptMethod(a.Method) ||
		!a.Vague && s.hasPath(&c.ix.exempted, c.ix.snapshot, a.Path) ||
		c.isExemptConsumer(a)
}

func (c *caller) isExemptMethod(method []byte) bool {
	for _, ref := range c.ix.exemptMethods {
		if text.Equal(c.ix.Text(ref), method) {
			return true
		}
	}
	return false
}

// isExemptConsumer looks up the consumer's value. Several different values name no consumer.
func (c *caller) isExemptConsumer(a *Attributes) bool {
	if len(c.ix.exempted.table) == 0 {
		return false
	}
	for _, s := range c.ix.sources {
		if c.valuesAt(s, a).len() == 0 {
			continue
		}
		value := c.singleValue(s, a)
		// An address is exempt by exempt.client_ips. As a consumer it is bytes, which should equal
		// no text.
		return value != nil && s.kind != policy.SourceClientIP &&
			c.ix.exempted.findChild(c.ix.snapshot, hostsRoot, consumer, value) != 0
	}
	return false
}
