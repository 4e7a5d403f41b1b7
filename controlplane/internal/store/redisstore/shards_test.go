package redisstore_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// partly answers for the slots whose server lives, as production should.
var partly = []string{"--cluster-require-full-coverage", "no"}

// spread is an item for each tag, of buckets that differ by a number.
func spread(p quota.Params, number byte, waiting int64) []leases.Item {
	items := make([]leases.Item, 64)
	for tag := range byte(64) {
		items[tag] = leases.Item{Bucket: keyhash.Key{tag, number},
			Ask: lease.Ask{Params: p, Version: 1, Waiting: waiting, Cost: 1, Nodes: 1}}
	}
	return items
}

// owners tells by tag which primary keeps its buckets.
func owners(cluster *redistest.Cluster) (of [64]int) {
	for tag := range byte(64) {
		of[tag] = cluster.Primary(cluster.Slot(redisstore.KeyOf(keyhash.Key{tag})))
	}
	return of
}

// patience is more than the control plane gives a request: a busy machine is no dead shard.
const patience = 900 * time.Millisecond

// grantWithin is a grant with the patience of a request; which items have an answer.
func grantWithin(
	t *testing.T, s *redisstore.Store, items []leases.Item,
) (grants []lease.Grant, answered []bool, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	grants, err = s.Grant(ctx, items)
	answered = make([]bool, len(items))
	var partial *leases.Partial
	switch {
	case err == nil:
		for i := range answered {
			answered[i] = true
		}
	case errors.As(err, &partial):
		for i, away := range partial.Away {
			answered[i] = away == 0
		}
	}
	return grants, answered, err
}

// A primary without a replica that dies, falls silent, or swallows connections, so that they are
// neither made nor refused, takes its own buckets along and no others: those are granted exactly,
// from the first call on, and once the breaker is open no call waits for the dead.
func TestADeadShardFailsItsOwnBucketsAlone(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*testing.T, *redistest.Server) (back func()){
		"dead":   func(_ *testing.T, s *redistest.Server) func() { s.Kill(); return s.Restart },
		"silent": func(_ *testing.T, s *redistest.Server) func() { s.Pause(); return s.Resume },
		"swallowing connections": func(t *testing.T, s *redistest.Server) func() {
			s.Kill()
			end := redistest.Swallow(t, s.Addr())
			return func() { end(); s.Restart() }
		},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := redistest.StartCluster(t, 3, false, slices.Concat(partly, durable)...)
			s, of := open(t, cluster), owners(cluster)
			if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
				t.Fatal(err)
			}
			const calls, burst = 200, 500
			p := params(t, burst, 24*quota.Hour, burst)
			askFor(t, s, spread(p, 1, 0)...)
			back := lose(t, cluster.Primaries[0])
			var got [64]int64
			var took []time.Duration
			leftAlone := 0
			for range calls {
				begin := time.Now()
				grants, answered, err := grantWithin(t, s, spread(p, 1, 3))
				took = append(took, time.Since(begin))
				if errors.Is(err, redisstore.ErrAway) {
					leftAlone++
				}
				for tag, ok := range answered {
					if ok != (of[tag] != 0) {
						t.Fatalf("tag %d of primary %d is answered: %v; %v", tag, of[tag], ok, err)
					}
					got[tag] += grants[tag].Waiting
				}
			}
			for tag, n := range got {
				if want := int64(burst); of[tag] != 0 && n != want || of[tag] == 0 && n != 0 {
					t.Errorf("tag %d of primary %d: %d granted of %d", tag, of[tag], n, want)
				}
			}
			slices.Sort(took)
			t.Logf("%d batches: median %v, 99 of 100 within %v, longest %v; the dead server was left alone by %d",
				calls, took[calls/2], took[calls*99/100], took[calls-1], leftAlone)
			if leftAlone < calls*9/10 {
				t.Errorf("only %d of %d calls left the dead server alone", leftAlone, calls)
			}
			group := []leases.Item{spread(p, 2, 1)[slices.Index(of[:], 1)], spread(p, 2, 1)[slices.Index(of[:], 0)],
				spread(p, 2, 1)[slices.Index(of[:], 2)]}
			group[0].Group, group[1].Group, group[2].Group = 1, 1, 1
			if grants, answered, _ := grantWithin(t, s, group); !slices.Equal(answered, []bool{true, false, true}) ||
				grants[0].Waiting != 1 || grants[2].Waiting != 1 {
				t.Errorf("a group over three servers: %v %+v", answered, grants)
			}
			back()
			await(t, "the dead shard's buckets", func() bool {
				_, _, err := grantWithin(t, s, spread(p, 1, 0))
				return err == nil
			})
		})
	}
}

// While one server of a cluster is silent, a look still reaches all others: how far they are stays
// known, and so would a loss there.
func TestASilentShardHoldsUpNoLook(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, false, slices.Concat(partly, durable)...)
	s := found(t, openURL(t, cluster.URL(), slog.New(slog.DiscardHandler), redisstore.Now(time.Now)))
	look := func() {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, _ = s.Secret(ctx, [16]byte{1})
	}
	await(t, "a measure of the way", func() bool { look(); return s.RoundTrip() > 0 })
	cluster.Primaries[0].Pause()
	defer cluster.Primaries[0].Resume()
	for i := range 10 {
		look()
		if s.RoundTrip() == 0 {
			t.Errorf("look %d reached no server", i)
		}
	}
}

// With the server away that keeps the consumers, who looks one up hears that only this part is;
// with all away, that the store is.
func TestConsumersOfADeadShard(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false, partly...)
	s := open(t, cluster)
	ask := func() (away *docs.AwayError, err error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, _, err = consumers.Kept{In: s}.Consumers(ctx, []keyhash.Key{{1}})
		errors.As(err, &away)
		return away, err
	}
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Fatal(err)
	}
	if _, err := ask(); err != nil {
		t.Fatal(err)
	}
	keeper := cluster.Primary(cluster.Slot("weir:{consumers}:records"))
	cluster.Primaries[keeper].Kill()
	for range breaker.Tolerated + 1 {
		if away, err := ask(); away == nil || away.Cause == nil {
			t.Fatalf("with the keeper away: %v", err)
		}
	}
	for i, server := range cluster.Primaries {
		if i != keeper {
			server.Kill()
		}
	}
	await(t, "the store to be away", func() bool {
		_, _, _ = grantWithin(t, s, spread(params(t, 10, quota.Hour, 10), 1, 1)) // Finds out that the others are away.
		away, err := ask()
		return err != nil && away == nil
	})
}

// With no server left the whole request fails, so that nodes leave the control plane alone.
func TestADeadClusterFailsAll(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, false, append([]string{"--cluster-node-timeout", "500"}, partly...)...)
	s := open(t, cluster)
	if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
		t.Fatal(err)
	}
	for _, server := range cluster.Primaries {
		server.Kill()
	}
	var partial *leases.Partial
	await(t, "all to fail", func() bool {
		_, _, err := grantWithin(t, s, spread(params(t, 10, quota.Hour, 10), 1, 1))
		if err == nil {
			t.Fatal("a dead cluster has granted")
		}
		return !errors.As(err, &partial)
	})
}

// A script that takes longer than its caller waits is charged once at most, by one server and by a
// cluster: the client sends nothing again.
func TestASlowScriptIsChargedOnce(t *testing.T) {
	t.Parallel()
	server, cluster := redistest.Start(t), redistest.StartCluster(t, 3, false)
	for name, c := range map[string]struct {
		at      interface{ URL() string }
		servers []*redistest.Server
	}{"one server": {server, []*redistest.Server{server}}, "cluster": {cluster, cluster.Primaries}} {
		t.Run(name, func(t *testing.T) {
			s := open(t, c.at)
			s.SlowGrant(100 * time.Millisecond)
			p := params(t, 100, 24*quota.Hour, 100)
			one(t, s, keyhash.Key{7}, p, 1)
			const calls = breaker.Tolerated
			late, charged := 0, int64(0)
			for i := range calls {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
				ask := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Nodes: 1}
				_, err := s.Grant(ctx, []leases.Item{{Bucket: keyhash.Key{7, 15: byte(i + 1)}, Ask: ask}})
				cancel()
				switch {
				case errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded):
					late++
				case err != nil: // A caller that was held up longer than the script finds the answer.
					t.Fatalf("a script that is too slow: %v", err)
				}
				for _, server := range c.servers {
					server.Do("PING") // It is answered when the script has ended.
				}
			}
			for i := range calls {
				look := lease.Ask{Params: p, Version: 1, Cost: 1, Nodes: 1}
				await(t, "an answer", func() bool {
					grants, err := s.Grant(t.Context(),
						[]leases.Item{{Bucket: keyhash.Key{7, 15: byte(i + 1)}, Ask: look}})
					if err != nil {
						return false
					}
					// A call that a busy machine was too late to send is not charged at all.
					if left := grants[0].Level; left != 99 && left != 100 {
						t.Errorf("call %d left %d of 100 tokens: it was charged more than once", i, left)
					}
					charged += 100 - grants[0].Level
					return true
				})
			}
			if late == 0 || charged == 0 {
				t.Errorf("%d of %d calls were too late, %d were charged: the test says nothing", late, calls, charged)
			}
		})
	}
}

// Every key expires, except for keys that are meant to stay.
func TestKeysExpire(t *testing.T) {
	s := open(t, redistest.Start(t))
	useEverything(t, s)
	stay := map[string]string{
		"weir:{meta}:secret": "all hashes depend on it", "weir:{meta}:protocol": "it says that the markers were laid",
		"weir:{meta}:version": "the policies", "weir:{meta}:versions": "the policies, a bounded number",
		"weir:{meta}:documents": "the policies, a bounded number",
		"weir:{meta}:rollout":   "which share of the nodes has which version",
		"weir:{meta}:nodes":     "10 000 nodes; each poll forgets old nodes", "weir:{meta}:seen": "as nodes",
		"weir:{meta}:states":       "as nodes",
		"weir:{consumers}:records": "the records that an administrator wrote", "weir:{consumers}:state": "some numbers",
		"weir:{consumers}:changes": "a bounded number",
		"weir:{consumers}:special": "as records", "weir:{consumers}:banned": "as records",
		"weir:{meta}:region":      "which part of each limit this region grants: a bounded number",
		"weir:{regions}:document": "the same of all regions",
		"weir:{meta}:audit":       "who changed what, a bounded number",
		"weir:{consumers}:audit":  "the same of consumers",
	}
	stay[redisstore.Tagged(0, "looked")] = "a number"
	for tag := range byte(64) { // Their absence means that state was lost.
		for _, marker := range []string{"lost", "lent", "server"} {
			stay[redisstore.Tagged(tag, marker)] = "a marker"
		}
	}
	seen := map[string]bool{}
	for _, key := range allMarked(t, s) {
		life := s.Client().PTTL(t.Context(), key).Val()
		if seen[key] = true; life < 0 && stay[key] == "" {
			t.Errorf("%s does not expire", key)
		}
	}
	for key := range stay {
		if !seen[key] {
			t.Errorf("%s is not there: the test has not tested it", key)
		}
	}
}

// allMarked is all keys. The store marks a process within a bounded time, which may be too short on
// a busy machine, and tries again with the next look.
func allMarked(t *testing.T, s *redisstore.Store) (keys []string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		keys = s.Client().Keys(t.Context(), "*").Val()
		unmarked := 0
		for tag := range byte(64) {
			if !slices.Contains(keys, redisstore.Tagged(tag, "server")) {
				unmarked++
			}
		}
		if unmarked == 0 || time.Now().After(end) {
			return keys
		}
		if _, err := s.Secret(t.Context(), [16]byte{1}); err != nil {
			t.Log(err)
		}
	}
}

// useEverything makes the store write every kind of key.
func useEverything(t *testing.T, s *redisstore.Store) {
	t.Helper()
	ctx, node := t.Context(), nodes.Node{ID: "n"}
	_, e1 := s.Secret(ctx, [16]byte{1})
	e2 := s.Append(ctx, 0, policies.Version{Number: 1, Document: []byte("x")}, audit.Entry{})
	state, e2a := s.State(ctx)
	state.Rollout = &policies.Rollout{Version: 2, Base: 1, Nodes: 50}
	e2b := s.Roll(ctx, policies.Step{From: state, To: state,
		Versions: []policies.Version{{Number: 2, Document: []byte("x")}}})
	e3 := s.Touch(ctx, node)
	_, e4 := s.Report(ctx, node.Key(), nodes.Reported{State: "share"})
	put := audit.Entry{Action: "consumer.put"}
	_, e5 := consumers.Kept{In: s}.WriteConsumers(ctx, consumers.Changes{Entry: put, Writes: []consumers.Write{
		{Key: keyhash.Key{1}, Any: true, Record: &consumers.Record{Tier: "t", Banned: &consumers.Mark{}}},
	}})
	_, e6 := docs.Cell{Store: s, Name: docs.Region}.Swap(ctx, 0, []byte("x"))
	_, e9 := docs.Cell{Store: s, Name: docs.Regions}.Swap(ctx, 0, []byte("x"))
	p := params(t, 100, quota.Minute, 100)
	_, e7 := s.Grant(ctx, spread(p, 1, 5))
	_, e8 := s.Grant(ctx, []leases.Item{{Bucket: keyhash.Key{7},
		Ask: window(t, quota.SlidingLog, 100, quota.Minute, 5)},
		{Bucket: keyhash.Key{8}, Ask: lease.Ask{Params: p, Version: 1, Used: 5, Optimistic: true}}})
	e10 := s.AppendDecisions(ctx, []decisions.Decision{{Policy: "p"}})
	e11 := s.PutSlot(ctx, series.Tops.At(time.Now()), "replica", []byte("{}"))
	if err := errors.Join(e1, e2, e2a, e2b, e3, e4, e5, e6, e7, e8, e9, e10, e11); err != nil {
		t.Fatal(err)
	}
}

// The client would repeat some calls by default. The store's client makes each call once, and it
// keeps to its callers' deadlines.
func TestTheClientIsSetToDoNothingTwice(t *testing.T) {
	for _, url := range []string{"redis://h", "redis://h?cluster=true", "redis://h?master_name=m"} {
		s := openURL(t, url, slog.New(slog.DiscardHandler))
		switch c := s.Client().(type) {
		case *redis.Client:
			if o := c.Options(); o.MaxRetries != 0 || !o.ContextTimeoutEnabled { // It turns -1 into 0.
				t.Errorf("%s: %d retries, context timeouts %v", url, o.MaxRetries, o.ContextTimeoutEnabled)
			}
		case *redis.ClusterClient:
			if o := c.Options(); !o.ContextTimeoutEnabled {
				t.Errorf("%s: no context timeouts", url)
			}
		}
	}
}

// A server that refuses commits answers: its breaker stays closed.
func TestARefusedCommitIsAnAnswer(t *testing.T) {
	t.Parallel()
	s := open(t, redistest.StartCluster(t, 3, false, durable...))
	topic := docs.Penalties
	topic.Kept = 0
	change := docs.Change{Key: keyhash.Key{1}, Value: []byte("a"), Scores: []int64{1 << 45}}
	late, none := change, change
	late.Expected, none.Value = 7, nil
	for range 10 {
		for want, c := range map[error]docs.Change{errs.Conflict: late, errs.NotFound: none, docs.ErrFull: change} {
			commit := docs.Commit{Changes: []docs.Change{c}}
			if _, err := s.Commit(t.Context(), &topic, commit); !errors.Is(err, want) {
				t.Fatalf("%v, want %v", err, want)
			}
		}
	}
	if _, answered, err := grantWithin(t, s, spread(params(t, 10, quota.Hour, 10), 1, 1)); err != nil {
		t.Errorf("%v, %v", answered, err)
	}
}
