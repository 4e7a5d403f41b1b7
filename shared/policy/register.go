package policy

import (
	"strings"
	"unsafe"

	"github.com/weir-proxy/weir/shared/text"
)

// register finds repeated names. It holds no pointers. Thousands of small texts that stay between
// garbage would leave no room in the filter's memory for anything large.
type register struct {
	text []byte
	// ends are the ends of the names in text. table has the names' numbers, from 1, by their hash;
	// its length is a power of two.
	ends, table []uint32
}

// newRegister makes a register with room for count names. It grows when there are more.
func newRegister(count int) *register {
	size := 16
	for size <= 2*count {
		size *= 2
	}
	return &register{text: make([]byte, 0, 16*count), ends: make([]uint32, 0, count), table: make([]uint32, size)}
}

// addName adds the next name. If the same name was added before, it returns the number of that
// name, from 0. An empty name is never the same as another name.
func (n *register) addName(name string) (earlier int, taken bool) {
	if len(n.table) <= 2*len(n.ends) {
		n.growTable()
	}
	slot := n.findSlot(name)
	if n.table[slot] == 0 {
		n.table[slot] = uint32(len(n.ends) + 1)
	} else {
		earlier, taken = int(n.table[slot]-1), name != ""
	}
	n.text = append(n.text, name...)
	n.ends = append(n.ends, uint32(len(n.text)))
	return earlier, taken
}

// growTable doubles the table: at most half of it is used, so that findSlot ends.
func (n *register) growTable() {
	n.table = make([]uint32, 2*len(n.table))
	for number := range n.ends {
		if slot := n.findSlot(n.nameAt(number)); n.table[slot] == 0 {
			n.table[slot] = uint32(number + 1)
		}
	}
}

// findSlot returns the slot of a name: the slot has its number, or is free.
func (n *register) findSlot(name string) uint32 {
	mask := uint32(len(n.table) - 1)
	slot := uint32(text.NewHash32.AddString(name)) & mask
	for n.table[slot] != 0 && n.nameAt(int(n.table[slot]-1)) != name {
		slot = (slot + 1) & mask
	}
	return slot
}

// nameAt returns a name by its number. It shares the register's memory, and is good until the next
// addName.
func (n *register) nameAt(number int) string {
	start := uint32(0)
	if number > 0 {
		start = n.ends[number-1]
	}
	text := n.text[start:n.ends[number]]
	return unsafe.String(unsafe.SliceData(text), len(text))
}

// addShown adds the names of a policy in answers that could be names of another policy: a name with
// a dot, and the names of several limits, like policy.1s. It returns a name that is taken. The
// reserves of classes add an ending that no name of another policy may have.
func (n *register) addShown(p *Policy) (name string, taken bool) {
	if strings.Contains(p.Name, ".") {
		name, _, _ = strings.Cut(p.Name, ".after-")
		if _, taken = n.addName(name); taken {
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
		if _, taken = n.addName(name); taken {
			return name, true
		}
	}
	return "", false
}
