package policy

import (
	"strings"

	"github.com/weir-proxy/weir/shared/text"
)

// register finds repeated names. It holds no pointers: thousands of small texts that stay, each
// between garbage, would leave no room in the filter's memory for anything large.
type register struct {
	text []byte
	// ends are where each name ends in text, table the names' numbers from 1 by their hash; its
	// length is a power of two.
	ends, table []uint32
}

// newRegister has room for so many names.
func newRegister(count int) *register {
	size := 16
	for size <= 2*count {
		size *= 2
	}
	return &register{text: make([]byte, 0, 16*count), ends: make([]uint32, 0, count), table: make([]uint32, size)}
}

// add notes the next name. If the same name came before, add returns its number, from 0. An empty
// name is never the same as another.
func (n *register) add(name string) (earlier int, taken bool) {
	hash := uint32(text.NewHash32.AddString(name))
	mask := uint32(len(n.table) - 1)
	slot := hash & mask
	for n.table[slot] != 0 {
		earlier = int(n.table[slot] - 1)
		if n.is(earlier, name) {
			taken = name != ""
			break
		}
		slot = (slot + 1) & mask
	}
	n.text = append(n.text, name...)
	n.ends = append(n.ends, uint32(len(n.text)))
	if n.table[slot] == 0 {
		n.table[slot] = uint32(len(n.ends))
	}
	return earlier, taken
}

func (n *register) is(number int, name string) bool {
	start := uint32(0)
	if number > 0 {
		start = n.ends[number-1]
	}
	text := n.text[start:n.ends[number]]
	if len(text) != len(name) {
		return false
	}
	for i := range text {
		if text[i] != name[i] {
			return false
		}
	}
	return true
}

// show notes the names by which answers name a policy that may be those of another: one with a dot,
// and those of several limits, policy.1s. It returns one that is taken. What is kept for a class
// adds to a name what no other policy may begin with either.
func (n *register) show(p *Policy) (name string, taken bool) {
	if strings.Contains(p.Name, ".") {
		name, _, _ = strings.Cut(p.Name, ".after-")
		if _, taken = n.add(name); taken {
			return name, true
		}
	}
	if len(p.Limits) < 2 {
		return "", false
	}
	for i := range p.Limits {
		which := "in_flight"
		if l := &p.Limits[i]; !l.InFlight {
			which = FormatSpan(l.Window)
		}
		name = p.Name + "." + which
		same := false // Tiers have the same windows, as a rule.
		for k := range i {
			same = same || p.Limits[k].InFlight == p.Limits[i].InFlight && p.Limits[k].Window == p.Limits[i].Window
		}
		if same {
			continue
		}
		if _, taken = n.add(name); taken {
			return name, true
		}
	}
	return "", false
}
