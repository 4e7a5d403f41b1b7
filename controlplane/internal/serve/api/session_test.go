package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3filter"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/controlplane/internal/serve/console"
)

// fromConsole are the headers that a browser sends for the console's own page.
func fromConsole(more ...string) map[string]string {
	h := map[string]string{"Weir-Console": "1", "Sec-Fetch-Site": "same-origin", "Origin": "http://example.com"}
	for i := 0; i < len(more); i += 2 {
		h[more[i]] = more[i+1]
	}
	return h
}

// logIn logs in with the token of that name and returns the cookie.
func (p *plane) logIn(who string, more ...string) *http.Cookie {
	p.t.Helper()
	w := p.do(call{"", "POST", "/v1/session", fromConsole(more...), `{"token": "token of ` + who + `"}`})
	if w.Code != 200 || len(w.Result().Cookies()) != 1 {
		p.t.Fatalf("%d %s %v", w.Code, w.Body, w.Header())
	}
	return w.Result().Cookies()[0]
}

func as(c *http.Cookie, more ...string) map[string]string {
	return fromConsole(append([]string{"Cookie", c.Name + "=" + c.Value}, more...)...)
}

func TestTheSessionNamesTheDashboard(t *testing.T) {
	for _, url := range []string{"", "https://grafana.example.com/d/weir"} {
		p := newPlaneWith(t, func(c *api.Config) { c.Dashboard = url })
		w := p.do(call{"", "GET", "/v1/session", as(p.logIn("eyes")), ""})
		var got struct {
			Dashboard *string `json:"dashboard_url"`
		}
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || (got.Dashboard != nil) != (url != "") ||
			got.Dashboard != nil && *got.Dashboard != url {
			t.Errorf("%q: %v %s", url, err, w.Body)
		}
	}
}

func TestTheCookieIsOutOfReach(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	p := newPlaneWith(t, func(c *api.Config) { c.Now = func() time.Time { return now } })
	for _, c := range []struct {
		header []string
		name   string
		secure bool
	}{
		{nil, "weir-session", false},
		{[]string{"X-Forwarded-Proto", "https"}, "__Host-weir-session", true},
	} {
		got := p.logIn("eyes", c.header...)
		if got.Name != c.name || got.Secure != c.secure || !got.HttpOnly || got.SameSite != http.SameSiteStrictMode ||
			got.Path != "/" || got.Domain != "" || got.MaxAge != 12*60*60 {
			t.Errorf("%v", got)
		}
		if strings.Contains(got.Value, "token of") {
			t.Errorf("the cookie holds the token: %s", got.Value)
		}
		w := p.do(call{"", "GET", "/v1/session", as(got, c.header...), ""})
		if w.Code != 200 || w.Body.String() != `{"name":"eyes","role":"viewer"}`+"\n" ||
			w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%d %s %v", w.Code, w.Body, w.Header())
		}
		if w := p.do(call{"", "GET", "/v1/nodes", as(got, c.header...), ""}); w.Code != 200 ||
			w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	}
	if log := p.log.String(); strings.Contains(log, "token of") || !strings.Contains(log, "login to the console") {
		t.Errorf("the log has the token, or no login: %s", log)
	}
}

// A request that a page of another site makes brings the cookie along: it must not count.
func TestOtherPagesCannotUseTheCookie(t *testing.T) {
	p := newPlane(t)
	cookie := p.logIn("root")
	own := func(change func(http.Header)) map[string]string {
		h := http.Header{}
		for name, value := range as(cookie, "If-Match", "*") {
			h.Set(name, value)
		}
		change(h)
		out := map[string]string{}
		for name := range h {
			out[name] = h.Get(name)
		}
		return out
	}
	for _, c := range []struct {
		what   string
		change func(http.Header)
		status int
	}{
		{"the console", func(http.Header) {}, 200},
		{"the console in an old browser", func(h http.Header) { h.Del("Sec-Fetch-Site") }, 200},
		{"the console behind a proxy that changes the host",
			func(h http.Header) { h.Set("Origin", "https://weir.example.org") }, 200},
		{"a form", func(h http.Header) { h.Del("Weir-Console") }, 403},
		{"another site", func(h http.Header) { h.Set("Sec-Fetch-Site", "cross-site") }, 403},
		{"another port or host of the site", func(h http.Header) { h.Set("Sec-Fetch-Site", "same-site") }, 403},
		{"an address that was typed", func(h http.Header) { h.Set("Sec-Fetch-Site", "none") }, 403},
		{"another origin", func(h http.Header) { h.Del("Sec-Fetch-Site"); h.Set("Origin", "http://evil.example") },
			403},
		{"a page in a sandbox", func(h http.Header) { h.Del("Sec-Fetch-Site"); h.Set("Origin", "null") }, 403},
		{"a browser that hides where it is", func(h http.Header) { h.Del("Sec-Fetch-Site"); h.Del("Origin") }, 403},
	} {
		header := own(c.change)
		w := p.do(call{"", "PUT", "/v1/policyset", header, set})
		if w.Code != c.status {
			t.Errorf("%s: %d %s", c.what, w.Code, w.Body)
		}
		if c.status == 403 {
			p.problem(p.do(call{"", "POST", "/v1/session", header, `{"token": "token of root"}`}), 403, "forbidden")
			p.problem(p.do(call{"", "DELETE", "/v1/session", header, ""}), 403, "forbidden")
		}
	}
	for _, header := range []string{"Access-Control-Allow-Origin", "Access-Control-Allow-Headers",
		"Access-Control-Allow-Credentials"} {
		w, r := httptest.NewRecorder(), httptest.NewRequest("OPTIONS", "/v1/policyset", nil)
		r.Header.Set("Origin", "http://evil.example")
		r.Header.Set("Access-Control-Request-Method", "PUT")
		r.Header.Set("Access-Control-Request-Headers", "weir-console")
		p.handler.ServeHTTP(w, r)
		if w.Header().Get(header) != "" {
			t.Errorf("other origins may send the header: %v", w.Header())
		}
	}
}

func TestASessionHasTheRoleOfItsToken(t *testing.T) {
	p := newPlane(t)
	for who, status := range map[string]int{"eyes": 403, "ed": 200, "root": 200} {
		w := p.do(call{"", "PUT", "/v1/policyset", as(p.logIn(who), "If-Match", "*"), set})
		if w.Code != status {
			t.Errorf("%s: %d %s", who, w.Code, w.Body)
		}
	}
	w := p.do(call{"eyes", "PUT", "/v1/policyset", as(p.logIn("root"), "If-Match", "*"), set})
	p.problem(w, 403, "forbidden") // The header was meant.
	p.problem(p.do(call{"", "GET", "/node/v1/snapshot?node=a", as(p.logIn("ed")), ""}), 403, "forbidden")
	w = p.do(call{"", "POST", "/v1/session", fromConsole(), `{"token": "token of envoy"}`})
	p.problem(w, 403, "forbidden")
	if len(w.Result().Cookies()) != 0 {
		t.Error("a node has got a cookie")
	}
}

// A cookie is as good as its token, and ends with it.
func TestASessionEndsWithItsToken(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	ring := auth.NewRing(nil, clock)
	p := newPlaneWith(t, func(c *api.Config) { c.Tokens, c.Now = ring, clock })
	lasting, ending := token("lasting", auth.Admin), token("ending", auth.Admin)
	ending.Expires = now.Add(time.Hour)
	ring.Set(auth.Tokens{lasting, ending})
	long, short := p.logIn("lasting"), p.logIn("ending")
	if short.MaxAge != 60*60 {
		t.Errorf("the cookie of a token that expires in an hour lasts %d s", short.MaxAge)
	}
	status := func(c *http.Cookie) int { return p.do(call{"", "GET", "/v1/nodes", as(c), ""}).Code }
	check := func(what string, longer, shorter int) {
		t.Helper()
		if status(long) != longer || status(short) != shorter {
			t.Errorf("%s: %d and %d, want %d and %d", what, status(long), status(short), longer, shorter)
		}
	}
	check("at first", 200, 200)
	now = now.Add(time.Hour)
	check("when a token has expired", 200, 401)
	ring.Set(nil)
	check("when the token is revoked", 401, 401)
	ring.Set(auth.Tokens{lasting})
	now = now.Add(11*time.Hour - time.Second)
	check("a second before twelve hours", 200, 401)
	now = now.Add(time.Second)
	check("after twelve hours", 401, 401)
	for _, value := range []string{"", "x", long.Value[:40], strings.Repeat("A", 5000)} {
		p.problem(p.do(call{"", "GET", "/v1/nodes", as(&http.Cookie{Name: "weir-session", Value: value}), ""}), 401,
			"unauthorized")
	}
	plain := &http.Cookie{Name: "weir-session", Value: p.logIn("lasting").Value}
	p.problem(p.do(call{"", "GET", "/v1/nodes", as(plain, "X-Forwarded-Proto", "https"), ""}), 401, "unauthorized")
}

func TestLogout(t *testing.T) {
	p := newPlane(t)
	w := p.do(call{"", "DELETE", "/v1/session", as(p.logIn("root")), ""})
	cookies := w.Result().Cookies()
	if w.Code != 204 || len(cookies) != 1 || cookies[0].Value != "" || cookies[0].MaxAge != -1 {
		t.Errorf("%d %v", w.Code, cookies)
	}
	gzip := fromConsole("Content-Encoding", "gzip")
	p.problem(p.do(call{"", "DELETE", "/v1/session", gzip, ""}), 415, "unsupported-media-type")
	p.problem(p.do(call{"", "DELETE", "/v1/session?x=1", fromConsole(), ""}), 400, "bad-request")
	p.problem(p.do(call{"root", "GET", "/v1/session?x=1", nil, ""}), 400, "bad-request")
}

// A caller that guesses tokens is held up, and callers that have one are not.
func TestGuessingTokensIsBounded(t *testing.T) {
	p := newPlane(t)
	guess := call{"", "POST", "/v1/session", fromConsole(), `{"token": "weir_guess"}`}
	w := p.do(guess)
	p.problem(w, 401, "unauthorized")
	if len(w.Result().Cookies()) != 0 || strings.Contains(p.log.String()+w.Body.String(), "weir_guess") {
		t.Errorf("%s\n%s", w.Body, p.log)
	}
	refused := 0
	for range 200 {
		if w := p.do(guess); w.Code == 429 && w.Header().Get("Retry-After") != "" {
			refused++
		}
	}
	if refused < 50 {
		t.Errorf("of 200 wrong tokens %d were held up", refused)
	}
	p.logIn("root")
	for body, kind := range map[string]string{`{}`: "bad-request", `{"token": 1}`: "bad-request", `token`: "bad-request"} {
		p.problem(p.do(call{"", "POST", "/v1/session", fromConsole(), body}), 400, kind)
	}
	p.problem(p.do(call{"", "POST", "/v1/session", fromConsole(), strings.Repeat(" ", 4097)}), 413, "too-large")
	p.problem(p.do(call{"", "POST", "/v1/session", fromConsole("Content-Encoding", "gzip"), "{}"}), 415,
		"unsupported-media-type")
}

func TestTheConsoleIsServed(t *testing.T) {
	p := newPlane(t)
	for _, kind := range []string{"text/javascript", "text/css", "image/svg+xml"} { // Check their text as it is.
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.FileBodyDecoder)
	}
	files, err := console.Files()
	if err != nil {
		t.Fatal(err)
	}
	for name, file := range files {
		path, keep := "/console/"+name, "public, max-age=31536000, immutable"
		if name == console.Index {
			path, keep = "/console", "no-store"
		}
		w := p.do(call{"", "GET", path, nil, ""})
		h := w.Header()
		if w.Code != 200 || w.Body.String() != string(file.Body) || h.Get("Cache-Control") != keep ||
			h.Get("Content-Type") != file.ContentType || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %v", path, w.Code, h)
		}
		policy := h.Get("Content-Security-Policy")
		for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'",
			"connect-src 'self'",
			"frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: the policy lacks %s: %s", path, want, policy)
			}
		}
		if strings.Contains(policy, "unsafe") || strings.Contains(policy, "http") {
			t.Errorf("%s: the policy is loose: %s", path, policy)
		}
		zipped := p.do(call{"", "GET", path, map[string]string{"Accept-Encoding": "br, gzip"}, ""})
		if zipped.Header().Get("Content-Encoding") != "gzip" || zipped.Body.String() != string(file.Zipped) ||
			zipped.Header().Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s: %v", path, zipped.Header())
		}
	}
	if page := string(files[console.Index].Body); strings.Contains(page, "<style") ||
		strings.Contains(page, "<script>") ||
		strings.Contains(page, "://") {
		t.Errorf("the page has something inline or from elsewhere: %s", page)
	}
}

// A name is looked up in the list of built files: no path leads out of them.
func TestNoPathLeadsOutOfTheConsole(t *testing.T) {
	p := newPlane(t)
	for _, path := range []string{
		"/console/..", "/console/../v1/nodes", "/console/%2e%2e", "/console/..%2f..%2fetc%2fpasswd",
		"/console//etc/passwd",
		"/console/%00", "/console/.", "/console/dist", "/console/index.html%00.js", "/console/..%5c..%5cetc",
		"/console/a/b",
		"/console/%252e%252e%252fconsole.go",
	} {
		w := p.do(call{"", "GET", path, nil, ""})
		if !slices.Contains([]int{301, 400, 401, 404}, w.Code) || strings.Contains(w.Body.String(), "package ") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
}

func TestCheckSaysWhatASetPromises(t *testing.T) {
	p := newPlane(t)
	p.put(`"0"`, set)
	check := func(body string) (got struct {
		Valid    bool
		Problems []struct {
			Path, Reason, Policy string
			Line                 int
		}
		Policies []struct{ Name, Bound string }
		Summary  string
	}) {
		t.Helper()
		w := p.do(call{"eyes", "POST", "/v1/check", nil, body})
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return got
	}
	same := check(set)
	if !same.Valid || len(same.Problems) != 0 || len(same.Policies) != 1 ||
		!strings.HasPrefix(same.Policies[0].Bound, "at most 10 at once + 10 per 1m") {
		t.Errorf("%+v", same)
	}
	if other := check(strings.Replace(set, "quota: 10", "quota: 7", 1)); !other.Valid ||
		!strings.Contains(other.Summary, "10 per 1m → 7 per 1m") {
		t.Errorf("%+v", other)
	}
	if wrong := check(strings.Replace(set, "quota: 10", "quota: -1", 1)); wrong.Valid || len(wrong.Problems) != 1 ||
		wrong.Problems[0].Path != "policies[0].limit.quota" || wrong.Problems[0].Line == 0 ||
		wrong.Problems[0].Policy == "" {
		t.Errorf("%+v", wrong)
	}
	if broken := check("version: [\n"); broken.Valid || len(broken.Problems) != 1 || broken.Problems[0].Line == 0 {
		t.Errorf("%+v", broken)
	}
	if w := p.do(call{"eyes", "GET", "/v1/policyset", nil, ""}); w.Header().Get("ETag") != `"1"` {
		t.Errorf("a check has changed something: %v", w.Header())
	}
	p.problem(p.do(call{"eyes", "POST", "/v1/check?x=1", nil, set}), 400, "bad-request")
	p.problem(p.do(call{"eyes", "POST", "/v1/check", nil, strings.Repeat("#", 1<<20+1)}), 413, "too-large")
	p.problem(p.do(call{"eyes", "POST", "/v1/check", map[string]string{"Content-Type": "image/png"}, set}), 415,
		"unsupported-media-type")
}
