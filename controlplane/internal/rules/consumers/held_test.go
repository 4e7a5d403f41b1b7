package consumers_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// A replica knows the recent changes and the bans. It says that it does not know all other
// consumers, unless it has seen all changes that there ever were.
func TestWhatIsHeldOfConsumers(t *testing.T) {
	key := func(n byte) keyhash.Key { return keyhash.Key{n} }
	record := func(revision uint64, tier string) consumers.Record {
		return consumers.Record{Revision: revision, Tier: tier}
	}
	store := &scripted{
		log: consumers.Log{State: consumers.State{Revision: 12}, Floor: 10, Changes: []consumers.Change{
			{Revision: 11, Key: key(1), Record: record(11, "old")},
			{Revision: 12, Key: key(2), Record: record(12, "b")}}},
		bans: []consumers.Listed{{Key: key(3), Record: consumers.Record{Revision: 4,
			Banned: &consumers.Mark{Reason: "a leak"}}}},
	}
	s := consumers.New(consumers.Config{Store: store, Now: time.Now})
	if _, known := s.Held(key(1)); known || s.ListHeld(consumers.List{Limit: 9}, all) != nil {
		t.Error("something is held before anything was read")
	}
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	store.err = errors.New("away")
	for n, want := range map[byte]string{1: "old", 2: "b"} {
		if r, known := s.Held(key(n)); !known || r.Tier != want {
			t.Errorf("%d: %+v, %v", n, r, known)
		}
	}
	if r, known := s.Held(key(3)); !known || r.Banned == nil {
		t.Errorf("a ban: %+v, %v", r, known)
	}
	if _, known := s.Held(key(4)); known {
		t.Error("a consumer that is not held counts as nothing")
	}
	if list := s.ListHeld(consumers.List{Limit: 9}, all); len(list) != 3 {
		t.Errorf("%+v", list)
	}
	if list := s.ListHeld(consumers.List{Limit: 9, Banned: true}, all); len(list) != 1 || list[0].Key != key(3) {
		t.Errorf("banned: %+v", list)
	}
	list := s.ListHeld(consumers.List{Limit: 2}, all)
	if len(list) != 2 || list[0].Key != key(2) || list[1].Key != key(1) {
		t.Errorf("the newest two: %+v", list)
	}
	whole := consumers.New(consumers.Config{Now: time.Now, Store: &scripted{
		log: consumers.Log{State: consumers.State{Revision: 1}, Whole: true}}})
	if err := whole.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r, known := whole.Held(key(4)); !known || r.Revision != 0 {
		t.Errorf("of all changes: %+v, %v", r, known)
	}
}

func all(consumers.Record) bool { return true }

// A consumer stands once in the list: as it changed last, or else as it was asked for.
func TestWhatIsHeldIsTheNewest(t *testing.T) {
	key := keyhash.Key{1}
	banned := consumers.Record{Revision: 3, Banned: &consumers.Mark{Reason: "a leak"}}
	pardoned := consumers.Record{Revision: 4, Tier: "premium"}
	store := &scripted{
		log:   consumers.Log{State: consumers.State{Revision: 4}, Floor: 4},
		bans:  []consumers.Listed{{Key: key, Record: banned}},
		found: map[keyhash.Key]consumers.Record{key: pardoned},
	}
	s := consumers.New(consumers.Config{Store: store, Now: time.Now})
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list := s.ListHeld(consumers.List{Limit: 9}, all); len(list) != 1 || list[0].Banned == nil {
		t.Errorf("of the bans: %+v", list)
	}
	if _, err := s.Known(t.Context(), []keyhash.Key{key}); err != nil {
		t.Fatal(err)
	}
	if list := s.ListHeld(consumers.List{Limit: 9}, all); len(list) != 1 || list[0].Tier != "premium" {
		t.Errorf("as it was asked for: %+v", list)
	}
	store.log = consumers.Log{State: consumers.State{Revision: 5}, Floor: 4, Changes: []consumers.Change{
		{Revision: 5, Key: key, Record: consumers.Record{Revision: 5, Tier: "free"}}}}
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if list := s.ListHeld(consumers.List{Limit: 9}, all); len(list) != 1 || list[0].Tier != "free" {
		t.Errorf("as it changed last: %+v", list)
	}
}
