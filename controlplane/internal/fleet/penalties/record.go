// Package penalties keeps who is under a penalty on any node, sends it to all of them, and takes
// pardons back. Callers are named by keyed hashes.
package penalties

import (
	"encoding/binary"
	"time"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
)

// Record is what is known of one caller. The zero value is a caller without offences.
type Record struct {
	// Key is the record's: Caller, or what draftKey makes of it.
	Key keyhash.Key `json:"-"`
	// Revision is that of the last change.
	Revision uint64 `json:"-"`
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

// Outcome is what became of offered records.
type Outcome struct {
	// Taken records took the place of others; Full ones found none.
	Taken, Full int
}
