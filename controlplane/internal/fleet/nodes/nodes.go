// Package nodes knows the Envoys: who polls, which version each applies, and how many share the
// buckets.
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
	// Forgotten is how long after its last poll a node is still listed.
	Forgotten = 10 * time.Minute
	// Counted is how long after its last poll a node still counts as one that shares the buckets. A
	// poll takes at most half of it.
	Counted = time.Minute

	// MaxSteps bounds what is kept of one report.
	MaxSteps = 64

	countEvery = time.Second
	// doorEvery is how often a door says that it is there.
	doorEvery = Counted / 3
	// countPatience is how long a request waits for a count: a quarter of what lease requests have.
	// The count itself may take countTime.
	countPatience = 10 * time.Millisecond
	countTime     = time.Second
)

// Node is one process of one Envoy, as it described itself in its last poll.
type Node struct {
	ID string `json:"id"`
	// Boot is random for each process, in hexadecimal: two Envoys that were given the same id are
	// still two.
	Boot string `json:"boot"`
	// Applied is the version in use; 0 before the first. Mark is the policies.Version.Mark that it
	// came with, empty if the node knows none.
	Applied uint64 `json:"applied"`
	Mark    string `json:"mark,omitempty"`
	// Enforcement is the revision of the orders that the node obeys; 0 if there never were any.
	Enforcement uint64 `json:"enforcement,omitempty"`
	// Refused is the version that the node could not apply, with the Reason; 0 if there is none.
	Refused uint64 `json:"refused,omitempty"`
	Reason  string `json:"reason,omitempty"`
	Filter  string `json:"filter,omitempty"`
	// Reported is as of the node's last report; empty before the first.
	Reported
	Zone string `json:"zone,omitempty"`
	// Door: it is no Envoy, but a replica of the control plane that answers Envoy's own filters. It
	// shares the buckets like one, and no list has it.
	Door bool `json:"door,omitempty"`
	// Seen is when the node last polled, by the store's clock.
	Seen time.Time `json:"last_seen"`
}

// Reported is what a node says of its failure ladder.
type Reported struct {
	// State is the highest step that any policy is on.
	State string `json:"state,omitempty"`
	// Steps are those of policies that are not on the ground, by name: at most MaxSteps, the
	// highest. MoreSteps is how many policies were left out.
	Steps     map[string]string `json:"steps,omitempty"`
	MoreSteps int               `json:"more_steps,omitempty"`
}

// Key tells nodes apart.
func (n Node) Key() string { return key(n.ID, n.Boot) }

func key(id, boot string) string { return id + "\x00" + boot }

// Clean returns n with every text bounded and printable: nodes are trusted to count, not to write
// logs and terminals.
func (n Node) Clean() Node {
	for _, c := range []struct {
		text *string
		max  int
	}{{&n.ID, wire.MaxNodeID}, {&n.Boot, 16}, {&n.Reason, 256}, {&n.Mark, 16}, {&n.Filter, 64}, {&n.Zone, 64}} {
		*c.text = clean(*c.text, c.max)
	}
	return n
}

// clean replaces what is not printable and cuts to max bytes without splitting a character.
func clean(text string, max int) string {
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
	// Touch stores n as seen now. n.Seen is ignored, and so is what is Reported.
	Touch(ctx context.Context, n Node) error
	// Report stores the report r of a known node, and reports whether the store knows the node.
	Report(ctx context.Context, key string, r Reported) (known bool, err error)
	// Nodes returns the nodes that are not forgotten, in the order of Key.
	Nodes(ctx context.Context) ([]Node, error)
	// CountNodes is the number of nodes seen within the last span.
	CountNodes(ctx context.Context, within time.Duration) (int64, error)
}
