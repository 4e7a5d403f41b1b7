package decisions

import (
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// inWords is a refusal in the words of its policy set; false for one that does not fit it.
func inWords(c *policies.Compiled, node string, r *wire.Refusal, now time.Time) (Decision, bool) {
	p, limit, byTier, ok := c.LimitAt(r.Limit)
	if !ok || int(r.Policy) >= len(c.Set.Policies) || p != &c.Set.Policies[r.Policy] || int(r.Tier) > len(c.Set.Tiers) {
		return Decision{}, false
	}
	at := now.Add(-time.Duration(r.Ago) * time.Microsecond).UTC()
	d := Decision{
		At: at, Node: clean(node), Version: c.Version.Number, LimitIndex: r.Limit, Policy: p.Name, Tier: tierOf(c.Set, r.Tier),
		Limit: policies.LimitText(limit), From: "policy", Mode: p.Mode.String(), Source: name(policy.Sources[:], r.Source),
		Reason: name(policy.Reasons[:], r.Reason), Key: r.Bucket.String(), Shown: shown(c.Set, r.Shown),
		Cost: r.Cost, Left: r.Left, Count: max(r.Count-r.Over, 1),
	}
	if byTier {
		d.From = "tier"
	}
	if hasConsumer(&r.Caller) {
		d.Consumer = r.Consumer.String()
	}
	if r.Retry > 0 {
		ends := at.Add(time.Duration(r.Retry) * time.Microsecond)
		d.Ends = &ends
	}
	return d, true
}

// tierOf is the name of a tier as messages number them.
func tierOf(set *policy.Set, tier uint8) string {
	if tier == 0 || int(tier) > len(set.Tiers) {
		return ""
	}
	return set.Tiers[tier-1]
}

// name is what a number stands for; newer nodes know more.
func name(names []string, number uint8) string {
	if int(number) < len(names) {
		return names[number]
	}
	return "unknown " + strconv.Itoa(int(number))
}

// shown are the parts of a request that a node reported, as far as the policy set allows. The
// message was checked.
func shown(set *policy.Set, told []byte) map[string]string {
	var parts map[string]string
	for len(told) >= 2 {
		at, text := int(told[0]), told[2:2+int(told[1])]
		told = told[2+len(text):]
		if at >= len(set.Show) {
			continue
		}
		if parts == nil {
			parts = map[string]string{}
		}
		value := clean(string(text))
		if set.Show[at].Kind == policy.PartClientIP {
			if address, ok := netip.AddrFromSlice(text); ok {
				value = address.String()
			}
		}
		parts[set.Show[at].String()] = value
	}
	return parts
}

// clean makes a text that a client has sent harmless to print.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) && r != unicode.ReplacementChar {
			return r
		}
		return '.'
	}, text)
}
