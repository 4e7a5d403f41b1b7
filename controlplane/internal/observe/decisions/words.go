package decisions

import (
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// inWords converts a refusal to the words of its policy set. ok is false if it does not fit the
// set.
func inWords(c *policies.Compiled, node string, r *wire.Refusal, now time.Time) (Decision, bool) {
	if name, _ := c.NameOf(r.Policy); name == policies.Banned {
		return banInWords(c, node, r, now), true
	}
	p, limit, byTier, ok := c.RefusedBy(r)
	if !ok {
		return Decision{}, false
	}
	at := now.Add(-time.Duration(r.Ago) * time.Microsecond).UTC()
	d := Decision{
		At: at, Node: Clean(node), Version: c.Version.Number, LimitIndex: r.Limit, Policy: p.Name,
		Tier: tierOf(c.Set, r.Tier), Limit: policies.LimitText(limit), From: "policy", Mode: p.Mode.String(),
		Source: nameOf(policy.Sources[:], r.Source), Reason: nameOf(policy.Reasons[:], r.Reason),
		Key: r.Bucket.String(), Shown: Shown(c.Set, r.Shown),
		Cost: r.Cost, Left: r.Left, Count: max(r.Count-r.Over, 1),
	}
	if byTier {
		d.From = "tier"
	}
	if hasConsumer(&r.CallerCount) {
		d.Consumer = r.Consumer.String()
	}
	if r.Retry > 0 {
		ends := at.Add(time.Duration(r.Retry) * time.Microsecond)
		d.Ends = &ends
	}
	return d, true
}

// bans are the reasons of refusals by a ban, by the kind of ban.
var bans = [...]string{match.NoBan: "ban", match.AddressBan: "ban_of_address", match.ConsumerBan: "ban_of_consumer",
	match.KeyBan: "ban_of_key", match.PossibleBan: "ban_of_one_of_many"}

// banInWords converts a refusal by a ban, which has no policy and no limit.
func banInWords(c *policies.Compiled, node string, r *wire.Refusal, now time.Time) Decision {
	d := Decision{
		At: now.Add(-time.Duration(r.Ago) * time.Microsecond).UTC(), Node: Clean(node), Version: c.Version.Number,
		Policy: policies.Banned, From: "ban", Source: nameOf(policy.Sources[:], r.Source), Reason: bans[match.NoBan],
		Key: r.Bucket.String(), Shown: Shown(c.Set, r.Shown), Count: max(r.Count-r.Over, 1),
	}
	if what := int(r.Reason) - wire.BanReason; what > 0 && what < len(bans) {
		d.Reason = bans[what]
	}
	if hasConsumer(&r.CallerCount) {
		d.Consumer = r.Consumer.String()
	}
	return d
}

// tierOf returns the name of a tier by its number in messages.
func tierOf(set *policy.Set, tier uint8) string {
	if tier == 0 || int(tier) > len(set.Tiers) {
		return ""
	}
	return set.Tiers[tier-1]
}

// nameOf returns the name of a number; newer nodes may have more numbers.
func nameOf(names []string, number uint8) string {
	if int(number) < len(names) {
		return names[number]
	}
	return "unknown " + strconv.Itoa(int(number))
}

// Shown returns the parts of a request that a node sent and the policy set allows to show. The
// message was checked before.
func Shown(set *policy.Set, text []byte) map[string]string {
	var parts map[string]string
	for len(text) >= 2 {
		at, length := int(text[0]), int(text[1])
		part := text[2 : 2+length]
		text = text[2+length:]
		if at >= len(set.Show) {
			continue
		}
		if parts == nil {
			parts = map[string]string{}
		}
		value := Clean(string(part))
		if set.Show[at].Kind == policy.PartClientIP {
			if address, ok := netip.AddrFromSlice(part); ok {
				value = address.String()
			}
		}
		parts[set.Show[at].String()] = value
	}
	return parts
}

// Clean makes text from a client safe to print.
func Clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) && r != unicode.ReplacementChar {
			return r
		}
		return '.'
	}, text)
}
