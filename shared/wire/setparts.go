package wire

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
)

// The parts of a set are fields that few sets have. They follow the policies: a byte with a bit for
// each part defines which parts follow, in the order of the bits. A filter refuses a snapshot with
// an unknown bit.
const (
	setPriorities = 1 << iota
	setReading
	setResponses
	setShow

	setPartsKnown = setShow<<1 - 1
)

// Reading defines how requests are read. The zero value is the default.
type Reading struct {
	IfSeveral   policy.IfSeveral
	Routing     spelling.Routing
	NotAppended bool
}

func readingOf(set *policy.Set) Reading {
	return Reading{set.Identity.IfSeveral, set.Routing, set.Identity.NotAppended}
}

// putSetParts appends the bits of the parts that a set has, and the parts.
func putSetParts(dst []byte, set *policy.Set) []byte {
	at, parts := len(dst), byte(0)
	dst = append(dst, 0) // The bits, below.
	if len(set.Priorities) > 0 {
		parts |= setPriorities
		dst = putUvarint(dst, int64(len(set.Priorities)))
		for i := range set.Priorities {
			dst = putClass(dst, &set.Priorities[i])
		}
	}
	if one := readingOf(set); one != (Reading{}) {
		parts |= setReading
		dst = append(dst, byte(one.IfSeveral), byte(one.Routing), boolByte(one.NotAppended))
	}
	if len(set.Responses) > 0 {
		parts |= setResponses
		dst = putResponses(dst, set.Responses)
	}
	if len(set.Show) > 0 {
		parts |= setShow
		dst = putUvarint(dst, int64(len(set.Show)))
		for _, p := range set.Show {
			dst = putText(append(dst, byte(p.Kind)), p.Name)
		}
	}
	dst[at] = parts
	return dst
}

//go:noinline
func putResponses(dst []byte, all []policy.Response) []byte {
	for i := range all {
		dst = putUvarint(dst, int64(all[i].Status))
		for _, part := range [...]string{all[i].Body, all[i].ContentType, all[i].Headers} {
			dst = putText(dst, part)
		}
	}
	return dst
}

func putClass(dst []byte, c *policy.Class) []byte {
	dst = append(putText(dst, c.Name), boolByte(c.Rest))
	m := &c.Match
	dst = putHeaders(putTexts(dst, m.Hosts, m.Methods, m.Paths), m.Headers)
	return putUvarint(putRanges(dst, m.ClientIPs), int64(tierSet(m.Tiers)))
}

// Classes returns the number of classes of requests. It must follow the last policy; then Class
// reads each class.
func (r *SetReader) Classes() int {
	if r.parts = r.readOneOf(0, setPartsKnown); r.parts&setPriorities == 0 {
		return 0
	}
	return int(r.c.readWithin(1, policy.MaxClasses))
}

// Class reads the next class, and calls back for the elements of its lists, as Lists does. rest
// means that the class takes all other requests.
func (r *SetReader) Class(
	host, method, path func(Ref),
	header func(op policy.HeaderOp, name, value Ref),
	clientIP func(policy.Range),
) (name Ref, rest bool, tiers uint32) {
	if name = r.readRef(63); name.Len == 0 {
		r.c.failWith(ErrValue)
	}
	rest = r.readOneOf(0, 1) == 1
	r.readConditions(host, method, path, header)
	r.readRanges(clientIP)
	return name, rest, uint32(r.c.readWithin(0, 1<<min(r.tiers, policy.MaxTiers)-1))
}

// Reading reads how requests are read. It must follow the last class.
func (r *SetReader) Reading() (one Reading) {
	if r.parts&setReading != 0 {
		one.IfSeveral = policy.IfSeveral(r.readOneOf(0, uint8(policy.SeveralJoined)))
		one.Routing = spelling.Routing(r.readOneOf(0, uint8(spelling.AnyRouting)))
		one.NotAppended = r.readOneOf(0, 1) == 1
	}
	return one
}

// Response is policy.Response with references for its texts.
type Response struct {
	Status                     int
	Body, ContentType, Headers Ref
}

// Responses reads the responses of the set into all. They must follow Reading.
//
//go:noinline
func (r *SetReader) Responses(all *[policy.AnswerCount]Response) {
	for i := range all {
		one := &all[i]
		if *one = (Response{}); r.parts&setResponses != 0 {
			one.Status, one.Body = r.readStatus(), r.readRef(policy.MaxBody)
			one.ContentType, one.Headers = r.readRef(policy.MaxText), r.readRef(policy.MaxHeaderLines)
		}
	}
}

// Shown returns the number of parts of a request that may be shown. It must follow Responses; then
// ShownPart reads each part.
func (r *SetReader) Shown() int {
	if r.parts&setShow == 0 {
		return 0
	}
	return int(r.c.readWithin(1, policy.MaxShown))
}

// ShownPart reads the next part that may be shown.
func (r *SetReader) ShownPart() (kind policy.PartKind, name Ref) {
	if kind = policy.PartKind(r.c.u8()); !kind.CanBeShown() {
		r.c.failWith(ErrValue)
	}
	return kind, r.readRef(policy.MaxText)
}

// End returns the first error, including bytes after the last part.
func (r *SetReader) End() error { return r.c.endMessage() }
