package wire

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

const (
	snapshotMagic = "WRSN"
	// A snapshot has the lowest format that can express it, so that older filters can read it: the
	// plain one, one with shown parts, or one in which policies have extras. An older filter
	// refuses a later format and keeps its snapshot.
	snapshotFormat = 2
	showFormat     = 3
	extrasFormat   = 4
	snapshotHeader = len(snapshotMagic) + 1 + 8 + 8
)

// Snapshot is a policy set with its version and the deployment's secret for partition keys.
type Snapshot struct {
	// Version grows with every change of the policy set; 0 is the standalone one.
	Version uint64
	// Secret is the key of the hash of partition keys. All nodes have the same one, so that they
	// name a bucket alike.
	Secret [16]byte
	Set    *policy.Set
	// Packed are further policies, after those of Set; nil is none. AppendSnapshot empties it, so
	// that its memory can be used again.
	Packed *Packed
}

// AppendSnapshot appends the message to dst: a header with version and checksum, then the policy
// set.
func AppendSnapshot(dst []byte, s Snapshot) []byte {
	start := len(dst)
	format := formatOf(&s)
	dst = append(append(dst, snapshotMagic...), format)
	dst = binary.LittleEndian.AppendUint64(dst, s.Version)
	dst = binary.LittleEndian.AppendUint64(dst, 0) // the checksum, below
	dst = append(dst, s.Secret[:]...)
	dst = putSet(dst, s.Set, s.Packed, format)
	if format >= showFormat {
		dst = putShow(dst, s.Set.Show)
	}
	binary.LittleEndian.PutUint64(dst[start+snapshotHeader-8:], checksum(dst[start+snapshotHeader:])^s.Version)
	return dst
}

// OpenSnapshot checks header and checksum and returns the version, the secret and a reader of the
// policy set, whose results alias b. It allocates nothing.
func OpenSnapshot(b []byte) (version uint64, secret [16]byte, set SetReader, err error) {
	if len(b) > MaxSnapshot {
		return 0, secret, set, ErrTooLarge
	}
	c := cursor{buf: b}
	format := byte(snapshotFormat)
	if len(b) > len(snapshotMagic) && b[len(snapshotMagic)] > snapshotFormat {
		format = min(b[len(snapshotMagic)], extrasFormat)
	}
	c.header(snapshotMagic, format)
	version = c.u64()
	sum := c.u64()
	if c.err == nil && sum != checksum(b[snapshotHeader:])^version {
		c.fail(ErrChecksum)
	}
	copy(secret[:], c.bytes(16))
	return version, secret, SetReader{c: c, format: format}, c.err
}

func putSet(dst []byte, set *policy.Set, packed *Packed, format byte) []byte {
	dst = putUvarint(dst, int64(set.Identity.TrustedHops))
	dst = putUvarint(dst, int64(set.Identity.IPv6Prefix))
	dst = putSources(dst, set.Identity.Consumer)
	dst = putTexts(dst, set.Tiers)
	dst = putUvarint(dst, int64(set.Identity.DefaultTier))
	dst = putSources(dst, set.Identity.Tier)
	dst = append(dst, byte(set.Headers.Standard), byte(set.Headers.Legacy))
	dst = putAccess(dst, set)
	dst = putUvarint(dst, int64(len(set.Policies)+packed.size()))
	for i := range set.Policies {
		dst = putPolicy(dst, &set.Policies[i], format)
	}
	return packed.move(dst)
}

func putSources(dst []byte, sources []policy.Source) []byte {
	dst = putUvarint(dst, int64(len(sources)))
	for _, s := range sources {
		dst = putText(append(dst, byte(s.Kind)), s.Name)
	}
	return dst
}

func putAccess(dst []byte, set *policy.Set) []byte {
	dst = putRanges(putRanges(dst, set.Banned), set.Exempt.ClientIPs)
	return putTexts(dst, set.Exempt.Paths, set.Exempt.Methods, set.Exempt.Consumers)
}

func putTexts(dst []byte, lists ...[]string) []byte {
	for _, list := range lists {
		dst = putUvarint(dst, int64(len(list)))
		for _, s := range list {
			dst = putText(dst, s)
		}
	}
	return dst
}

func putPolicy(dst []byte, p *policy.Policy, format byte) []byte {
	dst = putText(dst, p.Name)
	then, localFor, _ := localThen(&p.OnFailure)
	dst = append(dst, byte(p.IfAbsent), byte(p.Mode), then, byte(p.Enforced))
	dst = putUvarint(dst, int64(localFor))
	dst = append(dst, byte(p.Counting.Algorithm), byte(p.Counting.Subwindows), boolByte(p.Counting.Calendar))
	dst = putUvarint(dst, int64(p.Counting.MaxWait))
	dst = append(dst, boolByte(len(p.Tiers) > 0))
	if len(p.Tiers) == 0 {
		dst = putLimits(dst, p.Limits)
	}
	for i := range p.Tiers {
		dst = putLimits(dst, p.LimitsOf(i))
	}
	dst = putLimits(dst, p.Candidate)
	dst = putUvarint(dst, p.Cost.Fixed)
	dst = putText(dst, p.Cost.Header)
	dst = putUvarint(dst, p.Cost.Max)
	dst = putUvarint(dst, p.Cost.Invalid)
	dst = append(dst, boolByte(p.Cost.DenyInvalid))
	dst = putText(putUvarint(dst, int64(p.Response.Status)), p.Response.Body)
	dst = putTexts(dst, p.Match.Hosts, p.Match.Methods, p.Match.Paths)
	dst = putUvarint(dst, int64(len(p.Match.Headers)))
	for _, h := range p.Match.Headers {
		dst = putText(putText(append(dst, byte(h.Op)), h.Name), h.Value)
	}
	dst = putUvarint(dst, int64(len(p.Partition)))
	for _, part := range p.Partition {
		dst = putText(append(dst, byte(part.Kind)), part.Name)
	}
	if format >= extrasFormat {
		dst = putExtras(dst, p)
	}
	return dst
}

func putLimits(dst []byte, limits []policy.Limit) []byte {
	dst = putUvarint(dst, int64(len(limits)))
	for _, l := range limits {
		dst = putLimit(dst, l)
	}
	return dst
}

func putLimit(dst []byte, l policy.Limit) []byte {
	burst := l.Params.Burst
	if l.Algorithm == quota.LeakyBucket {
		burst-- // The request that is served takes no place in the queue.
	}
	return putUvarint(putUvarint(putUvarint(dst, l.Quota), int64(l.Window)), burst)
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// SetReader reads a policy set in the order of its bytes: first Head, then Access, Policies and
// each Policy. All texts alias the message. After an error all results are zero; call End at the
// end.
type SetReader struct {
	c cursor
	// tiers and limits are how many have been read.
	tiers, limits int64
	// policyLimits are the limits of the last policy that was read, including those of all tiers
	// and of the candidate.
	policyLimits int64
	format       byte
}

// SetHead is the part before the policies.
type SetHead struct {
	TrustedHops, IPv6Prefix int
	// DefaultTier is a place among the tiers, if there are any.
	DefaultTier int
	Headers     policy.Headers
}

// PolicyHead is a policy without its lists. An Envoy holds many: small fields stand together.
type PolicyHead struct {
	Name      Ref
	OnFailure policy.OnFailure
	Cost      Cost
	IfAbsent  policy.IfAbsent
	Mode      policy.Mode
	Enforced  policy.Enforced
	// ByTier: each tier has a run of limits.
	ByTier bool
	// Status, Body and ContentType are those of policy.Response; ContentType comes with the extras.
	Status            int
	Body, ContentType Ref
}

// Cost is policy.Cost with a reference for the header's name.
type Cost struct {
	Fixed, Max, Invalid int64
	Header              Ref
	DenyInvalid         bool
}

// Ref is a text inside the message, as offset and length. It is not a pointer, so large tables of
// them cost the collector nothing.
type Ref struct{ Off, Len uint32 }

// Of is the text in the message b.
func (r Ref) Of(b []byte) []byte { return b[r.Off : r.Off+r.Len] }

// pattern reads a path pattern, which starts with a slash.
func (r *SetReader) pattern() Ref {
	ref := r.ref(policy.MaxText)
	if r.c.err == nil && (ref.Len == 0 || r.c.buf[ref.Off] != '/') {
		r.c.fail(ErrValue)
	}
	return ref
}

func (r *SetReader) ref(high int) Ref {
	b := r.c.text(high)
	return Ref{Off: uint32(r.c.pos - len(b)), Len: uint32(len(b))}
}

// Head reads the identity, the names of the tiers and the header dialects. It calls back for each
// source of the consumer, for each tier, and for each source of the tier.
func (r *SetReader) Head(consumer func(kind policy.SourceKind, name Ref), tier func(name Ref), tierSource func(kind policy.SourceKind, name Ref)) SetHead {
	c := &r.c
	h := SetHead{TrustedHops: int(c.within(0, 64)), IPv6Prefix: int(c.within(1, 128))}
	r.sources(r.kinds(1<<policy.SourceHeader|1<<policy.SourceJWT|1<<policy.SourceCookie|1<<policy.SourceQuery|1<<policy.SourceSPIFFE, policy.SourceClientIP), consumer)
	r.refs(policy.MaxTiers, func(ref Ref) {
		if r.tiers++; ref.Len == 0 {
			c.fail(ErrValue)
		}
		tier(ref)
	})
	h.DefaultTier = int(c.within(0, max(r.tiers-1, 0)))
	r.sources(r.kinds(1<<policy.SourceHeader|1<<policy.SourceJWT|1<<policy.SourceCookie|1<<policy.SourceQuery|1<<policy.SourceSPIFFE|1<<policy.SourceAssignment,
		policy.SourceFound), tierSource)
	h.Headers.Standard = policy.Standard(r.oneOf(0, uint8(policy.StandardDraft11)))
	last := policy.LegacyDiscord
	if r.format >= extrasFormat {
		last = policy.LegacyRateLimit
	}
	h.Headers.Legacy = policy.Legacy(r.oneOf(0, uint8(last)))
	return h
}

// Access reads the lists of banned and exempt callers, and calls back for each range of addresses
// and each text. It must follow Head.
func (r *SetReader) Access(banned, exempt func(policy.Range), path, method, consumer func(Ref)) {
	r.ranges(banned)
	r.ranges(exempt)
	r.patterns(path)
	r.refs(policy.MaxListItems, method)
	r.refs(policy.MaxConsumers, consumer)
}

// patterns reads a list of path patterns; refs one of any texts.
func (r *SetReader) patterns(each func(Ref)) {
	for n := r.c.within(0, policy.MaxListItems); n > 0 && r.c.err == nil; n-- {
		if ref := r.pattern(); r.c.err == nil {
			each(ref)
		}
	}
}

func (r *SetReader) refs(limit int64, each func(Ref)) {
	for n := r.c.within(0, limit); n > 0 && r.c.err == nil; n-- {
		if ref := r.ref(policy.MaxText); r.c.err == nil {
			each(ref)
		}
	}
}

// Policies is the number of policies that follow. It must be called after Access.
func (r *SetReader) Policies() int { return int(r.c.within(0, policy.MaxPolicies)) }

// Policy reads the next policy up to its lists, and calls back before each run of limits and for
// each limit. The runs are the one of the policy, or one for each tier, and then the one of the
// candidate; runs of a tier and of the candidate may be empty. Lists must follow.
func (r *SetReader) Policy(run func(), limit func(policy.Limit)) PolicyHead {
	c := &r.c
	p := PolicyHead{Name: r.ref(63)}
	if p.Name.Len == 0 {
		c.fail(ErrValue)
	}
	p.IfAbsent = policy.IfAbsent(r.oneOf(0, uint8(policy.AbsentShared)))
	p.Mode = policy.Mode(r.oneOf(0, uint8(policy.ModeOptimistic)))
	then := r.oneOf(0, uint8(len(thens)-1))
	p.Enforced = policy.Enforced(c.u8())
	if p.Enforced > policy.EnforcedAll && p.Enforced != policy.EnforcedOff {
		c.fail(ErrValue)
	}
	if p.OnFailure[0].Do = thens[then]; thens[then] != policy.StepShare {
		if localFor := quota.Span(c.within(0, int64(quota.MaxWindow))); localFor > 0 {
			p.OnFailure = policy.OnFailure{{For: localFor, Do: policy.StepShare}, {Do: thens[then]}}
		}
	} else {
		c.within(0, int64(quota.MaxWindow))
	}
	counting := policy.Counting{
		Algorithm: quota.Algorithm(r.oneOf(0, uint8(quota.SlidingLog))), Subwindows: int(r.oneOf(0, quota.MaxSubwindows)),
		Calendar: r.oneOf(0, 1) == 1, MaxWait: quota.Span(c.within(0, int64(quota.Hour))),
	}
	p.ByTier = r.oneOf(0, 1) == 1
	r.runs(p.ByTier, counting, run, limit)
	p.Cost.Fixed = c.within(0, policy.MaxCost)
	p.Cost.Header = r.ref(policy.MaxText)
	p.Cost.Max = c.within(0, policy.MaxCost)
	p.Cost.Invalid = c.within(0, policy.MaxCost)
	p.Cost.DenyInvalid = r.oneOf(0, 1) == 1
	if p.Status = int(c.within(0, 599)); p.Status != 0 && p.Status < 400 {
		c.fail(ErrValue)
	}
	p.Body = r.ref(policy.MaxBody)
	return p
}

func (r *SetReader) runs(byTier bool, counting policy.Counting, run func(), limit func(policy.Limit)) {
	c := &r.c
	own, least, before := int64(1), int64(1), r.limits
	if byTier {
		own, least = r.tiers, 0
	}
	for i := int64(0); i <= own && c.err == nil; i++ {
		if i == own {
			if r.limits == before {
				c.fail(ErrValue) // A policy without any limit.
			}
			least = 0
		}
		run()
		for n := c.within(least, policy.MaxLimits); n > 0 && c.err == nil; n-- {
			if r.limits++; r.limits > policy.MaxSetLimits {
				c.fail(ErrValue)
			}
			limit(r.limit(counting))
		}
	}
	r.policyLimits = r.limits - before
}

func (r *SetReader) limit(counting policy.Counting) policy.Limit {
	c := &r.c
	units, window, burst := c.uvarint(), quota.Span(c.uvarint()), c.uvarint()
	if c.err != nil {
		return policy.Limit{}
	}
	l, err := policy.NewLimit(counting, units, window, burst)
	if err != nil {
		c.fail(ErrValue)
	}
	return l
}

// Lists reads the lists of the policy that Policy has begun, and calls back for each element.
func (r *SetReader) Lists(host, method, path func(Ref), header func(op policy.HeaderOp, name, value Ref), part func(kind policy.PartKind, name Ref)) {
	c := &r.c
	r.refs(policy.MaxListItems, host)
	r.refs(policy.MaxListItems, method)
	r.patterns(path)
	for n := c.within(0, policy.MaxListItems); n > 0 && c.err == nil; n-- {
		last := policy.HeaderPrefix
		if r.format >= extrasFormat {
			last = policy.HeaderAbsent
		}
		op := policy.HeaderOp(r.oneOf(uint8(policy.HeaderPresent), uint8(last)))
		name := r.ref(policy.MaxText)
		header(op, name, r.ref(policy.MaxText))
	}
	for n := c.within(0, policy.MaxListItems); n > 0 && c.err == nil; n-- {
		kind := policy.PartKind(r.oneOf(uint8(policy.PartClientIP), uint8(policy.PartTier)))
		if kind == policy.PartTier && r.tiers == 0 {
			c.fail(ErrValue)
		}
		part(kind, r.ref(policy.MaxText))
	}
}

func (r *SetReader) oneOf(low, high uint8) uint8 {
	v := r.c.u8()
	if v < low || v > high {
		r.c.fail(ErrValue)
		return low
	}
	return v
}

// Failed reports whether there was an error; all later results are zero.
func (r *SetReader) Failed() bool { return r.c.err != nil }
