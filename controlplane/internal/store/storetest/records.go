package storetest

import (
	"errors"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// put returns a change that sets a value over any revision.
func put(n int, value string, score int64) docs.Change {
	return docs.Change{Key: consumerKey(n), Any: true, Value: []byte(value), Scores: []int64{score}}
}

// logOf checks the values in the log of a whole topic, reading one at a time.
func logOf(t *testing.T, s *Instance, topic *docs.Topic, want ...string) (head docs.Head) {
	t.Helper()
	var got []string
	for last := uint64(0); ; {
		some, state, err := s.Since(testContext(t), topic, last, 1)
		if err != nil || state.Logged != len(want) {
			t.Fatalf("%+v, %v", state, err)
		}
		if head = state.Head; len(some) == 0 {
			break
		}
		last, got = some[0].Revision, append(got, string(some[0].Value))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the log has %q, want %q", got, want)
	}
	return head
}

// A topic with a whole log is read in pages, refuses a commit that does not fit, and drops records
// that have expired, and all records.
func testWholeTopics(t *testing.T, s *Instance) {
	ctx := testContext(t)
	topic := docs.Penalties
	topic.Kept = 3
	const later = 1 << 45
	commit := func(want error, c docs.Commit) uint64 {
		t.Helper()
		revision, err := s.Commit(ctx, &topic, c)
		if !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", c, err, want)
		}
		return revision
	}
	read := func(want ...string) docs.Head { t.Helper(); return logOf(t, s, &topic, want...) }
	commit(nil, docs.Commit{Entry: audit.Entry{Action: "before the first"}})
	if head := read(); head != (docs.Head{}) {
		t.Errorf("an empty topic is at %+v", head)
	}
	first := commit(nil, docs.Commit{Changes: []docs.Change{put(1, "a", later), put(2, "b", 1)}})
	if head := read("a", "b"); head.First != first || head.Revision != first || head.Cleared != 0 {
		t.Errorf("after %d: %+v", first, head)
	}
	// Expired records make room, but not for the same commit. A commit that does not fit drops them
	// too.
	commit(docs.ErrFull, docs.Commit{Changes: []docs.Change{
		put(2, "B", later), put(3, "c", later), put(4, "d", later),
	}})
	read("a")
	commit(nil, docs.Commit{Changes: []docs.Change{put(2, "b", 1)}})
	commit(nil, docs.Commit{Changes: []docs.Change{put(3, "c", later), put(4, "d", later)}})
	read("a", "c", "d")
	commit(docs.ErrFull, docs.Commit{Changes: []docs.Change{put(1, "A", later), put(5, "e", later)}})
	s.Restart(t)
	read("a", "c", "d")
	commit(nil, docs.Commit{Changes: []docs.Change{put(1, "A", later)}})
	read("c", "d", "A")
	never := uint64(0)
	commit(nil, docs.Commit{Changes: []docs.Change{put(3, "C", later)}, Cleared: &never})
	before := read("d", "A", "C")
	cleared := commit(nil, docs.Commit{Clear: true})
	if head := read(); head.Cleared != cleared || head.Revision != cleared || cleared <= before.Revision ||
		head.First != first {
		t.Errorf("cleared at %d: %+v", cleared, head)
	}
	commit(errs.Conflict, docs.Commit{Changes: []docs.Change{put(1, "x", later)}, Cleared: &never})
	commit(nil, docs.Commit{Changes: []docs.Change{put(1, "y", later)}, Cleared: &cleared})
	read("y")
	records, state, err := s.Read(ctx, &topic, []keyhash.Key{consumerKey(1), consumerKey(3)})
	if err != nil || string(records[0].Value) != "y" || records[1].Revision != 0 || records[1].Value != nil ||
		!state.Live {
		t.Errorf("%+v in %+v, %v", records, state, err)
	}
}

// A record that is in an index during a whole scan is listed, even if its score changes between two
// pages.
func testIndexesAreListedWhole(t *testing.T, s *Instance) {
	ctx := testContext(t)
	const all, later = 600, 1 << 45
	var c docs.Commit
	for n := range all {
		c.Changes = append(c.Changes, put(n, "a", later+int64(n)), put(all+n, "b", 0))
	}
	for i := range c.Changes {
		c.Changes[i].Scores = append(c.Changes[i].Scores, c.Changes[i].Scores[0])
	}
	must[uint64](t)(s.Commit(ctx, &docs.Consumers, c))
	seen := map[keyhash.Key]bool{}
	for cursor, page := "", 0; page == 0 || cursor != ""; page++ {
		records, next, err := s.Scan(ctx, &docs.Consumers, "banned", cursor, 50)
		if err != nil || len(records) > 2*all {
			t.Fatal(len(records), err)
		}
		for _, r := range records {
			if seen[r.Key] = true; string(r.Value) != "a" {
				t.Errorf("%q is listed", r.Value)
			}
		}
		cursor = next
		moved := put(all-1-page, "a", later-1)
		moved.Scores = append(moved.Scores, moved.Scores[0])
		must[uint64](t)(s.Commit(ctx, &docs.Consumers, docs.Commit{Changes: []docs.Change{moved}}))
	}
	if len(seen) != all {
		t.Errorf("%d of %d are listed", len(seen), all)
	}
}
