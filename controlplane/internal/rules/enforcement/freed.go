package enforcement

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// freedFor is how long nodes receive the notice of a changed bucket. A node that is away for
	// longer keeps a cached refusal until it ends.
	freedFor = 10 * time.Minute
	// MaxFreed bounds the buckets changed within freedFor. They all stay in the document, and a
	// node that comes back receives all of them, up to wire.MaxFreed in a message.
	MaxFreed = 2048
	// keptFreed bounds the buckets in the document. Replicas that do not know each other's changes
	// yet may together exceed MaxFreed, and still no change is lost.
	keptFreed = 2 * MaxFreed
)

// ErrManyFreed means that MaxFreed buckets were changed lately: a node that is away would not
// receive a further change.
var ErrManyFreed = errs.New(errs.TooManyRequests, "too many buckets were changed lately", fmt.Sprintf(
	"%d buckets were reset or granted to within %d minutes: Envoys that are away would not hear of one more, "+
		"and refuse its callers on; nothing has been changed: try again in a minute",
	MaxFreed, int(freedFor.Minutes())))

// ReserveFree reserves room for changed buckets that Free will name, until done is called. It
// returns ErrManyFreed if there is no room.
func (s *Service) ReserveFree(buckets int) (done func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.held.Freed.lately(s.now()))+s.freeing+buckets > MaxFreed {
		return nil, ErrManyFreed
	}
	s.freeing += buckets
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.freeing -= buckets
	}, nil
}

// Free tells nodes to forget the state of changed buckets. full is true if the buckets are full
// now. An entry without an action is not stored: the change has an entry of its own.
func (s *Service) Free(ctx context.Context, buckets []keyhash.Key, full bool, entry audit.Entry) error {
	_, _, err := s.changeDocument(ctx, false, func(d *Document, _ bool, stamp Stamp) (audit.Entry, error) {
		list := d.Freed.lately(stamp.Time)
		for _, b := range buckets {
			list = append(list, Freed{Bucket: b.String(), Revision: stamp.Revision, Full: full, At: stamp.Time})
		}
		stamp.By = entry.By
		d.Freed = FreedBuckets{Stamp: stamp, List: list[max(0, len(list)-keptFreed):]}
		return entry, nil
	})
	return err
}

// lately returns the buckets that nodes must still receive.
func (f FreedBuckets) lately(now time.Time) []Freed {
	return slices.DeleteFunc(slices.Clone(f.List), func(one Freed) bool { return now.Sub(one.At) > freedFor })
}

// joinFreed joins two lists of changed buckets: the result has all changes of both.
func joinFreed(a, b FreedBuckets, now time.Time) (joined FreedBuckets) {
	if b.isLater(a.Stamp) {
		a, b = b, a
	}
	joined.Stamp, joined.List = a.Stamp, a.lately(now)
	for _, one := range b.lately(now) {
		if !slices.ContainsFunc(a.List, one.same) {
			joined.List = append(joined.List, one)
		}
	}
	slices.SortFunc(joined.List, func(a, b Freed) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Bucket, b.Bucket))
	})
	joined.List = joined.List[max(0, len(joined.List)-keptFreed):]
	switch {
	case a.containsAll(joined.List):
		joined.List = a.List
	case b.containsAll(joined.List):
		joined.Stamp, joined.List = b.Stamp, b.List
	default: // Two replicas that join the same lists get the same ID.
		joined.ID = joinedID(a.ID, b.ID)
	}
	return joined
}

// containsAll reports whether a list has all items of another list.
func (f FreedBuckets) containsAll(others []Freed) bool {
	for _, other := range others {
		if !slices.ContainsFunc(f.List, other.same) {
			return false
		}
	}
	return true
}

// same reports whether two notices are about the same change, whatever their revisions.
func (f Freed) same(other Freed) bool {
	return f.Bucket == other.Bucket && f.Full == other.Full && f.At.Equal(other.At)
}

// renewRevisions gives a new revision to each change that is missing in at least one of the joined
// lists. The nodes that followed such a list would skip the change, because its revision is before
// theirs. The new revisions begin with revision; each has up to wire.MaxFreed changes, the capacity
// of a message. It returns the last revision.
func (f *FreedBuckets) renewRevisions(revision uint64, joined ...FreedBuckets) (last uint64) {
	f.List = slices.Clone(f.List)
	renewed := 0
	for i, freed := range f.List {
		lacksIt := func(list FreedBuckets) bool { return !slices.ContainsFunc(list.List, freed.same) }
		if slices.ContainsFunc(joined, lacksIt) {
			f.List[i].Revision = revision + uint64(renewed/wire.MaxFreed)
			renewed++
		}
	}
	slices.SortStableFunc(f.List, func(a, b Freed) int { return cmp.Compare(a.Revision, b.Revision) })
	return revision + uint64(max(renewed-1, 0)/wire.MaxFreed)
}

// nextPage returns the changed buckets for the next message to a node that has the changes up to
// the revision after, and the revision of this message. upTo is 0 if the message for all nodes
// contains all changed buckets. after is 0 for a node that has no state of buckets yet.
func (d Document) nextPage(after uint64) (upTo uint64, list []Freed) {
	if after == 0 || after >= d.Revision || len(d.Freed.List) <= wire.MaxFreed {
		return 0, nil
	}
	list = d.Freed.List // Sorted by revision.
	for len(list) > 0 && list[0].Revision <= after {
		list = list[1:]
	}
	if len(list) <= wire.MaxFreed {
		return d.Revision, list
	}
	next := list[wire.MaxFreed].Revision
	first := slices.IndexFunc(list, func(one Freed) bool { return one.Revision == next })
	if first == 0 { // One change has more buckets than a message.
		return d.Revision, list[len(list)-wire.MaxFreed:]
	}
	return next - 1, list[:first]
}
