// Package penalties keeps who is under a penalty on any node, sends it to all of them, and takes
// pardons back. Callers are named by keyed hashes.
package penalties

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
)

// Kept is how many records a store keeps at most. A new caller beyond it is known to its node
// alone.
const Kept = 100_000

// Record is what is known of one caller. The zero value is a caller without offences.
type Record struct {
	// Key is the record's: Caller, or what draftKey makes of it.
	Key keyhash.Key
	// Revision is that of the last change.
	Revision uint64
	// Record is the penalty. A Level of 0 is a pardon, which is kept as long as the penalty would
	// have been, so that a report from before it changes nothing.
	penalty.Record
	// Forgotten is when all offences are forgotten, in Unix milliseconds. The store drops the
	// record then.
	Forgotten int64
	Facts
}

// Facts are what operators read of a penalty.
type Facts struct {
	// Policy is the name of the policy that refused the caller, Node the node that said so.
	Policy string `json:"policy"`
	Node   string `json:"node,omitempty"`
	// Since is when the last offence was reported.
	Since time.Time `json:"since"`
	// Shadow: the penalty refuses nothing.
	Shadow bool `json:"shadow,omitempty"`
	// Version is the version of the policy set whose nodes alone obey the penalty, because it was
	// rolled out to them when they began it. 0: all nodes do.
	Version uint64 `json:"version,omitempty"`
	// Consumer is the consumer's keyed hash, Shown what the policy set lets be shown of the
	// request; both are empty if there was nothing to say.
	Consumer string            `json:"consumer,omitempty"`
	Shown    map[string]string `json:"shown,omitempty"`
}

// draftKey is the key of a caller's record that only nodes of a version obey, and the caller of a
// record by its key: doing it twice changes nothing.
func draftKey(k keyhash.Key, version uint64) keyhash.Key {
	part := k[4:12]
	binary.LittleEndian.PutUint64(part, binary.LittleEndian.Uint64(part)^version)
	return k
}

// Caller is who the record is about: a match.Subject's Key, or what match.ShadowOf makes of it.
func (r *Record) Caller() keyhash.Key { return draftKey(r.Key, r.Version) }

// HoldsAt reports whether nodes of a version obey the record.
func (r *Record) HoldsAt(version uint64) bool { return r.Version == 0 || r.Version == version }

// InForce reports whether the record refuses requests at now, or would in shadow.
func (r *Record) InForce(now time.Time) bool { return r.Record.InForce(now.UnixMilli()) }

// Known is a record that a node or a replica offers, with the revision up to which it knew the
// caller.
type Known struct {
	Record
	At uint64
}

// Everything is the revision of who knows all changes.
const Everything = 1<<53 - 1

// Takes reports whether a store that holds r takes an offered record in its place. All were
// pardoned at the revision cleared, 0 for never.
func (r *Record) Takes(offered *Known, cleared uint64) bool {
	if offered.At < cleared || r.Level == 0 && offered.At < r.Revision {
		return false // It is from before a pardon.
	}
	return offered.Beats(r.Record)
}

// Pardoned is r after a pardon.
func (r Record) Pardoned() Record {
	r.Record = penalty.Record{}
	return r
}

// State is how far changes have come.
type State struct {
	// First is the revision of the first change: another one means another store. Revision is that
	// of the last change, and grows with each. It is at least the time in milliseconds, so it grows
	// also if the store loses its state. Cleared is that of the last pardon of all.
	First, Revision, Cleared uint64
}

// Offer are records for a store.
type Offer struct {
	Records []Known
	// Entry is kept too, unless its Action is empty.
	Entry audit.Entry
}

// Outcome is what became of an offer.
type Outcome struct {
	// Taken records took the place of others; Full ones found none.
	Taken, Full int
}

// Store keeps records. An error means that the store could not be asked.
type Store interface {
	// PenaltyState is how far the changes have come; the zero State before the first.
	PenaltyState(ctx context.Context) (State, error)
	// Penalties returns at most limit records that changed after a revision, the earliest first,
	// and the state at the same moment.
	Penalties(ctx context.Context, after uint64, limit int) ([]Record, State, error)
	// OfferPenalties takes the records that Record.Takes says, as many as Kept allows, and drops
	// some of those that are forgotten.
	OfferPenalties(ctx context.Context, o Offer) (Outcome, error)
	// PardonPenalties pardons callers and keeps the entry if one of them had a penalty. It returns
	// how many had.
	PardonPenalties(ctx context.Context, keys []keyhash.Key, entry audit.Entry) (int, error)
	// ClearPenalties pardons all and returns how many records there were.
	ClearPenalties(ctx context.Context, entry audit.Entry) (int, error)
}

// Encode returns the record as stores keep it, without its key.
func (r *Record) Encode() (string, error) {
	facts, err := r.Facts.Encode()
	return fmt.Sprintf("%d %d %d %d %s", r.Revision, r.Level, r.Until, r.Forgotten, facts), err
}

// Encode returns the facts as Record.Encode has them at its end.
func (f Facts) Encode() (string, error) {
	text, err := json.Marshal(f)
	return string(text), err
}

// Decode reads what Encode has written.
func Decode(key keyhash.Key, stored string) (r Record, err error) {
	r.Key = key
	parts := strings.SplitN(stored, " ", 5)
	numbers := [4]int64{}
	for i := range numbers {
		if err == nil && len(parts) == 5 {
			numbers[i], err = strconv.ParseInt(parts[i], 10, 64)
		}
	}
	if err == nil && len(parts) != 5 {
		err = fmt.Errorf("it has %d parts", len(parts))
	}
	if err == nil {
		err = json.Unmarshal([]byte(parts[4]), &r.Facts)
	}
	if err != nil {
		return Record{}, fmt.Errorf("the stored penalty of %s is damaged: %w", key, err)
	}
	r.Revision, r.Level, r.Until, r.Forgotten = uint64(numbers[0]), int(numbers[1]), numbers[2], numbers[3]
	return r, nil
}
