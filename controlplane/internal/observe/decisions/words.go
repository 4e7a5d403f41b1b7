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
		Key: r.Bucket.String(), Shown: ReadShown(c.Set, r.Shown),
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
		Key: r.Bucket.String(), Shown: ReadShown(c.Set, r.Shown), Count: max(r.Count-r.Over, 1),
	}
	if kind := int(r.Reason) - wire.BanReason; kind > 0 && kind < len(bans) {
		d.Reason = bans[kind]
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

// ReadShown returns the values of a request that a node sent, by the names of their parts: only
// parts that the policy set allows to show. For each value sent has a byte with the index of the
// part in set.Show, a byte with the length, and the value. The lengths were checked before.
func ReadShown(set *policy.Set, sent []byte) map[string]string {
	var values map[string]string
	for len(sent) >= 2 {
		index, length := int(sent[0]), int(sent[1])
		value := sent[2 : 2+length]
		sent = sent[2+length:]
		if index >= len(set.Show) {
			continue
		}
		text := Clean(string(value))
		if set.Show[index].Kind == policy.PartClientIP {
			if address, ok := netip.AddrFromSlice(value); ok {
				text = address.String()
			}
		}
		if values == nil {
			values = map[string]string{}
		}
		values[set.Show[index].String()] = text
	}
	return values
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
