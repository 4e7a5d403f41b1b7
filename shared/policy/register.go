package policy

import (
	"strings"
	"unsafe"

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

// newRegister has room for so many names, and grows beyond.
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
	if len(n.table) <= 2*len(n.ends) {
		n.grow()
	}
	slot := n.find(name)
	if n.table[slot] == 0 {
		n.table[slot] = uint32(len(n.ends) + 1)
	} else {
		earlier, taken = int(n.table[slot]-1), name != ""
	}
	n.text = append(n.text, name...)
	n.ends = append(n.ends, uint32(len(n.text)))
	return earlier, taken
}

// grow doubles the table: at most half of it is used, so that find ends.
func (n *register) grow() {
	n.table = make([]uint32, 2*len(n.table))
	for number := range n.ends {
		if slot := n.find(n.name(number)); n.table[slot] == 0 {
			n.table[slot] = uint32(number + 1)
		}
	}
}

// find returns the slot of a name: with its number, or free.
func (n *register) find(name string) uint32 {
	mask := uint32(len(n.table) - 1)
	slot := uint32(text.NewHash32.AddString(name)) & mask
	for n.table[slot] != 0 && n.name(int(n.table[slot]-1)) != name {
		slot = (slot + 1) & mask
	}
	return slot
}

// name returns a name by its number. It shares the register's memory, and is good until the next
// add.
func (n *register) name(number int) string {
	start := uint32(0)
	if number > 0 {
		start = n.ends[number-1]
	}
	text := n.text[start:n.ends[number]]
	return unsafe.String(unsafe.SliceData(text), len(text))
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
