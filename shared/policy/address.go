package policy

import (
	"net/netip"
	"slices"
	"strconv"
)

// Range is a range of addresses, both ends included, IPv4 in its IPv6-mapped form.
type Range struct{ First, Last [16]byte }

// Contains says whether one of the ranges, in rising order and apart, holds the address.
func Contains(ranges []Range, address [16]byte) bool {
	low, high := 0, len(ranges)
	for low < high {
		middle := (low + high) / 2
		if less(ranges[middle].Last, address) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low < len(ranges) && !less(address, ranges[low].First)
}

func less(a, b [16]byte) bool {
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// addresses reads a list of addresses and networks (CIDR) as ranges in rising order, joined where they overlap.
func (r *reader) addresses(path string, n Node) []Range {
	var ranges []Range
	r.longList(path, n, MaxAddresses, func(path string, n Node) {
		text, ok := r.text(path, n)
		if !ok {
			return
		}
		if one, ok := parseRange(text); ok {
			ranges = append(ranges, one)
		} else {
			r.problem(path, "must be an address or a network like 10.0.0.0/8, without bits beyond its length, not "+shorten(text))
		}
	})
	slices.SortFunc(ranges, func(a, b Range) int {
		if less(a.First, b.First) {
			return -1
		}
		return 1
	})
	joined := ranges[:0]
	for _, one := range ranges {
		if last := len(joined) - 1; last >= 0 && !less(joined[last].Last, one.First) {
			if less(joined[last].Last, one.Last) {
				joined[last].Last = one.Last
			}
			continue
		}
		joined = append(joined, one)
	}
	return joined
}

func parseRange(text string) (Range, bool) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil {
		address, err := netip.ParseAddr(text)
		if err != nil || address.Zone() != "" {
			return Range{}, false
		}
		prefix = netip.PrefixFrom(address, address.BitLen())
	}
	if prefix != prefix.Masked() {
		return Range{}, false
	}
	bits := prefix.Bits()
	if prefix.Addr().Is4() {
		bits += 96
	}
	one := Range{First: prefix.Addr().As16(), Last: prefix.Addr().As16()}
	for i := range one.Last {
		if free := 8*(i+1) - bits; free > 0 {
			one.Last[i] |= byte(0xff >> max(8-free, 0))
		}
	}
	return one, true
}

// longList reads each element of a list with at most limit elements.
func (r *reader) longList(path string, n Node, limit int, read func(path string, n Node)) {
	if n.Kind != List {
		r.wrongKind(path, n, "a list")
		return
	}
	if len(n.Items) > limit {
		r.problem(path, "has "+strconv.Itoa(len(n.Items))+" items; at most "+strconv.Itoa(limit)+" are allowed")
		return
	}
	for i, item := range n.Items {
		read(path+"["+strconv.Itoa(i)+"]", item)
	}
}

// texts reads a list of strings.
func (r *reader) texts(path string, n Node, limit int) []string {
	var list []string
	r.longList(path, n, limit, func(path string, n Node) {
		if text, ok := r.text(path, n); ok {
			list = append(list, text)
		}
	})
	return list
}

func (r *reader) exempt(path string, n Node, e *Exempt) {
	var m Match
	r.object(path, n,
		field{"client_ips", func(path string, n Node) { e.ClientIPs = r.addresses(path, n) }},
		field{"paths", func(path string, n Node) { r.paths(path, n, &m) }},
		field{"methods", func(path string, n Node) { r.methods(path, n, &m) }},
		field{"consumers", func(path string, n Node) { e.Consumers = r.texts(path, n, MaxConsumers) }},
	)
	e.Paths, e.Methods = m.Paths, m.Methods
}
