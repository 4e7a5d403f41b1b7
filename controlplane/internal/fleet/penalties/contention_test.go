package penalties_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/wire"
)

// rival is a store in which something happens before each commit.
type rival struct {
	docs.Records
	first   func()
	commits atomic.Int64
}

func (r *rival) Commit(ctx context.Context, t *docs.Topic, c docs.Commit) (uint64, error) {
	r.commits.Add(1)
	r.first()
	return r.Records.Commit(ctx, t, c)
}

// A replica before each of whose commits another one changes one of the same callers gets on: all
// that it offers is taken, and a pardon at the second try.
func TestChangesGetOnUnderContention(t *testing.T) {
	p := newPlane(t)
	const callers = 500
	random, until := rand.New(rand.NewPCG(1, 2)), p.now.UnixMilli()+60_000
	one := func(n int, until int64) penalties.Known {
		return penalties.Known{At: penalties.Everything, Record: penalties.Record{
			Key: key(n), Record: penalty.Record{Level: 1, Until: until}, Forgotten: until + 1,
		}}
	}
	among := wire.MaxOffences
	store := &rival{Records: p.store, first: func() {
		until++
		if _, err := (penalties.Kept{In: p.store}).Offer(t.Context(),
			[]penalties.Known{one(random.IntN(among), until)}); err != nil {
			t.Error(err)
		}
	}}
	k := penalties.Kept{In: store}
	var all []penalties.Known
	var keys []keyhash.Key
	for n := range callers {
		all, keys = append(all, one(n, until+3_600_000)), append(keys, key(n))
	}
	done, err := k.Offer(t.Context(), all[:among])
	if commits := store.commits.Load(); err != nil || done.Taken != among || commits > 100 {
		t.Errorf("offers: %+v, %v after %d commits", done, err, commits)
	}
	if _, err := (penalties.Kept{In: p.store}).Offer(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	among, until = callers, until+7_200_000
	store.commits.Store(0)
	held, head, _, err := k.Since(t.Context(), 0, callers+1)
	if err != nil || len(held) != callers {
		t.Fatal(len(held), err)
	}
	k.Held = func([]keyhash.Key) (map[keyhash.Key]penalties.Record, docs.Head, bool) {
		of := map[keyhash.Key]penalties.Record{}
		for _, r := range held {
			of[r.Key] = r
		}
		return of, head, true
	}
	n, err := k.Pardon(t.Context(), keys, audit.Entry{Action: "penalties.pardon"})
	if commits := store.commits.Load(); err != nil || n != callers || commits > 2 {
		t.Errorf("%d pardoned, %v after %d commits", n, err, commits)
	}
	held, _, _, err = k.Since(t.Context(), 0, callers+1)
	for _, r := range held {
		if r.Level != 0 {
			t.Errorf("caller %s is not pardoned: %+v", r.Key, r)
		}
	}
	entries, auditErr := p.store.Audit(t.Context(), "", 10)
	if err != nil || auditErr != nil || len(entries) != 1 {
		t.Errorf("audit %+v, %v, %v", entries, err, auditErr)
	}
}

// Replicas that take in reports of the same callers at the same moment, several each, take them
// all in with few commits.
func TestReplicasTakeInReportsOfTheSameCallers(t *testing.T) {
	p := newPlane(t)
	const replicas, reports = 5, 6
	var wait sync.WaitGroup
	store := &rival{Records: p.store, first: func() { time.Sleep(time.Millisecond) }}
	services := make([]*penalties.Service, replicas)
	for i := range services {
		services[i] = p.replicaOver(store)
		p.refresh(services[i])
	}
	last, random := map[keyhash.Key]int64{}, rand.New(rand.NewPCG(3, 4))
	for i := range services {
		for range reports {
			m := wire.Offences{Node: []byte("e")}
			for n := range wire.MaxOffences {
				o := p.offence(n, 0)
				o.Until += random.Int64N(60_000)
				last[o.Key] = max(last[o.Key], o.Until)
				m.Items = append(m.Items, o)
			}
			wait.Go(func() {
				if err := services[i].Report(t.Context(), &m); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wait.Wait()
	commits := store.commits.Load()
	t.Logf("%d commits for %d reports", commits, replicas*reports)
	if commits > 40*replicas*reports {
		t.Errorf("%d commits", commits)
	}
	p.refresh(services[0])
	list, _ := services[0].List(penalties.Query{}, len(last)+1)
	for _, r := range list {
		if r.Until != last[r.Key] {
			t.Errorf("caller %s until %d, want %d", r.Key, r.Until, last[r.Key])
		}
	}
	if len(list) != len(last) {
		t.Errorf("%d of %d callers", len(list), len(last))
	}
}
