package spelling_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/spelling"
)

func TestPathsHaveOneSpelling(t *testing.T) {
	for in, want := range map[string]string{
		"/":                  "/",
		"/a/b":               "/a/b",
		"/a/b/":              "/a/b/",
		"/a//b///c":          "/a/b/c",
		"/a/./b/../c":        "/a/c",
		"/a/b/..":            "/a/",
		"/a/b/.":             "/a/b/",
		"/../../x":           "/x",
		"/..":                "/",
		"/%61%2Db":           "/a-b",
		"/%2e%2e/x":          "/x",
		"/a/%2E%2e/x":        "/x",
		"/x?y=/../z":         "/x",
		"/x#y":               "/x",
		"/%zz%4":             "/%25zz%254",
		"/%%370":             "/%2570",
		"/a/...":             "/a/...",
		"/a/..b/.c":          "/a/..b/.c",
		"*":                  "*",
		"":                   "",
		"http://h/x":         "http://h/x",
		"//":                 "/",
		"/a//../b":           "/b",
		"/users/%40me":       "/users/@me",
		"/users/@me":         "/users/@me",
		"/a%2Bb%3D%26%24%2c": "/a+b=&$,",
		"/v1/x%3Aget":        "/v1/x:get",
		"/caf%C3%A9":         "/caf%C3%A9",
		"/caf%c3%a9":         "/caf%C3%A9",
		"/caf\xc3\xa9":       "/caf%C3%A9",
		"/a%20b":             "/a%20b",
		"/a%0ab%7f":          "/a%0Ab%7F",
		"/%7Bid%7d/{x}/*":    "/%7Bid%7D/%7Bx%7D/%2A",
		"/a%2fb%5cc%00%25":   "/a%2Fb%5Cc%00%25",
		"/a%3fb%23":          "/a%3Fb%23",
		"/a\\b\\..\\c":       "/a/c",
		"/a;x=1/b%3Bc":       "/a;x=1/b;c",
	} {
		if got, _ := spelling.AppendPath(nil, []byte(in), 0); string(got) != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// Path parameters are cut as Tomcat does: before dot segments are resolved, and only where the
// semicolon itself is in the path.
func TestPathParametersAreCut(t *testing.T) {
	for in, want := range map[string]string{
		"/login;x=1":             "/login",
		"/login;":                "/login",
		"/a;x/b;y=1;z/c":         "/a/b/c",
		"/static/..;/login":      "/login",
		"/static/%2e%2e;x/login": "/login",
		"/static/.;/login":       "/static/login",
		"/;/login":               "/login",
		"/;x":                    "/",
		"/a%3Bb":                 "/a;b",
		"/a;%2F/b":               "/a/b",
		"/a;x\\b":                "/a/b",
		"/a;b?c;d":               "/a",
	} {
		if got, _ := spelling.AppendPath(nil, []byte(in), spelling.CutParameters); string(got) != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// Letters have no case where it is folded, whether they are encoded or not. Letters beyond ASCII
// and the digits of escapes stay as they are. A slash at the end is cut last.
func TestPathsAreReadAsServicesRouteThem(t *testing.T) {
	for _, c := range []struct {
		routing  spelling.Routing
		in, want string
	}{
		{spelling.FoldCase, "/LOGIN/Me", "/login/me"},
		{spelling.FoldCase, "/%4CogIn", "/login"},
		{spelling.FoldCase, "/caf%C3%89%2fA", "/caf%C3%89%2Fa"},
		{spelling.FoldCase, "/@[`{Z", "/@[`%7Bz"},
		{spelling.FoldCase, "/A/", "/a/"},
		{spelling.FoldCase, "*", "*"},
		{spelling.CutSlash, "/login/", "/login"},
		{spelling.CutSlash, "/login//?a/", "/login"},
		{spelling.CutSlash, "/login/.", "/login"},
		{spelling.CutSlash, "/a/b/..", "/a"},
		{spelling.CutSlash, "/", "/"},
		{spelling.CutSlash, "//", "/"},
		{spelling.CutSlash, "/login%2F", "/login%2F"},
		{spelling.CutSlash, "/login/;x", "/login/;x"},
		{spelling.AnyRouting, "/LOGIN/;x", "/login"},
		{spelling.AnyRouting, "/Static/..;/LOGIN/", "/login"},
	} {
		if got, _ := spelling.AppendPath(nil, []byte(c.in), c.routing); string(got) != c.want {
			t.Errorf("%q read as %d became %q, want %q", c.in, c.routing, got, c.want)
		}
	}
}

// A path is vague if one server reads it as another path than the next server. Plain paths never
// are, however much of them is encoded.
func TestVaguePaths(t *testing.T) {
	for in, want := range map[string]bool{
		"/a/b": false, "/%61/%40": false, "/a/../b": false, "/a%3Bb": false, "/a;x=1": false, "/100%25": false,
		"/100%25.png": false, "/caf%C3%A9": false, "/a;..": false, "/...;x": false, "/%zz": false, "*": false,
		"/a?b=%2F": false, "/a%20b": false,
		"/a%2Fb": true, "/static/..%2flogin": true, "/a%5cb": true, "/a\\b": true, "/a%00": true,
		"/%252e%252e/x": true, "/a%252Fb": true, "/static/..;/login": true, "/static/..;": true,
		"/static/%2e%2e;x=1/login": true, "/static/..%3B/login": true, "/..;": true, "/\\": true,
	} {
		if _, got := spelling.AppendPath(nil, []byte(in), 0); got != want {
			t.Errorf("%q is vague: %v, want %v", in, got, want)
		}
	}
	if _, vague := spelling.AppendPath(nil, []byte("/static/..;/login"), spelling.CutParameters); vague {
		t.Error("a path is vague where path parameters are cut")
	}
}

// A path that was given its spelling keeps it, is printable ASCII, and has no dot segment and no
// empty one but at its end.
func FuzzAppendPath(f *testing.F) {
	for _, seed := range []string{"/a/../b", "/%2e/%2E%2e//x?y", "/..;/x", "*", "/%", "/a\\..\\b", "/%25%32%65"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		out, vague := spelling.AppendPath(nil, []byte(in), 0)
		once := string(out)
		if twice, still := spelling.AppendPath(nil, out, 0); string(twice) != once || vague && !still &&
			!strings.Contains(in, "\\") && !strings.Contains(in, "..") {
			t.Errorf("%q became %q, then %q; vague %v, then %v", in, once, twice, vague, still)
		}
		paths := []string{once}
		for routing := range spelling.AnyRouting + 1 {
			path, _ := spelling.AppendPath(nil, []byte(in), routing)
			paths = append(paths, string(path))
		}
		for _, path := range paths {
			if path == "" || path[0] != '/' {
				continue
			}
			segments := strings.Split(path[1:], "/")
			for i, segment := range segments {
				if segment == "." || segment == ".." || segment == "" && i < len(segments)-1 {
					t.Errorf("%q became %q", in, path)
				}
			}
			for i := range len(path) {
				if path[i] <= ' ' || path[i] >= 0x7f {
					t.Errorf("%q became %q, which is not printable", in, path)
				}
			}
		}
	})
}

func TestHostsHaveOneSpelling(t *testing.T) {
	for in, want := range map[string]string{
		"API.Example.com:8443":        "api.example.com",
		"example.com":                 "example.com",
		"API.example.com.":            "api.example.com",
		"api.example.com.:80":         "api.example.com",
		"api.example.com..":           "api.example.com.",
		"user:pass@api.example.com:1": "api.example.com",
		"@api.example.com":            "api.example.com",
		"api.example.com@":            "",
		".":                           ".",
		"":                            "",
		"[2001:DB8::1]:80":            "[2001:db8:0:0:0:0:0:1]",
		"[2001:0db8:0::0:1]":          "[2001:db8:0:0:0:0:0:1]",
		"[::1]":                       "[0:0:0:0:0:0:0:1]",
		"[::ffff:192.0.2.1]":          "[0:0:0:0:0:ffff:c000:201]",
		"[fe80::1%25eth0]":            "[fe80:0:0:0:0:0:0:1]",
		"[nonsense]:80":               "[nonsense]",
		"[":                           "[",
		"192.0.2.1:80":                "192.0.2.1",
	} {
		if got := string(spelling.AppendHost(nil, []byte(in))); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

func FuzzAppendHost(f *testing.F) {
	for _, seed := range []string{"A.b:1", "[::1]:2", "u@h", "[", "]", ":", "@[::]"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		once := spelling.AppendHost(nil, []byte(in))
		if len(once) > len(in)+40 {
			t.Errorf("%q became %q", in, once)
		}
	})
}
