package storetest

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
)

func testAudit(t *testing.T, s *Instance) {
	ctx := testContext(t)
	if all := must[[]audit.Entry](t)(s.Audit(ctx, "", 10)); len(all) != 0 {
		t.Fatalf("an empty store has the entries %v", all)
	}
	who := audit.Entry{By: "ädmin", Role: "admin", Action: "policyset.put", Resource: "policyset", RequestID: "R1",
		Reason: "why\nnot \"so\"",
		Before: audit.Value(1), After: audit.Value("2 </ä>")}
	must1(t, s.Append(ctx, 0, version(1), who))
	consumer := audit.Entry{By: "ed", Action: "consumer.put", Resource: "consumers/01"}
	write := func(tier, action string) consumers.Changes {
		w, e := consumers.Write{Key: consumerKey(1), Any: true}, consumer
		e.Action = action
		if tier != "" {
			w.Record, e.After = &consumers.Record{Tier: tier, By: "ed"}, audit.Value(tier)
		}
		return consumers.Changes{Writes: []consumers.Write{w}, Entry: e}
	}
	must[uint64](t)(consumers.Kept{In: s}.WriteConsumers(ctx, write("free", "consumer.put")))
	must[uint64](t)(consumers.Kept{In: s}.WriteConsumers(ctx, write("gold", "consumer.put")))
	must1(t, s.Append(ctx, 1, version(2), audit.Entry{Action: "policy.patch", Resource: "policies/a"}))
	must[uint64](t)(consumers.Kept{In: s}.WriteConsumers(ctx, write("", "consumer.delete")))
	// A refused change leaves no entry.
	if err := s.Append(ctx, 1, version(2), who); err == nil {
		t.Error("a conflict is none")
	}
	if _, err := writeConsumer(ctx, s,
		consumers.Write{Key: consumerKey(1), Expected: 7,
			Record: &consumers.Record{}}); !errors.Is(err, errs.Conflict) {
		t.Errorf("a conflict: %v", err)
	}
	_, err := consumers.Kept{In: s}.WriteConsumers(ctx, write("", "consumer.delete"))
	if !errors.Is(err, consumers.ErrNotFound) {
		t.Errorf("nothing to forget: %v", err)
	}
	s.Restart(t)
	all := must[[]audit.Entry](t)(s.Audit(ctx, "", 10))
	var got []string
	for i, e := range all {
		if late := e.At.Sub(all[len(all)-1].At); late < 0 || late > time.Minute || e.At.Year() < 2026 {
			t.Errorf("%+v is at another time", e)
		}
		if i > 0 && (e.ID >= all[i-1].ID || e.At.After(all[i-1].At)) {
			t.Errorf("%s comes after %s", e.ID, all[i-1].ID)
		}
		got = append(got, fmt.Sprintf("%s %s %s→%s", e.Action, e.Resource, tierIn(e.Before), tierIn(e.After)))
	}
	want := []string{"consumer.delete consumers/01 gold→", "policy.patch policies/a →", `consumer.put consumers/01 free→"gold"`,
		`consumer.put consumers/01 →"free"`, `policyset.put policyset 1→"2 \u003c/ä\u003e"`}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("entries\n%q, want\n%q", got, want)
	}
	if first := all[4]; first.By != who.By || first.Role != who.Role || first.RequestID != who.RequestID ||
		first.Reason != who.Reason {
		t.Errorf("kept %+v, want %+v", first, who)
	}
	testAuditPages(t, s, all)
}

// testAuditPages reads the entries of all, newest first, starting from each of them.
func testAuditPages(t *testing.T, s *Instance, all []audit.Entry) {
	ctx := testContext(t)
	for before := range all {
		rest := must[[]audit.Entry](t)(s.Audit(ctx, all[before].ID, 2))
		for i, e := range rest {
			if e.ID != all[before+1+i].ID {
				t.Errorf("after %s comes %s, want %s", all[before].ID, e.ID, all[before+1+i].ID)
			}
		}
		if len(rest) != min(2, len(all)-before-1) {
			t.Errorf("%d entries before %s", len(rest), all[before].ID)
		}
	}
	if _, err := s.Audit(ctx, "what", 1); !errors.Is(err, audit.ErrCursor) {
		t.Errorf("an invented cursor: %v", err)
	}
}

// tierIn returns the tier of a record, or the value itself.
func tierIn(value []byte) string {
	var r consumers.Record
	if json.Unmarshal(value, &r) == nil {
		return r.Tier
	}
	return string(value)
}

func must1(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func testAuditIsBounded(t *testing.T, s *Instance) {
	ctx := testContext(t)
	must1(t, s.Append(ctx, 0, version(1), audit.Entry{Action: "policyset.put"}))
	const more = 3
	for n := range audit.Kept + more {
		w := consumers.Write{Key: consumerKey(1), Any: true, Record: &consumers.Record{Tier: "t"}}
		must[uint64](t)(consumers.Kept{In: s}.WriteConsumers(ctx,
			consumers.Changes{Writes: []consumers.Write{w}, Entry: audit.Entry{Action: fmt.Sprint(n)}}))
	}
	all := must[[]audit.Entry](t)(s.Audit(ctx, "", 2*audit.Kept))
	if len(all) != audit.Kept+1 || all[0].Action != fmt.Sprint(audit.Kept+more-1) ||
		all[audit.Kept-1].Action != fmt.Sprint(more) {
		t.Errorf("%d entries are kept of consumers, the newest %s and the oldest %s", len(all)-1, all[0].Action,
			all[len(all)-2].Action)
	}
	if last := all[len(all)-1]; last.Action != "policyset.put" {
		t.Errorf("many changes of consumers pushed out the change of the policy set: %+v", last)
	}
}

func testAuditRace(t *testing.T, s *Instance) {
	ctx := testContext(t)
	var wait sync.WaitGroup
	const writers, writes = 8, 10
	for writer := range writers {
		wait.Go(func() {
			for range writes {
				w := consumers.Write{Key: consumerKey(writer), Any: true, Record: &consumers.Record{Tier: "t"}}
				c := consumers.Changes{Writes: []consumers.Write{w}, Entry: audit.Entry{Action: "put"}}
				if _, err := (consumers.Kept{In: s}).WriteConsumers(ctx, c); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wait.Wait()
	ids := map[string]bool{}
	for _, e := range must[[]audit.Entry](t)(s.Audit(ctx, "", 1000)) {
		ids[e.ID] = true
	}
	if len(ids) != writers*writes {
		t.Errorf("%d entries of %d changes", len(ids), writers*writes)
	}
}
