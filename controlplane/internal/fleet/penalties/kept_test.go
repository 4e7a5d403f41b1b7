package penalties_test

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
)

// answering is a store that answers commits by a list of errors, and reads by a state.
type answering struct {
	docs.Records
	answers []error
	state   docs.State
	found   map[keyhash.Key]penalties.Record
	reads   int
	commits []docs.Commit
}

func (a *answering) Commit(_ context.Context, _ *docs.Topic, c docs.Commit) (uint64, error) {
	a.commits = append(a.commits, c)
	err := a.answers[0]
	a.answers = a.answers[1:]
	return 9, err
}

func (a *answering) Read(
	_ context.Context, _ *docs.Topic, keys []keyhash.Key,
) (records []docs.Record, _ docs.State, _ error) {
	a.reads++
	for _, key := range keys {
		r := docs.Record{Key: key, Revision: a.found[key].Revision}
		if r.Revision > 0 {
			r.Value, _ = json.Marshal(a.found[key])
		}
		records = append(records, r)
	}
	return records, a.state, nil
}

// A change takes one call where the replica knows the caller. It is made anew on top of the store
// where another replica was faster, not without end, and where the node knows more.
func TestAChangeIsMadeOnTopOfTheNewest(t *testing.T) {
	level := func(n int, until int64, revision uint64) penalties.Record {
		return penalties.Record{Key: key(1), Revision: revision, Record: penalty.Record{Level: n, Until: until},
			Forgotten: until + 1}
	}
	full := docs.State{Head: docs.Head{Revision: 50}, Logged: docs.Penalties.Kept}
	for name, c := range map[string]struct {
		at      uint64
		held    penalties.Record
		stored  penalties.Record
		state   docs.State
		answers []error
		want    penalties.Outcome
		reads   int
		commits int
		busy    bool
	}{
		"the replica knows nothing of the caller": {answers: []error{nil},
			want: penalties.Outcome{Taken: 1}, commits: 1},
		"it knows a longer penalty": {held: level(1, 900, 5)},
		"it knows a shorter one": {held: level(1, 10, 5), answers: []error{nil},
			want: penalties.Outcome{Taken: 1}, commits: 1},
		"the node knows of a later pardon": {at: 30, held: level(1, 900, 5), stored: level(0, 0, 30),
			answers: []error{nil}, want: penalties.Outcome{Taken: 1}, reads: 1, commits: 1},
		"another replica has pardoned the caller": {at: 7, held: level(1, 10, 5), stored: level(0, 0, 30),
			answers: []error{errs.Conflict}, reads: 1, commits: 1},
		"another replica was faster": {held: level(1, 10, 5), stored: level(2, 20, 30),
			answers: []error{errs.Conflict, nil}, want: penalties.Outcome{Taken: 1}, reads: 1, commits: 2},
		"the store is full": {state: full, answers: []error{docs.ErrFull},
			want: penalties.Outcome{Full: 1}, reads: 1, commits: 1},
		"others are faster all the time": {held: level(1, 10, 5), answers: slow(100), busy: true},
	} {
		s := &answering{answers: c.answers, state: c.state, found: map[keyhash.Key]penalties.Record{}}
		if c.stored.Revision > 0 {
			s.found[key(1)] = c.stored
		}
		k := penalties.Kept{In: s, Held: func([]keyhash.Key) (map[keyhash.Key]penalties.Record, docs.Head, bool) {
			held := map[keyhash.Key]penalties.Record{}
			if c.held.Revision > 0 {
				held[key(1)] = c.held
			}
			return held, docs.Head{Revision: 20}, true
		}}
		done, err := k.Offer(t.Context(), []penalties.Known{{Record: level(1, 100, 0), At: c.at}})
		if c.busy {
			if err == nil || len(s.commits) > 20 {
				t.Errorf("%s: %v after %d commits", name, err, len(s.commits))
			}
			continue
		}
		if err != nil || done != c.want || s.reads != c.reads || len(s.commits) != c.commits {
			t.Errorf("%s: %+v (%v) after %d reads and %d commits", name, done, err, s.reads, len(s.commits))
		}
	}
}

// slow returns the answers to a writer that is always too late.
func slow(n int) (answers []error) {
	for range n {
		answers = append(answers, errs.Conflict)
	}
	return answers
}

// A report that names a caller twice makes one change: the penalty that ends last.
func TestACallerThatIsNamedTwice(t *testing.T) {
	p := newPlane(t)
	k := penalties.Kept{In: p.store}
	known := func(minutes int64) penalties.Known {
		until := p.now.UnixMilli() + minutes*60_000
		return penalties.Known{Record: penalties.Record{
			Key: key(1), Record: penalty.Record{Level: 1, Until: until}, Forgotten: until,
		}}
	}
	if _, err := k.Offer(t.Context(), []penalties.Known{known(1), known(3), known(2)}); err != nil {
		t.Fatal(err)
	}
	list, _, _, err := k.Since(t.Context(), 0, 10)
	if err != nil || len(list) != 1 || list[0].Until != known(3).Until {
		t.Errorf("%+v (%v)", list, err)
	}
	if n, err := k.Pardon(t.Context(), []keyhash.Key{key(1), key(1)}, audit.Entry{}); n != 1 || err != nil {
		t.Errorf("%d pardoned (%v)", n, err)
	}
}
