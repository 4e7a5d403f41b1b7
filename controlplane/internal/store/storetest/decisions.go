package storetest

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
)

func testDecisions(t *testing.T, s *Instance) {
	ctx := testContext(t)
	if list := must[[]decisions.Decision](t)(s.Decisions(ctx, "", 10)); len(list) != 0 {
		t.Fatalf("an empty store has %v", list)
	}
	ends := time.Date(2040, 1, 1, 0, 0, 1, 0, time.UTC)
	first := decisions.Decision{At: ends.Add(-time.Second), Node: "edge", Version: 3, LimitIndex: 7, Policy: "ä",
		Tier: "free", Limit: "1 per 1s",
		From: "tier", Mode: "leased", Source: "central", Reason: "quota", Key: "00", Consumer: "11",
		Shown: map[string]string{"path": "/ \"x\""},
		Cost:  2, Left: 1, Ends: &ends, Count: 5}
	must1(t, s.AppendDecisions(ctx, []decisions.Decision{first}))
	const more = 300
	var list []decisions.Decision
	for n := range more {
		list = append(list, decisions.Decision{Policy: fmt.Sprint(n)})
	}
	for from := 0; from < more; from += 100 {
		must1(t, s.AppendDecisions(ctx, list[from:from+100]))
	}
	seen, before := 0, ""
	for {
		page := must[[]decisions.Decision](t)(s.Decisions(ctx, before, 70))
		for _, d := range page {
			if before != "" && d.ID >= before {
				t.Fatalf("%s comes after %s", d.ID, before)
			}
			before = d.ID
			seen++
			if seen <= more && d.Policy != fmt.Sprint(more-seen) {
				t.Fatalf("refusal %d is of %s", seen, d.Policy)
			}
			if seen == more+1 {
				first.ID = d.ID
				if !reflect.DeepEqual(d, first) {
					t.Errorf("read %+v, want %+v", d, first)
				}
			}
		}
		if len(page) < 70 {
			break
		}
	}
	if seen != more+1 {
		t.Errorf("%d refusals, want %d", seen, more+1)
	}
	for range decisions.Kept / 100 {
		must1(t, s.AppendDecisions(ctx, list[:100]))
	}
	if list := must[[]decisions.Decision](t)(s.Decisions(ctx, "", 2*decisions.Kept)); len(list) != decisions.Kept {
		t.Errorf("%d are kept, want %d", len(list), decisions.Kept)
	}
	if _, err := s.Decisions(ctx, "what", 1); !errors.Is(err, decisions.ErrCursor) {
		t.Errorf("an invented cursor: %v", err)
	}
}
