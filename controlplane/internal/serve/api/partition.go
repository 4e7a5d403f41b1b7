package api

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// partitionValues reads the value for each part of a policy's partition from texts PART:VALUE. If
// the partition has one part, the value alone is enough, unless it begins like a part.
func partitionValues(
	set *policy.Set, p *policy.Policy, given []string, source string,
) ([]match.Value, error) {
	// Refuse a source without a consumer, and parts that are not the policy's.
	whole := policies.PartitionText(p.Partition)
	given = slices.Clone(given)
	byConsumer := func(part policy.Part) bool { return part.Kind == policy.PartConsumer }
	if source != "" && !slices.ContainsFunc(p.Partition, byConsumer) {
		return nil, badRequest("source says where a consumer is found, and the partition of policy %s is [%s], "+
			"without consumer: leave it out", p.Name, whole)
	}
	for _, text := range given {
		if part, value, ok := policies.MisspeltPart(text); ok {
			return nil, badRequest("%q: give a part as %s:%s; a value that begins so is %s:%s", text, part, value,
				part, text)
		}
		if err := refuseUnknownPart(p, text); err != nil {
			return nil, err
		}
	}
	// Complete a value alone.
	if len(p.Partition) == 1 && len(given) == 1 && !policies.NamesPart(given[0]) {
		given[0] = p.Partition[0].String() + ":" + given[0]
	}
	// Read the value of each part.
	var values []match.Value
	for _, part := range p.Partition {
		name := part.String()
		at := slices.IndexFunc(given, func(text string) bool { return strings.HasPrefix(text, name+":") })
		if at < 0 && p.IfAbsent == policy.AbsentShared {
			values = append(values, match.Value{Absent: true})
			continue
		}
		if at < 0 {
			return nil, badRequest("give %s:VALUE: the partition of policy %s is [%s]", name, p.Name, whole)
		}
		value, err := partitionValue(set, part, given[at][len(name)+1:], source)
		if err != nil {
			return nil, err
		}
		values, given = append(values, value), slices.Delete(given, at, at+1)
	}
	// Refuse a text that belongs to no part.
	if len(given) == 0 {
		return values, nil
	}
	if len(p.Partition) == 0 {
		return nil, badRequest("policy %s has one bucket for all: give no value", p.Name)
	}
	if !policies.NamesPart(given[0]) {
		return nil, badRequest("a value of partition names no part: the partition of policy %s is [%s], "+
			"so give each as PART:VALUE", p.Name, whole)
	}
	name, _, _ := strings.Cut(given[0], ":")
	return nil, badRequest("%s is given, and the partition of policy %s is [%s], each part once",
		name, p.Name, whole)
}

// refuseUnknownPart returns an error for a text like tenant:bob or Consumer:bob, which names a part
// that the policy does not have: as a value the text would mean another caller. It returns nil for
// any other text, also for an IPv6 address like ab:cd::1.
func refuseUnknownPart(p *policy.Policy, text string) error {
	name, value, _ := strings.Cut(text, ":")
	if !beginsLikePart(text) || len(p.Partition) == 0 {
		return nil
	}
	meant, alone := guessPart(p, text), len(p.Partition) == 1
	first := p.Partition[0].String()
	hint := ""
	switch {
	case meant != "":
		hint = ": did you mean " + meant + "?"
		if alone {
			hint += " A value that begins so is " + first + ":" + text
		}
	case alone && strings.HasPrefix(value, "//"):
		hint = ": give " + first + ":" + text + " if that is the value"
	case alone:
		hint = ": give " + first + ":" + value + ", or " + first + ":" + text + " if that is the value"
	}
	return badRequest("%q: the partition of policy %s is [%s], which has no part %s%s", text, p.Name,
		policies.PartitionText(p.Partition), name, hint)
}

// beginsLikePart reports whether a text begins with a word and a colon, as a part does, and is
// neither a part of any policy nor an address.
func beginsLikePart(text string) bool {
	name, _, found := strings.Cut(text, ":")
	_, err := netip.ParseAddr(text)
	return found && isWord(name) && err != nil && !policies.NamesPart(text)
}

// isWord reports whether a text could be the name of a part: a letter, then letters, digits, - and
// _.
func isWord(text string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz"
	text = strings.ToLower(text)
	return text != "" && strings.Contains(letters, text[:1]) && strings.Trim(text, letters+"0123456789-_") == ""
}

// guessPart returns the PART:VALUE that a misspelt text probably means; empty if the policy has no
// part with a similar name.
func guessPart(p *policy.Policy, text string) string {
	name, value, _ := strings.Cut(text, ":")
	var names []string
	prefixes := map[string]string{} // "header:x-tenant:" by header:x-tenant and by x-tenant.
	for _, part := range p.Partition {
		prefix := part.String() + ":"
		// Only upper and lower case differ.
		if len(text) > len(prefix) && strings.EqualFold(text[:len(prefix)], prefix) {
			return prefix + text[len(prefix):]
		}
		for _, partName := range []string{part.String(), cmp.Or(part.Name, part.String())} {
			names, prefixes[partName] = append(names, partName), prefix
		}
	}
	// Letters of the name differ.
	if prefix := prefixes[policy.Guess(strings.ToLower(name), names)]; prefix != "" {
		return prefix + value
	}
	return ""
}

func partitionValue(
	set *policy.Set, part policy.Part, text, source string,
) (v match.Value, err error) {
	if text == "" || len(text) > policy.MaxText {
		return v, badRequest("a value of partition must have 1 to %d bytes", policy.MaxText)
	}
	v.Text = []byte(text)
	switch part.Kind {
	case policy.PartClientIP:
		v.Text, err = clientKey("partition client_ip", text, set.Identity.IPv6Prefix)
	case policy.PartConsumer:
		v.Source, err = consumerSource(set, source)
		if err == nil && v.Source.Kind == policy.SourceClientIP {
			v.Text, err = clientKey("partition consumer", text, set.Identity.IPv6Prefix)
		}
	case policy.PartTier:
		if !slices.Contains(set.Tiers, text) {
			err = badRequest("the policy set has no tier %q", text)
		}
	case policy.PartHost:
		v.Text = []byte(strings.ToLower(text))
	}
	return v, err
}

// clientKey returns an address in the form that identifies its requests. The first parameter is the
// name of the field in errors.
func clientKey(what, text string, prefix int) ([]byte, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return nil, badRequest("%s must be an address like 192.0.2.1 or 2001:db8::1", what)
	}
	if addr = addr.Unmap().WithZone(""); addr.Is4() {
		return addr.AsSlice(), nil
	}
	network, err := addr.Prefix(prefix)
	return network.Addr().AsSlice(), err
}
