package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/text"
)

// Standing says whether a request is limited at all.
type Standing uint8

// Banned requests are refused before any bucket, Exempt ones never limited and never charged.
const (
	Open Standing = iota
	Banned
	Exempt
)

// Ban says what of a request is banned: its address, its consumer, or the key by which a policy counts it.
type Ban uint8

// The bans. NoBan is that of a request that is not refused by one.
const (
	NoBan Ban = iota
	AddressBan
	ConsumerBan
	KeyBan
)

// Ban is what was banned of the request that Standing and then Match have seen last.
func (ix *Index) Ban() Ban { return ix.ban }

// Standing looks a request up in the lists of the banned and of the exempt, and its consumer among those of whom the control
// plane says so; a ban comes first, unless an order has switched off everything.
func (ix *Index) Standing(a *Attributes) Standing {
	known := len(a.ClientIP) > 0
	ix.looked, ix.ban = false, NoBan
	ix.person.forget()
	if known && !ix.orders.lifted && policy.Contains(ix.banned, a.Address) {
		ix.ban = AddressBan
		return Banned
	}
	if ix.askSpecial(a); ix.special {
		ix.findPerson(a)
	}
	switch {
	case ix.person.Banned && !ix.orders.lifted:
		ix.ban = ConsumerBan
		return Banned
	case ix.person.Bypass, known && policy.Contains(ix.exempt, a.Address), ix.exemptMethod(a.Method), ix.exemptPath(a.Path),
		ix.exemptConsumer(a):
		return Exempt
	}
	return Open
}

func (ix *Index) exemptMethod(method []byte) bool {
	for _, ref := range ix.exemptMethods {
		if text.Equal(ix.Text(ref), method) {
			return true
		}
	}
	return false
}

func (ix *Index) exemptPath(path []byte) bool {
	if len(ix.exempted.entries) <= 1 {
		return false
	}
	ix.found = ix.exempted.searchPath(ix.snapshot, anyHost, path, ix.found[:0])
	return len(ix.found) > 0
}

// exemptConsumer looks the consumer's value up. A value that is given more than once names nobody.
func (ix *Index) exemptConsumer(a *Attributes) bool {
	if len(ix.exempted.table) == 0 {
		return false
	}
	for _, s := range ix.sources {
		ix.key = ix.key[:0]
		if !ix.putSource(s, a) {
			continue
		}
		value, single := encodedValue(ix.key)
		// An address is exempt by exempt.client_ips: as a consumer it is bytes, which no text is meant to equal.
		return single && s.kind != policy.SourceClientIP && ix.exempted.find(ix.snapshot, hostsRoot, consumer, value) != 0
	}
	return false
}

// encodedValue reads back what putSource has written.
func encodedValue(b []byte) (value []byte, single bool) {
	if b[0] != 1 {
		return nil, false
	}
	at, n := 1, 0
	for shift := 0; ; shift += 7 {
		c := b[at]
		at++
		n |= int(c&0x7f) << shift
		if c < 0x80 {
			return b[at : at+n], true
		}
	}
}
