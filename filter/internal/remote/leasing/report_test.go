package leasing_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/remote/leasing"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// reporters are the workers of a node whose optimistic buckets have 1000 tokens, and a control
// plane that notes the reports and answers when the test says so.
type reporters struct {
	clock
	clients []*leasing.Client
	stores  []*bucketstore.Store
	params  quota.Params
	// unanswered are the calls under way, calls counts all.
	unanswered []func(status int)
	calls      int
	// probes are answered with the next tick.
	probes []func()
	// used is the number of reported tokens of each bucket, late the longest time from a use to its
	// report.
	used  map[keyhash.Key]int64
	since map[keyhash.Key]quota.Instant
	late  quota.Instant
	// versions are the versions of all items of the last call.
	versions map[uint64]int
}

// Call implements rpc.Client.
func (r *reporters) Call(_ string, body []byte, timeout quota.Span, done func(int, []byte)) error {
	m, err := wire.DecodeLeaseRequest(body)
	if err != nil {
		return err
	}
	if timeout == lease.Deadline {
		reply := wire.LeaseReply{Seq: m.Seq, Nodes: 2, Items: make([]wire.LeaseAnswer, 1)}
		r.probes = append(r.probes, func() { done(200, wire.AppendLeaseReply(nil, reply)) })
		return nil
	}
	r.calls++
	r.versions = map[uint64]int{m.Version: len(m.Items)}
	reply := wire.LeaseReply{Seq: m.Seq, Nodes: 2}
	for _, it := range m.Items {
		r.late = max(r.late, r.now-r.since[it.Bucket])
		reply.Items = append(reply.Items, wire.LeaseAnswer{})
	}
	r.unanswered = append(r.unanswered, func(status int) {
		if status == 200 {
			for _, it := range m.Items {
				r.used[it.Bucket] += it.Used
			}
		}
		done(status, wire.AppendLeaseReply(nil, reply))
	})
	return nil
}

func newReporters(tb testing.TB, workers, keys int) *reporters {
	tb.Helper()
	p, err := quota.NewParams(1000, quota.Minute, 1000)
	if err != nil {
		tb.Fatal(err)
	}
	r := &reporters{
		clock: clock{now: 1000 * ms}, params: p, used: map[keyhash.Key]int64{}, since: map[keyhash.Key]quota.Instant{},
	}
	data := &shareddatatest.Data{}
	nodes := shareddata.NewNumber(data, shareddata.Space{}, shareddata.NodesAsked)
	nodes.Store(2)
	for range workers {
		store := bucketstore.New(data, [4]byte{}, keys, 0)
		r.stores = append(r.stores, store)
		r.clients = append(r.clients, leasing.New(leasing.Config{
			Store: store, Client: r, Clock: &r.clock, Shared: data, Node: "node", Boot: 1, Seed: 1,
		}))
	}
	r.tick()
	return r
}

// use has a worker decide about a token of the n-th bucket, under a version of the policy set.
func (r *reporters) use(worker, n int, version uint64) bool {
	var key keyhash.Key
	binary.LittleEndian.PutUint64(key[:], uint64(n))
	u := &leasing.Use{
		Need: leasing.Need{Bucket: key, Version: version, Params: r.params, Cost: 1, Optimistic: true},
		Now:  r.now, Charge: true, Slack: r.clients[worker].Slack(r.params),
	}
	if r.stores[worker].Update(bucketstore.Optimistic, key, r.now, u) != nil || !u.Result.Allowed {
		return false
	}
	if r.since[key] == 0 || u.Reports {
		r.since[key] = r.now
	}
	if u.Reports {
		r.clients[worker].Report(r.now, u.Need, u.Due)
	}
	return true
}

func (r *reporters) tick() {
	for _, answer := range r.probes {
		answer()
	}
	r.probes = nil
	for _, c := range r.clients {
		c.Tick(r.now)
	}
}

// answer ends the calls under way.
func (r *reporters) answer(status int) {
	for len(r.unanswered) > 0 {
		end := r.unanswered[0]
		r.unanswered = r.unanswered[1:]
		end(status)
	}
}

// pass has time pass, with ticks and answers.
func (r *reporters) pass(span quota.Span) {
	for end := r.now + quota.Instant(span); r.now < end; r.now += 10 * ms {
		r.tick()
		r.answer(200)
	}
}

func (r *reporters) reported() (sum int64) {
	for _, n := range r.used {
		sum += n
	}
	return sum
}

// Buckets that are used rarely, by both workers, are reported once each, together with others: 640
// buckets in a second take ten calls and not a call for each tick, and no report is a second and a
// tick late.
func TestReportsTravelTogether(t *testing.T) {
	r := newReporters(t, 2, 8192)
	for i := range 1280 {
		if !r.use(i%2, i/2, 1) {
			t.Fatal("refused")
		}
		if i%13 == 0 {
			r.pass(10 * quota.Millisecond)
		}
	}
	r.pass(2 * quota.Second)
	if most := 640/wire.MaxItems + 4; r.calls > most || r.reported() != 1280 || len(r.used) != 640 {
		t.Errorf("%d calls, at most %d do; %d of 1280 tokens of %d buckets", r.calls, most, r.reported(), len(r.used))
	}
	if r.late > quota.Instant(lease.ReportRarely)+10*ms {
		t.Errorf("a use was reported %d µs later", r.late)
	}
	r.pass(5 * quota.Second)
	if r.reported() != 1280 {
		t.Errorf("%d tokens in the end", r.reported())
	}
}

// The used tokens decide how soon they are reported: the slack is 500 here.
func TestABusyBucketIsReportedSooner(t *testing.T) {
	for uses, want := range map[int]quota.Instant{1: 1000, 31: 1000, 32: 100, 249: 100, 250: 0} {
		r := newReporters(t, 1, 64)
		begin := r.now
		for range uses {
			r.use(0, 1, 1)
		}
		for r.reported() == 0 && r.now < begin+3000*ms {
			r.answer(200)
			r.now += 10 * ms
			r.tick()
		}
		if got := r.now - begin; got < want*ms || got > (want+20)*ms || r.reported() != int64(uses) {
			t.Errorf("%d uses: %d reported after %d ms, want %d", uses, r.reported(), got/ms, want)
		}
	}
}

// While reports are under way due reports wait for their answer, or for the tick.
func TestReportsWaitForTheAnswer(t *testing.T) {
	r := newReporters(t, 1, 64)
	for n := 1; n <= 2; n++ {
		for range 250 {
			r.use(0, n, 1)
		}
	}
	if r.calls != 1 {
		t.Fatalf("%d calls at once", r.calls)
	}
	end := r.unanswered[0]
	r.unanswered = nil
	end(200)
	if r.calls != 2 {
		t.Errorf("%d calls after the answer", r.calls)
	}
}

// An unanswered report is sent again as a whole, soon if its call has ended or the control plane
// answers later calls. A report that is answered twice or late counts once.
func TestAReportWithoutAnAnswerIsMadeAgain(t *testing.T) {
	for _, status := range []int{0, 503, 200} {
		r := newReporters(t, 1, 64)
		r.use(0, 1, 1)
		r.now += quota.Instant(lease.ReportRarely)
		r.tick()
		late, wait := r.unanswered[0], 710*ms
		if status != 200 {
			wait = 250 * ms
			r.answer(status)
		}
		r.unanswered = nil
		r.use(0, 1, 1)
		for again := r.now + wait; r.now < again-1; r.now = min(r.now+10*ms, again-1) {
			r.tick()
		}
		r.tick()
		if r.calls != 1 {
			t.Fatalf("%d: reported again before its time", status)
		}
		r.now++
		r.tick()
		r.answer(200)
		if status == 200 {
			late(200)
		}
		if r.pass(3 * quota.Second); r.calls != 2 || r.reported() != 2+int64(status/200%2)*int64(status/200) {
			t.Errorf("%d: %d tokens in %d calls", status, r.reported(), r.calls)
		}
	}
}

// Buckets of two policy sets do not share a call.
func TestReportsOfTwoVersions(t *testing.T) {
	r := newReporters(t, 1, 1024)
	for n := range 40 {
		r.use(0, n, uint64(1+n%2))
	}
	r.pass(2 * quota.Second)
	if r.calls != 2 || r.reported() != 40 {
		t.Errorf("%d calls, %d tokens", r.calls, r.reported())
	}
}

// With more buckets than maxPending, reports leave early, and the other buckets are reported when
// they are used again.
func TestMoreBucketsThanFit(t *testing.T) {
	r := newReporters(t, 1, 1<<17)
	const buckets = 40_000
	for n := range buckets {
		r.use(0, n, 1)
	}
	r.pass(3 * quota.Second)
	for n := range buckets {
		r.use(0, n, 1)
		if n%100 == 0 {
			r.pass(10 * quota.Millisecond)
		}
	}
	r.pass(3 * quota.Second)
	if r.reported() != 2*buckets {
		t.Errorf("%d of %d tokens were reported", r.reported(), 2*buckets)
	}
}

// One operation is a decision about one of 20 000 optimistic buckets in turn, and its part in the
// report. Its cost must not grow with the decisions in a second, and so with the number of buckets
// to report.
func BenchmarkOptimistic(b *testing.B) {
	for _, rate := range []int{500, 5000, 20_000} {
		b.Run(fmt.Sprintf("%d_a_second", rate), func(b *testing.B) {
			r := newReporters(b, 1, 1<<15)
			decide := func(i int) {
				r.use(0, i%20_000, 1)
				if i%(rate/100) == 0 {
					r.now += 10 * ms
					r.tick()
					r.answer(200)
				}
			}
			for i := range 20_000 {
				decide(i)
			}
			before := r.calls
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				decide(i)
			}
			b.ReportMetric(float64(r.calls-before)*1000/float64(b.N), "calls/1000")
		})
	}
}
