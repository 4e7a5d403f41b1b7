package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-proxy/weir/test/support/redistest"
	"github.com/weir-proxy/weir/tools/stack"
)

// change is an audit entry as the test reads it.
type change struct {
	Action, Resource string
	RequestID        string `json:"request_id"`
	Before, After    json.RawMessage
}

// content is the content of an entry about a policy set, of a rollout, or of a consumer.
type content struct {
	Version uint64
	Nodes   string
	Tier    string
}

// read returns the fields of an entry in the form of v; fields that the entry lacks stay zero.
func read[T any](t *testing.T, text json.RawMessage) (v T) {
	t.Helper()
	if len(text) > 0 {
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	return v
}

// reasons returns the reasons of orders.
func reasons(t *testing.T, text json.RawMessage) (all string) {
	t.Helper()
	for _, o := range read[[]struct{ Reason string }](t, text) {
		all += o.Reason
	}
	return all
}

const crashPolicies = "version: weir/v1\ntiers: [t0, t1, t2]\n" +
	"identity: {consumer: [{header: x-key}], tier: [assignment], default_tier: t0}\n" +
	"policies:\n  - {name: p, partition: [], limit: {quota: %d, window: 1h}}\n"

// attempt is a change that is tried; kind is a word for it.
type attempt struct{ kind, method, path, body string }

// attempts returns changes of the policy set, of a rollout, of one consumer and of the orders.
// Without a rollout its steps are refused, and during a rollout changes of the policy set.
func attempts(n int64, id string, random *rand.Rand) []attempt {
	document := fmt.Sprintf(crashPolicies, n)
	return []attempt{
		{"order", http.MethodPut, "/v1/enforcement", fmt.Sprintf(`{"orders": [{"state": "shadow", "policy": "p", "reason": %q}]}`, id)},
		{"tier", http.MethodPut, "/v1/consumers/alice", fmt.Sprintf(`{"tier": "t%d"}`, random.IntN(3))},
		{"no tier", http.MethodDelete, "/v1/consumers/alice", ""},
		{"version", http.MethodPut, "/v1/policyset", document},
		{"rollout", http.MethodPut, "/v1/policyset?nodes=25%25", document},
		{"share", http.MethodPut, "/v1/rollout", fmt.Sprintf(`{"nodes": "%d%%"}`, 1+random.IntN(99))},
		{"promoted", http.MethodPut, "/v1/rollout", `{"nodes": "100%"}`},
		{"taken back", http.MethodDelete, "/v1/rollout", ""},
	}
}

// writes makes changes, one after the other, until the control plane is gone. It returns the kinds
// of the answered changes by their request ids.
func writes(c *stack.ControlPlane, random *rand.Rand, count *atomic.Int64) map[string]string {
	answered := map[string]string{}
	for {
		n := count.Add(1)
		id := fmt.Sprintf("change-%06d", n)
		all := attempts(n, id, random)
		try := all[random.IntN(len(all))]
		answer, err := c.Call(context.Background(), try.method, try.path, []byte(try.body), "If-Match", "*",
			"X-Request-Id", id)
		if err != nil {
			return answered
		}
		if answer.Status/100 == 2 {
			answered[id] = try.kind
		}
	}
}

// history returns all audit entries, oldest first.
func (w *world) history() (all []change) {
	w.t.Helper()
	for token := ""; ; {
		var page struct {
			Entries []change
			Next    string `json:"next_page_token"`
		}
		if err := json.Unmarshal(w.get("/v1/audit?page_size=200&page_token="+token).Body, &page); err != nil {
			w.t.Fatal(err)
		}
		for _, e := range page.Entries {
			all = append([]change{e}, all...)
		}
		if token = page.Next; token == "" {
			return all
		}
	}
}

// tale is the state according to the audit.
type tale struct {
	// current is the number of the current version, newest the highest of all.
	current, newest uint64
	// draft is the rolled out document, zero if there is no rollout. steps counts the steps of all
	// rollouts, and ends is the end of each rollout, by its version.
	draft       content
	steps       uint64
	ends        map[uint64]string
	tier, order string
}

// next takes in an entry. It reports whether that begins where the one before it ended.
func (a *tale) next(t *testing.T, e change) bool {
	t.Helper()
	switch {
	case e.Resource == "policyset":
		before, after := read[content](t, e.Before), read[content](t, e.After)
		follows := before.Version == a.current && after.Version == a.newest+1 && a.draft == content{}
		a.newest = after.Version
		if after.Nodes == "" {
			a.current = after.Version
		} else {
			a.draft, a.ends[after.Version] = after, "under way"
			a.steps++
		}
		return follows
	case e.Resource == "rollout":
		before, after := read[content](t, e.Before), read[content](t, e.After)
		follows := before == a.draft && after.Version == a.draft.Version &&
			e.Action == "rollout.delete" == (after.Nodes == "0%")
		a.steps++
		a.draft = after
		switch after.Nodes {
		case "0%":
			a.draft, a.ends[after.Version] = content{}, "taken back"
		case "100%":
			a.draft, a.ends[after.Version], a.current = content{}, "promoted", after.Version
		}
		return follows
	case strings.HasPrefix(e.Resource, "consumers/"):
		before, after := read[content](t, e.Before), read[content](t, e.After)
		follows := before.Tier == a.tier && e.Action == "consumer.delete" == (after.Tier == "")
		a.tier = after.Tier
		return follows
	case e.Resource == "enforcement":
		follows := reasons(t, e.Before) == a.order
		a.order = reasons(t, e.After)
		return follows
	}
	return false
}

// agree checks that the audit tells exactly how the state came to be. Each change begins where the
// change before it ended, the last change ended in the present state, and every answered change is
// there once.
func (w *world) agree(seed uint64, answered map[string]string) {
	w.t.Helper()
	by, seen := tale{ends: map[uint64]string{}}, map[string]int{}
	for _, e := range w.history() {
		seen[e.RequestID]++
		was := by
		if !by.next(w.t, e) {
			w.t.Fatalf("seed %d: after %+v comes %s %s %s %s → %s", seed, was, e.RequestID, e.Action, e.Resource,
				e.Before, e.After)
		}
	}
	if is := w.found(by); !reflect.DeepEqual(is, by) {
		w.t.Errorf("seed %d: there is %+v, and by the audit there is %+v", seed, is, by)
	}
	for id := range answered {
		if seen[id] != 1 {
			w.t.Errorf("seed %d: %s was answered and is %d times in the audit", seed, id, seen[id])
		}
	}
	for id, n := range seen {
		if n != 1 {
			w.t.Errorf("seed %d: %s is %d times in the audit", seed, id, n)
		}
	}
	w.t.Logf("%d were made and not answered", len(seen)-1-len(answered)) // One is the test's own.
}

// found returns a with the present state in place of the tale's state. Facts that cannot be asked
// for stay: the steps while no rollout is under way, and the ends of versions that are no longer
// kept.
func (w *world) found(a tale) tale {
	w.t.Helper()
	a.draft, a.tier, a.ends = content{}, "", maps.Clone(a.ends)
	a.current = number(w.t, w.get("/v1/policyset").ETag)
	if answer := w.call(http.MethodGet, "/v1/rollout", "", ""); answer.Status == http.StatusOK {
		a.draft, a.steps = read[content](w.t, answer.Body), number(w.t, answer.ETag)
	}
	type version struct {
		Version uint64
		Rollout string
	}
	kept := read[struct{ Versions []version }](w.t, w.get("/v1/versions?page_size=200").Body).Versions
	a.newest = kept[0].Version
	for _, v := range kept {
		if delete(a.ends, v.Version); v.Rollout != "" {
			a.ends[v.Version] = v.Rollout
		}
	}
	if answer := w.call(http.MethodGet, "/v1/consumers/alice", "", ""); answer.Status == http.StatusOK {
		a.tier = read[content](w.t, answer.Body).Tier
	}
	a.order = reasons(w.t, read[struct{ Orders json.RawMessage }](w.t, w.get("/v1/enforcement").Body).Orders)
	return a
}

// number returns the number in an ETag.
func number(t *testing.T, tag string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(strings.Trim(tag, `"`), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Whenever the control plane is killed, there is no change without its audit entry and no entry
// without its change, on both stores: be it a change of the policy set, a step of a rollout, a
// consumer's tier or an order.
func TestAKilledControlPlaneLeavesChangesWithTheirEntries(t *testing.T) {
	t.Parallel()
	for name, redis := range map[string]bool{"embedded": false, "redis": true} {
		t.Run(name, func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			t.Log("seed", seed)
			w := start(t, setup{alone: true})
			if redis {
				w.serve.RedisURL = redistest.Start(t).URL()
			}
			random := rand.New(rand.NewPCG(seed, 1))
			var count atomic.Int64
			answered, kinds := map[string]string{}, map[string]int{}
			w.startControlPlane()
			// Not the first attempt's document, which would change nothing.
			w.apply(fmt.Sprintf(crashPolicies, 1_000_000))
			for kills := 0; kills < full(30) || len(kinds) < len(attempts(0, "", random)); kills++ {
				done := make(chan map[string]string)
				source := rand.New(rand.NewPCG(random.Uint64(), 2))
				go func() { done <- writes(w.controlPlane, source, &count) }()
				time.Sleep(time.Duration(random.Int64N(int64(60 * time.Millisecond)))) // Until a random moment.
				w.controlPlane.Kill()
				for id, kind := range <-done {
					answered[id] = kind
					kinds[kind]++
				}
				w.startControlPlane()
			}
			w.agree(seed, answered)
			t.Logf("%d changes tried, made and answered: %v", count.Load(), kinds)
		})
	}
}
