package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
)

// encoder reads the values of requests and encodes them, in memory that it reuses. Each kind of
// value has its length in the encoding, so two different requests never have the same encoding,
// whatever their texts are.
type encoder struct {
	ix *Index
	// Objects counts requests with a claim that is an object where a value is expected.
	Objects uint64
	// key is the current encoding.
	key []byte
	// request is the number of the current request. held has its values by slot, as ranges of
	// values. text has the values whose spelling was changed.
	request uint32
	held    []held
	values  []value
	text    []byte
	// path is the request's path, property the path of a property.
	path     value
	property []byte
	// spread is the number of choices of single values for the current encoding: more than one if a
	// place has several. ambiguous means that several values are refused, excess that there are too
	// many to look up. choice is 1 + the choice to encode; 0 encodes several values as the policy
	// set defines.
	spread, choice int
	// work is the number of bytes that were hashed for the current request.
	work              int
	ambiguous, excess bool
}

// resetEncoder forgets the request before.
func (e *encoder) resetEncoder(ix *Index) {
	e.ix, e.values, e.text, e.choice = ix, e.values[:0], e.text[:0], 0
	e.work = 0
	e.path = value{}
	if e.request++; e.request == 0 {
		clear(e.held)
		e.request = 1
	}
	if n := len(ix.places.nodes); n > len(e.held) {
		e.held = make([]held, n)
	}
}

// maxSpread bounds the number of choices that are looked up separately.
const maxSpread = 64

// beginKey begins an encoding.
func (e *encoder) beginKey(format byte) {
	e.key = append(e.key[:0], format)
	e.spread, e.ambiguous, e.excess = 1, false, false
}

// hashKey returns the key of the current encoding.
func (e *encoder) hashKey() keyhash.Key {
	e.work += len(e.key)
	return hashKeyed(&e.ix.secret, e.key)
}

// putPart encodes a request's value of a part of a partition key, and reports whether there is one
// to encode.
func (e *encoder) putPart(part part, a *Attributes) bool {
	switch part.kind {
	case policy.PartClientIP:
		return e.putOne(a.ClientIP)
	case policy.PartMethod:
		e.key = putValue(append(e.key, oneValue), &e.ix.secret, a.Method)
		return true
	case policy.PartHost:
		return e.putOne(a.Host)
	case policy.PartPath:
		e.key, e.path.text = append(e.key, oneValue), a.Path
		e.putText(&e.path)
		return true
	case policy.PartConsumer:
		return e.putConsumer(a)
	case policy.PartUpstream:
		return e.putOne(e.upstreamCluster(a))
	}
	return e.putSource(part.source, a)
}

// putConsumer encodes the first of the consumer's sources that has a value, with the name of the
// source: alice in a header and alice in a cookie are different consumers.
func (e *encoder) putConsumer(a *Attributes) bool {
	for _, s := range e.ix.sources {
		if e.valuesAt(s, a).len() > 0 {
			e.key = putText(append(e.key, byte(s.kind)), e.ix.Text(s.name))
			return e.putSource(s, a)
		}
	}
	return false
}

// putSource encodes the values of a source, and reports whether there are any.
//
//go:noinline
func (e *encoder) putSource(s source, a *Attributes) bool {
	h := e.valuesAt(s, a)
	n := h.len()
	if n == 0 {
		return false
	}
	first := n > 1 && !h.isList && e.ix.reading.IfSeveral == policy.SeveralFirst
	switch {
	case n == 1 || first && e.choice == 0:
		e.key = append(e.key, oneValue)
		e.putText(&e.values[h.from])
	case e.choice > 0:
		e.key = append(e.key, oneValue)
		e.putText(&e.values[int(h.from)+(e.choice-1)/e.spread%n])
	default:
		e.key = putNumber(append(e.key, severalValues), n)
		for i := h.from; i < h.to; i++ {
			e.putText(&e.values[i])
		}
	}
	if n > 1 {
		e.spread = min(e.spread*n, maxSpread+1)
		e.excess = e.excess || !h.isList && (n > maxHeld || e.spread > maxSpread)
		e.ambiguous = e.ambiguous || e.excess || !h.isList && e.ix.reading.IfSeveral == policy.SeveralDeny
	}
	return true
}

// putOne encodes a text that is one value.
//
//go:noinline
func (e *encoder) putOne(text []byte) bool {
	if len(text) > 0 {
		e.key = putValue(append(e.key, oneValue), &e.ix.secret, text)
	}
	return len(text) > 0
}

// putText is putValue for a value whose hash is kept for the next key.
//
//go:noinline
func (e *encoder) putText(v *value) {
	if len(v.text) <= longText {
		e.key = putText(e.key, v.text)
		return
	}
	if !v.hashed {
		v.digest, v.hashed = hashKeyed(&e.ix.secret, v.text), true
		e.work += len(v.text)
	}
	e.key = putDigest(e.key, len(v.text), &v.digest)
}

// singleValue returns the value of a source if there is one value, or if the first of several
// counts; nil otherwise.
func (e *encoder) singleValue(s source, a *Attributes) []byte {
	h := e.valuesAt(s, a)
	if n := h.len(); n == 1 || n > 1 && !h.isList && e.ix.reading.IfSeveral == policy.SeveralFirst && n <= maxHeld {
		return e.values[h.from].text
	}
	return nil
}
