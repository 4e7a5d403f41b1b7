package consumers_test

import (
	"context"
	"errors"
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

var (
	now  = time.UnixMilli(1_790_000_000_000).UTC()
	full = consumers.Record{
		Tier: "gold", By: "me", Updated: now, Banned: &consumers.Mark{Reason: "abuse", Expires: now.Add(time.Hour)},
		Bypass: &consumers.Mark{},
		Overrides: []consumers.Override{
			{Policy: "a", Limits: []consumers.Limit{{Quota: 5, Window: quota.Minute},
				{Quota: 1, Window: quota.Second, Burst: 3}}, Mark: consumers.Mark{Expires: now.Add(time.Minute)}},
			{Policy: "b"},
		},
	}
)

// only is a store of one record.
type only struct {
	docs.Records
	value []byte
}

func (s *only) Read(
	context.Context, *docs.Topic, []keyhash.Key,
) ([]docs.Record, docs.State, error) {
	return []docs.Record{{Revision: 7, Value: s.value}}, docs.State{}, nil
}

func (s *only) Commit(_ context.Context, _ *docs.Topic, c docs.Commit) (uint64, error) {
	s.value = c.Changes[0].Value
	return 7, nil
}

func TestARecordIsKept(t *testing.T) {
	s := &only{}
	write := consumers.Write{Key: keyhash.Key{1}, Record: &full}
	_, err := consumers.Kept{In: s}.WriteConsumers(t.Context(), consumers.Changes{Writes: []consumers.Write{write}})
	if err != nil {
		t.Fatal(err)
	}
	back, _, err := consumers.Kept{In: s}.Consumers(t.Context(), []keyhash.Key{{1}})
	want := full
	want.Revision = 7
	if err != nil || !reflect.DeepEqual(back, []consumers.Record{want}) {
		t.Errorf("%+v, want %+v (%v)\n%s", back, want, err, s.value)
	}
	s.value = []byte(`{"overrides":[{"policy":"a","limits":[{"quota":1,"window":"1x"}]}]}`)
	if _, _, err := (consumers.Kept{In: s}).Consumers(t.Context(), []keyhash.Key{{1}}); err == nil {
		t.Error("a window that is none is read")
	}
}

func TestWhatHasEnded(t *testing.T) {
	for _, c := range []struct {
		after          time.Duration
		banned, bypass bool
		overrides      int
		toldBanned     int64
		toldOverrides  int
	}{
		{0, true, true, 2, now.Add(time.Hour).UnixMilli(), 2},
		// Nodes hear of it a little longer, to ask by it.
		{time.Minute, true, true, 1, now.Add(time.Hour).UnixMilli(), 2},
		{2 * time.Minute, true, true, 1, now.Add(time.Hour).UnixMilli(), 1},
		{time.Hour, false, true, 1, 0, 1},
	} {
		at := now.Add(c.after)
		r, told := full.At(at), full.Special(at)
		if (r.Banned != nil) != c.banned || (r.Bypass != nil) != c.bypass || len(r.Overrides) != c.overrides {
			t.Errorf("after %s: %+v", c.after, r)
		}
		if told.Banned != c.toldBanned || told.Bypass != wire.ForGood || len(told.Overrides) != c.toldOverrides {
			t.Errorf("after %s nodes receive %+v", c.after, told)
		}
		if o := full.Override("a", at); (o != nil) != (c.after < time.Minute) {
			t.Errorf("after %s the override is %+v", c.after, o)
		}
	}
	for name, c := range map[string]struct {
		r               *consumers.Record
		special, banned int64
	}{
		"nobody": {nil, 0, 0}, "a tier": {&consumers.Record{Tier: "x"}, 0, 0},
		"all":         {&full, math.MaxInt64, now.Add(time.Hour).UnixMilli()},
		"an override": {&consumers.Record{Overrides: full.Overrides[:1]}, now.Add(2 * time.Minute).UnixMilli(), 0},
		"a ban":       {&consumers.Record{Banned: &consumers.Mark{}}, math.MaxInt64, math.MaxInt64},
	} {
		if special, banned := c.r.Ends(); special != c.special || banned != c.banned {
			t.Errorf("%s: special until %d, banned until %d", name, special, banned)
		}
	}
}

// peopled is a store that has records and tells of them as of its state.
type peopled struct {
	scripted
	state   consumers.State
	records map[keyhash.Key]consumers.Record
	asked   int
}

func (p *peopled) Consumers(_ context.Context, keys []keyhash.Key) ([]consumers.Record, consumers.State, error) {
	var found []consumers.Record
	for _, key := range keys {
		p.asked++
		found = append(found, p.records[key])
	}
	return found, p.state, p.err
}

func (p *peopled) set(revision, exceptionsRevision uint64, changes ...consumers.Change) {
	p.state = consumers.State{Revision: revision, ExceptionsRevision: exceptionsRevision, Special: true}
	p.log.State, p.log.Whole = p.state, true
	p.log.Changes = append(p.log.Changes, changes...)
	for _, c := range changes {
		p.records[c.Key] = c.Record
	}
}

// A remembered record is as true as the store's record, and counts as of the revision at which it
// is so.
func TestKnown(t *testing.T) {
	one, two := keyhash.Key{1}, keyhash.Key{2}
	p := &peopled{records: map[keyhash.Key]consumers.Record{one: {Tier: "x", Revision: 1}}}
	p.set(10, 3)
	s := consumers.New(consumers.Config{Store: p, Now: func() time.Time { return now }})
	know := func(want string, exceptionsRevision uint64, asked int) {
		t.Helper()
		before := p.asked
		known, err := s.Known(t.Context(), []keyhash.Key{one, two, one})
		if err != nil || known[one].Tier != want || known[one].ExceptionsRevision != exceptionsRevision ||
			known[two].Revision != 0 || p.asked-before != asked {
			t.Errorf("%+v after %d questions (%v), want %s at %d after %d", known, p.asked-before, err, want,
				exceptionsRevision, asked)
		}
	}
	know("x", 3, 2) // Before the log is read nothing is remembered.
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	know("x", 3, 2)
	know("x", 3, 0)
	// It has changed at another replica: the remembered record is as of the revision before.
	p.set(12, 4, consumers.Change{Revision: 12, Key: one, Record: consumers.Record{Tier: "y", Revision: 12}})
	know("x", 3, 0)
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	know("y", 4, 1)
	// A record that is read while the log is behind counts as of the later revision, and is not
	// remembered.
	p.set(14, 5, consumers.Change{Revision: 14, Key: two, Record: consumers.Record{}})
	if known, _ := s.Known(t.Context(), []keyhash.Key{{3}}); known[keyhash.Key{3}].ExceptionsRevision != 5 {
		t.Errorf("%+v", known)
	}
	// A gap in the log forgets everything.
	p.set(20, 6)
	p.log.Floor, p.log.Whole = 19, false
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	know("y", 6, 2)
	p.err = errors.New("away")
	if _, err := s.Known(t.Context(), []keyhash.Key{{9}}); err == nil {
		t.Error("a store that is away is not noticed")
	}
}

// A store that has lost its state starts its revisions anew, but the revision of a replica does not
// fall.
func TestTurnsOnlyGrow(t *testing.T) {
	p := &peopled{records: map[keyhash.Key]consumers.Record{}}
	p.set(10, 30)
	s := consumers.New(consumers.Config{Store: p, Now: func() time.Time { return now }})
	if err := s.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.state, p.log = consumers.State{}, consumers.Log{}
	if err := s.Refresh(t.Context()); err != nil || s.ExceptionsRevision() != 30 {
		t.Errorf("exceptionsRevision %d (%v)", s.ExceptionsRevision(), err)
	}
}

// A node that has missed changes hears of all bans that are in force, however they came to be
// known.
func TestAfterTellsBans(t *testing.T) {
	banned := consumers.Record{Banned: &consumers.Mark{}}
	p := &peopled{records: map[keyhash.Key]consumers.Record{}}
	p.bans = []consumers.Listed{{Key: keyhash.Key{1}, Record: banned}, {Key: keyhash.Key{2}, Record: banned}}
	p.set(100, 1)
	p.log.Floor, p.log.Whole = 90, false
	s := consumers.New(consumers.Config{Store: p, Now: func() time.Time { return now }})
	told := func(want ...byte) {
		t.Helper()
		if err := s.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		m, news, _ := s.After(50, false)
		keys := map[byte]bool{}
		for _, it := range m.Items {
			if until, _ := wire.Ends(it.Exceptions); until == wire.ForGood {
				keys[it.Key[0]] = true
			}
		}
		if !news || m.Complete || len(keys) != len(want) {
			t.Fatalf("%+v", m)
		}
		for _, key := range want {
			if !keys[key] {
				t.Errorf("%d is not sent", key)
			}
		}
	}
	told(1, 2)
	p.bans = nil // Not asked for again: changes tell.
	p.set(101, 2, consumers.Change{Revision: 101, Key: keyhash.Key{3}, Record: banned},
		consumers.Change{Revision: 101, Key: keyhash.Key{1}})
	p.log.Whole = false
	told(2, 3)
}

// A consumer's own limits keep the roots of the limits before, whatever their windows are: the
// roots in the store, or, if it has none, the roots of the policy's limits.
func TestOwnLimitsKeepTheirRoots(t *testing.T) {
	var sets []*policy.Set
	for _, p := range []string{`"partition":[],"limit":{"quota":1,"window":"2s"}`,
		`"partition":["consumer"],"limit":{"quota":1,"window":"1h"}`} {
		doc := `{"version":"weir/v1","identity":{"consumer":[{"header":"x-api-key"}]},"policies":[{"name":"p",` + p + `}]}`
		set, err := policydoc.Load([]byte(doc), policydoc.Sniff([]byte(doc)))
		if err != nil {
			t.Fatal(err)
		}
		sets = append(sets, set)
	}
	// As of a policy that only a version which is rolled out has, or has by consumer.
	set, sets := sets[1], append([]*policy.Set{{}}, sets...)
	l, key := newLossy(), keyhash.Key{1}
	s := consumers.New(consumers.Config{Store: l, Now: time.Now})
	own := func(windows ...quota.Span) (o consumers.Override) {
		o.Policy = "p"
		for _, w := range windows {
			o.Limits = append(o.Limits, consumers.Limit{Quota: 1, Window: w})
		}
		return o
	}
	for i, c := range []struct {
		windows, roots []quota.Span
	}{
		{[]quota.Span{quota.Hour, quota.Second}, []quota.Span{0, 1}},
		{[]quota.Span{2 * quota.Second, quota.Hour}, []quota.Span{1, 0}},
		{[]quota.Span{3 * quota.Second, quota.Day, quota.Hour}, []quota.Span{1, 2, 0}},
		{[]quota.Span{2 * quota.Day, quota.Hour}, []quota.Span{2, 0}},
	} {
		record := &consumers.Record{Overrides: []consumers.Override{own(c.windows...)}}
		write := consumers.Write{Key: key, Expected: l.records[key].Revision, Record: record}
		_, err := s.Write(t.Context(), consumers.Changes{Writes: []consumers.Write{write}, Sets: sets})
		if err != nil {
			t.Fatal(err)
		}
		held := l.records[key]
		limits, err := held.Overrides[0].Of(set, &set.Policies[0])
		special := held.Special(time.Now())
		for n := range limits {
			sent := special.Overrides[0].Limits[n].Root
			if err != nil || limits[n].Root != c.roots[n] || sent != c.roots[n] {
				t.Errorf("step %d: %+v and %+v (%v), want %v", i, limits, special, err, c.roots)
			}
		}
	}
}
