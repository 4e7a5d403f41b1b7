//go:build clients

package e2e

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// inExpress says which route Express takes for a path. Its argument before the port is the folder
// of its packages.
const inExpress = `
const app = require(process.env.NODE_PATH + "/express")();
app.all("/login", (request, response) => response.send("login"));
app.use((request, response) => response.send("other"));
app.listen(Number(process.argv[2]), "127.0.0.1");
`

// With the settings for it, each spelling of a path that Express routes as /login is limited as
// /login. Some of them pass without the settings, which shows that they are needed.
func TestExpressRoutesWhatIsLimited(t *testing.T) {
	cache, err := stack.CacheDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NODE_PATH", filepath.Join(cache, "field", "node_modules"))
	express := startServer(t, filepath.Join(cache, "clients", "node"), "server.cjs", inExpress)
	policies := `
version: weir/v1
MATCH
policies:
  - {name: l, match: {methods: [POST], paths: [/login]}, partition: [], limit: {quota: 1, window: 24h}, mode: local}
`
	paths := []string{"/login", "/LOGIN", "/Login", "/login/", "/LOGIN/", "//login", "/login//", "/./login/",
		"/%4Cogin", "/l%4Fgin/", "/login?x=/", "/x/../LOGIN", "/login;x", "/login%2F", "/login%20", "/other",
		"/login/x"}
	for _, c := range []struct {
		match  string
		passes bool // whether spellings pass the limit that are routed as /login
	}{
		{match: "", passes: true},
		{match: "match: {path_case: fold, trailing_slash: cut}"},
	} {
		w := start(t, setup{embedded: true, policies: strings.Replace(policies, "MATCH", c.match, 1),
			handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				pass(t, w, express, fmt.Sprintf("%s %s HTTP/1.0\r\n", r.Method, r.RequestURI))
			})})
		address := strings.TrimPrefix(w.envoys[0].URL(), "http://")
		raw := func(path string) string { return "POST " + path + " HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" }
		if status, route := exchange(t, address, raw("/login")); status != 200 || route != "login" {
			t.Fatalf("the first request gets %d, %q", status, route)
		}
		passed := []string{}
		for _, path := range paths {
			status, route := exchange(t, address, raw(path))
			if status != 200 && status != 429 && status != 307 { // Envoy redirects escaped slashes.
				t.Fatalf("%s gets %d, %q", path, status, route)
			}
			if status == 200 && route == "login" {
				passed = append(passed, path)
			}
		}
		if c.passes != (len(passed) > 0) {
			t.Errorf("with %q these pass the limit of /login: %q", c.match, passed)
		}
	}
}
