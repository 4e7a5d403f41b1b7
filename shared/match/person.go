package match

import (
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// Consumers knows what the control plane says of consumers.
type Consumers interface {
	// Special says whether any consumer may have more than a tier, and up to which wire.Consumers.Turn what Find says is true.
	Special() (any bool, turn uint64)
	// Find fills in all of c but its Key, by which the consumer is known. What c refers to is good until the next call.
	Find(c *Person)
}

// Person is what is known of the consumer that a request comes from.
type Person struct {
	// Key is its ConsumerKey. Known: the request names one consumer.
	Key   keyhash.Key
	Known bool
	// Sure: nothing that was true as of the turn before is missing.
	Sure bool
	// Banned and Bypass are in force at Now, in Unix milliseconds.
	Banned, Bypass bool
	Now            int64
	// Tier is the name of the tier that it has been assigned, empty for none. Special is what wire.AppendSpecial has made for it, in
	// which overrides may have ended.
	Tier, Special []byte
}

// forget makes p nobody.
func (p *Person) forget() {
	p.Known, p.Sure, p.Banned, p.Bypass, p.Tier, p.Special = false, false, false, false, nil, nil
}

// Person is the consumer of the request that Match was last called for, if a hit is not Told, and the turn up to which its hits are
// known to be right.
func (ix *Index) Person() (consumer keyhash.Key, turn uint64) { return ix.person.Key, ix.turn }

func (ix *Index) askSpecial(a *Attributes) {
	if ix.special, ix.turn = false, 0; a.Consumers != nil {
		ix.special, ix.turn = a.Consumers.Special()
	}
}

// findPerson looks the request's consumer up, once for each request.
func (ix *Index) findPerson(a *Attributes) {
	if ix.looked {
		return
	}
	ix.looked = true
	ix.person.forget()
	if ix.person.Key, ix.person.Known = ix.consumer(a); ix.person.Known {
		a.Consumers.Find(&ix.person)
	}
}

// override appends the caller's own limits under a policy to ix.own, and says whether it has such and who knows. One that does not
// fit how the policy counts, as after a change of the policy, sleeps.
func (ix *Index) override(p *Policy) (overridden bool, by Knows) {
	c, l := &ix.person, &ix.read
	if !wire.FindOverride(c.Special, ix.Text(p.Name), l) {
		if c.Known && !c.Sure {
			return false, Guessed
		}
		return false, Told
	}
	if l.Until <= c.Now {
		return false, Named
	}
	own := len(ix.own)
	counting := ix.limits[ix.run(p, 0).from].Counting
	for i := range l.Each[:l.Count] {
		f := &l.Each[i]
		limit, err := counting.Override(f.Quota, f.Window, f.Burst)
		if err != nil {
			ix.own = ix.own[:own]
			return false, Named
		}
		ix.own = append(ix.own, limit)
	}
	return true, Named
}
