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

func TestHostMethodPath(t *testing.T) {
	var c Classifier
	for in, want := range map[string]string{
		"API.Example.com:8443": "api.example.com",
		"example.com":          "example.com",
		"[2001:DB8::1]:80":     "[2001:db8:0:0:0:0:0:1]",
		"[::1]":                "[0:0:0:0:0:0:0:1]",
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
			a, ok := cl.Classify(pairs(headers...), []byte(c.source), Rules{TrustedHops: c.hops, IPv6Prefix: c.prefix})
			addr, valid := netip.AddrFromSlice(a.ClientIP)
			if !ok || !valid || addr.String() != c.want {
				t.Errorf("got %v, want %s", addr, c.want)
			}
		})
	}
	var cl Classifier
	for _, source := range []string{"", "garbage", "[", ":", "pipe:/tmp/x"} {
		if a, _ := cl.Classify(pairs(), []byte(source), Rules{TrustedHops: 1, IPv6Prefix: 64}); len(a.ClientIP) > 0 {
			t.Errorf("source %q gave the client address %v", source, a.ClientIP)
		}
	}
}

// Where Envoy appends nothing, the last entry is from the proxy before it: a client that forges
// entries stays the same client. Envoy takes the address of the client from there itself.
func TestNothingAppended(t *testing.T) {
	for _, c := range []struct {
		name, source string
		hops         int
		forwarded    string
		want         string
	}{
		{"one proxy", "198.51.100.1:0", 1, "198.51.100.1", "198.51.100.1"},
		{"a forged entry before it", "198.51.100.1:0", 1, "192.0.2.9, 198.51.100.1", "198.51.100.1"},
		{"two proxies", "10.0.0.1:0", 2, "192.0.2.9, 198.51.100.1, 10.0.0.1", "198.51.100.1"},
		{"a peer on the loopback", "127.0.0.1:0", 1, "192.0.2.9, 198.51.100.1", "198.51.100.1"},
		{"no header", "10.0.0.1:0", 1, "", "10.0.0.1"},
	} {
		var cl Classifier
		headers := []string{":path", "/"}
		if c.forwarded != "" {
			headers = append(headers, "x-forwarded-for", c.forwarded)
		}
		rules := Rules{TrustedHops: c.hops, IPv6Prefix: 64, NotAppended: true}
		a, _ := cl.Classify(pairs(headers...), []byte(c.source), rules)
		addr, _ := netip.AddrFromSlice(a.ClientIP)
		if addr.String() != c.want || cl.Surprising != 0 {
			t.Errorf("%s: %v, %d surprises", c.name, addr, cl.Surprising)
		}
	}
}

// The requests of an Envoy that appends differ from the requests of an Envoy that does not, with
// and without hops.
func TestAnEnvoyThatDoesNotAppendIsSeen(t *testing.T) {
	for _, c := range []struct {
		name, source string
		headers      []string
		want         uint64
	}{
		{"external", "10.0.0.1:1", []string{"x-forwarded-for", "10.0.0.1", "x-envoy-external-address", "10.0.0.1"}, 0},
		{"internal", "10.0.0.1:1", []string{"x-forwarded-for", "9.9.9.9,10.0.0.1", "x-envoy-internal", "true"}, 0},
		{"on the loopback", "127.0.0.1:1", []string{"x-forwarded-for", "10.2.3.4", "x-envoy-internal", "true"}, 0},
		{"no entry", "10.0.0.1:1", []string{"x-envoy-internal", "true"}, 1},
		{"another last entry", "10.0.0.1:1", []string{"x-forwarded-for", "9.9.9.9", "x-envoy-internal", "true"}, 1},
		{"Envoy's default", "9.9.9.9:0", []string{"x-forwarded-for", "8.8.8.8, 9.9.9.9"}, 1},
	} {
		for _, hops := range []int{0, 1} {
			var cl Classifier
			cl.Classify(pairs(c.headers...), []byte(c.source), Rules{TrustedHops: hops, IPv6Prefix: 64})
			if cl.Surprising != c.want {
				t.Errorf("%s, %d hops: %d surprises, want %d", c.name, hops, cl.Surprising, c.want)
			}
		}
	}
}

func FuzzClassify(f *testing.F) {
	f.Add(pairs(":path", "/x", "x-forwarded-for", "1.1.1.1, [::1]:2"), "10.0.0.1:1")
	f.Add([]byte{255, 255, 255, 255}, "[::1]:1")
	f.Add([]byte{1, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255}, "x")
	f.Fuzz(func(t *testing.T, raw []byte, source string) {
		var c Classifier
		c.Classify(raw, []byte(source), Rules{TrustedHops: 2, IPv6Prefix: 64})
	})
}
