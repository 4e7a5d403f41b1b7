package wasm

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/envoytest"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// heard is the report of one worker about whom it limited.
type heard struct {
	vm   int
	at   time.Duration
	size int
	wire.Decisions
}

func (c *plane) hearDecisions(call *envoytest.Call, size int, m *wire.Decisions) {
	if m.Version == 0 {
		c.w.t.Errorf("decisions: %+v", m)
	}
	c.decisions = append(c.decisions, heard{vm: call.VM, at: c.w.now, size: size, Decisions: *m})
}

// refusals puts together the content of all messages: exact counts by policy, and the refusals.
func (c *plane) refusals() (counts map[uint32]int64, all []wire.Refusal) {
	counts = map[uint32]int64{}
	for _, m := range c.decisions {
		for _, one := range m.Counts {
			counts[one.Policy] += one.Refused
		}
		all = append(all, m.Refusals...)
	}
	return counts, all
}

func (c *plane) keyOf(consumer string) keyhash.Key {
	return match.ConsumerKey(c.secret, policy.Source{Kind: policy.SourceHeader, Name: "x-key"}, consumer)
}

// Reports say within a second who is refused, by which policy, why and by what, of requests that
// waited for the control plane too. API keys are reported as hashes alone, and headers that the
// policy set does not name are not shown.
func TestRefusalsAreReported(t *testing.T) {
	w := newWorld(t, fleet{nodes: 1, workers: 2, set: setWith(knows+`, "show": ["path", "header:x-app"]`,
		limits("local", "local", "2/1h", `"match": {"paths": ["/local"]}`),
		limits("strict", "strict", "1/1h", `"match": {"paths": ["/strict/**"]}`))})
	ask := func(path, key string) *attempt {
		r := get("x-key", key, "x-app", "shop", "x-other", "private")
		r.Headers[1][1] = path
		return w.ask(0, 0, r)
	}
	for range 4 {
		ask("/local", "alice-secret")
	}
	for range 2 {
		ask("/strict/a?token=private", "bob-secret")
	}
	w.advance(1500 * time.Millisecond)
	counts, all := w.plane.refusals()
	if counts[0] != 2 || counts[1] != 1 || len(all) < 2 {
		t.Fatalf("counts %v, refusals %+v", counts, all)
	}
	for _, r := range all {
		want, source, shown := "alice-secret", "local", "\x00\x06/local\x01\x04shop"
		if r.Policy == 1 {
			want, source, shown = "bob-secret", "cached_denial", "\x00\x09/strict/a\x01\x04shop"
		}
		if got := policy.Sources[r.Source]; got != source && !(r.Policy == 1 && got == "central") {
			t.Errorf("policy %d decided by %s", r.Policy, got)
		}
		if r.Consumer != w.plane.keyOf(want) || policy.Reasons[r.Reason] != "quota" || r.Cost != 1 || r.Left != 0 ||
			r.Limit != r.Policy ||
			r.Retry < quota.Minute || r.Ago > quota.Second || string(r.Shown) != shown || r.Bucket == (keyhash.Key{}) {
			t.Errorf("%+v", r)
		}
	}
	for _, m := range w.plane.decisions {
		text := fmt.Sprintf("%q", wire.AppendReport(nil, &wire.Report{Decisions: &m.Decisions}))
		if strings.Contains(text, "secret") || strings.Contains(text, "private") ||
			strings.Contains(text, hex.EncodeToString([]byte("secret"))) {
			t.Errorf("a message has a value that must not leave the node: %s", text)
		}
	}
	if n := w.counter("decisions.answered"); n == 0 || n > uint64(len(w.plane.decisions)) {
		t.Errorf("%d messages counted, %d came", n, len(w.plane.decisions))
	}
}

// knows makes a policy set find consumers in x-key.
const knows = `"identity": {"consumer": [{"header": "x-key"}]}`
