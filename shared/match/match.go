package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// Attributes are what classification yields for one request. Texts alias memory of the caller.
type Attributes struct {
	// Method is as sent; Host is lower-case without port; Path is normalised and without query; Query is as sent, without
	// the question mark.
	Method, Host, Path, Query []byte
	// ClientIP identifies the client's address, an IPv6 one cut to its prefix; empty if it is not known. Address is the whole
	// address then, IPv4 in its IPv6-mapped form.
	ClientIP []byte
	Address  [16]byte
	// Headers are all request headers in order, names in lower case.
	Headers []Header
	// Properties looks up what is in no header; nil: nothing is there. It is asked only if a policy that applies needs it.
	Properties Properties
	// Consumers knows what the control plane says of consumers; nil: nothing. It is asked at most once, and only if a policy that
	// applies goes by tier or there are Special consumers.
	Consumers Consumers
}

// Properties are Envoy's attributes of a request. The parts of a path are joined by NUL; the value is nil if there is none.
type Properties interface {
	Property(path []byte) []byte
}

// Header is one request header.
type Header struct{ Name, Value []byte }

// Is reports whether the header has a name, given in lower case.
func (h Header) Is(name string) bool { return text.Is(h.Name, name) }

// Hit is a limit of a policy that applies to a request.
type Hit struct {
	// Policy is the index of the policy in the policy set, Limit that of the limit among all limits.
	Policy, Limit uint32
	// Verdict says whether the request has what the policy needs; Key and Cost count only if it is Limited.
	Verdict Verdict
	// Shadow: the hit is decided and counted, and the request is not touched. Its bucket is another than the enforced one.
	Shadow bool
	// Candidate: the limit is the policy's draft, watched beside the enforced one. Shadow is true then.
	Candidate bool
	// Tier is the caller's if the policy goes by tier, for Index.Tier; 0 if it does not.
	Tier uint8
	// Own: the limit is the caller's, the one before this number in Index.Own; 0: it is the one that Limit says.
	Own uint32
	// Knows says who knows which limit the consumer, Index.Person, has at Place among those of the policy.
	Knows Knows
	Place uint8
	Key   keyhash.Key
	Cost  int64
}

// Knows says who knows whether a consumer has a limit of its own.
type Knows uint8

// Told: this node, which has been told of everything that has changed. Named: the control plane, since the consumer has or had one.
// Guessed: the control plane; nothing is known of the consumer here yet, and the policy's limit stands in.
const (
	Told Knows = iota
	Named
	Guessed
)

// Verdict is what matching alone can say about a hit.
type Verdict uint8

// Limited hits are decided by their bucket. RefusedAbsent lacks a part of the partition key under `if_absent: deny`;
// RefusedCost names no sensible cost under `invalid: deny`.
const (
	Limited Verdict = iota
	RefusedAbsent
	RefusedCost
)

// Match appends the hits of a request in the document's order. It keeps nothing of a.
func (ix *Index) Match(a *Attributes, hits []Hit) []Hit {
	ix.tier, ix.own = -1, ix.own[:0]
	ix.orders.barred, ix.orders.bypassed = false, false
	ix.askSpecial(a)
	ix.found = ix.trie.search(ix.snapshot, a.Host, a.Path, ix.found[:0])
	for _, c := range ix.found {
		p := &ix.policies[c.policy]
		if !ix.methodMatches(p, a.Method) || !ix.headersMatch(p, a.Headers) || !ix.clientMatches(p, a) {
			continue
		}
		hits = ix.policyHits(p, c, a, hits)
	}
	ix.looked = false // The next request is another.
	return hits
}

// policyHits appends the hits of a policy that applies, unless it leaves the caller's tier unlimited or is switched off.
func (ix *Index) policyHits(p *Policy, c candidate, a *Attributes, hits []Hit) []Hit {
	if p.Enforced == policy.EnforcedOff && len(ix.orders.list) == 0 {
		return hits
	}
	hit := Hit{Policy: c.policy}
	limits := ix.run(p, 0)
	if !ix.tierMatches(p, a, &hit) {
		return hits
	}
	if p.ByTier {
		limits = ix.run(p, uint32(ix.tier))
	}
	count, own := limits.to-limits.from, uint32(len(ix.own))
	if p.ByConsumer && ix.special {
		ix.findPerson(a)
		var overridden bool
		if overridden, hit.Knows = ix.override(p); overridden {
			count = uint32(len(ix.own)) - own
			hit.Own = own + 1
		}
	}
	unlimited := count == 0
	if unlimited && !ix.Bars() {
		return hits
	}
	complete := ix.encodeKey(p, c, a)
	if !complete && p.IfAbsent == policy.AbsentSkip {
		return hits
	}
	absent := !complete && p.IfAbsent == policy.AbsentDeny
	var k keyhash.Key // Who has no key counts among the first of the keys.
	if !absent {
		k = ix.hashKey()
	}
	share := shareOf(k)
	enforced := ix.enforced(c.policy, share)
	if enforced == policy.EnforcedOff {
		ix.orders.bypassed = ix.orders.bypassed || p.Enforced != policy.EnforcedOff
		return hits
	}
	if ix.Bars() && !absent && ix.orders.banned(k) {
		ix.orders.barred, ix.ban = true, KeyBan
	}
	if unlimited {
		return hits
	}
	hit.Shadow = share >= uint32(enforced)
	var base int
	if absent {
		hit.Verdict = RefusedAbsent
	} else {
		hit.Key, base = ix.bucket(p, k, hit.Shadow)
		hit.Cost, hit.Verdict = ix.cost(p, a.Headers)
	}
	return ix.limitHits(p, a, hit, limits, count, base, hits)
}

// tierMatches finds the caller's tier where it matters, notes it in the hit, and reports whether the policy is for it.
func (ix *Index) tierMatches(p *Policy, a *Attributes, hit *Hit) bool {
	if p.needsTier || ix.orders.byTier {
		ix.findTier(a)
	}
	if p.needsTier {
		hit.Tier = uint8(ix.tier) + 1
	}
	return p.tiers == 0 || p.tiers>>ix.tier&1 != 0
}

// limitHits appends a hit for each of count limits of a policy, of which hit is the first, and for each draft.
func (ix *Index) limitHits(p *Policy, a *Attributes, hit Hit, limits extent, count uint32, base int, hits []Hit) []Hit {
	overridden := hit.Own > 0
	for i := range count {
		hit.Limit, hit.Place = limits.from+i, uint8(i)
		if hit.Limit >= limits.to { // A limit of the caller's own that has no counterpart: the number just names the policy.
			hit.Limit = ix.run(p, 0).from
		}
		if i > 0 {
			// The key goes by the place in the list, so that a limit whose figures change stays the same bucket.
			hit.Key = ix.marked(limitMark, byte(i))
			hit.Own++
		}
		if !overridden {
			hit.Own = 0
			ix.claim(a, &hit)
		}
		hits = append(hits, hit)
	}
	if drafts := ix.run(p, p.candidates()); drafts.from < drafts.to && hit.Verdict == Limited {
		hit.Shadow, hit.Candidate, hit.Own, hit.Knows, hit.Place = true, true, 0, Told, 0
		for hit.Limit = drafts.from; hit.Limit < drafts.to; hit.Limit++ {
			ix.key = ix.key[:base]
			hit.Key = ix.marked(candidateMark, byte(hit.Limit-drafts.from))
			hit.Own = 0
			ix.claim(a, &hit)
			hits = append(hits, hit)
		}
	}
	return hits
}

// marked is the bucket of a further limit.
func (ix *Index) marked(mark ...byte) keyhash.Key {
	ix.key = append(ix.key, mark...)
	return ix.hashKey()
}

func (ix *Index) methodMatches(p *Policy, method []byte) bool {
	if p.methods.from == p.methods.to {
		return true
	}
	for _, ref := range ix.methods[p.methods.from:p.methods.to] {
		if text.Equal(ix.Text(ref), method) {
			return true
		}
	}
	return false
}

// clientMatches reports whether the client's address is one that the policy is for.
func (ix *Index) clientMatches(p *Policy, a *Attributes) bool {
	ranges := ix.clients[p.clients.from:p.clients.to]
	return len(ranges) == 0 || len(a.ClientIP) > 0 && policy.Contains(ranges, a.Address)
}

// headersMatch reports whether every condition holds. A repeated header satisfies one if any of its
// values does, and an empty one counts as absent, as it does in a partition: a policy for callers
// with a key and one for those without would both miss it otherwise.
func (ix *Index) headersMatch(p *Policy, headers []Header) bool {
	for _, m := range ix.headers[p.headers.from:p.headers.to] {
		name, want, ok := ix.Text(m.name), ix.Text(m.value), false
		if m.op == policy.HeaderAbsent {
			if ix.headerValues(headers, name, false) > 0 {
				return false
			}
			continue
		}
		for i := 0; i < len(headers) && !ok; i++ {
			if !text.Equal(headers[i].Name, name) {
				continue
			}
			value := headers[i].Value
			switch m.op {
			case policy.HeaderPresent:
				ok = len(value) > 0
			case policy.HeaderEquals:
				ok = text.Equal(value, want)
			case policy.HeaderPrefix:
				ok = len(value) >= len(want) && text.Equal(value[:len(want)], want)
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

// cost reads what the request costs. A header given twice is senseless: nobody can say which one counts.
func (ix *Index) cost(p *Policy, headers []Header) (int64, Verdict) {
	if p.Cost.Header.Len == 0 {
		return p.Cost.Fixed, Limited
	}
	value, count := lookup(headers, ix.Text(p.Cost.Header))
	if count == 1 {
		if n, ok := parseCost(value, p.Cost.Max); ok {
			return n, Limited
		}
	}
	if p.Cost.DenyInvalid {
		return 0, RefusedCost
	}
	return p.Cost.Invalid, Limited
}

// parseCost reads decimal digits only: no sign, no fraction, at most high.
func parseCost(text []byte, high int64) (int64, bool) {
	var n int64
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		if n = n*10 + int64(c-'0'); n > high {
			return 0, false
		}
	}
	return n, len(text) > 0
}

// keyFormat opens every encoded key; a new encoding gets a new number and so other buckets.
const keyFormat = 1

// What may follow the parts of a key; no part begins with these. A bucket in shadow is another than the enforced one, each further
// limit of a policy has its own and so has each tier, and each draft limit.
const (
	shadowMark    = 0xff
	limitMark     = 0xfe
	tierMark      = 0xfd
	candidateMark = 0xfc
)

// encodeKey writes the policy's name and the parts of the partition key into ix.key, each with its kind and length, so that
// two different identities never encode alike however they are spelled. It reports whether all parts were present.
func (ix *Index) encodeKey(p *Policy, c candidate, a *Attributes) bool {
	ix.key = putText(append(ix.key[:0], keyFormat), ix.Text(p.Name))
	complete := true
	for _, part := range ix.parts[p.parts.from:p.parts.to] {
		ix.key = append(ix.key, byte(part.kind))
		if !ix.encodePart(part, c, a) {
			ix.key = append(ix.key, 0)
			complete = false
		}
	}
	return complete
}

func (ix *Index) encodePart(part part, c candidate, a *Attributes) bool {
	switch part.kind {
	case policy.PartClientIP:
		return ix.putPart(a.ClientIP, len(a.ClientIP) > 0)
	case policy.PartMethod:
		return ix.putPart(a.Method, true)
	case policy.PartHost:
		return ix.putPart(a.Host, len(a.Host) > 0)
	case policy.PartPath:
		return ix.putPart(a.Path, true)
	case policy.PartPolicyPath:
		if c.pattern.Len == 0 {
			return ix.putPart(everything, true)
		}
		return ix.putPart(ix.Text(c.pattern), true)
	case policy.PartConsumer:
		return ix.putConsumer(a)
	case policy.PartTier:
		return ix.putPart(ix.Text(ix.tiers[ix.tier]), true)
	}
	kind, _ := part.kind.Source()
	return ix.putSource(source{kind: kind, name: part.name}, a)
}

// putConsumer writes the first source that is present, with its name: header alice and cookie alice are two.
func (ix *Index) putConsumer(a *Attributes) bool {
	for _, s := range ix.sources {
		start := len(ix.key)
		ix.key = putText(append(ix.key, byte(s.kind)), ix.Text(s.name))
		if ix.putSource(s, a) {
			return true
		}
		ix.key = ix.key[:start]
	}
	return false
}

func (ix *Index) putPart(text []byte, present bool) bool {
	if present {
		ix.key = putText(append(ix.key, 1), text)
	}
	return present
}

// lookup finds a header's first value and how many it has.
func lookup(headers []Header, name []byte) (value []byte, count int) {
	for i := range headers {
		if text.Equal(headers[i].Name, name) {
			if count == 0 {
				value = headers[i].Value
			}
			count++
		}
	}
	return value, count
}

// shareOf is the place of a partition key among a hundred, by which shares of the keys go. A key of nobody has the first.
func shareOf(k keyhash.Key) uint32 { return (uint32(k[14]) | uint32(k[15])<<8) % 100 }

// bucket is the bucket of a partition key whose encoding is at hand. Base is the length of the encoded key with the tier and
// without what tells shadow apart.
func (ix *Index) bucket(p *Policy, partition keyhash.Key, shadow bool) (k keyhash.Key, base int) {
	k = partition
	if p.ByTier {
		ix.key = putText(append(ix.key, tierMark), ix.Text(ix.tiers[ix.tier]))
		k = ix.hashKey()
	}
	base = len(ix.key)
	if shadow {
		k = ix.marked(shadowMark)
	}
	return k, base
}
