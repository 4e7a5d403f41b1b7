package series

import (
	"encoding/json"
	"math"
)

// Bounds on the names in a tally and in a ring. Counts of further names are only in the total.
const (
	maxPolicies = 2000
	maxNodes    = 1000
	// maxText bounds the size of a replica's slot, in bytes; a larger slot is ignored.
	maxText = 1 << 20
)

// counts are the counts of all Outcomes, and then the counts of byVersion rows.
type counts [places]uint32

// add adds n to an outcome; for a utilisation it keeps the highest value.
func (c *counts) add(outcome int, n int64) {
	so := int64(c[outcome])
	if outcome == utilisation {
		so = max(so, n)
	} else {
		so += max(n, 0)
	}
	c[outcome] = uint32(min(so, math.MaxUint32))
}

// MarshalJSON leaves out zeros at the end. A replica with fewer outcomes reads the outcomes that it
// knows.
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

// tally has the counts of one slot.
type tally struct {
	All      counts             `json:"all"`
	Policies map[string]*counts `json:"policies"`
	Nodes    map[string]*counts `json:"nodes"`
	Versions map[string]*counts `json:"versions,omitempty"`
	// stored is true if the store has these counts.
	stored bool
}

func newTally() *tally {
	return &tally{Policies: map[string]*counts{}, Nodes: map[string]*counts{}, Versions: map[string]*counts{}}
}

// addCount counts n of an outcome; node may be empty.
func (t *tally) addCount(policy, node string, outcome int, n int64) {
	if n <= 0 {
		return
	}
	t.stored = false
	t.All.add(outcome, n)
	if c := countsOf(t.Policies, policy, maxPolicies); c != nil {
		c.add(outcome, n)
	}
	if node == "" {
		return
	}
	if c := countsOf(t.Nodes, node, maxNodes); c != nil {
		c.add(outcome, n)
	}
}

// countsOf returns the counts of a name; nil if there are too many names.
func countsOf(of map[string]*counts, name string, most int) *counts {
	c := of[name]
	if c == nil && len(of) < most {
		c = &counts{}
		of[name] = c
	}
	return c
}

func (t *tally) encode() []byte {
	text, err := json.Marshal(t)
	if err != nil { // Maps of numbers have no error.
		return nil
	}
	return text
}

// sumTexts adds up the texts of replicas; nil if there is none that can be decoded.
func sumTexts(texts map[string][]byte) *tally {
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
		mergeCounts(all.Policies, one.Policies, func(string) int { return maxPolicies })
		mergeCounts(all.Nodes, one.Nodes, func(string) int { return maxNodes })
		mergeCounts(all.Versions, one.Versions, mostVersionRows)
	}
	return all
}

func mergeCounts(into, from map[string]*counts, most func(name string) int) {
	for name, n := range from {
		if n == nil {
			continue
		}
		if c := countsOf(into, name, most(name)); c != nil {
			c.addAll(n)
		}
	}
}
