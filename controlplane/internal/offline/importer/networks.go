package importer

import (
	"net/netip"
	"strings"
)

// ParseNetwork reads an address or a network in the form of the policy language. It clears the bits
// after the prefix length.
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

// Networks returns networks as texts. A network of one address has no prefix length.
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

// Part is a network inside one of the networks of a list, or outside all of them.
type Part struct {
	Network netip.Prefix
	// Of is the index in the list of the network that decides for Network; -1 for no network.
	Of int
}

// Longest splits all addresses into parts. The network with the longest prefix that contains a part
// decides for it. If two networks are equal, the later network decides.
func Longest(networks []netip.Prefix) (parts []Part) {
	for _, all := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} {
		parts = appendParts(parts, all, networks)
	}
	return parts
}

// appendParts appends the parts of the network whole. While one of the networks is a proper subset
// of whole, it cuts whole into halves, because the network decides for some addresses of whole
// only.
func appendParts(parts []Part, whole netip.Prefix, networks []netip.Prefix) []Part {
	longest := -1
	for i, n := range networks {
		if !n.Overlaps(whole) {
			continue
		}
		if n.Bits() > whole.Bits() {
			low, high := splitInHalves(whole)
			parts = appendParts(parts, low, networks)
			return appendParts(parts, high, networks)
		}
		if longest < 0 || n.Bits() >= networks[longest].Bits() {
			longest = i
		}
	}
	return append(parts, Part{whole, longest})
}

// Outside returns networks that contain all addresses outside the given networks.
func Outside(networks []netip.Prefix) (outside []netip.Prefix) {
	for _, part := range Longest(networks) {
		if part.Of < 0 {
			outside = append(outside, part.Network)
		}
	}
	return outside
}

// splitInHalves returns the two networks that are the halves of a network.
func splitInHalves(n netip.Prefix) (low, high netip.Prefix) {
	bits := n.Bits() + 1
	bytes := n.Addr().AsSlice()
	low = netip.PrefixFrom(n.Addr(), bits)
	bytes[(bits-1)/8] |= 0x80 >> ((bits - 1) % 8)
	address, _ := netip.AddrFromSlice(bytes) // It cannot fail, because the length is unchanged.
	return low, netip.PrefixFrom(address, bits)
}
