package consumers_test

import (
	"context"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// lossy is a store whose state a test takes away and changes behind the service's back.
type lossy struct {
	consumers.Store
	records map[keyhash.Key]consumers.Record
	log     consumers.Log
	entries []string
	// conflict: the next write is too late.
	conflict bool
	// switched, if not nil, happens once, right after a write was answered.
	switched func()
	// unreadable: the next log after a write cannot be read.
	unreadable bool
}

func (l *lossy) ConsumerLog(_ context.Context, after uint64) (consumers.Log, error) {
	if l.unreadable && len(l.entries) > 0 {
		l.unreadable = false
		return consumers.Log{}, context.DeadlineExceeded
	}
	log := l.log
	log.Changes, log.Special = nil, false
	for _, r := range l.records {
		log.Special = log.Special || r.Banned != nil || r.Bypass != nil
	}
	for _, c := range l.log.Changes {
		if c.Revision > after {
			log.Changes = append(log.Changes, c)
		}
	}
	return log, nil
}

func (l *lossy) BannedConsumers(context.Context, int) (banned []consumers.Listed, _ error) {
	for key, r := range l.records {
		if r.Banned != nil {
			banned = append(banned, consumers.Listed{Key: key, Record: r})
		}
	}
	return banned, nil
}

func (l *lossy) Consumers(
	_ context.Context, keys []keyhash.Key,
) (records []consumers.Record, state consumers.State, _ error) {
	for _, key := range keys {
		records = append(records, l.records[key])
	}
	return records, l.log.State, nil
}

func (l *lossy) WriteConsumers(_ context.Context, c consumers.Changes) (uint64, error) {
	if l.conflict {
		l.conflict = false
		return 0, errs.Conflict
	}
	l.entries = append(l.entries, c.Entry.Action)
	revision := l.log.Revision + 100
	for _, w := range c.Writes {
		if l.records[w.Key].Revision != w.Expected {
			return 0, errs.Conflict
		}
		l.put(revision, w.Key, w.Record)
	}
	if switched := l.switched; switched != nil {
		l.switched = nil
		switched()
	}
	return revision, nil
}

// put makes a change; nil forgets the consumer.
func (l *lossy) put(revision uint64, key keyhash.Key, r *consumers.Record) {
	c := consumers.Change{Revision: revision, Key: key}
	delete(l.records, key)
	if r != nil {
		c.Record = *r
		c.Record.Revision = revision
		l.records[key] = c.Record
	}
	kept := l.log.Changes[:0:0]
	for _, old := range l.log.Changes {
		if old.Key != key {
			kept = append(kept, old)
		}
	}
	l.log.Changes, l.log.Revision = append(kept, c), revision
}

func newLossy() *lossy {
	return &lossy{records: map[keyhash.Key]consumers.Record{}, log: consumers.Log{Whole: true}}
}

// copied is the state to go back to.
func (l *lossy) copied() func() {
	records, log := map[keyhash.Key]consumers.Record{}, l.log
	for key, r := range l.records {
		records[key] = r
	}
	return func() { l.records, l.log = records, log }
}

// A replica gives back exactly the records that the store has lost. Records that were changed there
// since stay as they are.
func TestLostChangesComeBack(t *testing.T) {
	banned, bypass := &consumers.Record{Banned: &consumers.Mark{}}, &consumers.Record{Bypass: &consumers.Mark{}}
	key := func(n byte) keyhash.Key { return keyhash.Key{n} }
	for name, c := range map[string]struct {
		// since changes the store after it went back and before the replica looks.
		since func(l *lossy)
		// banned are the consumers that are banned in the end.
		banned []byte
		writes int
	}{
		"it went back":                            {func(*lossy) {}, []byte{1, 3}, 1},
		"back, and another replica was faster":    {func(l *lossy) { l.conflict = true }, []byte{1, 3}, 1},
		"back and forward by another's change":    {func(l *lossy) { l.put(60, key(9), bypass) }, []byte{1, 3}, 1},
		"back, and the lost one was changed anew": {func(l *lossy) { l.put(60, key(3), bypass) }, []byte{1}, 1},
		"back, and pardoned anew":                 {func(l *lossy) { l.put(60, key(1), nil) }, []byte{3}, 1},
		"it is empty":                             {func(l *lossy) { *l = *newLossy() }, []byte{1, 3}, 1},
		"it is empty but for a change": {func(l *lossy) {
			*l = *newLossy()
			l.log.Floor = 59
			l.put(60, key(9), bypass)
		}, []byte{1, 3}, 1},
		"it went on without a loss": {func(l *lossy) {
			l.put(30, key(2), nil)
			l.put(31, key(3), banned)
			l.put(40, key(4), nil)
			l.put(50, key(4), bypass)
			l.put(60, key(9), bypass)
		}, []byte{1, 3}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			l, losses := newLossy(), 0
			l.put(10, key(1), banned)
			l.put(20, key(2), banned)
			back := l.copied()
			l.put(30, key(2), nil)
			l.put(31, key(3), banned)
			l.put(40, key(4), nil)
			l.put(50, key(4), bypass)
			s := consumers.New(consumers.Config{Store: l, Now: time.Now, Lost: func() { losses++ }})
			refresh(t, s)
			back()
			c.since(l)
			for range 3 {
				refresh(t, s)
			}
			got := map[byte]bool{}
			for k, r := range l.records {
				if r.Banned != nil {
					got[k[0]] = true
				}
			}
			if len(got) != len(c.banned) || len(l.entries) != c.writes || (losses > 0) != (c.writes > 0) {
				t.Errorf("banned %v, want %v; %d writes, %d losses", got, c.banned, len(l.entries), losses)
			}
			for _, k := range c.banned {
				if !got[k] {
					t.Errorf("%d is not banned", k)
				}
			}
			if l.records[key(4)].Bypass == nil {
				t.Error("the bypass is lost")
			}
			if m, news, _ := s.After(50, false); c.writes > 0 && (!news || m.Complete) {
				t.Errorf("a node that knows the lost state receives %v: %+v", news, m)
			}
		})
	}
}

func refresh(t *testing.T, s *consumers.Service) {
	t.Helper()
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The store goes away right after it got all back: nodes hear of the loss all the same, once.
func TestALossIsSaidAfterAnInterruption(t *testing.T) {
	l, losses := newLossy(), 0
	back := l.copied()
	l.put(10, keyhash.Key{1}, &consumers.Record{Banned: &consumers.Mark{}})
	s := consumers.New(consumers.Config{Store: l, Now: time.Now, Lost: func() { losses++ }})
	refresh(t, s)
	back()
	l.unreadable = true
	if err := s.Refresh(t.Context()); err == nil {
		t.Fatal("the log was not read")
	}
	for range 3 {
		refresh(t, s)
	}
	m, news, _ := s.After(10, false)
	if losses != 1 || !news || m.Complete || len(m.Items) != 1 {
		t.Errorf("%d losses; a node that knows the lost state receives %v: %+v", losses, news, m)
	}
}

// The store gets its lost records back, goes away before the answer, and comes back as it was long
// before, or empty, or with the change of another replica. No known record is forgotten.
func TestALossDuringALoss(t *testing.T) {
	banned := &consumers.Record{Banned: &consumers.Mark{}}
	one, two, other := keyhash.Key{1}, keyhash.Key{2}, keyhash.Key{9}
	for name, again := range map[string]func(l *lossy, back func()){
		"an older state":            func(_ *lossy, back func()) { back() },
		"nothing":                   func(l *lossy, _ func()) { *l = *newLossy() },
		"nothing, and a change":     func(l *lossy, _ func()) { *l = *newLossy(); l.put(900, other, banned) },
		"an older one and a change": func(l *lossy, back func()) { back(); l.put(900, other, banned) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLossy()
			l.put(10, one, banned)
			back := l.copied()
			l.put(20, two, banned)
			l.put(30, one, nil)
			s := consumers.New(consumers.Config{Store: l, Now: time.Now})
			refresh(t, s)
			*l = *newLossy()
			l.unreadable = true
			if err := s.Refresh(t.Context()); err == nil {
				t.Fatal("the log was read")
			}
			again(l, back)
			for range 3 {
				refresh(t, s)
			}
			if l.records[one].Banned != nil || l.records[two].Banned == nil {
				t.Errorf("the first is banned: %t, the second: %t", l.records[one].Banned != nil,
					l.records[two].Banned != nil)
			}
		})
	}
}

// A server that has not heard of a change takes over right after the change was acknowledged, and
// before it was read again: it comes back, unless another has changed the consumer since.
func TestAnAcknowledgedChangeComesBack(t *testing.T) {
	key, other := keyhash.Key{1}, keyhash.Key{2}
	banned := &consumers.Record{Banned: &consumers.Mark{}}
	for name, c := range map[string]struct {
		since func(l *lossy)
		want  bool
	}{
		"nothing happens":         {func(*lossy) {}, true},
		"others change":           {func(l *lossy) { l.put(300, other, banned) }, true},
		"another has pardoned it": {func(l *lossy) { l.put(300, key, banned); l.put(400, key, nil) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, losses := newLossy(), 0
			l.put(10, other, banned)
			s := consumers.New(consumers.Config{Store: l, Now: time.Now, Lost: func() { losses++ }})
			refresh(t, s)
			back := l.copied()
			l.switched = func() { back(); c.since(l) }
			write := consumers.Write{Key: key, Record: banned}
			if _, err := s.Write(t.Context(), consumers.Changes{Writes: []consumers.Write{write}}); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				refresh(t, s)
			}
			if got := l.records[key].Banned != nil; got != c.want || (losses > 0) != c.want {
				t.Errorf("banned: %v, want %v; %d losses", got, c.want, losses)
			}
		})
	}
}

// A store is emptied, and afterwards an older state of it comes back, as when an operator restores
// a backup after an accident: who was pardoned since then stays so, and who was banned anew, too.
func TestAPardonOutlivesAnEmptyStore(t *testing.T) {
	banned := &consumers.Record{Banned: &consumers.Mark{}}
	l := newLossy()
	for key := range byte(4) {
		l.put(uint64(10+key), keyhash.Key{key}, banned)
	}
	back := l.copied()
	l.put(30, keyhash.Key{1}, nil)
	l.put(31, keyhash.Key{2}, nil)
	s := consumers.New(consumers.Config{Store: l, Now: time.Now})
	refresh(t, s)
	*l = *newLossy()
	refresh(t, s)
	l.put(l.log.Revision+1, keyhash.Key{2}, banned)
	refresh(t, s)
	pardon := consumers.Write{Key: keyhash.Key{3}, Expected: l.records[keyhash.Key{3}].Revision}
	l.switched = func() { *l = *newLossy() }
	if _, err := s.Write(t.Context(), consumers.Changes{Writes: []consumers.Write{pardon}}); err != nil {
		t.Fatal(err)
	}
	refresh(t, s)
	back()
	refresh(t, s)
	refresh(t, s)
	for key, want := range []bool{true, false, true, false} {
		if got := l.records[keyhash.Key{byte(key)}].Banned != nil; got != want {
			t.Errorf("%d is banned: %v, want %v", key, got, want)
		}
	}
}
