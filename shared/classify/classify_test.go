package classify

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

func pairs(headers ...string) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(headers)/2))
	for _, h := range headers {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(h)))
	}
	for _, h := range headers {
		b = append(append(b, h...), 0)
	}
	return b
}

func TestNormalisePath(t *testing.T) {
	for in, want := range map[string]string{
		"/":                   "/",
		"/a/b":                "/a/b",
		"/a/b/":               "/a/b/",
		"/a//b///c":           "/a/b/c",
		"/a/./b/../c":         "/a/c",
		"/a/b/..":             "/a/",
		"/a/b/.":              "/a/b/",
		"/../../x":            "/x",
		"/..":                 "/",
		"/%61%2Db":            "/a-b",
		"/a%2fb%3f":           "/a%2Fb%3F",
		"/%2e%2e/x":           "/x",
		"/a/%2E%2e/x":         "/x",
		"/x?y=/../z":          "/x",
		"/x#y":                "/x",
		"/%zz%4":              "/%25zz%254",
		"/%%370":              "/%2570",
		"/a/...":              "/a/...",
		"/a/..b/.c":           "/a/..b/.c",
		"*":                   "*",
		"":                    "",
		"http://h/x":          "http://h/x",
		"/caf%C3%A9/\xc3\xa9": "/caf%C3%A9/\xc3\xa9",
		"//":                  "/",
		"/a//../b":            "/b",
	} {
		if got := string(NormalisePath(nil, []byte(in))); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}

// Normalising is idempotent, never leaves a dot segment or a double slash, and never panics.
func FuzzNormalisePath(f *testing.F) {
	for _, seed := range []string{"/a/../b", "/%2e/%2E%2e//x?y", "/..;/x", "*", "/%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in string) {
		once := string(NormalisePath(nil, []byte(in)))
		if twice := string(NormalisePath(nil, []byte(once))); twice != once {
			t.Errorf("%q became %q, then %q", in, once, twice)
		}
		if len(once) > 0 && once[0] == '/' {
			for i, segment := range splitSegments(once) {
				if segment == "." || segment == ".." || segment == "" && i > 0 && i < len(splitSegments(once))-1 {
					t.Errorf("%q became %q", in, once)
				}
			}
		}
	})
}

func splitSegments(path string) []string {
	var out []string
	from := 1
	for i := 1; i <= len(path); i++ {
		if i == len(path) || path[i] == '/' {
			out = append(out, path[from:i])
			from = i + 1
		}
	}
	return out
}

func TestHostMethodPath(t *testing.T) {
	var c Classifier
	for in, want := range map[string]string{
		"API.Example.com:8443": "api.example.com",
		"example.com":          "example.com",
		"[2001:DB8::1]:80":     "[2001:db8::1]",
		"[::1]":                "[::1]",
		"API.example.com.":     "api.example.com",
		"api.example.com.:80":  "api.example.com",
		"api.example.com..":    "api.example.com.",
		".":                    ".",
		"":                     "",
	} {
		a, ok := c.Classify(pairs(":authority", in, ":path", "/x?y", ":method", "GET", ":scheme", "http", "x-a", "1"),
			nil, Rules{})
		if !ok || string(a.Host) != want || string(a.Path) != "/x" || string(a.Method) != "GET" || len(a.Headers) != 5 {
			t.Errorf("%q: %v host %q path %q method %q", in, ok, a.Host, a.Path, a.Method)
		}
	}
}

func TestQuery(t *testing.T) {
	var c Classifier
	for in, want := range map[string]string{"/x": "", "/x?": "", "/x?a=1&b=2": "a=1&b=2", "/x?a?b#c?d": "a?b",
		"/x#a?b": ""} {
		if a, _ := c.Classify(pairs(":path", in), nil, Rules{}); string(a.Query) != want || string(a.Path) != "/x" {
			t.Errorf("%s: query %q of path %q, want %q", in, a.Query, a.Path, want)
		}
	}
}

func TestClientAddress(t *testing.T) {
	for _, c := range []struct {
		name, source string
		hops, prefix int
		forwarded    []string
		want         string
	}{
		{"the peer", "10.0.0.1:4242", 0, 64, nil, "10.0.0.1"},
		{"an IPv6 peer by its /64", "[2001:db8:1:2:3:4:5:6]:4242", 0, 64, nil, "2001:db8:1:2::"},
		{"any prefix", "[2001:db8:ffff:2:3:4:5:6]:4242", 0, 44, nil, "2001:db8:fff0::"},
		{"the whole address", "[2001:db8::6]:4242", 0, 128, nil, "2001:db8::6"},
		{"an IPv4-mapped peer is IPv4", "[::ffff:10.0.0.1]:1", 0, 64, nil, "10.0.0.1"},
		{"a zone is no part of it", "[fe80::1%eth0]:1", 0, 128, nil, "fe80::1"},
		{"hop 0 ignores the header", "10.0.0.1:1", 0, 64, []string{"1.1.1.1"}, "10.0.0.1"},
		{"one hop, Envoy's own entry last", "10.0.0.1:1", 1, 64, []string{"9.9.9.9, 1.1.1.1, 10.0.0.1"}, "1.1.1.1"},
		{"one hop, without Envoy's own entry", "10.0.0.1:1", 1, 64, []string{"9.9.9.9,1.1.1.1"}, "1.1.1.1"},
		{"two hops", "10.0.0.1:1", 2, 64, []string{"9.9.9.9, 1.1.1.1, 10.0.0.1"}, "9.9.9.9"},
		{"of a peer on the loopback Envoy's own entry names its machine", "127.0.0.1:1", 1, 64,
			[]string{"9.9.9.9, 1.1.1.1,192.0.2.2"}, "1.1.1.1"},
		{"the same over IPv6", "[::1]:1", 2, 64, []string{"9.9.9.9, 1.1.1.1,fd00::2"}, "9.9.9.9"},
		{"several lines count as one list", "10.0.0.1:1", 2, 64, []string{"8.8.8.8", "9.9.9.9, 1.1.1.1", "10.0.0.1"},
			"9.9.9.9"},
		{"too few entries leave the peer", "10.0.0.1:1", 3, 64, []string{"9.9.9.9, 1.1.1.1, 10.0.0.1"}, "10.0.0.1"},
		{"no header leaves the peer", "10.0.0.1:1", 1, 64, nil, "10.0.0.1"},
		{"garbage at the hop leaves the peer", "10.0.0.1:1", 1, 64, []string{"1.1.1.1, garbage, 10.0.0.1"}, "10.0.0.1"},
		{"garbage elsewhere does no harm", "10.0.0.1:1", 1, 64, []string{"garbage, 1.1.1.1, 10.0.0.1"}, "1.1.1.1"},
		{"an empty entry is garbage", "10.0.0.1:1", 1, 64, []string{"1.1.1.1,,10.0.0.1"}, "10.0.0.1"},
		{"an entry with a port", "10.0.0.1:1", 1, 64, []string{"1.1.1.1:99, 10.0.0.1"}, "1.1.1.1"},
		{"an IPv6 entry in brackets", "10.0.0.1:1", 1, 64, []string{"[2001:db8::7]:99"}, "2001:db8::"},
		{"a bare IPv6 entry", "10.0.0.1:1", 1, 128, []string{"2001:db8::7"}, "2001:db8::7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			headers := []string{":method", "GET"}
			for _, line := range c.forwarded {
				headers = append(headers, "x-forwarded-for", line)
			}
			var cl Classifier
			a, ok := cl.Classify(pairs(headers...), []byte(c.source), Rules{c.hops, c.prefix})
			addr, valid := netip.AddrFromSlice(a.ClientIP)
			if !ok || !valid || addr.String() != c.want {
				t.Errorf("got %v, want %s", addr, c.want)
			}
		})
	}
	var cl Classifier
	for _, source := range []string{"", "garbage", "[", ":", "pipe:/tmp/x"} {
		if a, _ := cl.Classify(pairs(), []byte(source), Rules{1, 64}); len(a.ClientIP) > 0 {
			t.Errorf("source %q gave the client address %v", source, a.ClientIP)
		}
	}
}

func FuzzClassify(f *testing.F) {
	f.Add(pairs(":path", "/x", "x-forwarded-for", "1.1.1.1, [::1]:2"), "10.0.0.1:1")
	f.Add([]byte{255, 255, 255, 255}, "[::1]:1")
	f.Add([]byte{1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255}, "x")
	f.Fuzz(func(t *testing.T, raw []byte, source string) {
		var c Classifier
		c.Classify(raw, []byte(source), Rules{2, 64})
	})
}
