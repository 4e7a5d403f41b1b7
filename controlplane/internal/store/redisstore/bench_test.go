package redisstore_test

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/store/redisstore"
	"github.com/weir-proxy/weir/controlplane/internal/store/storetest"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/support/redistest"
)

// benchStore is a store in a Redis of its own.
func benchStore(b *testing.B) *redisstore.Store {
	b.Helper()
	s, err := redisstore.Open(redistest.Start(b).URL(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	if err := s.LayMarkers(b.Context()); err != nil {
		b.Fatal(err)
	}
	return s
}

// grantKind is a kind of request for a bucket, with its answer each time.
type grantKind struct {
	name string
	item leases.Item
	// group is how many neighbours are granted together or not at all.
	group int
	want  func(lease.Grant) bool
}

func grantKinds(b *testing.B) []grantKind {
	b.Helper()
	p, err := quota.NewParams(1_000_000, quota.Second, 1_000_000)
	if err != nil {
		b.Fatal(err)
	}
	leased := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 1, Deadline: lease.Deadline, Keep: 10, Nodes: 3}
	strict, optimistic, twin := leased, leased, leased
	strict.Keep = 0
	optimistic.Waiting, optimistic.Keep, optimistic.Used, optimistic.Optimistic = 0, 0, 1, true
	got := func(keep int64) func(lease.Grant) bool {
		return func(g lease.Grant) bool { return !g.Stale && g.Waiting == 1 && g.Keep == keep }
	}
	charged := func(g lease.Grant) bool { return !g.Stale && g.Debt > 0 }
	kinds := []grantKind{
		{"leased", leases.Item{Ask: leased}, 1, got(10)}, {"strict", leases.Item{Ask: strict}, 1, got(0)},
		{"optimistic", leases.Item{Ask: optimistic}, 1, charged},
		{"groups_of_two", leases.Item{Ask: leased}, 2, got(10)},
		{"beside_a_draft", leases.Item{Ask: leased, Twin: &twin}, 1, got(10)},
	}
	for _, a := range []quota.Algorithm{quota.FixedWindow, quota.SlidingWindow, quota.SlidingWindowCounter,
		quota.SlidingLog} {
		ask, units, subwindows, keep := leased, int64(1_000_000), 0, leased.Keep
		switch a {
		case quota.SlidingWindow:
			subwindows = quota.DefaultSubwindows
		case quota.SlidingWindowCounter:
			keep = 0 // It gives no tokens to keep.
		case quota.SlidingLog:
			units = quota.MaxLog
		}
		if ask.Windows, err = quota.NewWindows(a, units, quota.Second, subwindows); err != nil {
			b.Fatal(err)
		}
		kinds = append(kinds, grantKind{a.String(), leases.Item{Ask: ask}, 1, got(keep)})
	}
	return kinds
}

// One operation is a node's call about several buckets: one script, on a real Redis. All are
// granted in full. ns/bucket is the time of each bucket. Buckets of a sliding log, which holds few
// requests, are asked for every 100 ms by a clock of the test.
func BenchmarkGrant(b *testing.B) {
	onTime, logged := benchStore(b), benchStore(b)
	setClock, now := logged.UseTestClock(), storetest.Base
	for number, kind := range grantKinds(b) {
		s, windows := onTime, kind.item.Ask.Windows
		byLog := windows.Quota != 0 && windows.Algorithm == quota.SlidingLog
		if byLog {
			s = logged
		}
		for _, size := range []int{1, 64} {
			items := make([]leases.Item, size)
			for i := range items {
				items[i] = kind.item
				items[i].Bucket = keyhash.Key{byte(i), byte(number), byte(size)}
				items[i].Group = 1 + i/kind.group
			}
			b.Run(fmt.Sprintf("%s/%d", kind.name, size), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if byLog {
						now += quota.Instant(100 * quota.Millisecond)
						setClock(now)
					}
					grants, err := s.Grant(b.Context(), items)
					if err != nil || len(grants) != size {
						b.Fatalf("%d grants: %v", len(grants), err)
					}
					for _, g := range grants {
						if !kind.want(g) {
							b.Fatalf("%+v", g)
						}
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/bucket")
			})
		}
	}
}

// One operation is a call about several strict requests, each of its own bucket. If their costs are
// known later, the call also has the settlements of the same number of earlier requests. ns/request
// is the time of each request.
func BenchmarkSettle(b *testing.B) {
	const size = 32
	for _, settles := range []bool{false, true} {
		s := benchStore(b)
		p, err := quota.NewParams(1_000_000, quota.Second, 1_000_000)
		if err != nil {
			b.Fatal(err)
		}
		ask := lease.Ask{Params: p, Version: 1, Waiting: 1, Cost: 5, Deadline: lease.Deadline, Nodes: 1}
		b.Run(map[bool]string{false: "known", true: "settled"}[settles], func(b *testing.B) {
			calls := uint64(0)
			for b.Loop() {
				calls++
				items := make([]leases.Item, 0, 2*size)
				for i := range size {
					bucket, it := keyhash.Key{byte(i)}, leases.Item{Ask: ask}
					it.Bucket = bucket
					if settles {
						it.Ask.Reserved = calls*size + uint64(i)
					}
					items = append(items, it)
					if settles && calls > 1 {
						settled := leases.Settlement{Name: (calls-1)*size + uint64(i), Nth: 1, Actual: 3}
						items = append(items, leases.Item{
							Bucket: bucket, Kind: wire.KindSettle, Ask: ask, Settles: settled,
						})
					}
				}
				grants, err := s.Grant(b.Context(), items)
				if err != nil {
					b.Fatal(err)
				}
				for i, g := range grants {
					if g.Waiting != 1 {
						b.Fatalf("answer %d: %+v", i, g)
					}
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*size), "ns/request")
		})
	}
}

// scriptCall makes the n-th call of a script, from 1, and returns an error if the answer is wrong.
type scriptCall struct {
	// script is the file that the call runs, size how many things it is about.
	script string
	size   int
	call   func(b *testing.B, s *redisstore.Store, n int) error
}

// expect returns an error if an answer differs from the wanted answer.
func expect[T comparable](err error, got, want T) error {
	if err == nil && got != want {
		err = fmt.Errorf("got %v, want %v", got, want)
	}
	return err
}

func scriptCalls() []scriptCall {
	calls := slices.Concat(bucketCalls(), policyCalls(), permitCalls(), nodeCalls())
	for _, size := range []int{1, 64} {
		calls = append(append(calls, consumerCalls(size)...), penaltyCalls(size)...)
		refusals := make([]decisions.Decision, size)
		for i := range refusals {
			refusals[i] = decisions.Decision{Node: "envoy-1", Policy: "p", Limit: "10 in 1s",
				Key: fmt.Sprintf("%032x", i), Cost: 1}
		}
		calls = append(calls, scriptCall{"decide", size, func(b *testing.B, s *redisstore.Store, n int) error {
			if err := s.AppendDecisions(b.Context(), refusals); err != nil || n > 1 {
				return err
			}
			kept, err := s.Decisions(b.Context(), "", size)
			return expect(err, len(kept), size)
		}})
	}
	return calls
}

func bucketCalls() []scriptCall {
	// A burst that many calls can be given back of, and so slow that nothing refills.
	ask := lease.Ask{Params: quota.Params{Num: 1, Den: int64(quota.Hour), Burst: 1_000_000}, Version: 1, Nodes: 1,
		Cost: 1}
	bucket, entry := keyhash.Key{1}, audit.Entry{By: "bench", Action: "key.change", Resource: "keys/1"}
	spend := func(b *testing.B, s *redisstore.Store, n int) error {
		if n > 1 {
			return nil
		}
		ask := ask
		ask.Waiting = ask.Params.Burst
		g, err := s.Grant(b.Context(), []leases.Item{{Bucket: bucket, Ask: ask}})
		if err != nil {
			return err
		}
		return expect(nil, g[0].Waiting, ask.Waiting)
	}
	change := func(c lease.Change) func(*testing.B, *redisstore.Store, int) error {
		return func(b *testing.B, s *redisstore.Store, n int) error {
			if err := spend(b, s, n); err != nil {
				return err
			}
			held, err := s.Adjust(b.Context(), leases.Item{Bucket: bucket, Ask: ask}, c, entry)
			return expect(err, [2]int64{held.Given, held.Level}, [2]int64{c.Give, c.Give * int64(n)})
		}
	}
	return []scriptCall{
		{"bucket", 1, change(lease.Change{})},
		{"adjust", 1, change(lease.Change{Give: 1})}, // It reads the bucket first.
		{"settle", 1, settleOne},                     // After a grant that it is a settlement of.
		{"document", 1, func(b *testing.B, s *redisstore.Store, n int) error {
			cell := docs.Cell{Store: s, Name: docs.Region}
			won, err := cell.Swap(b.Context(), uint64(n-1), []byte("the use of a region"))
			return expect(err, won, true)
		}},
	}
}

// settleOne has a request reserve of a sliding log, and settles it.
func settleOne(b *testing.B, s *redisstore.Store, n int) error {
	w, err := quota.NewWindows(quota.SlidingLog, 5, quota.Hour, 0)
	if err != nil {
		return err
	}
	ask := lease.Ask{
		Params: quota.Params{Num: 1, Den: int64(quota.Hour) / 5, Burst: 5}, Windows: w, Version: 1,
		Waiting: 1, Cost: 1, Deadline: lease.Deadline, Reserved: uint64(n),
	}
	bucket := keyhash.Key{8}
	grants, err := s.Grant(b.Context(), []leases.Item{{Bucket: bucket, Ask: ask}})
	if err != nil {
		return err
	}
	ask.Waiting, ask.Reserved = 0, 0
	settles := leases.Item{Bucket: bucket, Kind: wire.KindSettle, Ask: ask}
	settles.Settles = leases.Settlement{Name: uint64(n), Nth: 1}
	settled, err := s.Grant(b.Context(), []leases.Item{settles})
	if err != nil {
		return err
	}
	return expect(nil, [2]int64{grants[0].Waiting, settled[0].Waiting}, [2]int64{1, 1})
}

// permitCalls are about a bucket of which many nodes hold permits.
func permitCalls() []scriptCall {
	const nodes = 1000
	bucket := keyhash.Key{9}
	claims := func(first, count int, seq uint64) (items []leases.Item) {
		for n := range count {
			items = append(items, leases.Item{Bucket: bucket, Kind: wire.KindClaim, Claim: inflight.Claim{
				Node: inflight.Node{ID: "envoy", Boot: uint64((first + n) % nodes)}, Seq: seq, Hold: 1,
				Limit: 2 * nodes, Nodes: nodes,
			}})
		}
		return items
	}
	fill := func(b *testing.B, s *redisstore.Store, n int) error {
		if n > 1 {
			return nil
		}
		_, err := s.Grant(b.Context(), claims(0, nodes, 1))
		return err
	}
	return []scriptCall{
		{"permits", 1, func(b *testing.B, s *redisstore.Store, n int) error {
			if err := fill(b, s, n); err != nil {
				return err
			}
			g, err := s.Grant(b.Context(), claims(n, 1, uint64(n+1)))
			if err != nil {
				return err
			}
			return expect(nil, g[0].Keep, 1)
		}},
		{"holders", nodes, func(b *testing.B, s *redisstore.Store, n int) error {
			if n%1000 == 1 {
				if err := fill(b, s, 1); err != nil {
					return err
				}
			}
			l, _, err := s.Holders(b.Context(), bucket)
			return expect(err, len(l.Holdings), nodes)
		}},
	}
}

func policyCalls() []scriptCall {
	entry := audit.Entry{By: "bench", Action: "policyset.put", Resource: "policyset"}
	put := func(b *testing.B, s *redisstore.Store, n int) error {
		v := policies.Version{Number: uint64(n), Author: "bench", Digest: "ab12", Summary: "1 added",
			Document: []byte("version: weir/v1\n")}
		return s.Append(b.Context(), uint64(n-1), v, entry)
	}
	return []scriptCall{
		{"append", 1, put},
		{"state", 1, func(b *testing.B, s *redisstore.Store, n int) error {
			if n == 1 {
				if err := put(b, s, n); err != nil {
					return err
				}
			}
			state, err := s.State(b.Context())
			return expect(err, state.Current, 1)
		}},
	}
}

func nodeCalls() []scriptCall {
	node := nodes.Node{ID: "envoy-1", Boot: "0123456789abcdef", Applied: 1, Filter: "v1"}
	touch := func(b *testing.B, s *redisstore.Store, n int) error {
		if n > 1 {
			return nil
		}
		return s.Touch(b.Context(), node)
	}
	secret := [16]byte{1, 2, 3}
	return []scriptCall{
		{"touch", 1, func(b *testing.B, s *redisstore.Store, n int) error {
			if err := s.Touch(b.Context(), node); err != nil || n > 1 {
				return err
			}
			known, err := s.Nodes(b.Context())
			return expect(err, len(known), 1)
		}},
		{"report", 1, func(b *testing.B, s *redisstore.Store, n int) error {
			if err := touch(b, s, n); err != nil {
				return err
			}
			known, err := s.Report(b.Context(), node.Key(), nodes.Reported{State: "share"})
			return expect(err, known, true)
		}},
		{"count", 1, func(b *testing.B, s *redisstore.Store, n int) error {
			if err := touch(b, s, n); err != nil {
				return err
			}
			count, err := s.CountNodes(b.Context(), time.Hour)
			return expect(err, count, 1)
		}},
		{"poll", 1, func(b *testing.B, s *redisstore.Store, _ int) error {
			got, err := s.Secret(b.Context(), secret)
			return expect(err, got, secret)
		}},
		{"lent", 10, func(b *testing.B, s *redisstore.Store, n int) error {
			if n == 1 {
				_, err := s.Grant(b.Context(), lentItems())
				return err
			}
			lost, err := s.Lacks(b.Context(), lentClaims)
			if lost != "" {
				return errors.New("a claim is not known")
			}
			return err
		}},
		{"doubt", 1, func(b *testing.B, s *redisstore.Store, n int) error {
			return s.DoubtPermits(b.Context(), 1, fmt.Sprint(n))
		}},
		{"each", 10, func(b *testing.B, s *redisstore.Store, _ int) error {
			slots := make([]series.Slot, 10)
			for i := range slots {
				slots[i] = series.Slot{Kind: series.Fine, Number: int64(i)}
			}
			found, err := s.Slots(b.Context(), slots)
			return expect(err, len(found), len(slots))
		}},
		// Another process each time: all but the first have lost state.
		{"notice", 1, func(b *testing.B, s *redisstore.Store, n int) error {
			return expect(nil, s.Notice(b.Context(), 1, fmt.Sprint("run-", n), ""), min(n-1, 1))
		}},
	}
}

func penaltyCalls(size int) []scriptCall {
	keys, who := make([]keyhash.Key, size), audit.Entry{By: "bench", Action: "penalties.pardon"}
	offer := func(b *testing.B, s *redisstore.Store, n int) error {
		var offered []penalties.Known
		for i := range keys {
			keys[i] = keyhash.Key{byte(i), 1}
			offered = append(offered, penalties.Known{At: penalties.Everything, Record: penalties.Record{
				Key: keys[i], Record: penalty.Record{Level: 1, Until: 1<<44 + int64(n)}, Forgotten: 1<<44 + 2*int64(n),
				Facts: penalties.Facts{Policy: "api", Node: "bench"},
			}})
		}
		done, err := penalties.Kept{In: s}.Offer(b.Context(), offered)
		return expect(err, done.Taken, size)
	}
	return []scriptCall{
		{"offer", size, offer},
		{"pardon", size, func(b *testing.B, s *redisstore.Store, n int) error {
			if n == 1 {
				if err := offer(b, s, n); err != nil {
					return err
				}
			}
			pardoned, err := penalties.Kept{In: s}.Pardon(b.Context(), keys, who)
			return expect(err, pardoned > 0, n == 1)
		}},
	}
}

func consumerCalls(size int) []scriptCall {
	keys := make([]keyhash.Key, size)
	changes := consumers.Changes{Entry: audit.Entry{By: "bench", Action: "consumer.put", Resource: "consumers"}}
	for i := range keys {
		keys[i] = keyhash.Key{byte(i), 1}
		changes.Writes = append(changes.Writes,
			consumers.Write{Key: keys[i], Any: true, Record: &consumers.Record{Tier: "gold", By: "bench"}})
	}
	last := uint64(0)
	write := func(b *testing.B, s *redisstore.Store, n int) error {
		if n == 1 {
			last = 0
		}
		revision, err := consumers.Kept{In: s}.WriteConsumers(b.Context(), changes)
		if err == nil && revision <= last {
			err = errors.New("the revision did not grow")
		}
		last = revision
		return err
	}
	return []scriptCall{
		{"commit", size, write},
		{"read", size, func(b *testing.B, s *redisstore.Store, n int) error {
			if n == 1 {
				if err := write(b, s, n); err != nil {
					return err
				}
			}
			log, err := consumers.Kept{In: s}.ConsumerLog(b.Context(), last-1)
			return expect(err, len(log.Changes), size)
		}},
	}
}

// One operation is one call of a script, on a real Redis, in the same way as the store calls it: it
// includes encoding the arguments and reading the answer.
func BenchmarkScript(b *testing.B) {
	s := benchStore(b)
	for _, c := range scriptCalls() {
		b.Run(fmt.Sprintf("%s/%d", c.script, c.size), func(b *testing.B) {
			// A measurement does not see the keys of an earlier measurement.
			if err := s.Client().FlushAll(b.Context()).Err(); err != nil {
				b.Fatal(err)
			}
			if err := s.LayMarkers(b.Context()); err != nil {
				b.Fatal(err)
			}
			if err := c.call(b, s, 1); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for n := 2; b.Loop(); n++ {
				if err := c.call(b, s, n); err != nil {
					b.Fatalf("call %d: %v", n, err)
				}
			}
		})
	}
}

func TestEachScriptHasABenchmark(t *testing.T) {
	// BenchmarkGrant has the scripts that grant; two scripts are only parts of other scripts.
	measured := []string{"grant", "whole", "tokens", "windows", "clock", "audit"}
	for _, c := range scriptCalls() {
		measured = append(measured, c.script)
	}
	files, err := filepath.Glob(filepath.Join("scripts", "*.lua"))
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts:", err)
	}
	for _, file := range files {
		if name := strings.TrimSuffix(filepath.Base(file), ".lua"); !slices.Contains(measured, name) {
			t.Errorf("no benchmark calls %s", file)
		}
	}
}

// lentClaims are claims of permits that were answered.
var lentClaims = func() (claims []leases.Claim) {
	for _, it := range lentItems() {
		claims = append(claims, leases.Claim{Item: it})
	}
	return claims
}()

func lentItems() (items []leases.Item) {
	for n := range 10 {
		items = append(items, leases.Item{Bucket: keyhash.Key{1, byte(n)}, Kind: wire.KindClaim, Claim: inflight.Claim{
			Node: inflight.Node{ID: "envoy", Boot: 1}, Seq: 1, Need: 1, Limit: 10, Nodes: 1,
		}})
	}
	return items
}
