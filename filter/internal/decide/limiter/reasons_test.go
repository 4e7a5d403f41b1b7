package limiter_test

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/decide/limiter"
	"github.com/weir-proxy/weir/filter/internal/load/penalties"
	answers "github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// penalised gives a node penalties, and its control plane as before.
func (n *node) penalised() *penalties.Box {
	box := penalties.New(penalties.Config{Shared: n.data, Sets: 64, Clock: n, Seed: 1})
	config := limiter.Config{
		Store: bucketstore.New(n.data, [4]byte{}, 1024, 0), Flights: n.book, Leases: n.leases, Penalties: box,
	}
	n.limiter = limiter.New(config)
	return box
}

const firstRefusal = `,"penalty":{"after":{"refusals":1,"within":"1m"},"for":"10m"}`

// A refusal begins a penalty, and has a wait, for exactly the reasons of the table.
func TestReasonsThatCount(t *testing.T) {
	counted := 0
	for i := range answers.Kinds {
		reason := policy.Reason(i)
		n := newNode(t, false, `{"name":"p","partition":["client_ip"],"limit":{"quota":9,"window":"1m"},"mode":"local"`+firstRefusal+`}`)
		box := n.penalised()
		req, status := n.begin()
		if status != limiter.Allowed {
			t.Fatal(status)
		}
		req.Hits[0].Retry = quota.Second
		n.limiter.Refuse(req, reason, n.now)
		if got := box.Stats.Begun; got != 0 && got != 1 || got == 1 != answers.Kinds[i].Counts {
			t.Errorf("%v: %d penalties", reason, got)
		}
		if waits := req.Hits[0].Retry != quota.Never; waits != answers.Kinds[i].Waits {
			t.Errorf("%v: waits %v", reason, waits)
		}
		counted += int(box.Stats.Begun)
	}
	if counted != 2 { // Quota and in_flight.
		t.Errorf("%d reasons count", counted)
	}
}

// More keys come at once than claims may be under way. Callers of keys that were not asked about do
// not have too many requests: on_failure decides, and no penalty begins.
func TestAClaimThatWasNotSentIsNobodysUse(t *testing.T) {
	n := newNode(t, true, `{"name":"p","partition":["header:x-key"],"limit":{"in_flight":2},"mode":"leased"`+firstRefusal+`}`)
	box := n.penalised()
	waiting := map[uint32]*limiter.Request{}
	for i := range 300 {
		req, status := n.begin("x-key", fmt.Sprint(i))
		if status != limiter.Paused {
			t.Fatalf("key %d: %v", i, status)
		}
		waiting[req.Stream] = req
	}
	reasons := map[policy.Reason]int{}
	for range 7 { // The calls under way have no answer.
		n.now += 10 * millisecond
		n.book.Tick(n.now)
		n.leases.Tick(n.now)
		for _, stream := range n.book.TakeResolved(1000) {
			if req := waiting[stream]; n.limiter.Resume(req, n.now) == limiter.Refused {
				reasons[req.Reason]++
				delete(waiting, stream)
			}
		}
	}
	if len(waiting) > 0 || reasons[policy.ReasonFailure] != 300 || box.Stats.Begun > 0 {
		t.Errorf("%d wait, refused %v, %d penalties", len(waiting), reasons, box.Stats.Begun)
	}
}

// If a store has lost its records of permits, no caller counts as having too many requests in
// flight. The node keeps its permits until the control plane has records again.
func TestALostCountIsNobodysUse(t *testing.T) {
	n := newNode(t, true, `{"name":"p","partition":["client_ip"],"limit":{"in_flight":10},"mode":"leased"`+firstRefusal+`}`)
	box := n.penalised()
	four := func() (open []*limiter.Request) {
		for range 4 {
			req, status := n.begin()
			if status == limiter.Paused {
				n.answerWith(200)
				n.book.TakeResolved(9)
				status = n.limiter.Resume(req, n.now)
			}
			if status != limiter.Allowed {
				t.Fatalf("%v %v with %d in flight", status, req.Reason, len(open))
			}
			open = append(open, req)
		}
		return open
	}
	open := four()
	n.let(quota.Instant(quota.Second), 200)
	n.plane.LostUntil = n.now + quota.Instant(10*quota.Second)
	clear(n.plane.Permits)
	for range 12 { // Six seconds, with moments in which nothing is in flight.
		n.let(quota.Instant(300*quota.Millisecond), 200)
		for _, req := range open {
			n.end(req)
		}
		n.let(quota.Instant(200*quota.Millisecond), 200)
		open = four()
	}
	more, last := n.fillAsking()
	if last.Reason != policy.ReasonFailure || box.Stats.Begun > 0 || n.limiter.Stats.Refused != 1 {
		t.Errorf("%d more, then %v; %d penalties", len(more), last.Reason, box.Stats.Begun)
	}
	if wait := last.Hits[0].Retry; wait < quota.Second || wait > 10*quota.Second {
		t.Errorf("it asks for a wait of %d µs", wait)
	}
	n.let(quota.Instant(last.Hits[0].Retry), 200)
	if req, status := n.begin(); status == limiter.Refused {
		t.Errorf("after the wait: %v", req.Reason)
	}
}

// Places of other Envoys may be idle there, so a refusal for want of them does not blame the
// caller. If all places are in use here, it does.
func TestPlacesElsewhereAreNobodysUse(t *testing.T) {
	for elsewhere, want := range map[int64]policy.Reason{0: policy.ReasonInFlight, 4: policy.ReasonFailure} {
		for _, trial := range []bool{false, true} {
			fields := firstRefusal
			if trial {
				fields += `,"enforcement":"shadow"`
			}
			n := newNode(t, true, `{"name":"p","partition":["client_ip"],"limit":{"in_flight":10},"mode":"leased"`+fields+`}`)
			box := n.penalised()
			n.plane.Elsewhere = elsewhere
			begun := uint64(0)
			if want == policy.ReasonInFlight {
				begun = 1
			}
			if trial {
				for range 11 {
					n.begin()
					n.answerWith(200)
				}
				begun = 0
				if s := n.limiter.Stats; s.ShadowRefused != uint64(1+elsewhere) || s.ShadowUndetermined > 0 {
					t.Errorf("%d elsewhere: %d would be refused", elsewhere, s.ShadowRefused)
				}
				if shadow := box.Stats.ShadowBegun; shadow > 0 != (want == policy.ReasonInFlight) {
					t.Errorf("%d elsewhere: %d penalties in shadow", elsewhere, shadow)
				}
			} else if open, last := n.fillAsking(); int64(len(open)) != 10-elsewhere || last.Reason != want {
				t.Errorf("%d elsewhere: %d in flight, then %v", elsewhere, len(open), last.Reason)
			}
			if box.Stats.Begun != begun {
				t.Errorf("%d elsewhere: %d penalties", elsewhere, box.Stats.Begun)
			}
		}
	}
}

// If a bucket starts half full, because the store has lost its state, no caller counts as having
// used up its quota until that is over. This holds asked or not, enforced or in shadow.
func TestABucketInDoubtIsNoCallersUse(t *testing.T) {
	for _, mode := range []string{"strict", "leased", "optimistic"} {
		for _, trial := range []bool{false, true} {
			fields := firstRefusal
			if trial {
				fields += `,"enforcement":"shadow"`
			}
			n := newNode(t, true, `{"name":"p","partition":["client_ip"],"limit":{"quota":10,"window":"1h"},"mode":"`+mode+`"`+fields+`}`)
			box := n.penalised()
			n.plane.LostUntil = n.now + quota.Instant(quota.Hour)
			refused := map[policy.Reason]int{}
			use := func() {
				for range 20 {
					req, status := n.begin()
					for status == limiter.Paused && len(n.calls) > 0 {
						n.answerWith(200)
						n.leases.TakeResolved(9)
						status = n.limiter.Resume(req, n.now)
					}
					n.let(20*millisecond, 200)
					if status == limiter.Refused {
						refused[req.Reason]++
					}
				}
			}
			use()
			s, begun := n.limiter.Stats, box.Stats.Begun+box.Stats.ShadowBegun
			inDoubt := refused[policy.ReasonFailure] >= 10 && len(refused) == 1
			if trial {
				inDoubt = s.ShadowRefused >= 10
			}
			if begun > 0 || !inDoubt {
				t.Errorf("%s, shadow %v: in doubt: %v, %d in shadow, %d penalties", mode, trial, refused,
					s.ShadowRefused, begun)
			}
			n.let(2*quota.Instant(quota.Hour), 200)
			use()
			begun = box.Stats.Begun + box.Stats.ShadowBegun
			if begun == 0 || !trial && refused[policy.ReasonQuota] == 0 {
				t.Errorf("%s, shadow %v: when it is over: %v, %d penalties", mode, trial, refused, begun)
			}
		}
	}
}

// A flood fills the table, and buckets that owe are evicted: a new caller then starts with the
// possible debt of an evicted bucket. Its refusal is not its own use, and brings no penalty, until
// that is over. A caller that has used its own tokens is blamed, before and after.
func TestTheDebtOfAnEvictedBucketIsNoCallersUse(t *testing.T) {
	for _, algorithm := range []string{"token_bucket", "sliding_window", "sliding_log", "fixed_window"} {
		n := newNode(t, false, `{"name":"p","partition":["header:x-key"],"mode":"local","limit":{"quota":2,"window":"1h"},`+
			`"algorithm":"`+algorithm+`"`+firstRefusal+`}`)
		box := n.penalised()
		exhaust := func(key string) {
			t.Helper()
			begun := box.Stats.Begun
			for i, want := range []limiter.Status{limiter.Allowed, limiter.Allowed, limiter.Refused} {
				req, status := n.begin("x-key", key)
				if status != want || status == limiter.Refused && req.Reason != policy.ReasonQuota {
					t.Errorf("%s: request %d of %s: %v %v", algorithm, i, key, status, req.Reason)
				}
			}
			if box.Stats.Begun != begun+1 {
				t.Errorf("%s: %d penalties of %s, want 1", algorithm, box.Stats.Begun-begun, key)
			}
		}
		exhaust("early")
		for i := range 20000 {
			n.begin("x-key", fmt.Sprint("flood ", i))
			n.now += 100
		}
		begun, again := box.Stats.Begun, ""
		heirs := map[policy.Reason]int{}
		for i := range 1000 {
			key := fmt.Sprint("new ", i)
			for range 3 { // The bucket keeps the debt, and remembers whose it is.
				req, status := n.begin("x-key", key)
				if status == limiter.Refused {
					heirs[req.Reason]++
					again = key
					break
				}
			}
		}
		if heirs[policy.ReasonFailure] == 0 || box.Stats.Begun-begun != uint64(heirs[policy.ReasonQuota]) {
			t.Errorf("%s: refused %v, %d penalties", algorithm, heirs, box.Stats.Begun-begun)
		}
		n.now += 3 * quota.Instant(quota.Hour)
		exhaust(again)
	}
}

// The same for an optimistic limit. The control plane knows the used tokens of an evicted bucket,
// so a caller whose bucket begins with such a debt is refused only if the control plane refuses it:
// each caller gets all of its own tokens, and is blamed when it has used them up.
func TestTheDebtOfAnEvictedOptimisticBucketIsNoCallersUse(t *testing.T) {
	n := newNode(t, true, `{"name":"p","partition":["header:x-key"],"mode":"optimistic",`+
		`"limit":{"quota":4,"window":"1h"}`+firstRefusal+`}`)
	n.plane.Nodes = 1
	box := n.penalised()
	send := func(key string) (*limiter.Request, limiter.Status) {
		req, status := n.begin("x-key", key)
		for status == limiter.Paused && len(n.calls) > 0 {
			n.answerWith(200)
			n.leases.TakeResolved(9)
			status = n.limiter.Resume(req, n.now)
		}
		return req, status
	}
	for i := range 20000 {
		send(fmt.Sprint("flood ", i))
		if i%200 == 199 { // All is reported before its bucket loses its place.
			n.let(2*quota.Instant(quota.Second), 200)
		}
	}
	if box.Stats.Begun > 0 || n.limiter.Stats.Refused > 0 {
		t.Errorf("%d of the flood are refused, %d penalties", n.limiter.Stats.Refused, box.Stats.Begun)
	}
	asked := n.limiter.Stats.Waited
	for i := range 300 {
		key, begun := fmt.Sprint("new ", i), box.Stats.Begun
		for k := range 5 {
			req, status := send(key)
			if status == limiter.Refused != (k == 4) || status == limiter.Refused && req.Reason != policy.ReasonQuota {
				t.Fatalf("request %d of %s: %v %v", k, key, status, req.Reason)
			}
		}
		n.let(quota.Instant(quota.Second), 200)
		if box.Stats.Begun != begun+1 {
			t.Errorf("%d penalties of %s, want 1", box.Stats.Begun-begun, key)
		}
	}
	if n.limiter.Stats.Waited == asked {
		t.Error("no caller began with the debt of another caller")
	}
}
