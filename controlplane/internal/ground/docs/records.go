package docs

import (
	"context"
	"errors"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// Topic is a kind of records: many small values by key that several control planes change and
// follow. The service that owns a topic knows the meaning of its values.
type Topic struct {
	// Tag is the hash tag of all keys of the topic, and of its audit entries.
	Tag string
	// Kept is the maximum number of changes in the log. Older changes are dropped, unless the log
	// is Whole.
	Kept int
	// Whole is true if the log has the last change of every record, each at its own revision. A
	// commit that does not fit is refused. Otherwise all changes of a commit have the same
	// revision.
	Whole bool
	// Indexes are the names of the lists that sort records by a score, a time in Unix milliseconds.
	// There is at least one name.
	Indexes []string
	// Expires is true if a record is dropped some time after its first score. Then each record has
	// a first score.
	Expires bool
}

// These are all topics.
var (
	// Consumers are sorted by the end of their exceptions, and by the end of their ban.
	Consumers = Topic{Tag: "consumers", Kept: 1000, Indexes: []string{"special", "banned"}}
	// Penalties are sorted by the time at which they are dropped.
	Penalties = Topic{Tag: "penalties", Kept: 100_000, Whole: true, Indexes: []string{"ends"}, Expires: true}

	Topics = []*Topic{&Consumers, &Penalties}
)

var (
	// ErrCursor means that a cursor was not made by this store.
	ErrCursor = errors.New("the page token is none of this store's")
	// ErrFull means that a topic whose log is whole has no room for a commit.
	ErrFull = errors.New("the store is full: it keeps no more records")
)

// AwayError is returned if the part of the store that holds a topic does not answer, although other
// parts do.
type AwayError struct {
	Tag string
	// For is the time since its last answer; 0 if unknown.
	For   time.Duration
	Cause error
}

// Error returns the cause in words.
func (e *AwayError) Error() string {
	return "the part of the store that keeps " + e.Tag + " does not answer: " + e.Cause.Error()
}

// Unwrap returns the cause.
func (e *AwayError) Unwrap() error { return e.Cause }

// Record is a record at the revision of its last change. A deleted record has no value. A record
// that never existed has only its key.
type Record struct {
	Key      keyhash.Key
	Revision uint64
	Value    []byte
}

// Head is the position of the last commit of a topic.
type Head struct {
	// First is the revision of the first commit; a different one means a different store. Revision
	// is the revision of the last commit. It grows with each commit and is at least the time in
	// milliseconds, so it grows even if the store loses its state. Cleared is the revision of the
	// last commit that cleared the topic.
	First, Revision, Cleared uint64
}

// State is the state of a topic without its records.
type State struct {
	Head
	// Floor is the revision from which the log is complete.
	Floor uint64
	// IndexRevision counts the commits that change a record which has, or had, a first score.
	IndexRevision uint64
	// Logged is the number of changes in the log.
	Logged int
	// Live is true if there is a record whose first score is not past.
	Live bool
}

// Change is one change of a record in a commit.
type Change struct {
	Key keyhash.Key
	// Expected is the revision of the record to replace, 0 for none. With Any, every revision is
	// accepted.
	Expected uint64
	Any      bool
	// Value is the new value; an empty one deletes the record.
	Value []byte
	// Scores are the scores, one per index: 0 removes the record from the list, and math.MaxInt64
	// means no time.
	Scores []int64
}

// Commit is a list of changes that are made together or not at all. Each record occurs at most
// once.
type Commit struct {
	Changes []Change
	// Clear drops all records first, without a change of each record in the log.
	Clear bool
	// Cleared is the expected Head.Cleared; nil for any.
	Cleared *uint64
	// IndexRevision is the highest revision of an index that the caller has seen. A store that has
	// lost its state continues above it.
	IndexRevision uint64
	// Entry is stored too, unless its Action is empty. If WithBefore is true, its Before is the
	// previous value of the first changed record.
	Entry      audit.Entry
	WithBefore bool
}

// Records stores the records of topics.
type Records interface {
	// Read returns the records of the keys in their order, and the state at the same moment.
	Read(ctx context.Context, topic *Topic, keys []keyhash.Key) ([]Record, State, error)
	// Since returns at most limit of the changes after a revision, earliest first, and the state at
	// the same moment. Only a whole log can be read in pages.
	Since(ctx context.Context, topic *Topic, after uint64, limit int) ([]Record, State, error)
	// Scan returns about limit records in no particular order, and the cursor of the next page,
	// which is empty after the last page. It scans all records, or the records of an index. It
	// returns a record that exists during the whole scan at least once.
	Scan(ctx context.Context, topic *Topic, index, cursor string, limit int) ([]Record, string, error)
	// Last returns at most limit records of an index with the highest scores, in no particular
	// order.
	Last(ctx context.Context, topic *Topic, index string, limit int) ([]Record, error)
	// Commit makes changes and returns the revision of the last change. It returns errs.Conflict if
	// something is not as expected, errs.NotFound if a record to delete does not exist, or ErrFull.
	// On success and with ErrFull it also drops some expired records.
	Commit(ctx context.Context, topic *Topic, c Commit) (uint64, error)
}
