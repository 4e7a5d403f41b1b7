package wasm

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"math/rand/v2"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/weir-proxy/weir/envoytest"
)

// item is one policy's part of a RateLimit or RateLimit-Policy header.
type item struct {
	name   string
	params map[string]int64
}

// draft11 reads a structured list of strings with integer parameters.
func draft11(t testing.TB, value string) []item {
	t.Helper()
	list, err := httpsfv.UnmarshalList([]string{value})
	if err != nil {
		t.Fatalf("%q: %v", value, err)
	}
	var items []item
	for _, member := range list {
		m, ok := member.(httpsfv.Item)
		if !ok {
			t.Fatalf("%q has a member that is no item", value)
		}
		it := item{name: m.Value.(string), params: map[string]int64{}}
		for _, name := range m.Params.Names() {
			v, _ := m.Params.Get(name)
			it.params[name] = v.(int64)
		}
		items = append(items, it)
	}
	return items
}

// integer reads a header that must be a whole number.
func integer(t testing.TB, r *envoytest.Reply, name string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(r.Header(name), 10, 64)
	if err != nil {
		t.Fatalf("%s: %v in %v", name, err, r.Headers)
	}
	return n
}

// Retry-After is at least 1, never early, at most a tenth late (and rounded up), the same for all
// requests of one moment, and equal to the draft's t.
func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		rate string
		wait float64 // seconds until one token
	}{{"10/1s", 0.1}, {"1/1s", 1}, {"1/1m", 60}, {"7/1h", 3600.0 / 7}, {"1/1d", 86400}, {"1/366d", 366 * 86400}} {
		t.Run(c.rate, func(t *testing.T) {
			h := start(t, envoytest.Options{PluginConfig: alone(setOf(limits("p", "local", c.rate+" burst 1")))})
			spread := map[int64]bool{}
			for key := range 50 {
				request := get("x-key", strconv.Itoa(key))
				count(t, h, 0, 1, request)
				_, s := passes(t, h, 0, request)
				_, again := passes(t, h, 0, request)
				retry := integer(t, s.Reply(), "retry-after")
				spread[retry] = true
				if float64(retry) < max(1, c.wait) || float64(retry) > math.Ceil(c.wait*1.1) {
					t.Errorf("key %d must wait %v s and receives %d", key, c.wait, retry)
				}
				if n := integer(t, again.Reply(), "retry-after"); n != retry {
					t.Errorf("key %d receives %d and then %d", key, retry, n)
				}
				if left := draft11(t, s.Reply().Header("ratelimit")); left[0].params["t"] != retry {
					t.Errorf("t is %d, Retry-After %d", left[0].params["t"], retry)
				}
				if body := problem(t, s.Reply()); body.RetryAfter != retry {
					t.Errorf("retry_after in the body is %d, Retry-After %d", body.RetryAfter, retry)
				}
			}
			if c.wait >= 60 && len(spread) < 4 {
				t.Errorf("50 keys are asked to come back at only %d different times", len(spread))
			}
		})
	}
}

// problemJSON is the body of a refusal (RFC 9457).
type problemJSON struct {
	Type       string   `json:"type"`
	Title      string   `json:"title"`
	Status     int      `json:"status"`
	Detail     string   `json:"detail"`
	Violated   []string `json:"violated-policies"`
	Limit      int64    `json:"limit"`
	Window     string   `json:"window"`
	RetryAfter int64    `json:"retry_after"`
}

func problem(t testing.TB, r *envoytest.Reply) problemJSON {
	t.Helper()
	var p problemJSON
	d := json.NewDecoder(strings.NewReader(string(r.Body)))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		t.Fatalf("%v in %s", err, r.Body)
	}
	if r.Header("content-type") != "application/problem+json" {
		t.Errorf("content-type is %q", r.Header("content-type"))
	}
	if p.Status != r.Status {
		t.Errorf("the body says %d, the status is %d", p.Status, r.Status)
	}
	return p
}

func TestRefusals(t *testing.T) {
	set := setOf(
		limits("quota", "local", "1/1h", `"match": {"paths": ["/quota"]}`),
		limits("dear", "local", "5/1m", costHeader, `"match": {"paths": ["/dear"]}`),
		limits("cost", "local", "5/1m", `"cost": {"header": "x-cost", "max": 3, "invalid": "deny"}`, `"match": {"paths": ["/cost"]}`),
		limits("absent", "local", "5/1m", `"if_absent": "deny"`, `"match": {"paths": ["/absent"]}`),
	)
	for _, c := range []struct {
		path, key, cost string
		before          int
		status          int
		reason          string
		says            string
		retry           bool
		grpc            string
	}{
		{path: "/quota", key: "a", before: 1, status: 429, reason: "quota", says: "1 per 1h", retry: true, grpc: "8"},
		{path: "/dear", key: "a", cost: "6", status: 429, reason: "too_dear", says: "waiting does not help", grpc: "8"},
		{path: "/cost", key: "a", cost: "4", status: 400, reason: "bad_cost", says: "cost", grpc: "3"},
		{path: "/cost", key: "a", cost: "-1", status: 400, reason: "bad_cost", says: "cost", grpc: "3"},
		{path: "/cost", key: "a", status: 400, reason: "bad_cost", says: "cost", grpc: "3"},
		{path: "/absent", status: 403, reason: "absent", says: "whose request", grpc: "7"},
	} {
		t.Run(c.path+" "+c.cost, func(t *testing.T) {
			h := start(t, envoytest.Options{PluginConfig: alone(set)})
			var more []string
			if c.key != "" {
				more = append(more, "x-key", c.key)
			}
			if c.cost != "" {
				more = append(more, "x-cost", c.cost)
			}
			request := get(more...)
			request.Headers[1][1] = c.path
			count(t, h, 0, c.before, request)
			ok, s := passes(t, h, 0, request)
			if ok {
				t.Fatal("it passed")
			}
			r, name := s.Reply(), strings.TrimPrefix(c.path, "/")
			p := problem(t, r)
			if r.Status != c.status || !slices.Equal(p.Violated, []string{name}) ||
				!strings.Contains(p.Detail, c.says) || p.Title == "" || p.Type == "" {
				t.Errorf("%d %s", r.Status, r.Body)
			}
			if has := r.Header("retry-after") != ""; has != c.retry || (p.RetryAfter > 0) != c.retry {
				t.Errorf("retry-after is %q, retry_after %d", r.Header("retry-after"), p.RetryAfter)
			}
			if d, _ := readDecision(t, s); !d.refused || d.reason != c.reason || d.policy != name {
				t.Errorf("the decision is %+v", d)
			}
			if r.Details != "weir_"+c.reason {
				t.Errorf("the details are %q", r.Details)
			}
			request.Headers = append(request.Headers, [2]string{"content-type", "application/grpc+proto"})
			_, s = passes(t, h, 0, request)
			if r := s.Reply(); r.Status != 200 || r.Header("grpc-status") != c.grpc || len(r.Body) > 0 ||
				!strings.HasPrefix(r.Header("grpc-message"), p.Detail[:20]) {
				t.Errorf("a gRPC caller gets %+v", r)
			}
			const asWeb = "application/grpc-web"
			for _, web := range []string{asWeb + "+proto", asWeb + "-text", asWeb} {
				request.Headers[len(request.Headers)-1][1] = web
				_, s = passes(t, h, 0, request)
				r := s.Reply()
				trailers := webTrailers(t, r.Header("content-type"), r.Body)
				if r.Status != 200 || !strings.HasPrefix(r.Header("content-type"), web) ||
					trailers["grpc-status"] != c.grpc || !strings.HasPrefix(trailers["grpc-message"], p.Detail[:20]) {
					t.Errorf("a caller by %s gets %+v: %v", web, r, trailers)
				}
			}
		})
	}
}

// webTrailers reads the frame of trailers of an answer by gRPC-Web, as browsers do.
func webTrailers(t *testing.T, contentType string, body []byte) map[string]string {
	t.Helper()
	if strings.HasPrefix(contentType, "application/grpc-web-text") {
		decoded, err := base64.StdEncoding.DecodeString(string(body))
		if err != nil {
			t.Fatalf("%v in %q", err, body)
		}
		body = decoded
	}
	if len(body) < 5 || body[0] != 0x80 || int(binary.BigEndian.Uint32(body[1:])) != len(body)-5 {
		t.Fatalf("no frame of trailers: %q", body)
	}
	trailers := map[string]string{}
	for _, line := range strings.Split(strings.TrimSuffix(string(body[5:]), "\r\n"), "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		plain, err := url.PathUnescape(value)
		if err != nil || name != strings.ToLower(name) {
			t.Errorf("the trailer %q: %v", line, err)
		}
		trailers[name] = plain
	}
	return trailers
}

// The Unix second at which the bucket is full never lies before a second that an allowed answer
// named earlier, with any requests in between. On a refusal it is the second at which the request
// passes.
func TestResetNeverStepsBack(t *testing.T) {
	h := start(t, envoytest.Options{PluginConfig: alone(setWith(legacyToo,
		limits("p", "local", "7/1m burst 5", costHeader)))})
	var last int64
	refused := 0
	for i := range 400 {
		cost := i % 4
		if i%13 == 0 {
			cost = 6 // more than the burst
		}
		ok, s := passes(t, h, 0, get("x-key", "a", "x-cost", strconv.Itoa(cost)))
		if !ok {
			refused++
		}
		r := s.Reply()
		reset, now := integer(t, r, "x-ratelimit-reset"), h.Now().Unix()
		if ok && reset < last {
			t.Fatalf("request %d: reset steps from %d back to %d", i, last, reset)
		}
		if ok {
			last = reset
		} else if cost <= 5 {
			if retry := integer(t, r, "retry-after"); reset != now+retry && reset != now+retry+1 {
				t.Fatalf("request %d: Retry-After is %d, reset %d at %d", i, retry, reset, now)
			}
		}
		if reset < now || reset > now+46 {
			t.Errorf("request %d: reset %d at %d", i, reset, now)
		}
		if integer(t, r, "x-ratelimit-limit") != 5 {
			t.Errorf("x-ratelimit-limit is %s", r.Header("x-ratelimit-limit"))
		}
		if left := integer(t, r, "x-ratelimit-remaining"); left < 0 || left > 5 || !ok && left >= int64(cost) {
			t.Errorf("x-ratelimit-remaining is %d after a cost of %d", left, cost)
		}
		h.Advance(time.Duration(i%11) * 300 * time.Millisecond)
	}
	if refused < 50 || refused > 350 {
		t.Errorf("%d of 400 were refused: the test says little", refused)
	}
}

// The same where two workers answer, in every mode: the state of one worker, or the node's copy of
// a bucket of the control plane, is older than the bucket, and still no answer contradicts an
// earlier answer.
func TestWorkersNeverContradictAReset(t *testing.T) {
	rates := map[string][]string{
		"local":      {"100/1m", "60/1h", "200/1s burst 400", "6000/1m", "40000/1m", "2000/1h"},
		"leased":     {"100/1m", "60/1h", "200/1s burst 400", "6000/1m", "40000/1m"},
		"strict":     {"100/1m", "60/1h", "200/1s burst 400"},
		"optimistic": {"100/1m", "60/1h", "200/1s burst 400", "6000/1m", "40000/1m"},
	}
	for _, mode := range slices.Sorted(maps.Keys(rates)) {
		for _, rate := range rates[mode] {
			for name, pause := range map[string]int{"": 10, " at once": 1} {
				t.Run(mode+" "+rate+name, func(t *testing.T) {
					resetNeverStepsBack(t, limits("p", mode, rate, thenDeny, costHeader), pause)
				})
			}
		}
	}
}

// resetNeverStepsBack asks two workers of two nodes for one key, after pauses of up to pause
// milliseconds and some of up to three seconds. Each node knows the last answer that it received.
func resetNeverStepsBack(t *testing.T, limit string, pause int) {
	w := newWorld(t, fleet{nodes: 2, workers: 2, set: setWith(legacyToo, limit)})
	r := rand.New(rand.NewPCG(11, 12))
	var last [2]int64
	var back, worst int64
	refused, total := 0, 0
	for range 3000 {
		cost := 1
		switch r.IntN(50) {
		case 0:
			cost = 100_000 // more than any burst
		case 1:
			cost = 40
		}
		node := r.IntN(6) / 5
		a := w.ask(node, r.IntN(2), get("x-key", "a", "x-cost", strconv.Itoa(cost)))
		total++
		if reset := integer(t, a.stream.Reply(), "x-ratelimit-reset"); a.passed {
			if reset < last[node] {
				back++
				worst = max(worst, last[node]-reset)
			}
			last[node] = reset
		} else {
			refused++
		}
		switch r.IntN(40) {
		case 0:
			w.advance(millis(r, 100, 3000))
		default:
			w.advance(millis(r, 0, pause))
		}
	}
	t.Logf("%d of %d refused; %d steps back, the worst of %d s", refused, total, back, worst)
	if back > 0 {
		t.Errorf("reset steps back %d times, by up to %d s", back, worst)
	}
}

// Clocks that two workers read a moment apart do not make them round a reset to different seconds;
// a clock that was set does.
func TestWorkersAgreeOnTheSecond(t *testing.T) {
	for _, mode := range []string{"local", "leased", "optimistic"} {
		w := newWorld(t, fleet{nodes: 1, workers: 2,
			set: setWith(legacyToo, limits("p", mode, "60/1h", thenDeny, costHeader))})
		h := w.nodes[0]
		w.advance(h.Now().Truncate(time.Second).Add(time.Second).Sub(h.Now())) // A minute later is a whole second.
		r := rand.New(rand.NewPCG(13, 14))
		ask := func(worker int, cost string) int64 {
			return integer(t, w.ask(0, worker, get("x-key", "a", "x-cost", cost)).stream.Reply(), "x-ratelimit-reset")
		}
		first := ask(0, "1")
		last := first
		var off time.Duration
		for range 500 {
			next := time.Duration(r.IntN(4001)-2000) * time.Microsecond
			h.StepWallClock(next - off)
			off = next
			w.advance(millis(r, 0, 20))
			fullAt := ask(r.IntN(2), "0")
			if fullAt < last || fullAt > first+1 {
				t.Fatalf("%s: the bucket is full at %d, after %d and, at first, %d", mode, fullAt, last, first)
			}
			last = fullAt
		}
		h.StepWallClock(-time.Hour - off)
		w.advance(30 * time.Millisecond)
		if fullAt := ask(0, "0"); fullAt != last-3600 {
			t.Errorf("%s: the bucket is full at %d, after %d an hour ago", mode, fullAt, last)
		}
	}
}

// Headers that only a limiter may send do not reach the upstream from a client, with any policy or
// none.
func TestForgedHeadersAreRemoved(t *testing.T) {
	forged := []string{
		"RateLimit", `"p";r=1`, "ratelimit-policy", "x", "ratelimit-reset", "1", "X-RateLimit-Limit", "9", "x-ratelimit-limit", "10",
		"x-ratelimit-remaining", "9", "X_RateLimit_Remaining", "9", "x_ratelimit-limit", "9",
		"RateLimit_Reset", "1", "X-Rate-Limit-Remaining", "9", "x_rate-limit-reset", "9",
	}
	check := func(t *testing.T, s *envoytest.Stream) {
		t.Helper()
		if s.State() != envoytest.Continued {
			t.Fatalf("the request is %v", s.State())
		}
		kept := false
		for _, header := range s.RequestHeaders() {
			if strings.Contains(strings.NewReplacer("-", "", "_", "").Replace(header[0]), "ratelimit") {
				t.Errorf("the upstream sees %v", header)
			}
			kept = kept || header == [2]string{"x-rate", "kept"}
		}
		if !kept {
			t.Error("another header is gone")
		}
	}
	request := get(append(slices.Clone(forged), "x-rate", "kept")...)
	t.Run("limited", func(t *testing.T) {
		h := start(t, envoytest.Options{PluginConfig: alone(setOf(limits("p", "local", "1/1m", forAll)))})
		check(t, h.Worker(0).Request(request))
	})
	t.Run("no policy applies", func(t *testing.T) {
		h := start(t, envoytest.Options{PluginConfig: alone(setOf())})
		check(t, h.Worker(0).Request(request))
	})
	t.Run("no policy set yet", func(t *testing.T) {
		w := newWorld(t, fleet{nodes: 1})
		check(t, w.nodes[0].Worker(0).Request(request))
	})
	t.Run("after waiting", func(t *testing.T) {
		w := newWorld(t, fleet{nodes: 1, set: setOf(limits("p", "leased", "10/1m", forAll))})
		s := w.nodes[0].Worker(0).Request(request)
		w.advance(20 * time.Millisecond)
		check(t, s)
	})
}

// If an upstream limits too and is stricter, its headers stay.
func TestStricterUpstreamStays(t *testing.T) {
	h := start(t, envoytest.Options{PluginConfig: alone(setWith(legacyToo, limits("p", "local", "10/1m")))})
	for _, c := range []struct {
		upstream string
		want     string
	}{{`"theirs";r=3;t=5`, "theirs"}, {`"theirs";r=1000;t=5`, "p"}, {`not a list`, "p"}} {
		s := h.Worker(0).Request(get("x-key", c.upstream))
		r := s.Respond(200, [][2]string{{"RateLimit", c.upstream}, {"RateLimit-Policy", `"theirs";q=5;w=9`}})
		limit, quotas := draft11(t, r.Header("ratelimit")), draft11(t, r.Header("ratelimit-policy"))
		if limit[0].name != c.want || quotas[0].name != c.want {
			t.Errorf("upstream says %s: the client sees %v", c.upstream, r.Headers)
		}
	}
}
