package ipaddr_test

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/ipaddr"
)

var texts = []string{
	"", "0.0.0.0", "1.2.3.4", "255.255.255.255", "127.0.0.1", "256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.4", "1.2.3.4 ",
	"1..3.4", ".1.2.3", "1.2.3.4%eth0",
	"::", "::1", "1::", "::1%lo", "::1%", "%lo", "2001:db8::1", "2001:DB8:0:0:0:0:0:1", "1:2:3:4:5:6:7:8",
	"1:2:3:4:5:6:7", "1:2:3:4:5:6:7:8:9",
	"::ffff:1.2.3.4", "::ffff:1.2.3.4%eth0", "::ffff:1.2.3", "1:2:3:4:5:6:1.2.3.4", "1:2:3:4:5:6:7:1.2.3.4",
	"1.2.3.4::", "::1.2.3.4:5", "1::2::3", ":1", "1:",
	":::", "1:::2", "12345::", "g::", "::00001", "1:2:3:4:5:6:7::", "::2:3:4:5:6:7:8", "1:2:3:4::5:6:7:8", "fe80::1%25",
	"::ffff:0102:0304",
}

// Every text is read as the standard library reads it.
func same(t *testing.T, text string) {
	t.Helper()
	want, err := netip.ParseAddr(text)
	got, zone, ok := ipaddr.Parse(text)
	if ok != (err == nil) {
		t.Errorf("%q: accepted %v, net/netip says %v", text, ok, err)
		return
	}
	if ok && (got != ipaddr.Addr(want.As16()) || zone != want.Zone() || got.Is4() != want.Unmap().Is4() ||
		got.IsLoopback() != want.Unmap().WithZone("").IsLoopback()) {
		t.Errorf("%q is %v zone %q, want %v", text, got, zone, want)
	}
}

func sameNetwork(t *testing.T, text string) {
	t.Helper()
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		var address netip.Addr
		if address, err = netip.ParseAddr(text); err == nil {
			prefix = netip.PrefixFrom(address, address.BitLen())
		}
		if address.Zone() != "" {
			err = strings.NewReader("").UnreadByte()
		}
	}
	want := err == nil && prefix == prefix.Masked()
	first, last, ok := ipaddr.ParseNetwork(text)
	if ok != want {
		t.Errorf("%q: accepted %v, want %v (%v)", text, ok, want, err)
		return
	}
	if !ok {
		return
	}
	inside, beyond := netip.AddrFrom16(last), netip.AddrFrom16(last).Next()
	if prefix.Addr().Is4() {
		inside, beyond = inside.Unmap(), inside.Unmap().Next()
	}
	if first != ipaddr.Addr(prefix.Addr().As16()) || !prefix.Contains(inside) ||
		beyond.IsValid() && prefix.Contains(beyond) {
		t.Errorf("%q is %v to %v", text, first, last)
	}
}

func TestParseReadsAsTheStandardLibrary(t *testing.T) {
	for _, text := range texts {
		same(t, text)
	}
	for range 20_000 {
		b := make([]byte, 16)
		for i := range b {
			b[i] = byte(rand.Uint32()) * byte(rand.IntN(2))
		}
		a := netip.AddrFrom16([16]byte(b))
		same(t, a.String())
		same(t, a.StringExpanded())
		same(t, netip.AddrFrom4([4]byte(b)).String())
	}
}

func TestParseNetworkReadsAsTheStandardLibrary(t *testing.T) {
	for _, text := range texts {
		for _, bits := range []string{"", "/", "/0", "/8", "/08", "/24", "/32", "/33", "/96", "/104", "/127", "/128",
			"/129", "/-1", "/1000"} {
			sameNetwork(t, text+bits)
		}
	}
	for _, text := range []string{"10.0.0.0/8", "10.0.0.0/7", "2001:db8::/32", "2001:db8::/28", "::ffff:10.0.0.0/104",
		"0.0.0.0/0", "::/0", "10.0.0.0/8/8"} {
		sameNetwork(t, text)
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		same(t, text)
		sameNetwork(t, text)
	})
}
