package envoytest

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestRequestHeaders(t *testing.T) {
	for _, c := range []struct {
		name    string
		headers [][2]string
		script  string
		want    []string
	}{
		{"pairs in order, pseudo-headers first, names in lower case",
			[][2]string{{"X-B", "1"}, {":scheme", "http"}, {"a", "2"}},
			"headers 0", []string{"ok :method=GET|:path=/x?q=1|:authority=a.example|:scheme=http|x-b=1|a=2"}},
		{"names are found in any case", [][2]string{{"X-B", "1"}}, "header-get 0 X-b", []string{"ok 1"}},
		{"an empty value is there", [][2]string{{"x-b", ""}}, "header-get 0 x-b", []string{"ok "}},
		{"a missing header", nil, "header-get 0 x-b", []string{"not-found"}},
		{"a repeated header keeps its entries, its first value is seen", [][2]string{{"x-b", "1"}, {"x-b", "2"}},
			"header-get 0 x-b; headers 0; property request/headers/x-b",
			[]string{"ok 1", "ok :method=GET|:path=/x?q=1|:authority=a.example|x-b=1|x-b=2", `ok "1,2"`}},
		{"x-forwarded-for lines are joined",
			[][2]string{{"x-forwarded-for", "1.1.1.1"}, {"x-b", "0"}, {"X-Forwarded-For", "2.2.2.2, 3.3.3.3"}},
			"header-get 0 x-forwarded-for; headers 0",
			[]string{"ok 1.1.1.1,2.2.2.2, 3.3.3.3",
				"ok :method=GET|:path=/x?q=1|:authority=a.example|x-forwarded-for=1.1.1.1,2.2.2.2, 3.3.3.3|x-b=0"}},
		{"authorization lines too, cookies and API keys not",
			[][2]string{{"authorization", "a"}, {"authorization", "b"},
				{"cookie", "a"}, {"cookie", "b"}, {"x-api-key", "a"}, {"x-api-key", "b"}},
			"header-get 0 authorization; header-get 0 cookie; header-get 0 x-api-key",
			[]string{"ok a,b", "ok a", "ok a"}},
		{"replacing removes all entries and appends an entry", [][2]string{{"x-b", "1"}, {"x-c", "0"}, {"x-b", "2"}},
			"header-replace 0 x-b 3; headers 0",
			[]string{"ok", "ok :method=GET|:path=/x?q=1|:authority=a.example|x-c=0|x-b=3"}},
		{"a replaced pseudo-header stays among its kind", nil, "header-replace 0 :method PUT; headers 0",
			[]string{"ok", "ok :path=/x?q=1|:authority=a.example|:method=PUT"}},
		{"adding appends an entry, or a value to an inline header", [][2]string{{"user-agent", "u"}},
			"header-add 0 X-B 1; header-add 0 x-b 2; header-add 0 user-agent v; headers 0",
			[]string{"ok", "ok", "ok", "ok :method=GET|:path=/x?q=1|:authority=a.example|user-agent=u,v|x-b=1|x-b=2"}},
		{"removing", [][2]string{{"x-b", "1"}, {"x-b", "2"}},
			"header-remove 0 X-B; header-remove 0 x-b; header-get 0 x-b",
			[]string{"ok", "ok", "not-found"}},
		{"setting all", [][2]string{{"x-b", "1"}}, "headers-set 0 x-z=1 :method=GET x-y=2; headers 0",
			[]string{"ok", "ok :method=GET|x-z=1|x-y=2"}},
		{"maps that are not there", nil,
			"header-get 1 x; header-get 2 x; header-get 4 x; header-get 6 x; header-get 8 x; header-add 2 x y; " +
				"header-add 6 x y; header-remove 1 x; headers-set 2 x=y",
			slices.Repeat([]string{"bad-argument"}, 9)},
		{"pairs of a map that is not there are none", nil, "headers 1; headers 2; headers 6; headers 8",
			[]string{"ok ", "ok ", "ok ", "bad-argument"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := start(t, Options{})
			r := get("request", c.script)
			r.Headers = append(r.Headers, c.headers...)
			mark := h.logLength()
			h.Worker(0).Request(r)
			equal(t, results(said(h, mark)), c.want...)
		})
	}
}

// A header map is in sight in its own callback, the request's also while the request is paused, and
// both in proxy_on_log, where they cannot be changed.
func TestWhenHeadersAreInSight(t *testing.T) {
	h := start(t, Options{})
	mark := h.logLength()
	see := "header-get 0 :method; header-get 2 :status"
	s := h.Worker(0).Request(get("request", see, "response", see, "log", see+"; header-get 1 t; header-add 0 a b",
		"done", see, "delete", see))
	s.Respond(200, nil)
	equal(t, said(h, mark),
		"request: header-get 0 :method = ok GET", "request: header-get 2 :status = bad-argument",
		"response: header-get 0 :method = bad-argument", "response: header-get 2 :status = ok 200",
		"log: header-get 0 :method = ok GET", "log: header-get 2 :status = ok 200",
		"log: header-get 1 t = not-found", "log: header-add 0 a b = bad-argument",
		"done: header-get 0 :method = bad-argument", "done: header-get 2 :status = bad-argument",
		"delete: header-get 0 :method = bad-argument", "delete: header-get 2 :status = bad-argument")
}

func TestFilterChangesHeadersOfBothSides(t *testing.T) {
	h := start(t, Options{})
	s := h.Worker(0).Request(get("request", "header-add 0 x-up 1; header-remove 0 x-on-request",
		"response", "header-add 2 RateLimit 5; header-replace 2 x-a 9"))
	if m := newHeaderMap(nil, s.RequestHeaders()); m.pairs[len(m.pairs)-1] != [2]string{"x-up", "1"} {
		t.Errorf("the upstream sees %v", m.pairs)
	}
	r := s.Respond(204, [][2]string{{"x-a", "1"}, {"x-a", "2"}})
	want := [][2]string{{":status", "204"}, {"ratelimit", "5"}, {"x-a", "9"}}
	if !slices.Equal(r.Headers, want) || r.Status != 204 || r.Local {
		t.Errorf("the client got %+v, want headers %v", r, want)
	}
}

func TestHeaderSizeIsNamesAndValues(t *testing.T) {
	m := newHeaderMap(nil, [][2]string{{"ab", "cde"}, {"f", ""}})
	if m.byteSize() != 6 {
		t.Errorf("size %d, want 6", m.byteSize())
	}
}

func TestPairsGolden(t *testing.T) {
	pairs := [][2]string{{"a", "bc"}, {"d", ""}}
	want := "\x02\x00\x00\x00" + "\x01\x00\x00\x00\x02\x00\x00\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00" +
		"a\x00bc\x00" + "d\x00\x00"
	b := make([]byte, pairsSize(pairs))
	encodePairs(b, pairs)
	if string(b) != want {
		t.Errorf("encoded %q, want %q", b, want)
	}
	if got := decodePairs(b); !slices.Equal(got, pairs) {
		t.Errorf("decoded %q", got)
	}
}

// Whatever a guest passes as pairs decodes without a panic, and only a well-formed block decodes as
// anything.
func TestDecodePairsOfAnyBytes(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	pairs := [][2]string{{"name", "value"}, {"n", ""}, {"", "v"}}
	good := make([]byte, pairsSize(pairs))
	encodePairs(good, pairs)
	for range 20_000 {
		b := slices.Clone(good)
		for range 1 + random.IntN(3) {
			b[random.IntN(len(b))] = byte(random.IntN(256))
		}
		b = b[:random.IntN(len(b)+1)]
		if got := decodePairs(b); got != nil {
			again := make([]byte, pairsSize(got))
			encodePairs(again, got)
			if !slices.Equal(again, b) {
				t.Fatalf("seed %d: %q decoded as %q", seed, b, got)
			}
		}
	}
	for name, b := range map[string][]byte{"too many": {0xff, 0xff, 0, 0}, "too long": make([]byte, maxPairsBytes+1),
		"tail": append(good, 0)} {
		if decodePairs(b) != nil {
			t.Errorf("%s: decoded", name)
		}
	}
}
