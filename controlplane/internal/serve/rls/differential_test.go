//go:build !race

package rls_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromenvoy"
)

// How many configurations are compared, and how many calls of each.
const (
	configurations = 600
	callsOfEach    = 50
)

// peer is envoyproxy/ratelimit in a process of its own: see testdata/peer.
type peer struct {
	t   *testing.T
	in  *json.Encoder
	out *json.Decoder
}

func startPeer(t *testing.T) *peer {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "peer")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, ".")
	build.Dir = "testdata/peer"
	build.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("envoyproxy/ratelimit does not build. Is the network there? %v\n%s", err, output)
	}
	command := exec.Command(binary)
	command.Stderr = os.Stderr
	in, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		if _, err := io.Copy(io.Discard, out); err != nil {
			t.Error(err)
		}
		if err := command.Wait(); err != nil {
			t.Error(err)
		}
	})
	return &peer{t, json.NewEncoder(in), json.NewDecoder(out)}
}

// say sends a line and reads the answer.
func (p *peer) say(line map[string]any) (plain, undone *rlspb.RateLimitResponse, failure string) {
	p.t.Helper()
	if err := p.in.Encode(line); err != nil {
		p.t.Fatal(err)
	}
	var answer struct {
		Error         string
		Plain, Undone []byte
	}
	if err := p.out.Decode(&answer); err != nil {
		p.t.Fatal(err)
	}
	plain, undone = &rlspb.RateLimitResponse{}, &rlspb.RateLimitResponse{}
	if err := proto.Unmarshal(answer.Plain, plain); err != nil {
		p.t.Fatal(err)
	}
	if err := proto.Unmarshal(answer.Undone, undone); err != nil {
		p.t.Fatal(err)
	}
	return plain, undone, answer.Error
}

// The stated differences between Weir and envoyproxy/ratelimit, as docs/integrate/rls.md has them.
const (
	chargesRefused = "a refused call is charged"       // And so later ones can be refused that Weir allows.
	showsRefused   = "a refused call shows its charge" // The remaining tokens show it.
	showsLeft      = "a refused limit shows what is left"
	showsShadow    = "a rule in shadow shows its limit" // quota_mode is such a rule too.
	showsUnlimited = "an unlimited rule says so"
	showsUnused    = "an unused limit has a reset"
)

// Weir answers like envoyproxy/ratelimit, call by call, except for the stated differences: the same
// code of the call and of each descriptor, the same limit, the same rest of it and the same reset.
// The peer answers twice: unchanged, and with the tokens of refused calls given back. The second
// answer must be equal.
func TestEnvoyproxyRatelimit(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r, p, seen := rand.New(rand.NewPCG(seed, 0)), startPeer(t), map[string]int{}
	calls, refused := 0, 0
	for range configurations {
		c := newComparison(t, r, p, seen)
		for range callsOfEach {
			c.call()
			calls++
		}
		refused += c.refused
		if t.Failed() {
			t.Fatalf("configuration\n%s\npolicies\n%s", c.tree.yaml(), c.policies)
		}
	}
	t.Logf("%d configurations, %d calls, of which %d were refused; differences: %v", configurations, calls, refused,
		seen)
	for _, what := range []string{chargesRefused, showsRefused, showsLeft, showsShadow, showsUnlimited, showsUnused} {
		if seen[what] == 0 {
			t.Errorf("not seen: %s", what)
		}
	}
	if refused < calls/20 || refused > calls*19/20 {
		t.Errorf("%d of %d calls were refused", refused, calls)
	}
}

// comparison is one configuration at both.
type comparison struct {
	t     *testing.T
	r     *rand.Rand
	peer  *peer
	tree  *tree
	world *world
	// policies is the configuration as it is imported.
	policies string
	seen     map[string]int
	refused  int
}

func newComparison(t *testing.T, r *rand.Rand, p *peer, seen map[string]int) *comparison {
	t.Helper()
	c := &comparison{t: t, r: r, peer: p, tree: newTree(r), seen: seen}
	imported, err := fromenvoy.RateLimitService([]importer.File{{Name: "config.yaml", Text: []byte(c.tree.yaml())}},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, failure := p.say(map[string]any{"config": c.tree.yaml()}); failure != "" {
		t.Fatalf("envoyproxy/ratelimit refuses the configuration: %s\n%s", failure, c.tree.yaml())
	}
	for _, item := range imported.Items {
		if item.Verdict == importer.NotPossible {
			t.Fatalf("%s: %s\n%s", item.What, item.Reason, c.tree.yaml())
		}
	}
	c.policies = string(imported.Document)
	c.world = begin(t, c.policies)
	return c
}

// request draws a call.
func (c *comparison) request() *rlspb.RateLimitRequest {
	in := &rlspb.RateLimitRequest{Domain: c.tree.domain}
	if c.r.IntN(40) == 0 {
		in.Domain = "unknown"
	}
	for range 1 + c.r.IntN(3) {
		d := descriptor(c.tree.descriptor(c.r))
		if c.r.IntN(5) == 0 {
			d.HitsAddend = wrapperspb.UInt64(uint64(c.r.IntN(4)))
		}
		in.Descriptors = append(in.Descriptors, d)
	}
	if c.r.IntN(3) == 0 {
		in.HitsAddend = uint32(c.r.IntN(4))
	}
	return in
}

// call compares the answers to a call at a moment that is not in the last 50 ms of a second: tokens
// that Weir grants then may be used in the next window, and count there too.
func (c *comparison) call() {
	steps := []time.Duration{0, 100 * time.Millisecond, time.Second, 20 * time.Second, time.Hour, 24 * time.Hour}
	now := c.world.now.Add(steps[min(c.r.IntN(20), len(steps)-1)%len(steps)])
	if c.r.IntN(3) > 0 {
		now = c.world.now.Add(time.Duration(c.r.IntN(300)) * time.Millisecond)
	}
	if into := now.Sub(now.Truncate(time.Second)); into > 900*time.Millisecond {
		now = now.Add(time.Second - into)
	}
	c.world.now = now
	in := c.request()
	encoded, err := proto.Marshal(in)
	if err != nil {
		c.t.Fatal(err)
	}
	plain, undone, failure := c.peer.say(map[string]any{"at": now.Unix(), "request": encoded})
	ours := c.world.ask(in)
	if ours.OverallCode == rlspb.RateLimitResponse_OVER_LIMIT {
		c.refused++
	}
	if failure != "" || ours.OverallCode != undone.OverallCode {
		c.t.Errorf("%v at %s: %s, want %s %s", in, now, shown(ours), shown(undone), failure)
		return
	}
	if plain.OverallCode != undone.OverallCode {
		if plain.OverallCode != rlspb.RateLimitResponse_OVER_LIMIT {
			c.t.Errorf("%v: it allows with the charged tokens, and not without", in)
		}
		c.seen[chargesRefused]++
	}
	for i := range in.Descriptors {
		if problem := c.compare(in, i, ours, undone); problem != "" {
			c.t.Errorf("%v at %s: descriptor %d: %s\n%s, want\n%s", in, now, i, problem, shown(ours), shown(undone))
		}
	}
}

// hits returns the number of hits of a descriptor.
func hits(in *rlspb.RateLimitRequest, i int) uint32 {
	if own := in.Descriptors[i].HitsAddend; own != nil {
		return uint32(own.Value)
	}
	return max(1, in.HitsAddend)
}

// compare returns the difference between two answers about a descriptor, unless it is a stated
// difference.
func (c *comparison) compare(in *rlspb.RateLimitRequest, i int, ours, theirs *rlspb.RateLimitResponse) string {
	got, want := ours.Statuses[i], theirs.Statuses[i]
	rule := c.tree.rules[want.GetCurrentLimit().GetName()]
	switch {
	case rule != nil && (rule.shadow || rule.quotaOf):
		c.seen[showsShadow]++
		if got.Code != rlspb.RateLimitResponse_OK || got.CurrentLimit != nil {
			return "a rule in shadow"
		}
		return ""
	case want.CurrentLimit == nil && want.LimitRemaining > 0:
		c.seen[showsUnlimited]++
		if got.Code != rlspb.RateLimitResponse_OK || got.CurrentLimit != nil {
			return "an unlimited rule"
		}
		return ""
	case got.Code != want.Code:
		return "another code"
	case got.CurrentLimit.GetRequestsPerUnit() != want.CurrentLimit.GetRequestsPerUnit() ||
		got.CurrentLimit.GetUnit() != want.CurrentLimit.GetUnit() ||
		(got.CurrentLimit == nil) != (want.CurrentLimit == nil):
		return "another limit" // The import names policies by their descriptors.
	case want.CurrentLimit == nil:
		return ""
	}
	remaining := want.LimitRemaining
	if theirs.OverallCode == rlspb.RateLimitResponse_OVER_LIMIT && want.Code == rlspb.RateLimitResponse_OK {
		charged := c.charged(in, i, i, theirs)
		if charged > 0 {
			c.seen[showsRefused]++
		}
		remaining += charged
	}
	most := c.charged(in, i, len(in.Descriptors)-1, theirs)
	if got.Code == rlspb.RateLimitResponse_OVER_LIMIT && got.LimitRemaining > 0 && got.LimitRemaining < most {
		c.seen[showsLeft]++
		remaining = got.LimitRemaining
	}
	if got.LimitRemaining != remaining {
		return fmt.Sprintf("%d are left, want %d", got.LimitRemaining, remaining)
	}
	reset := got.DurationUntilReset.AsDuration()
	whole := want.CurrentLimit.RequestsPerUnit
	if reset == 0 && (remaining == whole || most > whole) {
		c.seen[showsUnused]++
		return ""
	}
	if seconds := (reset + time.Second - 1) / time.Second; int64(seconds) != want.DurationUntilReset.Seconds {
		return "another reset"
	}
	return ""
}

// charged returns the hits that the descriptors up to the last have taken from the bucket of the
// i-th descriptor, in the peer's answer.
func (c *comparison) charged(in *rlspb.RateLimitRequest, i, last int, theirs *rlspb.RateLimitResponse) (sum uint32) {
	bucket := c.bucket(in, i, theirs)
	for j := 0; j <= last; j++ {
		if c.bucket(in, j, theirs) == bucket {
			sum += hits(in, j)
		}
	}
	return sum
}

// bucket names the bucket of a descriptor: its rule, and its entries. It leaves out values that
// share a bucket.
func (c *comparison) bucket(in *rlspb.RateLimitRequest, i int, theirs *rlspb.RateLimitResponse) string {
	text := theirs.Statuses[i].GetCurrentLimit().GetName()
	shared := c.tree.shares(text)
	for _, e := range in.Descriptors[i].Entries {
		text += " " + e.Key
		if !shared[e.Key] {
			text += "=" + e.Value
		}
	}
	return text
}

// shares are the keys whose values share a bucket of a rule.
func (t *tree) shares(rule string) map[string]bool {
	keys := map[string]bool{}
	var walk func(nodes []*node, on []string)
	walk = func(nodes []*node, on []string) {
		for _, n := range nodes {
			way := on[:len(on):len(on)]
			if n.share {
				way = append(way, n.key)
			}
			if n.limit != nil && n.limit.name == rule {
				for _, key := range way {
					keys[key] = true
				}
			}
			walk(n.children, way)
		}
	}
	walk(t.roots, nil)
	return keys
}

// The benchmarks and this test compare with one version of envoyproxy/ratelimit.
func TestOneVersionOfThePeer(t *testing.T) {
	content, err := os.ReadFile("testdata/peer/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	setup, err := os.ReadFile("../../../../tools/setup.sh")
	if err != nil {
		t.Fatal(err)
	}
	_, version, _ := strings.Cut(string(setup), "\nratelimit=")
	version, _, _ = strings.Cut(version, "\n")
	if version == "" || !strings.Contains(string(content), "github.com/envoyproxy/ratelimit "+version) {
		t.Errorf("tools/setup.sh builds envoyproxy/ratelimit %q; testdata/peer/go.mod has another:\n%s", version,
			content)
	}
}
