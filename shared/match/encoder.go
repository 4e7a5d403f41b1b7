package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
)

// encoder reads what requests hold and encodes it, in memory that it reuses. Each kind of value
// comes with its length, so that two different requests never encode alike however they are
// spelled.
type encoder struct {
	ix *Index
	// Objects counts requests with a claim that is an object where a value is looked for.
	Objects uint64
	// key is the encoding at hand.
	key []byte
	// request numbers the request at hand. held is what it holds, by slot; values are the values of
	// all of them, text those that are spelled in another way than they were sent.
	request uint32
	held    []held
	values  []value
	text    []byte
	// path is the request's, property the path of a property.
	path     value
	property []byte
	// spread is how many choices of single values the encoding at hand stands for: more than one if
	// a place holds several. ambiguous: they are refused. excess: they are more than can be looked
	// up. choice is 1 + the choice to encode; 0 encodes what the policy set says of several.
	spread, choice int
	// work is how many bytes were hashed for the request at hand.
	work              int
	ambiguous, excess bool
}

// begin forgets the request before.
func (e *encoder) begin(ix *Index) {
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

// maxSpread bounds how many choices are looked up one by one.
const maxSpread = 64

// open begins an encoding.
func (e *encoder) open(format byte) {
	e.key = append(e.key[:0], format)
	e.spread, e.ambiguous, e.excess = 1, false, false
}

// hash is the key of the encoding at hand.
func (e *encoder) hash() keyhash.Key {
	e.work += len(e.key)
	return hashed(&e.ix.secret, e.key)
}

// putPart encodes what a request holds for a part of a partition key, and reports whether it holds
// anything.
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
		return e.putOne(e.upstream(a))
	}
	return e.putSource(part.source, a)
}

// putConsumer encodes the first of the consumer's sources that holds anything, with its name: alice
// in a header and alice in a cookie are two.
func (e *encoder) putConsumer(a *Attributes) bool {
	for _, s := range e.ix.sources {
		if e.hold(s, a).len() > 0 {
			e.key = putText(append(e.key, byte(s.kind)), e.ix.Text(s.name))
			return e.putSource(s, a)
		}
	}
	return false
}

// putSource encodes what a source holds, and reports whether it holds anything.
//
//go:noinline
func (e *encoder) putSource(s source, a *Attributes) bool {
	h := e.hold(s, a)
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

// putText is putValue for a value whose hash is kept for the next key that has it.
//
//go:noinline
func (e *encoder) putText(v *value) {
	if len(v.text) <= longText {
		e.key = putText(e.key, v.text)
		return
	}
	if !v.hashed {
		v.digest, v.hashed = hashed(&e.ix.secret, v.text), true
		e.work += len(v.text)
	}
	e.key = putDigest(e.key, len(v.text), &v.digest)
}

// single is what a source holds if that is one value, or if the first of several counts; nil
// otherwise.
func (e *encoder) single(s source, a *Attributes) []byte {
	h := e.hold(s, a)
	if n := h.len(); n == 1 || n > 1 && !h.isList && e.ix.reading.IfSeveral == policy.SeveralFirst && n <= maxHeld {
		return e.values[h.from].text
	}
	return nil
}
