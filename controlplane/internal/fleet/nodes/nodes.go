// Package nodes keeps the Envoys: their polls, the version that each applies, and the number of
// Envoys that share the buckets.
package nodes

import (
	"context"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// Forgotten is the time after its last poll for which a node is listed.
	Forgotten = 10 * time.Minute
	// Counted is how long after its last poll a node counts as sharing the buckets. A poll takes at
	// most half of this time.
	Counted = time.Minute

	// MaxSteps bounds the kept steps of one report.
	MaxSteps = 64

	countEvery = time.Second
	// doorEvery is the interval at which a door reports itself.
	doorEvery = Counted / 3
	// countPatience is how long a request waits for a count: a quarter of a lease request's time.
	// The count itself may take countTime.
	countPatience = 10 * time.Millisecond
	countTime     = time.Second
)

// Node is one process of an Envoy, with its data from its last poll.
type Node struct {
	ID string `json:"id"`
	// Boot is random for each process, in hexadecimal: two Envoys with the same id are still two
	// nodes.
	Boot string `json:"boot"`
	// Applied is the version in use; 0 before the first. Mark is its policies.Version.Mark, empty
	// if the node has none.
	Applied uint64 `json:"applied"`
	Mark    string `json:"mark,omitempty"`
	// Enforcement is the revision of the orders that the node obeys; 0 if there never were orders.
	Enforcement uint64 `json:"enforcement,omitempty"`
	// Refused is the version that the node could not apply, with the Reason; 0 if there is none.
	Refused uint64 `json:"refused,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Filter  string `json:"filter,omitempty"`
	// Reported has the data of the node's last report; empty before the first report.
	Reported
	Zone string `json:"zone,omitempty"`
	// Door is true for a replica of the control plane that answers Envoy's own filters. It shares
	// the buckets like an Envoy, but is in no list.
	Door bool `json:"door,omitempty"`
	// Seen is the time of the node's last poll, by the store's clock.
	Seen time.Time `json:"last_seen"`
}

// Reported is a node's report of its failure ladder.
type Reported struct {
	// State is the highest step of any policy.
	State string `json:"state,omitempty"`
	// Steps has the steps of policies above the ground, by name: at most MaxSteps, the highest.
	// MoreSteps is the number of policies left out.
	Steps     map[string]string `json:"steps,omitempty"`
	MoreSteps int               `json:"more_steps,omitempty"`
}

// Key identifies the node.
func (n Node) Key() string { return nodeKey(n.ID, n.Boot) }

func nodeKey(id, boot string) string { return id + "\x00" + boot }

// Clean returns n with all texts bounded and printable: nodes are trusted to count, not to write to
// logs and terminals.
func (n Node) Clean() Node {
	for _, c := range []struct {
		text *string
		max  int
	}{{&n.ID, wire.MaxNodeID}, {&n.Boot, 16}, {&n.Reason, 256}, {&n.Mark, 16}, {&n.Filter, 64}, {&n.Zone, 64}} {
		*c.text = cleanText(*c.text, c.max)
	}
	return n
}

// cleanText replaces characters that are not printable, and cuts the text to max bytes at a whole
// character.
func cleanText(text string, max int) string {
	var b strings.Builder
	for _, r := range text {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			r = '?'
		}
		if b.Len()+utf8.RuneLen(r) > max {
			break
		}
		b.WriteRune(r)
	}
	return b.String()
}

// Store keeps nodes until Forgotten after their last Touch.
type Store interface {
	// Touch stores n as seen now. It ignores n.Seen and n.Reported.
	Touch(ctx context.Context, n Node) error
	// Report stores the report r of a node, and reports whether the store knows the node.
	Report(ctx context.Context, key string, r Reported) (known bool, err error)
	// Nodes returns the nodes that are not forgotten, sorted by Key.
	Nodes(ctx context.Context) ([]Node, error)
	// CountNodes returns the number of nodes seen within the last span.
	CountNodes(ctx context.Context, within time.Duration) (int64, error)
}
