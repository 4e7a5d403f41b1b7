package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// ban is what bans the request whatever policies apply: its address, or its consumer.
func (c *caller) ban(a *Attributes) Ban {
	if len(a.ClientIP) > 0 && policy.Contains(c.ix.banned, a.Address) {
		return AddressBan
	}
	if c.exceptions {
		c.findConsumer(a)
	}
	if c.consumer.Banned || c.othersBanned {
		if !c.othersBanned { // Otherwise it is not known which ends last.
			c.banEnds = c.consumer.BanEnds
		}
		return ConsumerBan
	}
	if c.unsure && c.exceptions {
		return PossibleBan
	}
	return NoBan
}

// exempt reports whether the request is never limited: by its consumer's bypass, or by the policy
// set's lists.
func (c *caller) exempt(a *Attributes, s *search) bool {
	if c.exceptions {
		c.findConsumer(a)
	}
	return c.consumer.Bypass ||
		len(a.ClientIP) > 0 && policy.Contains(c.ix.exempt, a.Address) ||
		c.exemptMethod(a.Method) ||
		!a.Vague && s.hasPath(&c.ix.exempted, c.ix.snapshot, a.Path) ||
		c.exemptConsumer(a)
}

func (c *caller) exemptMethod(method []byte) bool {
	for _, ref := range c.ix.exemptMethods {
		if text.Equal(c.ix.Text(ref), method) {
			return true
		}
	}
	return false
}

// exemptConsumer looks the consumer's value up. Several different ones name none.
func (c *caller) exemptConsumer(a *Attributes) bool {
	if len(c.ix.exempted.table) == 0 {
		return false
	}
	for _, s := range c.ix.sources {
		if c.hold(s, a).len() == 0 {
			continue
		}
		value := c.single(s, a)
		// An address is exempt by exempt.client_ips: as a consumer it is bytes, which no text is
		// meant to equal.
		return value != nil && s.kind != policy.SourceClientIP &&
			c.ix.exempted.find(c.ix.snapshot, hostsRoot, consumer, value) != 0
	}
	return false
}
