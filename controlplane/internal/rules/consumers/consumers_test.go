package consumers_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// scripted is a store that has one log.
type scripted struct {
	consumers.Store
	log   consumers.Log
	bans  []consumers.Listed
	found map[keyhash.Key]consumers.Record
	err   error
}

func (s *scripted) Consumers(_ context.Context, keys []keyhash.Key) ([]consumers.Record, consumers.State, error) {
	list := make([]consumers.Record, len(keys))
	for i, key := range keys {
		list[i] = s.found[key]
	}
	return list, s.log.State, s.err
}

func (s *scripted) ConsumerLog(_ context.Context, after uint64) (consumers.Log, error) {
	log := s.log
	log.Changes = slices.DeleteFunc(slices.Clone(log.Changes),
		func(c consumers.Change) bool { return c.Revision <= after })
	return log, s.err
}

func (s *scripted) BannedConsumers(context.Context, int) ([]consumers.Listed, error) {
	return s.bans, s.err
}

func TestAfter(t *testing.T) {
	change := func(revision uint64, tier string) consumers.Change {
		return consumers.Change{Revision: revision, Key: keyhash.Key{byte(revision)},
			Record: consumers.Record{Tier: tier}}
	}
	whole := consumers.Log{State: consumers.State{Revision: 12}, Floor: 9, Whole: true,
		Changes: []consumers.Change{change(10, "a"), change(12, "")}}
	trimmed := consumers.Log{State: consumers.State{Revision: 12}, Floor: 10,
		Changes: []consumers.Change{change(11, "b"), change(12, "")}}
	for name, c := range map[string]struct {
		log      consumers.Log
		node     uint64
		news     bool
		complete bool
		keys     []byte
	}{
		"a new node, and nothing ever changed":          {consumers.Log{}, 0, false, false, nil},
		"a new node":                                    {whole, 0, true, true, []byte{10, 12}},
		"a node that knows a part":                      {whole, 10, true, true, []byte{12}},
		"a node that knows everything":                  {whole, 12, false, false, nil},
		"from before the store lost what it had":        {whole, 5, true, false, nil},
		"a new node, and the first changes are dropped": {trimmed, 0, true, false, nil},
		"a node that has missed what is dropped":        {trimmed, 9, true, false, nil},
		"a node that has not":                           {trimmed, 10, true, true, []byte{11, 12}},
		"ahead of this replica":                         {whole, 13, false, false, nil},
		"ahead of a store that has nothing":             {consumers.Log{}, 13, false, false, nil},
	} {
		clock := time.Unix(1000, 0)
		s := consumers.New(consumers.Config{Store: &scripted{log: c.log}, Now: func() time.Time { return clock }})
		if _, news, _ := s.After(c.node, false); news {
			t.Errorf("%s: news before the store was read", name)
		}
		if err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		m, news, _ := s.After(c.node, false)
		var keys []byte
		for _, it := range m.Items {
			keys = append(keys, it.Key[0])
		}
		if news != c.news || m.Complete != c.complete || !reflect.DeepEqual(keys, c.keys) ||
			news && m.Revision != c.log.Revision {
			t.Errorf("%s: news %v, %+v", name, news, m)
		}
		// Who is ahead hears the truth once it has waited, from a store that has answered for five
		// seconds.
		for _, wait := range []struct {
			until time.Time
			told  bool
		}{{time.Unix(1004, 0), false}, {time.Unix(1005, 0), true}} {
			clock = wait.until
			if err := s.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			if m, news, _ := s.After(c.node, true); c.node == 13 && (news != wait.told || m.Complete) {
				t.Errorf("%s, after %v: news %v, %+v", name, wait.until, news, m)
			}
		}
	}
}

func TestRefreshTellsWhoWaits(t *testing.T) {
	store := &scripted{}
	s := consumers.New(consumers.Config{Store: store, Now: time.Now})
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _, changed := s.After(0, false)
	store.err = errors.New("away")
	if err := s.Refresh(t.Context()); err == nil {
		t.Error("a store that is away is not noticed")
	}
	store.err, store.log = nil, consumers.Log{State: consumers.State{Revision: 1}, Whole: true}
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Error("no listener was called")
	}
}
