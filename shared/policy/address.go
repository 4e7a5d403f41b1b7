package policy

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/ipaddr"
	"github.com/weir-proxy/weir/shared/spelling"
)

// Range is a range of addresses, both ends included.
type Range struct{ First, Last ipaddr.Addr }

// all4 are the IPv4 addresses, before4 and after4 the addresses around them.
var (
	all4    = Range{ipaddr.Addr{10: 0xff, 0xff}, ipaddr.Addr{10: 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	before4 = ipaddr.Addr{10: 0xff, 0xfe, 0xff, 0xff, 0xff, 0xff}
	after4  = ipaddr.Addr{9: 1}
)

// Contains reports whether the address is in one of the ranges, which rise and do not overlap.
func Contains(ranges []Range, address ipaddr.Addr) bool {
	low, high := 0, len(ranges)
	for low < high {
		middle := (low + high) / 2
		if ranges[middle].Last.Less(address) {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low < len(ranges) && !address.Less(ranges[low].First)
}

// readAddresses reads a list of addresses and networks (CIDR) as ranges in rising order. Ranges
// that overlap are joined.
func (r *reader) readAddresses(path string, n Node) []Range {
	var ranges []Range
	r.readLongList(path, n, MaxAddresses, func(path string, n Node) {
		text, ok := r.readText(path, n)
		if !ok {
			return
		}
		if first, last, ok := ipaddr.ParseNetwork(text); ok {
			if first.Less(all4.First) && !last.Less(all4.Last) {
				// An IPv6 network as wide as ::/0 has the IPv4 addresses in it by their form alone.
				ranges = append(ranges, Range{first, before4})
				first = after4
			}
			if !last.Less(first) {
				ranges = append(ranges, Range{first, last})
			}
		} else {
			r.failAt(path, "must be an address or a network like 10.0.0.0/8, without bits beyond its length, not "+
				shorten(text))
		}
	})
	sortRanges(ranges)
	joined := ranges[:0]
	for _, one := range ranges {
		if last := len(joined) - 1; last >= 0 && !joined[last].Last.Less(one.First) {
			if joined[last].Last.Less(one.Last) {
				joined[last].Last = one.Last
			}
			continue
		}
		joined = append(joined, one)
	}
	return joined
}

// sortRanges sorts by the first address, by Shell's method: slices.SortFunc would be 15 KB of the
// module.
func sortRanges(ranges []Range) {
	for gap := len(ranges) / 2; gap > 0; gap /= 2 {
		for i := gap; i < len(ranges); i++ {
			for at := i; at >= gap && ranges[at].First.Less(ranges[at-gap].First); at -= gap {
				ranges[at], ranges[at-gap] = ranges[at-gap], ranges[at]
			}
		}
	}
}

// readLongList reads each element of a list with at most limit elements.
//
//go:noinline
func (r *reader) readLongList(path string, n Node, limit int, read func(path string, n Node)) {
	if n.Kind != List {
		r.wrongKind(path, n, "a list")
		return
	}
	if n.listSize() > limit {
		r.failAt(path, "has "+strconv.Itoa(n.listSize())+" items; at most "+strconv.Itoa(limit)+" are allowed")
		return
	}
	n.eachItem(func(i int, item Node) { read(r.indexPath(path, i), item) })
}

// readTexts reads a list of strings.
func (r *reader) readTexts(path string, n Node, limit int) []string {
	var list []string
	r.readLongList(path, n, limit, func(path string, n Node) {
		if text, ok := r.readText(path, n); ok {
			list = append(list, text)
		}
	})
	return list
}

func (r *reader) readExempt(path string, n Node, e *Exempt) {
	var m Match
	r.readMap(path, n,
		field{"client_ips", func(path string, n Node) { e.ClientIPs = r.readAddresses(path, n) }},
		field{"paths", func(path string, n Node) { r.readPaths(path, n, &m) }},
		field{"methods", func(path string, n Node) { r.readMethods(path, n, &m) }},
		field{"consumers", func(path string, n Node) { e.Consumers = r.readTexts(path, n, MaxConsumers) }},
	)
	e.Paths, e.Methods = m.Paths, m.Methods
	for i, exempted := range e.Paths {
		if _, vague := spelling.AppendPath(nil, []byte(exempted), 0); vague {
			r.failAt(path+".paths["+strconv.Itoa(i)+"]", shorten(exempted)+" exempts nothing: a server may read it "+
				"as another path, so requests with it are never exempt")
		}
	}
}
