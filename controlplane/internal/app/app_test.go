package app_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/app"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
	"github.com/weir-proxy/weir/test/support/logtest"
	"github.com/weir-proxy/weir/test/support/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const secret = "one token for every role here"

// plane is a running control plane.
type plane struct {
	t    *testing.T
	app  *app.App
	url  string
	stop func()
	// leave is the first signal to end, hurry the second. Stop is leave, without a second signal.
	leave, hurry context.CancelFunc
	http         *http.Client
}

// start runs a control plane on its embedded store in dir, or on Redis.
func start(t *testing.T, dir, redisURL string) *plane {
	t.Helper()
	return startWith(t, settings.Settings{
		Listen: "127.0.0.1:0", DataDir: dir, RedisURL: redisURL, LostFill: 40,
		Tokens: auth.Tokens{{Name: "all", Role: auth.Admin, Sum: auth.Sum(secret)}},
	}, slog.New(slog.DiscardHandler))
}

func startWith(t *testing.T, s settings.Settings, log *slog.Logger) *plane {
	t.Helper()
	a, err := app.New(s, "test", log)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	atOnce, hurry := context.WithCancel(context.Background())
	go func() { ended <- a.Run(ctx, atOnce) }()
	p := &plane{
		t: t, app: a, url: "http://" + a.Addr().String(), leave: cancel, hurry: hurry,
		http: &http.Client{Transport: &http.Transport{}, Timeout: time.Minute},
	}
	stopped := false
	p.stop = func() {
		if stopped {
			return
		}
		stopped = true
		p.http.CloseIdleConnections()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the end was not orderly: %v", err)
		}
	}
	t.Cleanup(func() { hurry(); p.stop() })
	return p
}

type answer struct {
	status int
	header http.Header
	body   []byte
	closes bool
}

func (p *plane) do(method, path string, body []byte, header ...string) answer {
	p.t.Helper()
	a, err := p.try(method, path, body, header...)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

func (p *plane) try(method, path string, body []byte, header ...string) (answer, error) {
	request, err := http.NewRequest(method, p.url+path, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	request.Header.Set("Authorization", "Bearer "+secret)
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := p.http.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	return answer{response.StatusCode, response.Header, got, response.Close}, err
}

// until waits for a path to answer with a status and a text in the body.
func (p *plane) until(path string, status int, text ...string) answer {
	p.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		a := p.do("GET", path, nil)
		lacks := func(one string) bool { return !strings.Contains(string(a.body), one) }
		if a.status == status && !slices.ContainsFunc(text, lacks) {
			return a
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%s answers %d %s, not %d", path, a.status, a.body, status)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func document(quota int) []byte {
	return fmt.Appendf(nil, "version: weir/v1\npolicies:\n"+
		"  - {name: a, partition: [], limit: {quota: %d, window: 1h}}\n", quota)
}

func (p *plane) put(quota int) uint64 {
	p.t.Helper()
	a := p.do("PUT", "/v1/policyset", document(quota), "If-Match", "*")
	if a.status != 200 {
		p.t.Fatalf("put: %d %s", a.status, a.body)
	}
	version, err := strconv.ParseUint(strings.Trim(a.header.Get("ETag"), `"`), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return version
}

// poll is a long poll in the background; the answer has status 0 if the connection broke.
func (p *plane) poll(after uint64) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		a, err := p.try("GET", fmt.Sprintf("/node/v1/snapshot?node=n&boot=1&wait=25s&after=%d", after), nil)
		if err != nil {
			a = answer{}
		}
		out <- a
	}()
	return out
}

// grant asks for tokens of a bucket. It is false if the store did not answer in the time that a
// lease request has, as a busy machine makes it happen: it is unknown then whether they were
// granted.
func (p *plane) grant(version uint64, bucket keyhash.Key, waiting int64, header ...string) (wire.LeaseAnswer, bool) {
	p.t.Helper()
	request := wire.LeaseRequest{Node: "n", Seq: 1, Version: version,
		Items: []wire.LeaseItem{{Bucket: bucket, Waiting: waiting, Cost: 1}}}
	a := p.do("POST", "/node/v1/leases", wire.AppendLeaseRequest(nil, request), header...)
	if a.status == 503 {
		return wire.LeaseAnswer{}, false
	}
	var reply wire.LeaseReply
	if err := wire.DecodeLeaseReply(a.body, &reply); a.status != 200 || err != nil {
		p.t.Fatalf("leases: %d %q, %v", a.status, a.body, err)
	}
	return reply.Items[0], true
}

// answered makes an experiment with one bucket after the other until the store has answered all
// that it asks, which it reports.
func answered(t *testing.T, experiment func(bucket keyhash.Key) bool) {
	t.Helper()
	bucket := keyhash.Key{}
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		binary.LittleEndian.PutUint64(bucket[:], binary.LittleEndian.Uint64(bucket[:])+1)
		if experiment(bucket) {
			return
		}
	}
	t.Fatal("the store does not answer lease requests")
}

func expect(t *testing.T, out <-chan answer, version uint64, within time.Duration) {
	t.Helper()
	select {
	case a := <-out:
		if got, _, _, err := wire.OpenSnapshot(a.body); a.status != 200 || got != version || err != nil {
			t.Errorf("the poll got %d, version %d, %v; want version %d", a.status, got, err, version)
		}
	case <-time.After(within):
		t.Fatalf("version %d did not arrive within %v", version, within)
	}
}

// A deploy refills no bucket: used tokens stay used after an orderly restart, and policies, history
// and secret stay.
func TestRestartOnTheEmbeddedStore(t *testing.T) {
	dir := t.TempDir()
	p := start(t, dir, "")
	version := p.put(100)
	if g, _ := p.grant(version, keyhash.Key{1}, 70); g.Waiting != 70 {
		t.Fatalf("granted %+v", g)
	}
	before := <-p.poll(0)
	p.stop()
	p = start(t, dir, "")
	if g, _ := p.grant(version, keyhash.Key{1}, 70); g.Waiting != 30 {
		t.Errorf("after a restart granted %+v", g)
	}
	if after := <-p.poll(0); !bytes.Equal(after.body, before.body) {
		t.Error("the snapshot has changed over a restart")
	}
}

func TestDataDirectoryIsLocked(t *testing.T) {
	dir := t.TempDir()
	start(t, dir, "")
	_, err := app.New(settings.Settings{Listen: "127.0.0.1:0", DataDir: dir}, "test", slog.New(slog.DiscardHandler))
	if err == nil || !strings.Contains(err.Error(), "is in use by another process") {
		t.Errorf("%v", err)
	}
}

// Waiting nodes do not delay the end of the process.
func TestShutdownAnswersLongPolls(t *testing.T) {
	p := start(t, t.TempDir(), "")
	version := p.put(100)
	out := p.poll(version)
	p.until("/v1/nodes", 200, `"id":"n"`) // The poll has begun when its node is listed.
	begun := time.Now()
	p.stop()
	if a := <-out; a.status != 204 || !a.closes {
		t.Errorf("the poll got %d, the connection closes: %v", a.status, a.closes)
	}
	if took := time.Since(begun); took > 9*time.Second {
		t.Errorf("the end took %v", took)
	}
}

// After the signal to end /readyz says no, and everything else goes on: grants, long polls, and new
// connections. Each answer closes its connection, so that callers find another replica. A second
// signal ends it all in order: the counters are saved.
func TestDrain(t *testing.T) {
	dir, log := t.TempDir(), &logtest.Buffer{}
	s := settings.Settings{
		Listen: "127.0.0.1:0", DataDir: dir, LostFill: 40, Drain: time.Hour,
		Tokens: auth.Tokens{{Name: "all", Role: auth.Admin, Sum: auth.Sum(secret)}},
	}
	p := startWith(t, s, slog.New(slog.NewTextHandler(log, nil)))
	version, used := p.put(100), keyhash.Key{}
	if a := p.until("/readyz", 200); a.closes {
		t.Error("the connection closes before the end")
	}
	p.leave()
	p.until("/readyz", 503, "problem:stopping")
	p.http.CloseIdleConnections() // The next call needs a new connection.
	answered(t, func(bucket keyhash.Key) bool {
		g, ok := p.grant(version, bucket, 30)
		if ok && (g.Waiting != 30 || g.Level != 70) {
			t.Errorf("a grant in the drain: %+v", g)
		}
		used = bucket
		return ok
	})
	if a := p.do("GET", "/healthz", nil); a.status != 200 || !a.closes {
		t.Errorf("/healthz is %d, the connection closes: %v", a.status, a.closes)
	}
	out := p.poll(version)
	if v := p.put(200); v != version+1 {
		t.Errorf("version %d was put in the drain", v)
	}
	expect(t, out, version+1, 5*time.Second)
	p.hurry()
	p.stop()
	if !strings.Contains(log.String(), `for=1h0m0s`) {
		t.Errorf("the log does not say for how long: %s", log)
	}
	again := start(t, dir, "")
	answered(t, func(keyhash.Key) bool {
		g, ok := again.grant(version+1, used, 1)
		if ok && g.Level > 169 {
			t.Errorf("after the end: %+v", g)
		}
		return ok
	})
}

// A drain ends by itself.
func TestDrainEnds(t *testing.T) {
	s := settings.Settings{
		Listen: "127.0.0.1:0", DataDir: t.TempDir(), Drain: time.Millisecond,
		Tokens: auth.Tokens{{Name: "all", Role: auth.Admin, Sum: auth.Sum(secret)}},
	}
	startWith(t, s, slog.New(slog.DiscardHandler)).stop()
}

func TestHeadersAreBounded(t *testing.T) {
	p := start(t, t.TempDir(), "")
	conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: ")); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(bytes.Repeat([]byte("x"), 64<<10)); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if !strings.HasPrefix(string(got), "HTTP/1.1 431 ") {
		t.Errorf("a header of 64 KiB: %q, %v", got, err)
	}
}

// A policy set that is put on one replica reaches the nodes of the other replica, and both grant
// from the same buckets.
func TestTwoReplicas(t *testing.T) {
	server := redistest.Start(t)
	one, two := start(t, "", server.URL()), start(t, "", server.URL())
	one.until("/readyz", 200)
	two.until("/readyz", 200)
	for round, quota := range []int{100, 200} {
		waiting := two.poll(uint64(round))
		version := one.put(quota)
		expect(t, waiting, version, time.Second)
		expect(t, one.poll(uint64(round)), version, time.Second)
	}
	answered(t, func(bucket keyhash.Key) bool {
		first, ok := one.grant(2, bucket, 120)
		second, also := two.grant(2, bucket, 120)
		if ok && also && (first.Waiting != 120 || second.Waiting != 80) {
			t.Errorf("one granted %+v of 200, the other %+v of the rest", first, second)
		}
		return ok && also
	})
	if a := two.do("PUT", "/v1/policyset", document(1), "If-Match", `"1"`); a.status != 412 {
		t.Errorf("a change of version 1 on the other replica: %d", a.status)
	}
}

// Without Redis the process starts, says why it is not ready, and recovers by itself.
func TestStartWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	server.Kill()
	p := start(t, "", server.URL())
	p.until("/readyz", 503, "the store cannot be reached: dial: connect: connection refused")
	p.until("/readyz/store", 503, "the store cannot be reached: dial: connect: connection refused")
	p.until("/healthz", 200)
	for _, c := range []struct{ method, path, body string }{
		{"GET", "/v1/policyset", ""}, {"PUT", "/v1/policyset", string(document(1))}, {"GET", "/v1/versions", ""},
		{"GET", "/node/v1/snapshot?node=n&wait=25s", ""},
		{"POST", "/node/v1/leases", string(wire.AppendLeaseRequest(nil, wire.LeaseRequest{Version: 1}))},
	} {
		if a := p.do(c.method, c.path, []byte(c.body), "If-Match", "*"); a.status != 503 ||
			!strings.Contains(string(a.body), "store-unavailable") {
			t.Errorf("%s %s: %d %s", c.method, c.path, a.status, a.body)
		}
	}
	server.Restart()
	p.until("/readyz/store", 200)
	p.until("/v1/policyset", 200)
	expectVersion := p.put(10)
	expect(t, p.poll(0), expectVersion, 5*time.Second)
}

// A replica that has just started answers once it has looked at its store: an Envoy that still
// counts on it loses no call. A store that hangs holds it up for a while only.
func TestTheFirstAnswerKnowsTheStore(t *testing.T) {
	server := redistest.Start(t)
	server.Do("CLIENT", "PAUSE", "300")
	if a := start(t, "", server.URL()).do("GET", "/readyz", nil); a.status != 200 {
		t.Errorf("while the store takes 300 ms: %d %s", a.status, a.body)
	}
	server.Pause()
	defer server.Resume()
	if a := start(t, "", server.URL()).do("GET", "/readyz", nil); a.status != 503 {
		t.Errorf("while the store hangs: %d %s", a.status, a.body)
	}
}

// While Redis is away nodes still get their snapshot, leases fail fast, and a Redis that comes back
// empty gets policies and secret back; buckets then start with the share that was asked for.
func TestRedisLosesEverything(t *testing.T) {
	server := redistest.Start(t)
	p := start(t, "", server.URL())
	p.until("/readyz", 200)
	p.put(50)
	version := p.put(100)
	before := <-p.poll(0)
	answered(t, func(bucket keyhash.Key) bool {
		g, ok := p.grant(version, bucket, 100)
		if ok && g.Waiting != 100 {
			t.Fatalf("granted %+v", g)
		}
		return ok
	})
	server.Kill()
	p.until("/readyz/store", 503)
	p.until("/readyz", 200, "cannot read changes from the store, Envoys get the last state that this replica read: ")
	expect(t, p.poll(0), version, 5*time.Second)
	p.until("/v1/nodes", 200, `"complete":false`, `"nodes":[{"id":"n"`)
	request := wire.AppendLeaseRequest(nil,
		wire.LeaseRequest{Version: version, Items: []wire.LeaseItem{{Waiting: 1, Cost: 1}}})
	for range 20 {
		if a := p.do("POST", "/node/v1/leases", request); a.status != 503 {
			t.Errorf("a lease without Redis: %d %s", a.status, a.body)
		}
	}
	server.Restart()
	p.until("/readyz/store", 200)
	if a := p.until("/v1/policyset", 200); a.header.Get("ETag") != fmt.Sprintf(`"%d"`, version) || !bytes.Equal(a.body, document(100)) {
		t.Errorf("after the loss: %s %s", a.header.Get("ETag"), a.body)
	}
	if after := <-p.poll(0); !bytes.Equal(after.body, before.body) {
		t.Error("after the loss the snapshot has changed")
	}
	answered(t, func(bucket keyhash.Key) bool { // The breaker lets one request in each rest find out.
		g, ok := p.grant(version, bucket, 100)
		if ok && g.Waiting != 40 { // The share that was asked for.
			t.Errorf("after the loss granted %+v of 100, want 40", g)
		}
		return ok
	})
	// On a busy machine the breaker may have opened again meanwhile.
	text := string(p.until("/metrics", 200, `weir_store_breaker_state{server="store"} 0`).body)
	for _, want := range []string{
		`weir_store_breaker_transitions_total{server="store",to="open"} [1-9]`,
		`weir_store_breaker_transitions_total{server="store",to="closed"} [1-9]`,
		`weir_tokens_granted_total{mode="leased",policy="a"} 140`,
		`weir_nodes_by_version{version="`, `weir_nodes_by_state{state="normal"} 1`,
	} {
		if !regexp.MustCompile(want).MatchString(text) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
