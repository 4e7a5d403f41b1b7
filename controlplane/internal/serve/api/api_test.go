package api_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/controlplane/internal/store/localstore"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/support/logtest"
)

// breakable is an embedded store that a test can take away or make panic.
type breakable struct {
	*localstore.Store
	mode atomic.Value // "", "away", "panic" or "outrun": others are faster with consumers
	// unable, if not nil, is the error of the store after changes buckets have been changed.
	changes int
	unable  error
	// lost is true if the store has lost state, so that no bucket is known to hold unused tokens.
	lost bool
}

func (b *breakable) check() error {
	if b.mode.Load() == "away" {
		return errors.New("dial tcp 10.1.2.3: secret internals")
	}
	return nil
}

func (b *breakable) Heads(ctx context.Context, candidate [16]byte) (push.Heads, error) {
	if err := b.check(); err != nil {
		return push.Heads{}, err
	}
	return b.Store.Heads(ctx, candidate)
}

func (b *breakable) State(ctx context.Context) (policies.State, error) {
	if err := b.check(); err != nil {
		return policies.State{}, err
	}
	return b.Store.State(ctx)
}

func (b *breakable) List(ctx context.Context, before uint64, limit int) ([]policies.Version, error) {
	if b.mode.Load() == "panic" {
		panic("a bug with secret internals")
	}
	if err := b.check(); err != nil {
		return nil, err
	}
	return b.Store.List(ctx, before, limit)
}

func (b *breakable) Commit(ctx context.Context, t *docs.Topic, c docs.Commit) (uint64, error) {
	if err := b.check(); err != nil {
		return 0, err
	}
	if b.mode.Load() == "outrun" {
		return 0, errs.Conflict
	}
	return b.Store.Commit(ctx, t, c)
}

func (b *breakable) Since(
	ctx context.Context, t *docs.Topic, after uint64, limit int,
) ([]docs.Record, docs.State, error) {
	if err := b.check(); err != nil {
		return nil, docs.State{}, err
	}
	return b.Store.Since(ctx, t, after, limit)
}

func (b *breakable) Document(
	ctx context.Context, name docs.Name, known uint64,
) (docs.Doc, quota.Instant, error) {
	if err := b.check(); err != nil {
		return docs.Doc{}, 0, err
	}
	return b.Store.Document(ctx, name, known)
}

func (b *breakable) Adjust(
	ctx context.Context, it leases.Item, c lease.Change, e audit.Entry,
) (lease.Holding, error) {
	if err := b.check(); err != nil {
		return lease.Holding{}, err
	}
	if c != (lease.Change{}) && b.unable != nil {
		if b.changes == 0 {
			return lease.Holding{}, b.unable
		}
		b.changes--
	}
	held, err := b.Store.Adjust(ctx, it, c, e)
	held.Doubt = held.Doubt || b.lost
	return held, err
}

func (b *breakable) Read(
	ctx context.Context, t *docs.Topic, keys []keyhash.Key,
) ([]docs.Record, docs.State, error) {
	if err := b.check(); err != nil {
		return nil, docs.State{}, err
	}
	return b.Store.Read(ctx, t, keys)
}

func (b *breakable) Scan(
	ctx context.Context, t *docs.Topic, index, cursor string, limit int,
) ([]docs.Record, string, error) {
	if err := b.check(); err != nil {
		return nil, "", err
	}
	return b.Store.Scan(ctx, t, index, cursor, limit)
}

func (b *breakable) Audit(ctx context.Context, before string, limit int) ([]audit.Entry, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	return b.Store.Audit(ctx, before, limit)
}

func (b *breakable) Load(ctx context.Context, number uint64) (policies.Version, error) {
	if err := b.check(); err != nil {
		return policies.Version{}, err
	}
	return b.Store.Load(ctx, number)
}

func (b *breakable) Grant(ctx context.Context, items []leases.Item) ([]lease.Grant, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	return b.Store.Grant(ctx, items)
}

func (b *breakable) Nodes(ctx context.Context) ([]nodes.Node, error) {
	if err := b.check(); err != nil {
		return nil, err
	}
	return b.Store.Nodes(ctx)
}

// plane is a control plane's interface over an embedded store.
type plane struct {
	t        testing.TB
	store    *breakable
	handler  http.Handler
	hub      *push.Hub
	past     *series.Service
	punished *penalties.Service
	stop     context.CancelFunc
	log      *logtest.Buffer
}

func newPlane(t testing.TB) *plane { return newPlaneWith(t, func(*api.Config) {}) }

// newPlaneWith is a plane whose settings are changed.
func newPlaneWith(t testing.TB, change func(*api.Config)) *plane {
	t.Helper()
	p := newPlaneOn(t, "", change)
	p.eventually("/readyz", 200)
	return p
}

// newPlaneOn makes a plane whose settings are changed, and whose store is in a mode from the start.
func newPlaneOn(t testing.TB, mode string, change func(*api.Config)) *plane {
	t.Helper()
	return newPlaneAt(t, time.Now, mode, change)
}

// newPlaneAt makes such a plane whose store reads the time from now.
func newPlaneAt(t testing.TB, now func() time.Time, mode string, change func(*api.Config)) *plane {
	t.Helper()
	p := &plane{t: t, log: &logtest.Buffer{}}
	log := slog.New(slog.NewJSONHandler(p.log, nil))
	discard := slog.New(slog.DiscardHandler)
	local, err := localstore.Open(t.TempDir(), discard, localstore.Options{Now: now, SaveByHand: true})
	if err != nil {
		t.Fatal(err)
	}
	p.store = &breakable{Store: local}
	p.store.mode.Store(mode)
	sets, registry := policies.New(policies.Config{Store: p.store, Now: time.Now}), nodes.New(p.store, time.Now)
	people := consumers.New(consumers.Config{Store: consumers.Kept{In: p.store}, Now: time.Now})
	orders := enforcement.New(enforcement.Kept{In: p.store}, time.Now, log)
	counts := metrics.New("test")
	punished := penalties.New(penalties.Config{Store: p.store, Sets: sets, Now: time.Now, Meter: counts, Log: log})
	p.punished = punished
	p.hub = push.New(push.Config{
		Policies: sets, Consumers: people, Penalties: punished, Enforcement: orders, Store: p.store,
		Candidate: [16]byte{1}, Log: log, Now: time.Now,
	})
	stopping, stop := context.WithCancel(context.Background())
	p.stop = stop
	following, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		var followers sync.WaitGroup
		followers.Go(func() { p.hub.Run(following) })
		followers.Wait()
		close(done)
	}()
	t.Cleanup(func() {
		stop()
		end()
		<-done
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	})
	p.past = series.New(series.Config{Store: p.store, Replica: "here", Now: time.Now, Log: log})
	config := api.Config{
		Series:   p.past,
		Policies: sets, Consumers: people, Penalties: punished, Enforcement: orders, Nodes: registry,
		Audit: audit.NewHeld(p.store, time.Now),
		Hub:   p.hub,
		Decisions: decisions.New(decisions.Config{Store: p.store, Sets: sets, Replica: "here", Now: time.Now,
			Heard: p.past.Heard}),
		Leases: leases.New(leases.Config{
			Store: p.store, Sets: sets, Nodes: registry, Now: time.Now, Buckets: p.store, Overrides: people,
		}),
		Tokens: auth.NewRing(auth.Tokens{token("root", auth.Admin), token("ed", auth.Editor),
			token("eyes", auth.Viewer), token("envoy", auth.Node)}, time.Now),
		Metrics: counts, Log: log, Now: time.Now, Leaving: stopping, Stopping: stopping, Version: "test",
	}
	change(&config)
	if p.handler, err = api.New(config); err != nil {
		t.Fatal(err)
	}
	return p
}

func token(name string, role auth.Role) auth.Token {
	return auth.Token{Name: name, Role: role, Sum: auth.Sum("token of " + name)}
}

// call is one request; who is the name of a token.
type call struct {
	who, method, path string
	header            map[string]string
	body              string
}

func (p *plane) do(c call) *httptest.ResponseRecorder {
	p.t.Helper()
	r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
	if c.who != "" {
		r.Header.Set("Authorization", "Bearer token of "+c.who)
	}
	for name, value := range c.header {
		r.Header.Set(name, value)
	}
	w := &recorder{ResponseRecorder: httptest.NewRecorder()}
	p.handler.ServeHTTP(w, r)
	p.asDescribed(r, w.ResponseRecorder)
	return w.ResponseRecorder
}

// recorder has the deadlines that a connection has.
type recorder struct{ *httptest.ResponseRecorder }

func (*recorder) SetReadDeadline(time.Time) error  { return nil }
func (*recorder) SetWriteDeadline(time.Time) error { return nil }

// problem checks that an answer is a problem of that kind and returns it.
func (p *plane) problem(w *httptest.ResponseRecorder, status int, kind string) api.Problem {
	p.t.Helper()
	var got api.Problem
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		p.t.Fatalf("%q: %v", w.Body, err)
	}
	if w.Code != status || got.Status != status || got.Type != "urn:weir:problem:"+kind ||
		w.Header().Get("Content-Type") != api.ProblemType {
		p.t.Errorf("%d %+v, want %d %s", w.Code, got, status, kind)
	}
	if got.RequestID == "" || got.RequestID != w.Header().Get("X-Request-Id") || got.Detail == "" || got.Title == "" {
		p.t.Errorf("incomplete: %+v", got)
	}
	if strings.Contains(w.Body.String(), "secret internals") {
		p.t.Errorf("internals are shown: %s", w.Body)
	}
	return got
}

// eventually waits until a path answers with a status.
func (p *plane) eventually(path string, status int) {
	p.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for p.do(call{method: "GET", path: path}).Code != status {
		if time.Now().After(deadline) {
			p.t.Fatalf("%s does not become %d", path, status)
		}
	}
}

const set = "version: weir/v1\npolicies: # as written\n  - {name: a, partition: [], limit: {quota: 10, window: 1m}}\n"

const diffOfSet = `{"added":["a"],"removed":[],"changed":[],"settings":[],"changes":[],"words":["+ a: 10 per 1m; leased"]}`

func (p *plane) put(ifMatch, doc string) *httptest.ResponseRecorder {
	p.t.Helper()
	return p.do(call{"root", "PUT", "/v1/policyset", map[string]string{"If-Match": ifMatch}, doc})
}

func TestErrorsAreProblems(t *testing.T) {
	p := newPlane(t)
	match := map[string]string{"If-Match": `"0"`}
	with := func(name, value string) map[string]string { return map[string]string{"If-Match": `"0"`, name: value} }
	for _, c := range []struct {
		call
		status int
		kind   string
	}{
		{call{"", "GET", "/nowhere", nil, ""}, 404, "not-found"},
		{call{"", "GET", "/", nil, ""}, 404, "not-found"},
		{call{"", "POST", "/healthz", nil, ""}, 405, "method-not-allowed"},
		{call{"root", "DELETE", "/v1/policyset", nil, ""}, 405, "method-not-allowed"},
		{call{"", "GET", "/v1/policyset", nil, ""}, 401, "unauthorized"},
		{call{"nobody", "GET", "/v1/policyset", nil, ""}, 401, "unauthorized"},
		{call{"", "GET", "/v1/policyset", map[string]string{"Authorization": "Basic token of root"}, ""}, 401,
			"unauthorized"},
		{call{"", "GET", "/v1/policyset", map[string]string{"Authorization": "Bearer"}, ""}, 401, "unauthorized"},
		{call{"eyes", "PUT", "/v1/policyset", match, set}, 403, "forbidden"},
		{call{"envoy", "GET", "/v1/policyset", nil, ""}, 403, "forbidden"},
		{call{"ed", "GET", "/node/v1/snapshot", nil, ""}, 403, "forbidden"},
		{call{"eyes", "POST", "/node/v1/leases", nil, ""}, 403, "forbidden"},
		{call{"ed", "PUT", "/v1/policyset", nil, set}, 428, "precondition-required"},
		{call{"ed", "PUT", "/v1/policyset", map[string]string{"If-Match": "0"}, set}, 400, "bad-request"},
		{call{"ed", "PUT", "/v1/policyset", map[string]string{"If-Match": `"1", "0"`}, set}, 400, "bad-request"},
		{call{"ed", "PUT", "/v1/policyset", map[string]string{"If-Match": `"1"`}, set}, 412, "changed-meanwhile"},
		{call{"ed", "PUT", "/v1/policyset?dry_run=true", map[string]string{"If-Match": `"1"`}, set}, 412, "changed-meanwhile"},
		{call{"ed", "PUT", "/v1/policyset?dry_run=maybe", match, set}, 400, "bad-request"},
		{call{"ed", "PUT", "/v1/policyset", match, ""}, 400, "unparsable"},
		{call{"ed", "PUT", "/v1/policyset", match, "a: ["}, 400, "unparsable"},
		{call{"ed", "PUT", "/v1/policyset", with("Content-Type", "application/json"), set}, 400, "unparsable"},
		{call{"ed", "PUT", "/v1/policyset", with("Content-Type", "text/html"), set}, 415, "unsupported-media-type"},
		{call{"ed", "PUT", "/v1/policyset", with("Content-Type", "a b"), set}, 400, "bad-request"},
		{call{"ed", "PUT", "/v1/policyset", with("Content-Encoding", "gzip"), set}, 415, "unsupported-media-type"},
		{call{"ed", "PUT", "/v1/policyset", match, strings.Repeat("#", 1<<20+1)}, 413, "too-large"},
		{call{"ed", "PUT", "/v1/policyset", match, "version: weir/v2"}, 422, "invalid-policy-set"},
		{call{"eyes", "GET", "/v1/versions?page_size=-1", nil, ""}, 400, "bad-request"},
		{call{"eyes", "GET", "/v1/versions?page_token=*", nil, ""}, 400, "bad-request"},
		{call{"eyes", "GET", "/v1/versions?page_token=YQ", nil, ""}, 400, "bad-request"},
		{call{"eyes", "GET", "/v1/versions/7", nil, ""}, 404, "not-found"},
		{call{"eyes", "GET", "/v1/versions/x", nil, ""}, 400, "bad-request"},
		{call{"envoy", "GET", "/node/v1/snapshot", nil, ""}, 400, "bad-request"},
		{call{"envoy", "GET", "/node/v1/snapshot?node=a&after=x", nil, ""}, 400, "bad-request"},
		{call{"envoy", "GET", "/node/v1/snapshot?node=a&wait=long", nil, ""}, 400, "bad-request"},
		{call{"envoy", "GET", "/node/v1/snapshot?node=a&applied=-1", nil, ""}, 400, "bad-request"},
		{call{"envoy", "POST", "/node/v1/leases", nil, "garbage"}, 400, "bad-request"},
		{call{"envoy", "POST", "/node/v1/leases", nil, strings.Repeat("x", 16<<10+1)}, 413, "too-large"},
	} {
		t.Run(c.method+" "+c.path+" "+c.kind, func(t *testing.T) {
			w := p.do(c.call)
			p.problem(w, c.status, c.kind)
			if c.status == 401 && w.Header().Get("WWW-Authenticate") == "" ||
				c.status == 405 && w.Header().Get("Allow") == "" {
				t.Errorf("headers %v", w.Header())
			}
		})
	}
	if w := p.do(call{"root", "GET", "/v1/policyset", nil, ""}); w.Header().Get("ETag") != `"0"` {
		t.Errorf("after refusals the version is %s", w.Header().Get("ETag"))
	}
}

func TestPolicySet(t *testing.T) {
	p := newPlane(t)
	w := p.do(call{"eyes", "GET", "/v1/policyset", nil, ""})
	if w.Code != 200 || w.Header().Get("ETag") != `"0"` || w.Body.String() != policies.EmptyDocument {
		t.Errorf("an empty store: %d %v %s", w.Code, w.Header(), w.Body)
	}
	if w := p.do(call{"ed", "PUT", "/v1/policyset?dry_run=true", map[string]string{"If-Match": `"0"`}, set}); w.Code != 200 || w.Header().Get("ETag") != "" ||
		strings.TrimSpace(w.Body.String()) != `{"version":1,"dry_run":true,"summary":"a added: 10 per 1m; leased","diff":`+diffOfSet+`}` {
		t.Errorf("dry run: %d %s", w.Code, w.Body)
	}
	if w := p.put(`"0"`, set); w.Code != 200 || w.Header().Get("ETag") != `"1"` ||
		strings.TrimSpace(w.Body.String()) != `{"version":1,"dry_run":false,"summary":"a added: 10 per 1m; leased","diff":`+diffOfSet+`}` {
		t.Errorf("put: %d %s", w.Code, w.Body)
	}
	for _, c := range []struct {
		accept, contentType, tag, body string
	}{
		{"", "application/yaml", `"1"`, set},
		{"*/*", "application/yaml", `"1"`, set},
		{"application/json", "application/json", `"1-json"`, `{"version":"weir/v1","policies":[{"name":"a","partition":[],"limit":{"quota":10,"window":"1m"}}]}` + "\n"},
	} {
		w := p.do(call{"eyes", "GET", "/v1/policyset", map[string]string{"Accept": c.accept}, ""})
		if w.Code != 200 || w.Header().Get("ETag") != c.tag || w.Header().Get("Content-Type") != c.contentType ||
			w.Body.String() != c.body {
			t.Errorf("accept %q: %d %v %s", c.accept, w.Code, w.Header(), w.Body)
		}
	}
	if w := p.do(call{"eyes", "GET", "/v1/policyset", map[string]string{"If-None-Match": `"1"`}, ""}); w.Code != 304 || w.Body.Len() > 0 {
		t.Errorf("not modified: %d %s", w.Code, w.Body)
	}
	// A cache that has one form must not take it for the other.
	for tag, status := range map[string]int{`"1"`: 200, `"1-json"`: 304, `"1-yaml"`: 200} {
		headers := map[string]string{"If-None-Match": tag, "Accept": "application/json"}
		if w := p.do(call{"eyes", "GET", "/v1/policyset", headers, ""}); w.Code != status {
			t.Errorf("JSON where the client has %s: %d, want %d", tag, w.Code, status)
		}
	}
	if w := p.put("*", `{"version": "weir/v1", "policies": []}`); w.Header().Get("ETag") != `"2"` {
		t.Errorf("whatever there is: %d %s", w.Code, w.Body)
	}
	if w := p.do(call{"eyes", "GET", "/v1/policyset", nil, ""}); w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("JSON was found out to be %s", w.Header().Get("Content-Type"))
	}
}

func TestInvalidPolicySetListsAllProblems(t *testing.T) {
	p := newPlane(t)
	got := p.problem(p.put(`"0"`, "version: weir/v1\npolicies:\n  - {name: A, partition: [x], limit: {quota: -1, window: 1m}}"), 422, "invalid-policy-set")
	var paths []string
	for _, problem := range got.Problems {
		paths = append(paths, problem.Path)
	}
	if strings.Join(paths, " ") != "policies[0].name policies[0].partition[0] policies[0].limit.quota" {
		t.Errorf("problems %v", got.Problems)
	}
}

func TestVersions(t *testing.T) {
	p := newPlane(t)
	document := func(n int) string { return set + fmt.Sprintf("# %d\n", n) }
	for n := range 5 {
		if w := p.put("*", document(n+1)); w.Code != 200 {
			t.Fatal(w.Body)
		}
	}
	var seen []uint64
	path := "/v1/versions?page_size=2"
	for range 4 {
		page := decoded[api.VersionsAnswer](t, p.do(call{"eyes", "GET", path, nil, ""}))
		for _, v := range page.Versions {
			seen = append(seen, v.Number)
			if v.Author != "root" || v.Digest == "" || v.Time.IsZero() || v.Summary == "" {
				t.Errorf("%+v", v)
			}
		}
		if page.Next == "" {
			break
		}
		path = "/v1/versions?page_size=2&page_token=" + page.Next
	}
	if len(seen) != 5 || seen[0] != 5 || seen[4] != 1 {
		t.Errorf("pages hold %v", seen)
	}
	w := p.do(call{"eyes", "GET", "/v1/versions/3", nil, ""})
	var v struct {
		Version  uint64
		Document string
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil || v.Version != 3 || v.Document != document(3) {
		t.Errorf("%s: %v", w.Body, err)
	}
}

func TestSnapshotAndLeases(t *testing.T) {
	p := newPlane(t)
	poll := "/node/v1/snapshot?node=e1&boot=ff&filter=v9&zone=z&wait=0s&after="
	if w := p.do(call{"envoy", "GET", poll + "0", nil, ""}); w.Code != 204 {
		t.Errorf("an empty store: %d", w.Code)
	}
	p.put("*", set)
	w := p.do(call{"envoy", "GET", poll + "0", nil, ""})
	version, secret, _, err := wire.OpenSnapshot(w.Body.Bytes())
	if w.Code != 200 || w.Header().Get("Weir-Version") != "1" || w.Header().Get("Content-Type") != wire.ContentType ||
		version != 1 || secret != [16]byte{1} || err != nil {
		t.Errorf("%d %v: version %d, secret %x, %v", w.Code, w.Header(), version, secret, err)
	}
	if w := p.do(call{"envoy", "GET", poll + "1&applied=1", nil, ""}); w.Code != 204 || w.Body.Len() > 0 {
		t.Errorf("nothing new: %d %s", w.Code, w.Body)
	}
	patient := strings.Replace(poll, "wait=0s", "wait=5s", 1) // It waits until the store was asked anew.
	if w := p.do(call{"envoy", "GET", patient + "9", nil, ""}); w.Code != 200 {
		t.Errorf("a node ahead of the control plane: %d", w.Code)
	}
	report := func(boot, version uint64, worst policy.Step, steps ...wire.PolicyStep) {
		t.Helper()
		m := wire.Report{Node: []byte("e1"), Boot: boot,
			Ladder: &wire.Ladder{Version: version, Worst: worst, Steps: steps}}
		if w := p.postReport(&m); w.Code != 204 || w.Body.Len() > 0 {
			t.Errorf("a report: %d %s", w.Code, w.Body)
		}
	}
	report(0xff, 1, policy.StepDeny, wire.PolicyStep{Policy: 0, Step: policy.StepShare},
		wire.PolicyStep{Policy: 9, Step: policy.StepDeny})
	report(0xfe, 1, policy.StepLeases) // It is of an earlier process, and late.
	if w := p.do(call{"envoy", "POST", "/node/v1/report", nil, "junk"}); w.Code != 400 {
		t.Errorf("a report that is none: %d", w.Code)
	}
	if w := p.postReport(&wire.Ladder{}); w.Code != 400 {
		t.Errorf("a report without a node: %d", w.Code)
	}
	if w := p.do(call{"envoy", "POST", "/node/v1/report", nil, strings.Repeat("x", wire.MaxReport+1)}); w.Code != 413 {
		t.Errorf("a report too long: %d", w.Code)
	}
	if w := p.do(call{"eyes", "POST", "/node/v1/report", nil, "junk"}); w.Code != 403 {
		t.Errorf("a viewer's report: %d", w.Code)
	}
	p.do(call{"envoy", "GET", poll + "1&applied=1", nil, ""}) // It says nothing of the state.
	p.do(call{"envoy", "GET", "/node/v1/snapshot?node=e2&refused=1&reason=no%0Away", nil, ""})

	request := wire.LeaseRequest{Seq: 3, Version: 1,
		Items: []wire.LeaseItem{{Bucket: keyhash.Key{1}, Waiting: 7, Cost: 1}, {Limit: 5, Waiting: 1, Cost: 1}}}
	w = p.do(call{"envoy", "POST", "/node/v1/leases", nil, string(wire.AppendLeaseRequest(nil, request))})
	var reply wire.LeaseReply
	if err := wire.DecodeLeaseReply(w.Body.Bytes(), &reply); err != nil || w.Code != 200 ||
		w.Header().Get("Content-Type") != wire.ContentType {
		t.Fatalf("%d %v: %v", w.Code, w.Header(), err)
	}
	if reply.Seq != 3 || reply.Items[0].Waiting != 7 || reply.Items[0].Level != 3 ||
		reply.Items[1].State != wire.ItemUnknown {
		t.Errorf("%+v", reply)
	}

	var list api.NodesAnswer
	if err := json.Unmarshal(p.do(call{"eyes", "GET", "/v1/nodes?page_size=1", nil, ""}).Body.Bytes(),
		&list); err != nil || list.Next == "" || list.Current != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	e1 := list.Nodes[0]
	if e1.Seen.IsZero() || e1.ID != "e1" || e1.Boot != "ff" || e1.Filter != "v9" || e1.State != "deny" ||
		len(e1.Steps) != 1 || e1.Steps["a"] != "share" || !list.Complete || e1.Zone != "z" || !e1.Active {
		t.Errorf("%+v", e1)
	}
	if err := json.Unmarshal(p.do(call{"eyes", "GET", "/v1/nodes?page_token=" + list.Next, nil, ""}).Body.Bytes(),
		&list); err != nil || list.Next != "" ||
		len(list.Nodes) != 1 || list.Nodes[0].Refused != 1 || list.Nodes[0].Reason != "no?way" {
		t.Errorf("%+v, %v", list, err)
	}

	// No control plane knows this version.
	report(0xff, 77, policy.StepShare, wire.PolicyStep{Policy: 0, Step: policy.StepShare})
	p.store.mode.Store("away")
	w = p.do(call{"eyes", "GET", "/v1/nodes", nil, ""})
	if err := json.Unmarshal(w.Body.Bytes(), &list); err != nil || list.Complete || len(list.Nodes) != 3 ||
		list.Nodes[1].State != "share" || list.Nodes[1].Steps != nil {
		t.Errorf("while the store is away: %s", w.Body)
	}
	p.store.mode.Store("")

	text := p.do(call{"", "GET", "/metrics", nil, ""}).Body.String()
	for _, want := range []string{
		`weir_lease_items_total{outcome="granted"} 1`, `weir_lease_items_total{outcome="unknown"} 1`, "weir_lease_batch_items_sum 2",
		`route="/node/v1/leases"`, `weir_build_info{version="test"} 1`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// Labels are the names of routes, never the text of clients.
func TestMetricsAreBounded(t *testing.T) {
	p := newPlane(t)
	for _, path := range []string{"/one", "/two/three", "/v1/versions/17", "/v1/versions/18"} {
		p.do(call{"root", "GET", path, nil, ""})
		p.do(call{"root", "BREW", path, nil, ""})
	}
	text := p.do(call{"", "GET", "/metrics", nil, ""}).Body.String()
	for _, unwanted := range []string{"/one", "three", "17", "BREW"} {
		if strings.Contains(text, unwanted+`"`) {
			t.Errorf("a label holds %s", unwanted)
		}
	}
	for _, wanted := range []string{`route="none"`, `route="/v1/versions/:version"`, `method="other"`} {
		if !strings.Contains(text, wanted) {
			t.Errorf("the metrics lack %s", wanted)
		}
	}
}

// A long poll is answered the moment a version is put, and the moment the process stops.
func TestLongPoll(t *testing.T) {
	p := newPlane(t)
	poll := func(after string) chan *httptest.ResponseRecorder {
		out := make(chan *httptest.ResponseRecorder, 1)
		go func() {
			out <- p.do(call{"envoy", "GET", "/node/v1/snapshot?node=a&wait=30s&after=" + after, nil, ""})
		}()
		return out
	}
	within := func(out chan *httptest.ResponseRecorder, status int) {
		t.Helper()
		select {
		case w := <-out:
			if w.Code != status {
				t.Errorf("%d %s, want %d", w.Code, w.Body, status)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("no answer")
		}
	}
	first := poll("0")
	p.put("*", set)
	within(first, 200)
	second := poll("1")
	p.put("*", set+"# as well\n")
	within(second, 200)
	third := poll("2")
	p.stop()
	within(third, 204)
	p.problem(p.do(call{"", "GET", "/readyz", nil, ""}), 503, "stopping")
}

func TestStoreAway(t *testing.T) {
	p := newPlane(t)
	p.put("*", set)
	p.store.mode.Store("away")
	for _, c := range []call{
		{"root", "PUT", "/v1/policyset", map[string]string{"If-Match": "*"}, set},
		{"root", "GET", "/v1/versions/9", nil, ""},
		{"envoy", "POST", "/node/v1/leases", nil,
			string(wire.AppendLeaseRequest(nil,
				wire.LeaseRequest{Version: 1, Items: []wire.LeaseItem{{Waiting: 1, Cost: 1}}}))},
	} {
		p.problem(p.do(c), 503, "store-unavailable")
	}
	for path, want := range map[string]string{"/v1/policyset": set, "/v1/policies/a": `"name":"a"`, "/v1/versions": `"version":1,`, "/v1/versions/1": `"version":1,`} {
		w := p.do(call{"root", "GET", path, nil, ""})
		if held := w.Header().Get(api.HeldHeader); w.Code != 200 || !strings.Contains(w.Body.String(), want) ||
			!strings.HasPrefix(held, "this is the copy in the memory of this control plane, as of 0s ago: ") {
			t.Errorf("%s: %d, %q: %s", path, w.Code, held, w.Body)
		}
	}
	if !strings.Contains(p.log.String(), "secret internals") {
		t.Error("the log does not say why")
	}
	if w := p.do(call{"envoy", "GET", "/node/v1/snapshot?node=a&after=0", nil, ""}); w.Code != 200 {
		t.Errorf("the snapshot in memory is not served: %d", w.Code)
	}
	p.eventually("/readyz/store", 503)
	if w := p.do(call{"", "GET", "/readyz", nil, ""}); w.Code != 200 ||
		!strings.Contains(w.Body.String(), "Envoys get the last state that this replica read") {
		t.Errorf("/readyz: %d %s", w.Code, w.Body)
	}
	before := strings.Count(p.log.String(), "request failed")
	for range 20 {
		p.problem(p.do(call{"", "GET", "/readyz/store", nil, ""}), 503, "store-unavailable")
	}
	if said := strings.Count(p.log.String(), "request failed") - before; said > 0 {
		t.Errorf("twenty calls of /readyz/store are logged %d times", said)
	}
	if w := p.do(call{"", "GET", "/healthz", nil, ""}); w.Code != 200 {
		t.Errorf("healthz: %d", w.Code)
	}
	p.store.mode.Store("")
	p.eventually("/readyz/store", 200)

	empty := newPlane(t) // It holds no policy set.
	empty.store.mode.Store("away")
	for _, path := range []string{"/v1/policyset", "/v1/policies/a", "/v1/versions"} {
		empty.problem(empty.do(call{"root", "GET", path, nil, ""}), 503, "store-unavailable")
	}
	empty.eventually("/readyz/store", 503)
	empty.problem(empty.do(call{"eyes", "GET", "/v1/policies/a/distribution", nil, ""}), 503, "store-unavailable")
}

// HEAD is GET without a body, on every path that has that.
func TestHead(t *testing.T) {
	p := newPlane(t)
	p.put("*", set)
	server := httptest.NewServer(p.handler)
	defer server.Close()
	for path, status := range map[string]int{
		"/healthz": 200, "/readyz": 200, "/version": 200, "/metrics": 200, "/openapi.yaml": 200, "/docs": 200,
		"/v1/policyset": 200, "/v1/nodes": 200,
		"/v1/versions/9": 404, "/nothing": 404, "/node/v1/leases": 405,
	} {
		p.eventually("/readyz/store", 200)
		var got [2]*http.Response
		for i, method := range []string{"GET", "HEAD"} {
			r, err := http.NewRequest(method, server.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Authorization", "Bearer token of root")
			if got[i], err = server.Client().Do(r); err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(got[i].Body)
			if got[i].Body.Close(); err != nil || (len(body) > 0) != (method == "GET") {
				t.Errorf("%s %s: %d bytes, %v", method, path, len(body), err)
			}
		}
		if get, head := got[0], got[1]; head.StatusCode != status || get.StatusCode != status ||
			head.Header.Get("ETag") != get.Header.Get("ETag") ||
			head.Header.Get("Content-Type") != get.Header.Get("Content-Type") {
			t.Errorf("%s: HEAD %d %v, GET %d %v; want %d", path, head.StatusCode, head.Header, get.StatusCode,
				get.Header, status)
		}
	}
}

// Only the ETag itself is the ETag.
func TestIfMatchIsExact(t *testing.T) {
	p := newPlane(t)
	p.put("*", set)
	for tag, status := range map[string]int{`"01"`: 400, `"+1"`: 400, `"1 "`: 400, `W/"1"`: 400, `"2"`: 412, `"1"`: 200} {
		if w := p.put(tag, set); w.Code != status {
			t.Errorf("%s: %d %s, want %d", tag, w.Code, w.Body, status)
		}
	}
}

// The log of a request without a token is true for every value of its header.
func TestAnotherSchemeIsNoToken(t *testing.T) {
	p := newPlane(t)
	p.problem(p.do(call{"", "GET", "/v1/nodes", map[string]string{"Authorization": "Basic token of root"}, ""}), 401,
		"unauthorized")
	if log := p.log.String(); !strings.Contains(log, "there is no Authorization header of the scheme Bearer") ||
		strings.Contains(log, "token=root") {
		t.Errorf("log %s", log)
	}
}

// A body that is nothing is said to be nothing, once.
func TestNoDocument(t *testing.T) {
	p := newPlane(t)
	for body, want := range map[string]string{"": "the document is empty", "a: [": "the document cannot be read: "} {
		if got := p.problem(p.put("*", body), 400, "unparsable"); !strings.HasPrefix(got.Detail, want) ||
			strings.Count(got.Detail, "the document") != 1 {
			t.Errorf("%q: %s", body, got.Detail)
		}
	}
}

// A store that cannot save is no reason to send requests elsewhere, but one to look.
func TestReadyzWarnsOfAFullDisk(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, "{\"status\":\"ready\"}\n"},
		{&os.PathError{Op: "write", Path: "/secret/weir.db", Err: syscall.ENOSPC},
			"{\"status\":\"ready\",\"warning\":\"the counters cannot be saved, a crash now would lose them: the disk " +
				"of the store is full\"}\n"},
	} {
		p := newPlaneWith(t, func(config *api.Config) { config.Unsaved = func() error { return c.err } })
		if w := p.do(call{"", "GET", "/readyz", nil, ""}); w.Code != 200 || w.Body.String() != c.want {
			t.Errorf("%v: %d %s", c.err, w.Code, w.Body)
		}
	}
}

// A store that is far is no reason to send requests elsewhere either.
func TestReadyzWarnsOfAFarStore(t *testing.T) {
	for distance, want := range map[time.Duration]string{
		0:                     "{\"status\":\"ready\"}\n",
		19 * time.Millisecond: "{\"status\":\"ready\"}\n",
		42 * time.Millisecond: "{\"status\":\"ready\",\"warning\":\"Redis takes 42 ms to answer: requests that must " +
			"ask it wait for up to 50 ms, and then their Envoy's share decides; bring it within 20 ms\"}\n",
	} {
		p := newPlaneWith(t, func(config *api.Config) { config.Distance = func() time.Duration { return distance } })
		for _, path := range []string{"/readyz", "/readyz/store"} {
			if w := p.do(call{"", "GET", path, nil, ""}); w.Code != 200 || w.Body.String() != want {
				t.Errorf("%s, a store %v away: %d %s", path, distance, w.Code, w.Body)
			}
		}
	}
}

func TestPanicIsAProblem(t *testing.T) {
	p := newPlane(t)
	p.store.mode.Store("panic")
	p.problem(p.do(call{"root", "GET", "/v1/versions", nil, ""}), 500, "internal")
	p.store.mode.Store("")
	if !strings.Contains(p.log.String(), "a bug with secret internals") || !strings.Contains(p.log.String(), "stack") {
		t.Errorf("the log says %s", p.log)
	}
}

func TestRequestIDs(t *testing.T) {
	p := newPlane(t)
	for given, kept := range map[string]bool{"0123456789abcdef": true, "short": false, "with space in it": false,
		strings.Repeat("x", 65): false, "line\nbreak12345": false} {
		w := p.do(call{"", "GET", "/version", map[string]string{"X-Request-Id": given}, ""})
		if got := w.Header().Get("X-Request-Id"); (got == given) != kept || len(got) < 8 {
			t.Errorf("%q became %q", given, got)
		}
	}
	var v map[string]string
	body, err := io.ReadAll(p.do(call{"", "GET", "/version", nil, ""}).Body)
	if err != nil || json.Unmarshal(body, &v) != nil || v["version"] != "test" {
		t.Errorf("%s, %v", body, err)
	}
}
