package importer

import (
	"net/netip"
	"strings"
)

// ParseNetwork reads an address or a network as the policy language writes it, without bits beyond
// its length.
func ParseNetwork(text string) (netip.Prefix, bool) {
	text = strings.TrimSpace(text)
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		return netip.PrefixFrom(address.Unmap(), address.Unmap().BitLen()), true
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}, false
	}
	return network.Masked(), true
}

// Networks are networks as texts: an address without its length.
func Networks(networks []netip.Prefix) (texts []string) {
	for _, n := range networks {
		if n.IsSingleIP() {
			texts = append(texts, n.Addr().String())
		} else {
			texts = append(texts, n.String())
		}
	}
	return texts
}

// Part is a network and which of given networks it belongs to: its place, or -1 for none.
type Part struct {
	Network netip.Prefix
	Of      int
}

// Longest splits all addresses into parts by the longest of the networks that holds them; of two
// that are equal the later one counts.
func Longest(networks []netip.Prefix) (parts []Part) {
	for _, all := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} {
		parts = appendParts(parts, all, networks)
	}
	return parts
}

func appendParts(parts []Part, within netip.Prefix, networks []netip.Prefix) []Part {
	best, deeper := -1, false
	for i, n := range networks {
		switch {
		case !n.Overlaps(within):
		case n.Bits() > within.Bits():
			deeper = true
		case best < 0 || n.Bits() >= networks[best].Bits():
			best = i
		}
	}
	if !deeper {
		return append(parts, Part{within, best})
	}
	low, high := halves(within)
	return appendParts(appendParts(parts, low, networks), high, networks)
}

// Outside are the networks that hold all addresses but those of the given networks.
func Outside(networks []netip.Prefix) (outside []netip.Prefix) {
	for _, part := range Longest(networks) {
		if part.Of < 0 {
			outside = append(outside, part.Network)
		}
	}
	return outside
}

// halves are the two networks that make up one.
func halves(n netip.Prefix) (low, high netip.Prefix) {
	bits := n.Bits() + 1
	bytes := n.Addr().AsSlice()
	low = netip.PrefixFrom(n.Addr(), bits)
	bytes[(bits-1)/8] |= 0x80 >> ((bits - 1) % 8)
	address, _ := netip.AddrFromSlice(bytes) // The length is that of before.
	return low, netip.PrefixFrom(address, bits)
}
