package wire

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/spelling"
)

// The extras of a set are the fields beside its policies that not every filter reads: a bit for
// each, then their values in the order of the bits. They come behind the policies, in a snapshot of
// setExtrasFormat. A filter refuses a snapshot with an unknown bit.
const (
	setPriorities = 1 << iota
	setReading
	setResponses

	setExtrasKnown = setResponses<<1 - 1
)

// setExtrasOf are the extras that a set has.
func setExtrasOf(set *policy.Set) (extras int64) {
	if len(set.Priorities) > 0 {
		extras |= setPriorities
	}
	if readingOf(set) != (Reading{}) {
		extras |= setReading
	}
	if len(set.Responses) > 0 {
		extras |= setResponses
	}
	return extras
}

// Reading says how requests are read. The zero value is the default.
type Reading struct {
	IfSeveral   policy.IfSeveral
	Routing     spelling.Routing
	NotAppended bool
}

func readingOf(set *policy.Set) Reading {
	return Reading{set.Identity.IfSeveral, set.Routing, set.Identity.NotAppended}
}

func putSetExtras(dst []byte, set *policy.Set) []byte {
	extras := setExtrasOf(set)
	dst = putUvarint(dst, extras)
	if extras&setPriorities != 0 {
		dst = putUvarint(dst, int64(len(set.Priorities)))
		for i := range set.Priorities {
			dst = putClass(dst, &set.Priorities[i])
		}
	}
	if extras&setReading != 0 {
		one := readingOf(set)
		dst = append(dst, byte(one.IfSeveral), byte(one.Routing), boolByte(one.NotAppended))
	}
	if extras&setResponses != 0 {
		dst = putResponses(dst, set.Responses)
	}
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

// Classes is how many classes of requests there are. It must follow the last policy; then Class
// reads each.
func (r *SetReader) Classes() int {
	if r.format < setExtrasFormat {
		return 0
	}
	extras := r.c.uvarint()
	if extras&^setExtrasKnown != 0 {
		r.c.fail(ErrValue)
	}
	r.setExtras = extras
	if extras&setPriorities == 0 {
		return 0
	}
	return int(r.c.within(1, policy.MaxClasses))
}

// Class reads the next class, and calls back for the elements of its lists, as Lists does. Rest: it
// is the class of the requests that no other one matches.
func (r *SetReader) Class(
	host, method, path func(Ref),
	header func(op policy.HeaderOp, name, value Ref),
	clientIP func(policy.Range),
) (name Ref, rest bool, tiers uint32) {
	if name = r.ref(63); name.Len == 0 {
		r.c.fail(ErrValue)
	}
	rest = r.oneOf(0, 1) == 1
	r.conditions(host, method, path, header)
	r.ranges(clientIP)
	return name, rest, uint32(r.c.within(0, 1<<min(r.tiers, policy.MaxTiers)-1))
}

// Reading reads how requests are read. It must follow the last class.
func (r *SetReader) Reading() (one Reading) {
	if r.setExtras&setReading != 0 {
		one.IfSeveral = policy.IfSeveral(r.oneOf(0, uint8(policy.SeveralJoined)))
		one.Routing = spelling.Routing(r.oneOf(0, uint8(spelling.AnyRouting)))
		one.NotAppended = r.oneOf(0, 1) == 1
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
		if *one = (Response{}); r.setExtras&setResponses != 0 {
			one.Status, one.Body = r.status(), r.ref(policy.MaxBody)
			one.ContentType, one.Headers = r.ref(policy.MaxText), r.ref(policy.MaxHeaderLines)
		}
	}
}
