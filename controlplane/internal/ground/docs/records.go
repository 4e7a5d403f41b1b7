package docs

import (
	"context"
	"errors"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// Topic is a kind of records: many small values, each by a key, that several control planes change
// and all of them follow. The service of a topic knows the meaning of its values.
type Topic struct {
	// Tag is the hash tag of all that belongs to the topic, also of the audit's entries.
	Tag string
	// Kept is how many changes the log has at most. The earliest beyond it are dropped, unless the
	// log is Whole.
	Kept int
	// Whole: the log has the last change of every record, each at a revision of its own. A commit
	// that does not fit is refused. Otherwise the changes of a commit share its revision.
	Whole bool
	// Indexes are names of lists that sort records by a score, an instant in Unix milliseconds.
	// There is at least one.
	Indexes []string
	// Expires: a record is dropped some time after its first score, which each record has.
	Expires bool
}

// The topics that there are.
var (
	// Consumers are sorted by when they have no more than a tier, and by when their ban ends.
	Consumers = Topic{Tag: "consumers", Kept: 1000, Indexes: []string{"special", "banned"}}
	// Penalties are sorted by when they are forgotten.
	Penalties = Topic{Tag: "penalties", Kept: 100_000, Whole: true, Indexes: []string{"ends"}, Expires: true}

	Topics = []*Topic{&Consumers, &Penalties}
)

var (
	// ErrCursor means that a cursor was not made by this store.
	ErrCursor = errors.New("the page token is none of this store's")
	// ErrFull means that a topic whose log is whole has no room for a commit.
	ErrFull = errors.New("the store has as many records as it keeps")
)

// AwayError means that the part of the store that keeps a topic does not answer, though others do.
type AwayError struct {
	Tag string
	// For is how long it has not answered; 0 if that is not known.
	For   time.Duration
	Cause error
}

// Error returns the cause in words.
func (e *AwayError) Error() string {
	return "the part of the store that keeps " + e.Tag + " does not answer: " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *AwayError) Unwrap() error { return e.Cause }

// Record is a record at the revision of its last change. One that was deleted has no value; one
// that never was is zero but for its key.
type Record struct {
	Key      keyhash.Key
	Revision uint64
	Value    []byte
}

// Head is how far the commits of a topic have come.
type Head struct {
	// First is the revision of the first commit: another one means another store. Revision is that
	// of the last one. It grows with each, and is at least the time in milliseconds, so it grows
	// also if the store loses its state. Cleared is that of the last commit that cleared the topic.
	First, Revision, Cleared uint64
}

// State is what is known of a topic beside its records.
type State struct {
	Head
	// Floor is the revision after which the log lacks nothing.
	Floor uint64
	// IndexRevision counts the commits of records that have, or had, a first score.
	IndexRevision uint64
	// Logged is how many changes the log has.
	Logged int
	// Live: there are records whose first score is not past.
	Live bool
}

// Change is what a commit makes of a record.
type Change struct {
	Key keyhash.Key
	// Expected is the revision of the record that is replaced, 0 for none. Any replaces any record.
	Expected uint64
	Any      bool
	// Value replaces the record's; an empty one deletes the record.
	Value []byte
	// Scores are one for each index: 0 takes the record off its list, math.MaxInt64 is no instant.
	Scores []int64
}

// Commit is changes that are made together or not at all. No record is in them twice.
type Commit struct {
	Changes []Change
	// Clear drops all records first, without a change of each in the log.
	Clear bool
	// Cleared, unless nil, is the Head.Cleared that is expected.
	Cleared *uint64
	// IndexRevision was seen before: a store that has lost its state continues above it.
	IndexRevision uint64
	// Entry is kept too, unless its Action is empty; with WithBefore it has the value before of
	// the first record that is changed.
	Entry      audit.Entry
	WithBefore bool
}

// Records keeps topics.
type Records interface {
	// Read returns the records of keys in their order, and the state at the same moment.
	Read(ctx context.Context, topic *Topic, keys []keyhash.Key) ([]Record, State, error)
	// Since returns at most limit of the changes after a revision, the earliest first, and the
	// state at the same moment. Only a whole log can be read in parts.
	Since(ctx context.Context, topic *Topic, after uint64, limit int) ([]Record, State, error)
	// Scan returns about limit records in no particular order, and the cursor of the next page,
	// empty after the last: all, or those of an index. A record that exists all the time is
	// returned at least once.
	Scan(ctx context.Context, topic *Topic, index, cursor string, limit int) ([]Record, string, error)
	// Last returns at most limit records of an index, those with the highest scores.
	Last(ctx context.Context, topic *Topic, index string, limit int) ([]Record, error)
	// Commit makes changes and returns the revision of the last one. The error is errs.Conflict if
	// something is not as expected, errs.NotFound if there is no record to delete, or ErrFull.
	// Without an error, and with ErrFull, it also drops some records that have expired.
	Commit(ctx context.Context, topic *Topic, c Commit) (uint64, error)
}
