package policy

import (
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/spelling"
)

// Version is the language version that every document names.
const Version = "weir/v1"

// Decode reads and validates a policy set. A document with any problem is refused as a whole: the
// error is of type Problems and lists them all.
func Decode(doc Node) (*Set, error) {
	r := &reader{}
	set := r.readSet("", doc)
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return set, nil
}

func (r *reader) readSet(path string, doc Node) *Set {
	set := &Set{
		Identity: Identity{IPv6Prefix: 64},
		Headers:  Headers{Standard: dialect.Draft11},
	}
	versioned := false
	done := func(string, Node) {}
	r.readField(path, doc, "match", func(path string, n Node) {
		r.readMap(path, n, field{"path_parameters", r.routingField(pathParameters)},
			field{"path_case", r.routingField(pathCases)}, field{"trailing_slash", r.routingField(trailingSlash)})
	})
	set.Routing = r.routing
	r.readTiers(path, doc, set) // first, because the policies need them, and the classes
	r.readPriorities(path, doc, set)
	r.readMap(path, doc,
		field{"version", func(path string, n Node) {
			versioned = true
			if text, ok := r.readText(path, n); ok && text != Version {
				r.failAt(path, "must be "+Version+", not "+shorten(text))
			}
		}},
		field{"identity", func(path string, n Node) { r.readIdentity(path, n, set) }},
		field{"headers", func(path string, n Node) { r.readHeaders(path, n, &set.Headers) }},
		field{"policies", func(path string, n Node) { r.readPolicies(path, n, set) }},
		field{"exempt", func(path string, n Node) { r.readExempt(path, n, &set.Exempt) }},
		field{"banned", func(path string, n Node) {
			r.readMap(path, n, field{"client_ips", func(path string, n Node) { set.Banned = r.readAddresses(path, n) }})
		}},
		field{"show", func(path string, n Node) { r.readShow(path, n, &set.Show) }},
		field{"responses", func(path string, n Node) { r.readResponses(path, n, set) }},
		field{"match", done}, field{"tiers", done}, field{"priorities", done},
	)
	if doc.Kind == Map && !versioned {
		r.failAt(r.joinPath(path, "version"), "is missing: write version: "+Version)
	}
	r.identityIsDefined(path, set)
	return set
}

// routingField returns the reader of a field about how paths are read.
func (r *reader) routingField(words []choice) func(path string, n Node) {
	return func(path string, n Node) {
		var flag uint8
		r.readEnum(path, n, &flag, words)
		r.routing |= spelling.Routing(flag)
	}
}

func (r *reader) readIdentity(path string, n Node, set *Set) {
	id := &set.Identity
	r.readMap(path, n,
		field{"client_ip", func(path string, n Node) {
			hops, prefix := int64(id.TrustedHops), int64(id.IPv6Prefix)
			r.readMap(path, n,
				field{"trusted_hops", func(path string, n Node) { r.readInteger(path, n, 0, 64, &hops) }},
				field{"ipv6_prefix", func(path string, n Node) { r.readInteger(path, n, 1, 128, &prefix) }},
				field{"appended", func(path string, n Node) {
					if id.NotAppended = n.Text == "false"; n.Kind != Bool {
						r.wrongKind(path, n, "true or false")
					}
				}},
			)
			r.mustHold(path+".appended", !id.NotAppended || hops > 0, "cannot be false with trusted_hops: 0: the "+
				"address that Envoy then takes is any client's own words")
			id.TrustedHops, id.IPv6Prefix = int(hops), int(prefix)
		}},
		field{"consumer", func(path string, n Node) {
			r.readList(path, n, func(path string, n Node) { r.readConsumerSource(path, n, &id.Consumer) })
		}},
		field{"tier", func(path string, n Node) {
			r.readList(path, n, func(path string, n Node) { r.readTierSource(path, n, set, &id.Tier) })
		}},
		field{"if_several", func(path string, n Node) { r.readEnum(path, n, (*uint8)(&id.IfSeveral), ifSeverals) }},
		field{"default_tier", func(string, Node) {}}, // read with the tiers
	)
}

// readConsumerSource reads one place of the consumer. Nearly every caller has an address, so a
// place after the address would never be used.
func (r *reader) readConsumerSource(path string, n Node, into *[]Source) {
	if last := len(*into) - 1; last >= 0 && (*into)[last].Kind == SourceClientIP {
		r.failAt(path, "comes after client_ip, which must be the last: every caller has an address")
	}
	if n.Kind == String && n.Text == "client_ip" {
		*into = append(*into, Source{Kind: SourceClientIP})
		return
	}
	if n.Kind != Map {
		r.wrongKind(path, n, "a mapping like {header: x-api-key}, or client_ip")
		return
	}
	r.readSource(path, n, into)
}

func (r *reader) readHeaders(path string, n Node, h *Headers) {
	r.readMap(path, n,
		field{"standard", func(path string, n Node) {
			r.readEnum(path, n, (*uint8)(&h.Standard), standards)
		}},
		field{"legacy", func(path string, n Node) {
			r.readEnum(path, n, (*uint8)(&h.Legacy), legacies)
		}},
		field{"envoy_ratelimited", func(path string, n Node) {
			var off uint8
			r.readEnum(path, n, &off, switches)
			h.Unmarked = off != 0
		}},
	)
	if h.Legacy != dialect.RateLimit {
		return
	}
	at, _, given := r.findKey(path, n, "standard")
	r.mustHold(at, !given || h.Standard == dialect.StandardOff,
		"must be off beside legacy: ratelimit, whose header names begin like the standard's")
	h.Standard = dialect.StandardOff
}

func (r *reader) requireField(path string, n Node, key, hint string) {
	if !containsText(n.Keys, key) {
		r.failAt(path+"."+key, "is missing"+hint)
	}
}

func (r *reader) mustHold(path string, ok bool, reason string) {
	if !ok {
		r.failAt(path, reason)
	}
}

//go:noinline
func (r *reader) readPolicyName(path string, n Node) string {
	name, ok := r.readText(path, n)
	if ok && !ValidName(name) {
		r.failAt(path, "must be 1 to 63 of a-z 0-9 . _ - and start with a letter or digit, not "+shorten(name))
	}
	return name
}

// ValidName reports whether a text can be the name of a policy: ^[a-z0-9]([a-z0-9._-]{0,62})$.
func ValidName(name string) bool {
	if name == "" || len(name) > 63 {
		return false
	}
	for i := range len(name) {
		c := name[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !alphanumeric && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

func (r *reader) readPart(path string, n Node, into *[]Part) {
	text, ok := r.readText(path, n)
	if !ok {
		return
	}
	if key, is := strings.CutPrefix(text, DescriptorName); is {
		r.mustHold(path, key != "" && len(key) <= MaxKey, notKey)
		*into = append(*into, Descriptor(key))
		return
	}
	kindName, name, isNamed := strings.Cut(text, ":")
	kind, known := ParsePartKind(kindName)
	if known && kind.isNamed() == isNamed {
		if isNamed {
			source, _ := kind.Source()
			name, ok = r.readSourceName(path, Node{Kind: String, Text: name}, source)
			if !ok {
				return
			}
		}
		*into = append(*into, Part{kind, name})
		return
	}
	r.failAt(path, "must be one of "+listParts()+"descriptor:KEY, not "+shorten(text))
}

func (r *reader) readEnforcement(path string, n Node, e *Enforced) {
	if n.Kind == Map {
		percent := int64(EnforcedAll)
		r.readMap(path, n, field{"enforce", func(path string, n Node) { r.readInteger(path, n, 0, 100, &percent) }})
		r.requireField(path, n, "enforce", ": write {enforce: 25} for a quarter of the partition keys")
		*e = Enforced(percent)
		return
	}
	r.readEnum(path, n, (*uint8)(e), enforcements)
}

// readSpan reads a whole number with a unit.
func (r *reader) readSpan(path string, n Node, low, high quota.Span, into *quota.Span) bool {
	if n.Kind != String {
		r.wrongKind(path, n, "a length of time like 30s (units ms s m h d)")
		return false
	}
	span, ok := ParseSpan(n.Text)
	if !ok || span < low || span > high {
		r.failAt(path, "must be a whole number with a unit (ms s m h d) from "+FormatSpan(low)+" to "+FormatSpan(high)+
			", not "+shorten(n.Text))
		return false
	}
	*into = span
	return true
}

// identityIsDefined refuses a policy that needs a consumer or a tier if no source can provide it.
func (r *reader) identityIsDefined(path string, set *Set) {
	// Consumers, which exemptions need. Their values get the spelling of their header.
	consumer := func(at string) {
		r.mustHold(r.joinPath(path, at), len(set.Identity.Consumer) > 0,
			"needs identity.consumer, which says where to find the consumer")
	}
	tiers := func(at string) { r.mustHold(r.joinPath(path, at), len(set.Tiers) > 0, needsTiers) }
	if len(set.Exempt.Consumers) > 0 {
		consumer("exempt.consumers")
	}
	for _, s := range set.Identity.Consumer {
		for i, value := range set.Exempt.Consumers {
			set.Exempt.Consumers[i] = spelledAs(s.Name, value)
		}
	}
	// Tiers, and the sources that they name.
	if len(set.Identity.Tier) > 0 {
		tiers("identity.tier")
	}
	for i, s := range set.Identity.Tier {
		switch s.Kind {
		case SourceAssignment:
			consumer("identity.tier[" + strconv.Itoa(i) + "]")
		case SourceFound:
			from, tier := s.Found()
			r.mustHold(r.joinPath(path, "identity.tier.consumer_source"), from.isIn(set.Identity.Consumer),
				"names "+shorten(s.Name[:len(s.Name)-len(tier)-1])+", which is not in identity.consumer")
		}
	}
	// The parts of partitions.
	for _, need := range r.needs {
		at := "policies[" + strconv.Itoa(need.policy) + "].partition[" + strconv.Itoa(need.part) + "]"
		if need.kind == PartConsumer {
			consumer(at)
		} else {
			tiers(at)
		}
	}
}
