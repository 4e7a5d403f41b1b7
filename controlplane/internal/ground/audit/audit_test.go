package audit_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
)

func TestEntryRoundTrip(t *testing.T) {
	e := audit.Entry{By: "a", Role: "admin", Action: "policy.put", Resource: "policies/x", RequestID: "R", Before: json.RawMessage(`{"version":1}`),
		After: audit.Value([]int{2}), Reason: "ä"}
	text, err := e.Encode()
	if err != nil {
		t.Fatal(err)
	}
	got, err := audit.Decode("meta", "1777887000123456 "+text)
	e.ID, e.At = "1777887000123456-meta", time.UnixMicro(1777887000123456).UTC()
	if err != nil || !reflect.DeepEqual(got, e) {
		t.Errorf("%+v, %v; want %+v", got, err, e)
	}
	for _, damaged := range []string{"", "1", "x {}", "1 [", "{}"} {
		if _, err := audit.Decode("meta", damaged); err == nil {
			t.Errorf("%q is read", damaged)
		}
		told := audit.Read("meta", 1777887000123456, damaged)
		if told.ID != e.ID || !told.At.Equal(e.At) || told.Action != audit.DamagedAction || told.Reason == "" {
			t.Errorf("%q is shown as %+v", damaged, told)
		}
	}
}

func TestEntryIsBounded(t *testing.T) {
	long := strings.Repeat("ä", 100_000)
	text, err := audit.Entry{By: long, Action: long, Reason: long, RequestID: long, Before: audit.Value(long),
		After: audit.Value(long)}.Encode()
	if err != nil || len(text) > 4000 {
		t.Errorf("%d bytes, %v", len(text), err)
	}
	got, err := audit.Decode("meta", "1 "+text)
	if err != nil || string(got.Before) != `"200002 bytes"` || !strings.HasSuffix(got.Reason, "ä…") {
		t.Errorf("%+v, %v", got, err)
	}
	if text, _ := (audit.Entry{}).Encode(); text == "{}" {
		t.Error("an entry is empty, and the script cannot add to it")
	}
}

func TestStamp(t *testing.T) {
	if at, err := audit.Stamp("1777887000123456-meta"); at != 1777887000123456 || err != nil {
		t.Error(at, err)
	}
	for _, id := range []string{"", "1-meta", "1777887000123456", "1777887000123456-", "-777887000123456-meta",
		"177788700012345x-a"} {
		if _, err := audit.Stamp(id); !errors.Is(err, audit.ErrCursor) {
			t.Errorf("%q: %v", id, err)
		}
	}
}

// list is a store of entries, newest first.
type list []audit.Entry

func (l list) Audit(_ context.Context, before string, limit int) (page []audit.Entry, err error) {
	for _, e := range l {
		if (before == "" || e.ID < before) && len(page) < limit {
			page = append(page, e)
		}
	}
	return page, nil
}

func history(n int) (l list) {
	for i := n - 1; i >= 0; i-- {
		at := time.UnixMicro(1777887000000000 + int64(i)*1e6)
		l = append(l, audit.Entry{ID: fmt.Sprintf("%016d-meta", at.UnixMicro()), At: at,
			By: []string{"ann", "bob"}[i%2], Resource: fmt.Sprintf("policies/%d", i)})
	}
	return l
}

// A resource selects itself and all resources below it, by whole segments, with or without a slash.
func TestFindWhatIsBelow(t *testing.T) {
	var all list
	for _, r := range []string{"keys/calls/1", "keys/calls2/1", "keys", "keys2", "rollout", "policies/keys"} {
		all = append(all, audit.Entry{ID: r, Resource: r})
	}
	for asked, want := range map[string]string{
		"": "keys/calls/1 keys/calls2/1 keys keys2 rollout policies/keys", "keys": "keys/calls/1 keys/calls2/1 keys",
		"keys/": "keys/calls/1 keys/calls2/1 keys", "keys/calls": "keys/calls/1", "keys/calls/": "keys/calls/1",
		"keys/calls/1": "keys/calls/1", "keys/call": "", "rollout/": "rollout", "rollout": "rollout", "consumers": "",
	} {
		found, _, err := audit.Find(t.Context(), all, audit.Query{Resource: asked}, 10)
		var got []string
		for _, e := range found {
			got = append(got, e.Resource)
		}
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%q: %v, %q, want %q", asked, err, got, want)
		}
	}
}

// For every query, all pages together are exactly the wanted entries, in order.
func TestFindPages(t *testing.T) {
	all := history(120)
	for _, q := range []audit.Query{{}, {By: "bob"}, {Resource: "policies/7"}, {Resource: "policies/"},
		{Resource: "consumers/"}, {Since: all[50].At}, {Since: all[50].At, By: "ann"}} {
		var want, got []string
		for _, e := range all {
			if (q.By == "" || e.By == q.By) &&
				(q.Resource == "" || q.Resource == "policies/" || q.Resource == e.Resource) && !e.At.Before(q.Since) {
				want = append(want, e.ID)
			}
		}
		for pages := 0; ; pages++ {
			page, next, err := audit.Find(t.Context(), all, q, 7)
			if err != nil || pages > 100 {
				t.Fatal(err)
			}
			for _, e := range page {
				got = append(got, e.ID)
			}
			if q.Before = next; next == "" {
				break
			}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%+v: %d entries, want %d", q, len(got), len(want))
		}
	}
}

// A rare entry in a long history does not make one request read it all.
func TestFindReadsABoundedNumber(t *testing.T) {
	all := history(8000)
	page, next, err := audit.Find(t.Context(), all, audit.Query{Resource: "policies/0"}, 10)
	if err != nil || len(page) != 0 || next != all[4999].ID {
		t.Fatalf("%d found, next %q, %v", len(page), next, err)
	}
	page, next, err = audit.Find(t.Context(), all, audit.Query{Resource: "policies/0", Before: next}, 10)
	if err != nil || len(page) != 1 || next != "" {
		t.Errorf("%d found, next %q, %v", len(page), next, err)
	}
}
