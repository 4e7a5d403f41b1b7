package api_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

// from is do for a caller at an address.
func (p *plane) from(address string, c call) *httptest.ResponseRecorder {
	p.t.Helper()
	r := httptest.NewRequest(c.method, c.path, strings.NewReader(c.body))
	r.RemoteAddr = address
	if c.who != "" {
		r.Header.Set("Authorization", "Bearer token of "+c.who)
	}
	w := &recorder{ResponseRecorder: httptest.NewRecorder()}
	p.handler.ServeHTTP(w, r)
	p.asDescribed(r, w.ResponseRecorder)
	return w.ResponseRecorder
}

// Every operation that needs a token refuses a caller that asks more often than it may, and says
// when to come back. Others are served.
func TestEachTokenHasARate(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	p := newPlaneWith(t, func(c *api.Config) {
		c.TokenRate, c.NodeRate = 3, 3
		c.Now = func() time.Time { return now }
	})
	policySet := call{who: "eyes", method: "GET", path: "/v1/policyset"}
	poll := call{who: "envoy", method: "GET", path: "/node/v1/snapshot?node=n"}
	const here, there = "192.0.2.1:1234", "192.0.2.2:1"
	for range 6 {
		if w := p.from(here, policySet); w.Code != 200 {
			t.Fatalf("within the burst: %d %s", w.Code, w.Body)
		}
		if w := p.from(here, poll); w.Code != 204 {
			t.Fatalf("within the burst: %d %s", w.Code, w.Body)
		}
	}
	p.problem(p.from(there, policySet), 429, "too-many-requests") // A token is the same everywhere.
	p.problem(p.from(here, poll), 429, "too-many-requests")
	if w := p.from(there, poll); w.Code != 204 {
		t.Errorf("a node elsewhere: %d", w.Code)
	}
	if w := p.do(call{who: "ed", method: "GET", path: "/v1/policyset"}); w.Code != 200 {
		t.Errorf("another token: %d", w.Code)
	}
	now = now.Add(time.Second)
	if w := p.from(here, policySet); w.Code != 200 {
		t.Errorf("a second later: %d", w.Code)
	}
	for range 10 { // An administrator uses its rates in both places.
		p.do(call{who: "root", method: "GET", path: "/v1/policyset"})
		p.do(call{who: "root", method: "GET", path: poll.path})
		p.from(here, call{method: "GET", path: "/v1/usage"}) // Needs no token, so the address counts.
	}
	replace := strings.NewReplacer("{name}", "a", "{id}", "alice", "{version}", "1",
		"{key}", strings.Repeat("0", 32))
	for _, route := range api.Routes(p.handler) {
		method, path, _ := strings.Cut(route, " ")
		if !strings.Contains(path, "/v1/") || path == "/v1/session" && method != "GET" {
			continue // To log in or out nothing is charged: a wrong token is counted.
		}
		w := p.from(here, call{who: "root", method: method, path: replace.Replace(path)})
		p.problem(w, 429, "too-many-requests")
		if w.Header().Get("Retry-After") != "1" {
			t.Errorf("%s: Retry-After is %q", route, w.Header().Get("Retry-After"))
		}
	}
}

// After a burst of wrong tokens their sender gets 429, and fills no log. A caller with a right
// token at the same address is served.
func TestWrongTokensHaveARate(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	p := newPlaneWith(t, func(c *api.Config) { c.Now = func() time.Time { return now } })
	wrong := call{who: "nobody", method: "GET", path: "/v1/nodes"}
	ask := func(address string) (answers [600]int) {
		for range 200 {
			answers[p.from(address, wrong).Code]++
		}
		return answers
	}
	if got := ask("192.0.2.1:1234"); got[401] != 100 || got[429] != 100 {
		t.Errorf("of 200 wrong tokens %d are answered 401, %d are cut off", got[401], got[429])
	}
	if lines := strings.Count(p.log.String(), "a request was refused"); lines != 100 || !strings.Contains(p.log.String(), `"address":"192.0.2.1"`) {
		t.Errorf("the log has %d lines", lines)
	}
	if strings.Contains(p.log.String(), "token of") {
		t.Error("a token is in the log")
	}
	if w := p.from("192.0.2.1:9", call{who: "eyes", method: "GET", path: "/v1/nodes"}); w.Code != 200 {
		t.Errorf("a right token at the same address: %d", w.Code)
	}
	// In IPv6 a client has a whole network for itself.
	if got := ask("[2001:db8::1]:1"); got[401] != 100 {
		t.Errorf("another address: %d", got[401])
	}
	if got := ask("[2001:db8::2]:1"); got[401] != 0 {
		t.Errorf("the next address of its network: %d", got[401])
	}
}

// Behind one ingress all the world is one peer. Strangers there hold up no caller who has a token
// or a key that is in use, at no door; where the ingress is trusted, they do not hold up each
// other.
func TestStrangersBehindAnIngressHoldNoCallerUp(t *testing.T) {
	for _, trusted := range []bool{false, true} {
		p := newPlaneWith(t, func(c *api.Config) {
			c.TokenRate = 30 // A door without tokens has a tenth of it.
			now := time.Unix(1_000_000, 0)
			c.Now = func() time.Time { return now }
			if trusted {
				c.Proxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
			}
		})
		if w := p.put(`"0"`, withUsage); w.Code != 200 {
			t.Fatal(w.Body)
		}
		p.use(t, "alice")
		via := func(client, path string, header ...string) *http.Request {
			r := httptest.NewRequest("GET", path, nil)
			r.RemoteAddr = "192.0.2.7:99"
			r.Header.Set("X-Forwarded-For", "203.0.113.1, "+client)
			for i := 0; i+1 < len(header); i += 2 {
				r.Header.Set(header[i], header[i+1])
			}
			return r
		}
		ask := func(r *http.Request) int {
			w := httptest.NewRecorder()
			p.handler.ServeHTTP(w, r)
			return w.Code
		}
		login := func(token string) int {
			r := via("198.51.100.1", "/v1/session", "Weir-Console", "1", "Sec-Fetch-Site", "same-origin")
			r.Method = "POST"
			r.Body = io.NopCloser(strings.NewReader(`{"token": "` + token + `"}`))
			return ask(r)
		}
		if code := ask(via("198.51.100.9", "/v1/usage", "X-Api-Key", "alice")); code != 200 {
			t.Fatalf("alice before: %d", code)
		}
		for n := range 300 {
			ask(via("198.51.100.1", "/v1/usage", "X-Api-Key", fmt.Sprint("invented ", n)))
			login("wrong")
			ask(via("198.51.100.1", "/v1/nodes", "Authorization", "Bearer wrong"))
		}
		for who, code := range map[string]int{
			"a log-in with a token": login("token of eyes"),
			"a token":               ask(via("198.51.100.1", "/v1/nodes", "Authorization", "Bearer token of eyes")),
			"a key that is in use":  ask(via("198.51.100.1", "/v1/usage", "X-Api-Key", "alice")),
		} {
			if code != 200 {
				t.Errorf("trusted %v: %s gets %d", trusted, who, code)
			}
		}
		fresh := ask(via("198.51.100.2", "/v1/usage", "X-Api-Key", "new"))
		if trusted && fresh != 200 || !trusted && fresh != 429 {
			t.Errorf("trusted %v: a new key from elsewhere gets %d", trusted, fresh)
		}
		if code := ask(via("198.51.100.1", "/v1/usage", "X-Api-Key", "one more")); code != 429 {
			t.Errorf("trusted %v: the stranger goes on: %d", trusted, code)
		}
	}
}

// use spends some tokens of a consumer.
func (p *plane) use(t *testing.T, consumer string) {
	t.Helper()
	k := p.key(t, call{"ed", "POST", "/v1/keys/api/reset?source=header:x-api-key&partition=consumer:" + consumer, nil,
		`{"reason": "to learn the bucket"}`})
	w := p.do(call{who: "envoy", method: "GET", path: "/node/v1/snapshot?after=1&node=n&wait=5s&enforcement=0"})
	var m wire.Enforcement
	if err := wire.DecodeEnforcement(w.Body.Bytes(), &m); err != nil || len(m.Freed) == 0 || len(k.Buckets) == 0 {
		t.Fatalf("%v %+v", err, m)
	}
	p.spend(t, m.Freed[0].Bucket, 1, 3)
}

// An address in a header counts only from a trusted proxy, and only the last address that is no
// proxy counts.
func TestForwardedAddressesCountFromTrustedProxiesAlone(t *testing.T) {
	p := newPlaneWith(t, func(c *api.Config) {
		c.Proxies = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32")}
	})
	for n, c := range []struct{ peer, forwarded, want string }{
		{"10.0.0.1:1", "203.0.113.1", "203.0.113.1"}, {"10.0.0.1:1", "forged, 203.0.113.2, 10.9.9.9", "203.0.113.2"},
		{"10.0.0.1:1", "203.0.113.2, forged", "10.0.0.1"}, {"10.0.0.1:1", "", "10.0.0.1"},
		{"10.0.0.1:1", "2001:db8::9", "2001:db8::"}, {"[2001:db8::1]:1", "::ffff:203.0.113.3", "203.0.113.3"},
		{"198.51.100.1:1", "203.0.113.1", "198.51.100.1"}, {"10.0.0.1:1", "10.0.0.2, 10.0.0.3", "10.0.0.2"},
	} {
		r := httptest.NewRequest("GET", "/v1/nodes", nil)
		r.RemoteAddr = c.peer
		r.Header.Set("X-Forwarded-For", c.forwarded)
		r.Header.Set("Authorization", "Bearer wrong")
		r.Header.Set("X-Request-Id", fmt.Sprint("request-", n))
		p.handler.ServeHTTP(httptest.NewRecorder(), r)
		if log := p.log.String(); !strings.Contains(log[strings.Index(log, fmt.Sprint("request-", n)):], `"address":"`+c.want+`"`) {
			t.Errorf("%+v: the log says\n%s", c, log)
		}
	}
}

func TestAnExpiredTokenIsNamedSo(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	clock := func() time.Time { return now }
	p := newPlaneWith(t, func(c *api.Config) {
		c.Tokens = auth.NewRing(auth.Tokens{{Name: "ci", Role: auth.Viewer, Sum: auth.Sum("token of ci"),
			Expires: now.Add(time.Hour)}}, clock)
	})
	get := call{who: "ci", method: "GET", path: "/v1/nodes"}
	if w := p.do(get); w.Code != 200 {
		t.Errorf("before: %d", w.Code)
	}
	now = now.Add(time.Hour)
	const want = "the token ci has expired: weir token new makes a new token"
	if got := p.problem(p.do(get), 401, "unauthorized"); got.Detail != want {
		t.Errorf("after: %s", got.Detail)
	}
}

// No answer may be taken for something else by a browser, or be read by another site.
func TestAnswersAreHardened(t *testing.T) {
	p := newPlane(t)
	for _, path := range []string{"/", "/healthz", "/docs", "/openapi.yaml", "/metrics", "/v1/policyset",
		"/node/v1/leases"} {
		r := httptest.NewRequest("GET", path, nil)
		r.Header.Set("Origin", "https://elsewhere.example")
		w := httptest.NewRecorder()
		p.handler.ServeHTTP(w, r)
		h := w.Header()
		if !strings.HasPrefix(h.Get("Content-Security-Policy"), "default-src 'none';") ||
			!strings.Contains(h.Get("Content-Security-Policy"), "frame-ancestors 'none'") ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Cross-Origin-Resource-Policy") != "same-origin" ||
			h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s: %v", path, h)
		}
	}
}

// Every line about a request has its id.
func TestLinesOfARequestHaveItsID(t *testing.T) {
	p := newPlane(t)
	p.log.Reset()
	p.store.mode.Store("panic")
	for _, c := range []call{{"root", "GET", "/v1/versions", nil, ""}, {"nobody", "GET", "/v1/nodes", nil, ""}} {
		c.header = map[string]string{"X-Request-Id": "the-id-of-the-caller"}
		p.do(c)
	}
	lines := strings.Split(strings.TrimSpace(p.log.String()), "\n")
	if len(lines) < 3 {
		t.Errorf("the log is %s", p.log)
	}
	for _, line := range lines {
		var got struct{ ID string }
		if err := json.Unmarshal([]byte(line), &got); err != nil || got.ID != "the-id-of-the-caller" {
			t.Errorf("%v: %s", err, line)
		}
	}
}

// A hostile node: other nodes get exactly their tokens, and the node makes nothing grow.
func TestAHostileNode(t *testing.T) {
	p := newPlane(t)
	if w := p.put("*", set); w.Code != 200 { // a: 10 per minute
		t.Fatal(w.Body)
	}
	const hostile = "203.0.113.66:666"
	lease := func(address string, r wire.LeaseRequest) wire.LeaseReply {
		t.Helper()
		w := p.from(address, call{who: "envoy", method: "POST", path: "/node/v1/leases",
			body: string(wire.AppendLeaseRequest(nil, r))})
		var reply wire.LeaseReply
		if err := wire.DecodeLeaseReply(w.Body.Bytes(), &reply); w.Code != 200 || err != nil || reply.Seq != r.Seq ||
			len(reply.Items) != len(r.Items) {
			t.Fatalf("%d %q, %v", w.Code, w.Body, err)
		}
		return reply
	}
	item := func(bucket byte, waiting, keep int64) wire.LeaseItem {
		return wire.LeaseItem{Bucket: keyhash.Key{bucket}, Waiting: waiting, Cost: 1, Keep: keep}
	}
	honest := func(bucket byte, want int64) {
		t.Helper()
		got := lease("192.0.2.1:1", wire.LeaseRequest{Node: "honest", Boot: 1, Seq: 1, Version: 1,
			Items: []wire.LeaseItem{item(bucket, 1<<20, 0)}})
		if got.Items[0].Waiting != want {
			t.Errorf("bucket %d grants an honest node %+v, want %d", bucket, got.Items[0], want)
		}
	}
	// Whatever it asks, all together get no more than the bucket has, and other buckets are
	// untouched.
	greedy := wire.LeaseRequest{Node: "wild", Boot: 1<<64 - 1, Seq: 1<<64 - 1, Version: 1}
	for range wire.MaxItems {
		greedy.Items = append(greedy.Items, item(7, 1<<20, 1<<52))
	}
	var total int64
	for _, a := range lease(hostile, greedy).Items {
		total += a.Waiting + a.Keep
	}
	if total != 10 {
		t.Errorf("a bucket of 10 granted it %d", total)
	}
	honest(7, 0)
	honest(8, 10)
	// Versions and limits that never were, and buckets joined in ways that no node would.
	for _, version := range []uint64{0, 2, 1 << 63, 1<<64 - 1} {
		for _, limit := range []uint32{0, 1, 1 << 20} {
			it := item(9, 1, 5)
			it.Limit, it.Joined = limit, true
			last := it
			last.Joined = false
			for _, a := range lease(hostile,
				wire.LeaseRequest{Node: "wild", Version: version, Items: []wire.LeaseItem{it, last}}).Items {
				if a.Waiting+a.Keep > 0 {
					t.Errorf("version %d, limit %d: granted %+v", version, limit, a)
				}
			}
		}
	}
	honest(9, 10)
	// Garbage is refused, each piece by itself. Three items have all places at which a request can
	// break off.
	greedy.Items = greedy.Items[:3]
	valid := wire.AppendLeaseRequest(nil, greedy)
	for n := range valid {
		body := append([]byte(nil), valid[:n]...)
		for _, path := range []string{"/node/v1/leases", "/node/v1/report", "/node/v1/consumers"} {
			if w := p.from(hostile, call{who: "envoy", method: "POST", path: path, body: string(body)}); w.Code != 400 {
				t.Fatalf("%d bytes of a request to %s: %d", n, path, w.Code)
			}
		}
	}
	p.inventNodes(hostile)
	honest(10, 10)
}

// inventNodes has a node name thousands of others: it crowds no other node out.
func (p *plane) inventNodes(address string) {
	p.t.Helper()
	poll := func(address, node string) int {
		return p.from(address, call{who: "envoy", method: "GET",
			path: "/node/v1/snapshot?boot=1&wait=0s&after=1&node=" + node}).Code
	}
	if code := poll("192.0.2.1:1", "honest"); code != http.StatusNoContent {
		p.t.Fatalf("an honest poll: %d", code)
	}
	for i := range 12_000 {
		if code := poll(address, fmt.Sprint("invented-", i)); code != http.StatusNoContent {
			p.t.Fatalf("poll %d: %d", i, code)
		}
	}
	all, err := p.store.Nodes(context.Background())
	if err != nil {
		p.t.Fatal(err)
	}
	honest := false
	for _, n := range all {
		honest = honest || n.ID == "honest"
	}
	if !honest || len(all) > 4000 {
		p.t.Errorf("of 12000 invented nodes %d are listed; the honest one is: %v", len(all), honest)
	}
	// One from elsewhere is noted nevertheless.
	poll("192.0.2.2:1", "late")
	if all, err = p.store.Nodes(context.Background()); err != nil || all[len(all)-1].ID != "late" {
		p.t.Errorf("a node from another address is not noted: %v", err)
	}
}
