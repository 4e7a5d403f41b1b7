// Package penalties keeps the callers under a penalty on any node, sends them to all nodes, and
// handles pardons. Callers are identified by keyed hashes.
package penalties

import (
	"encoding/binary"
	"time"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
)

// Record is the state of one caller. The zero value is a caller without offences.
type Record struct {
	// Key is the key of the record: Caller, or draftKey of it.
	Key keyhash.Key `json:"-"`
	// Revision is the revision of the last change.
	Revision uint64 `json:"-"`
	// Record is the penalty. A Level of 0 is a pardon. It is kept for the time of the penalty, so
	// that a report from before the pardon changes nothing.
	penalty.Record
	// Forgotten is the time when all offences are forgotten and the store drops the record, in Unix
	// milliseconds; 0 for never offended.
	Forgotten int64
	Facts
}

// Facts are the details of a penalty for operators.
type Facts struct {
	// Policy is the name of the policy that refused the caller, Node the node that reported it.
	Policy string `json:"policy"`
	Node   string `json:"node,omitempty"`
	// Since is the time when the last offence was reported.
	Since time.Time `json:"since"`
	// Shadow is true if the penalty refuses nothing.
	Shadow bool `json:"shadow,omitempty"`
	// Version is the version of the policy set whose nodes alone obey the penalty, because the
	// version was being rolled out when they began it. 0 means that all nodes obey it.
	Version uint64 `json:"version,omitempty"`
	// Consumer is the consumer's keyed hash. Shown has the parts of the request that the policy set
	// allows to show. Both are empty if there is nothing to show.
	Consumer string            `json:"consumer,omitempty"`
	Shown    map[string]string `json:"shown,omitempty"`
}

// draftKey returns the key of a caller's record that only nodes of a version obey. Applied to that
// key it returns the caller again.
func draftKey(k keyhash.Key, version uint64) keyhash.Key {
	part := k[4:12]
	binary.LittleEndian.PutUint64(part, binary.LittleEndian.Uint64(part)^version)
	return k
}

// Caller returns the key of the caller: the Key of a match.Subject, or match.ShadowOf of it.
func (r *Record) Caller() keyhash.Key { return draftKey(r.Key, r.Version) }

// HoldsAt reports whether nodes of a version obey the record.
func (r *Record) HoldsAt(version uint64) bool { return r.Version == 0 || r.Version == version }

// InForce reports whether the record refuses requests at now, or would refuse them in shadow.
func (r *Record) InForce(now time.Time) bool { return r.Record.InForce(now.UnixMilli()) }

// Known is a record that a node or a replica offers, with the revision up to which it knew the
// caller.
type Known struct {
	Record
	At uint64
}

// Everything is the revision of an author that knows all changes.
const Everything = 1<<53 - 1

// Takes reports whether an offered record replaces r in a store. cleared is the revision of the
// last pardon of all callers, 0 for never.
func (r *Record) Takes(offered *Known, cleared uint64) bool {
	if offered.At < cleared || r.Level == 0 && offered.At < r.Revision {
		return false // The offer is from before a pardon.
	}
	return offered.Beats(r.Record)
}

// Pardoned returns r after a pardon.
func (r Record) Pardoned() Record {
	r.Record = penalty.Record{}
	return r
}

// Outcome is the result of offered records.
type Outcome struct {
	// Taken is the number of stored records, Full the number of records without room.
	Taken, Full int
}
