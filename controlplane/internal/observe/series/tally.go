package series

import (
	"encoding/json"
	"math"
)

// Bounds of the names in one tally and in a ring. What belongs to further names counts for all.
const (
	maxPolicies = 2000
	maxNodes    = 1000
	// maxText bounds what is read of one replica's slot.
	maxText = 1 << 20
)

// counts are the counts of each of Outcomes, and those of byVersion rows behind them.
type counts [places]uint32

// add counts n more of an outcome; of a utilisation the highest counts.
func (c *counts) add(outcome int, n int64) {
	so := int64(c[outcome])
	if outcome == utilisation {
		so = max(so, n)
	} else {
		so += max(n, 0)
	}
	c[outcome] = uint32(min(so, math.MaxUint32))
}

// MarshalJSON leaves out the zeros at the end, which a reader does not need. A replica with fewer
// outcomes reads those that it knows.
func (c *counts) MarshalJSON() ([]byte, error) {
	last := len(c)
	for last > 0 && c[last-1] == 0 {
		last--
	}
	return json.Marshal(c[:last])
}

func (c *counts) addAll(from *counts) {
	for i, n := range from {
		c.add(i, int64(n))
	}
}

// tally is what was counted in one slot.
type tally struct {
	All      counts             `json:"all"`
	Policies map[string]*counts `json:"policies"`
	Nodes    map[string]*counts `json:"nodes"`
	Versions map[string]*counts `json:"versions,omitempty"`
	// stored: the store has it as it is.
	stored bool
}

func newTally() *tally {
	return &tally{Policies: map[string]*counts{}, Nodes: map[string]*counts{}, Versions: map[string]*counts{}}
}

// add counts n of an outcome; node may be empty.
func (t *tally) add(policy, node string, outcome int, n int64) {
	if n <= 0 {
		return
	}
	t.stored = false
	t.All.add(outcome, n)
	if c := named(t.Policies, policy, maxPolicies); c != nil {
		c.add(outcome, n)
	}
	if node == "" {
		return
	}
	if c := named(t.Nodes, node, maxNodes); c != nil {
		c.add(outcome, n)
	}
}

// named are the counts of a name, nil if there are too many names.
func named(of map[string]*counts, name string, most int) *counts {
	c := of[name]
	if c == nil && len(of) < most {
		c = &counts{}
		of[name] = c
	}
	return c
}

func (t *tally) encode() []byte {
	text, err := json.Marshal(t)
	if err != nil { // Maps of numbers have none.
		return nil
	}
	return text
}

// sum adds up what replicas have put; nil if none has. What cannot be read counts nothing.
func sum(texts map[string][]byte) *tally {
	var all *tally
	for _, text := range texts {
		var one tally
		if len(text) > maxText || json.Unmarshal(text, &one) != nil {
			continue
		}
		if all == nil {
			all = newTally()
		}
		all.All.addAll(&one.All)
		merge(all.Policies, one.Policies, func(string) int { return maxPolicies })
		merge(all.Nodes, one.Nodes, func(string) int { return maxNodes })
		merge(all.Versions, one.Versions, mostVersionRows)
	}
	return all
}

func merge(into, from map[string]*counts, most func(name string) int) {
	for name, n := range from {
		if n == nil {
			continue
		}
		if c := named(into, name, most(name)); c != nil {
			c.addAll(n)
		}
	}
}
