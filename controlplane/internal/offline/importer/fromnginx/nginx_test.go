package fromnginx_test

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/fromnginx"
	"github.com/weir-proxy/weir/controlplane/internal/offline/importer/importertest"
	"github.com/weir-proxy/weir/shared/quota"
)

// files are a configuration in memory.
type files map[string]string

func (f files) reader() fromnginx.Files {
	return fromnginx.Files{
		Open: func(name string) ([]byte, error) {
			text, ok := f[name]
			if !ok {
				return nil, errors.New("no such file")
			}
			return []byte(text), nil
		},
		Glob: func(pattern string) (names []string, err error) {
			for name := range f {
				if ok, _ := path.Match(pattern, name); ok {
					names = append(names, name)
				}
			}
			slices.Sort(names)
			return names, nil
		},
	}
}

func imported(t testing.TB, text string) *importer.Result {
	t.Helper()
	r, err := fromnginx.Import("nginx.conf", files{"nginx.conf": text}.reader())
	if err != nil {
		t.Fatal(err)
	}
	importertest.Set(t, r)
	return r
}

// http is a configuration with a zone by address and one location.
func http(rate, arguments string) string {
	return fmt.Sprintf(`http {
  limit_req_zone $binary_remote_addr zone=one:10m rate=%s;
  server { location / { limit_req zone=one %s; } }
}`, rate, arguments)
}

func TestPolicies(t *testing.T) {
	zone := "limit_req_zone $binary_remote_addr zone=one:10m rate=10r/s;\n"
	keyed := func(key string) string {
		return "http { limit_req_zone " + key + " zone=one:1m rate=1r/s; limit_req zone=one; }"
	}
	for _, c := range []struct{ name, text, want string }{
		{"nodelay", http("10r/s", "burst=20 nodelay"), "limit: {quota: 10, window: 1s, burst: 21}"},
		{"without burst", http("10r/s", ""), "limit: {quota: 10, window: 1s, burst: 1}"},
		{"a queue", http("10r/s", "burst=20"),
			"algorithm: leaky_bucket\n    max_wait: 2s\n    limit: {quota: 10, window: 1s, burst: 20}"},
		{"a slow queue", http("7r/m", "burst=3"), "max_wait: 25715ms\n    limit: {quota: 7, window: 1m, burst: 3}"},
		{"two stages", http("10r/s", "burst=20 delay=8"), "limit: {quota: 10, window: 1s, burst: 21}"},
		{"each Envoy by itself", http("10r/s", ""), "mode: local"},
		{"each IPv6 address", http("10r/s", ""), "ipv6_prefix: 128"},
		{"nginx's status", http("10r/s", ""), "response:\n      status: 503"},
		{"another status", "http {" + zone + "limit_req_status 444; limit_req zone=one; }", "status: 444"},
		{"dry run", "http {" + zone + "limit_req_dry_run on; limit_req zone=one; }", "enforcement: shadow"},
		{"by header", keyed("$http_x_api_key"), `partition: ['header:x-api-key']`},
		{"by several", keyed("$binary_remote_addr$request_method$cookie_sid$arg_q"), `partition: [client_ip, method, 'cookie:sid', 'query:q']`},
		{"one for all", keyed("all"), "partition: []"},
		{"a name", "http {" + zone + "server { server_name A.example.com .b.example.com; limit_req zone=one; } }",
			`hosts: [a.example.com, b.example.com, '*.b.example.com']`},
		{"an exact location", "http {" + zone + "server { location = /login { limit_req zone=one; } } }",
			"paths: [/login]"},
		{"an expression", "http {" + zone + `server { location ~ ^/v1/users/\d+/orders$ { limit_req zone=one; } } }`,
			`paths: ['/v1/users/{segment}/orders']`},
		{"two paths by an expression",
			"http {" + zone + `server { location ~ ^/a/(b|c)$ { limit_req zone=one; } } }`,
			`paths: [/a/b, /a/c]`},
		{"groups of alternatives",
			"http {" + zone + `server { location ~ ^/(a|b/(?:c|d))/([^/]+)$ { limit_req zone=one; } } }`,
			`paths: ['/a/{segment}', '/b/c/{segment}', '/b/d/{segment}']`},
		{"two locations of a server",
			"http {" + zone + "server { location /a/ { limit_req zone=one; } location /b/ { limit_req zone=one; } } }",
			`paths: [/a/**, /b/**]`},
		{"an allow list", `http {
  geo $limited { default 1; 10.0.0.0/8 0; 192.168.1.7 0; }
  map $limited $key { 0 ""; 1 $binary_remote_addr; }
  limit_req_zone $key zone=one:10m rate=5r/s;
  limit_req zone=one; }`, "exempt:\n  client_ips: [10.0.0.0/8, 192.168.1.7]"},
		{"only some networks", `http {
  geo $limited { default ""; 192.0.2.0/24 x; }
  map $limited $key { "" ""; x $binary_remote_addr; }
  limit_req_zone $key zone=one:10m rate=5r/s;
  limit_req zone=one; }`, "client_ips: [192.0.2.0/24]"},
		{"by method", `http { map $request_method $key { default ""; POST $binary_remote_addr; }
  limit_req_zone $key zone=one:10m rate=5r/s; limit_req zone=one; }`, "methods: [POST]\n    partition: [client_ip]"},
		{"connections", "http { limit_conn_zone $binary_remote_addr zone=c:1m; limit_conn c 20; " +
			"limit_conn_status 429; }",
			"partition: [client_ip]\n    limit: {in_flight: 20}\n    max_hold: forever\n    mode: local\n"},
		{"a location without a limit",
			"http {" + zone + "server { location / { limit_req zone=one; } location = /health { } } }",
			"exempt:\n  paths: [/health]"},
	} {
		r := imported(t, c.text)
		if !strings.Contains(string(r.Document), c.want) {
			t.Errorf("%s: want\n%s\nin\n%s\n%s", c.name, c.want, r.Document, importertest.Verdicts(r))
		}
	}
}

func TestVerdicts(t *testing.T) {
	zone := "limit_req_zone $binary_remote_addr zone=one:10m rate=10r/s;\n"
	keyed := func(block string) string {
		return "http { " + block + "\nlimit_req_zone $key zone=one:1m rate=1r/s; limit_req zone=one; }"
	}
	for _, c := range []struct{ name, text, want string }{
		{"nodelay", http("10r/s", "burst=5 nodelay"), "3 exact: limit_req zone=one burst=5 nodelay\n"},
		{"a rounded rate", http("7r/m", "nodelay"),
			"approximate: limit_req zone=one nodelay: nginx rounds 7r/m down to 116 thousandths"},
		{"no rounding", http("6r/m", "nodelay"), "exact: limit_req zone=one nodelay\n"},
		{"two stages", http("10r/s", "burst=20 delay=8"),
			"approximate: limit_req zone=one burst=20 delay=8: nginx holds back"},
		{"no zone", "http { limit_req zone=two; }", "1 not possible: limit_req zone=two: there is no zone two"},
		{"an unused zone", "http { " + zone + " }",
			"1 exact: limit_req_zone $binary_remote_addr zone=one:10m rate=10r/s: no limit_req uses it"},
		{"an unknown variable", "http { limit_req_zone $ssl_client_s_dn zone=one:1m rate=1r/s;\nlimit_req zone=one; }",
			"2 not possible: limit_req zone=one: Weir has no part of a partition like $ssl_client_s_dn"},
		{"a location inside", "http {" + zone +
			"server { location / { limit_req zone=one; }\nlocation /a/ { limit_req zone=one burst=5; } } }",
			"Weir counts requests to location /a/ (line 3) here too, nginx does not"},
		{"alternatives that may be missing",
			"http {" + zone + `server { location ~ ^/a(/b|/c)?$ { limit_req zone=one; } } }`,
			`no pattern of Weir takes the same paths`},
		{"an expression", "http {" + zone + `server { location ~ \.php$ { limit_req zone=one; } } }`, `location ~ \.php$: no pattern of Weir takes the same paths`},
		{"a part of a file", zone + "limit_req zone=one;", "2 exact: limit_req zone=one"},
		{"a setting in a part of a file", zone + "limit_req_status 429;", "2 exact: limit_req_status 429"},
		{"an expression beside plain names", "http {" + zone +
			"server { server_name a.example ~^www\\d+$ .b.example;\nlimit_req zone=one; } }",
			"3 approximate: limit_req zone=one: left out there: server_name ~^www\\d+$: Weir's hosts have a " +
				"wildcard only at the beginning"},
		{"a setting of limits that are left out", "http {" + zone + "server { location ~ \\.php$ {\n" +
			"limit_req_status 444; limit_req zone=one; } } }",
			"3 not possible: limit_req_status 444: each limit that it is for is left out"},
		{"a setting of a server that is left out, of a limit that others have", "http {" + zone +
			"limit_req zone=one;\nserver { server_name ~^x\\d;\nlimit_req_status 444; }\n" +
			"server { server_name b.example; } }",
			"4 not possible: limit_req_status 444: each limit that it is for is left out"},
		{"a setting of limits of which one is left out", "http {" + zone + "limit_req_status 444;\n" +
			"server { location ~ \\.php$ { limit_req zone=one; }\nlocation /a/ { limit_req zone=one; } } }",
			"2 exact: limit_req_status 444"},
		{"a map of a header", keyed("map $http_authorization $key { \"\" $binary_remote_addr; default all; }"),
			"2 not possible: limit_req zone=one: nginx.conf:1: map $http_authorization $key: a map is followed if"},
		{"the map itself", keyed("map $uri $key { /a $binary_remote_addr; }"),
			"1 not possible: map $uri $key: a map is followed if"},
		{"a map with expressions", keyed("map $request_method $key { ~P $binary_remote_addr; }"),
			"1 not possible: map $request_method $key: a map is followed if"},
		{"a map of all methods but some", keyed("map $request_method $key { GET \"\"; default $binary_remote_addr; }"),
			"1 not possible: map $request_method $key: a map is followed if"},
		{"a map with two keys", keyed("map $request_method $key { GET all; POST $binary_remote_addr; }"),
			"1 not possible: map $request_method $key: a map is followed if"},
		{"a map of a map", keyed("map $request_method $a { GET $binary_remote_addr; } " +
			"map $request_method $key { POST $a; }"), "1 not possible: map $request_method $key: a map is followed if"},
		{"a geo block as a key", keyed("geo $key { default a; 10.0.0.0/8 b; }"),
			"1 not possible: geo $key: a map is followed if"},
		{"a geo block of another address", keyed("geo $arg_a $b { default a; } map $b $key { a $uri; }"),
			"1 not possible: geo $arg_a $b: Weir uses the client's address, not $arg_a"},
		{"a map inside a key", "http { map $request_method $a { GET b; }\n" +
			"limit_req_zone $a$uri zone=one:1m rate=1r/s; limit_req zone=one; }",
			"1 not possible: map $request_method $a: the import follows a map only if it is the whole key"},
		{"a map that has no key", keyed("map $request_method $key { GET \"\"; }"),
			"2 not possible: limit_req zone=one: its key is always empty"},
		{"a stream", "stream { limit_conn_zone $binary_remote_addr zone=a:1m;\nserver { limit_conn a 1; } }",
			"2 not possible: limit_conn a 1: it limits connections of stream"},
		{"bandwidth", "http { limit_rate 10k; }", "not possible: limit_rate 10k: it limits the speed"},
		{"a real address", "http {" + zone + "set_real_ip_from 10.0.0.0/8;\nlimit_req zone=one; }",
			"approximate: set_real_ip_from 10.0.0.0/8: set identity.client_ip.trusted_hops"},
		{"a missing file", "http { include other.conf;\n }", "not possible: configuration: "},
		{"an unheard-of directive", "http { limit_unheard_of 5; }",
			"not possible: limit_unheard_of 5: this directive is not read"},
	} {
		if got := importertest.Verdicts(imported(t, c.text)); !strings.Contains(got, c.want) {
			t.Errorf("%s: want %q in\n%s", c.name, c.want, got)
		}
	}
}

func TestIncludes(t *testing.T) {
	r, err := fromnginx.Import("nginx.conf", files{
		"nginx.conf":    "http { include conf.d/*.conf; include limits.conf; }",
		"conf.d/a.conf": "server { server_name a.example.com;\n limit_req zone=one; }",
		"conf.d/b.conf": "server { server_name b.example.com;\n limit_req zone=one; }",
		"limits.conf":   "limit_req_zone $binary_remote_addr zone=one:1m rate=1r/s;",
	}.reader())
	if err != nil {
		t.Fatal(err)
	}
	if set := importertest.Set(t, r); len(set.Policies) != 1 || len(set.Policies[0].Match.Hosts) != 2 {
		t.Errorf("%s", r.Document)
	}
	if len(r.Items) != 3 || r.Items[0].File != "conf.d/a.conf" || r.Items[0].Line != 2 {
		t.Errorf("%v", r.Items)
	}
}

// Each directive about limits has a verdict, and nothing else has one but the blocks that they use.
func TestEachItemHasAVerdict(t *testing.T) {
	text, err := os.ReadFile("testdata/nginx.conf")
	if err != nil {
		t.Fatal(err)
	}
	r := imported(t, string(text))
	var lines []int
	for i, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "limit_") || strings.HasPrefix(line, "set_real_ip") ||
			strings.HasPrefix(line, "real_ip") ||
			strings.Contains(line, "# used") {
			lines = append(lines, i+1)
		}
	}
	if len(lines) < 15 {
		t.Fatalf("the file has only %d directives", len(lines))
	}
	importertest.Account(t, r, lines)
	got := string(r.Document) + "\n" + importertest.Verdicts(r)
	if os.Getenv("WEIR_UPDATE_GOLDEN") != "" {
		if err := os.WriteFile("testdata/nginx.txt", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want, err := os.ReadFile("testdata/nginx.txt"); err != nil || string(want) != got {
		t.Errorf("%v: differs from testdata/nginx.txt:\n%s", err, got)
	}
}

// nginxZone is the arithmetic of nginx's limit_req: the excess in thousandths of a request, as of a
// millisecond.
type nginxZone struct {
	rate, burst int64 // In thousandths.
	excess      int64
	last        int64
	known       bool
}

func (z *nginxZone) take(ms int64) (allowed bool, delay int64) {
	excess := int64(0)
	if z.known {
		excess = max(0, z.excess-z.rate*max(0, ms-z.last)/1000+1000)
		if excess > z.burst {
			return false, 0
		}
	}
	z.known, z.excess, z.last = true, excess, ms
	return true, excess * 1000 / z.rate
}

func TestNginxDecidesAlike(t *testing.T) {
	for _, c := range []struct {
		rate, arguments    string
		thousandths, burst int64
		queue              bool
	}{
		{"10r/s", "burst=20 nodelay", 10_000, 20, false},
		{"1r/s", "", 1_000, 0, false},
		{"100r/s", "burst=3 nodelay", 100_000, 3, false},
		{"6r/m", "burst=5 nodelay", 100, 5, false},
		{"10r/s", "burst=20", 10_000, 20, true},
		{"120r/m", "burst=7", 2_000, 7, true},
		{"1r/s", "burst=3 delay=1", 1_000, 3, false},
	} {
		for seed := range uint64(10) {
			z := &nginxZone{rate: c.thousandths, burst: c.burst * 1000}
			bucket := importertest.NewBucket(t, importertest.Set(t, imported(t, http(c.rate, c.arguments))),
				"nginx-one")
			refused := 0
			longest := quota.Span(6_000_000/c.thousandths) * quota.Millisecond
			for i, at := range importertest.Moments(seed, 1_000_000_000_000, 2000, longest) {
				at -= at % quota.Instant(10*quota.Millisecond) // At other times nginx drops parts of a thousandth.
				want, wait := z.take(int64(at) / int64(quota.Millisecond))
				got, delay := bucket.Take(at)
				if got != want {
					t.Fatalf("%s %s, seed %d, request %d at %d: allowed %t, nginx %t", c.rate, c.arguments, seed, i, at,
						got, want)
				}
				if c.queue && got && abs(int64(delay/quota.Millisecond)-wait) > 1 {
					t.Fatalf("%s %s, seed %d, request %d: waits %d µs, in nginx %d ms", c.rate, c.arguments, seed, i,
						delay, wait)
				}
				if !want {
					refused++
				}
			}
			if refused < 20 || refused > 1980 {
				t.Errorf("%s %s, seed %d: %d of 2000 refused proves little", c.rate, c.arguments, seed, refused)
			}
		}
	}
}

func abs(n int64) int64 { return max(n, -n) }

func FuzzImport(f *testing.F) {
	text, err := os.ReadFile("testdata/nginx.conf")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(text))
	for _, text := range []string{
		"http { include nginx.conf; }", http("0r/s", ""), http("99999999999r/s", "burst=-1"),
		http("1r/s", "burst=4294967296"),
		"map", "geo $a { ::/0 1; 1.2.3.4/0 2; }",
		"map $a $a { default $a; } limit_req_zone $a zone=a rate=1r/s; http { limit_req zone=a; }",
		"http { server { location { } } }", "http { limit_req; limit_conn; limit_req_zone; }", "a \"", "a {", "}",
		"if (", "set $a '",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := fromnginx.Import("nginx.conf", files{"nginx.conf": text}.reader())
		if err == nil {
			importertest.Set(t, r)
		}
	})
}
