package answer

import (
	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/match"
)

// YieldTo drops the headers of a family if the upstream's own headers, in any line and dialect, are
// stricter: a limiter in between may tighten the origin's values, never loosen them. It returns the
// upstream's headers that h replaces; the result is valid while upstream is.
func (h *Headers) YieldTo(upstream []match.Header) (replaced []match.Header) {
	for family := range dialect.Families {
		if family == 0 || !h.hasFamily(family) {
			continue
		}
		if theirs, ok := leftIn(upstream, family); ok && theirs < h.left[family] {
			h.dropFamily(family)
			continue
		}
		for _, header := range upstream {
			if dialect.FamilyOf(header.Name) == family {
				replaced = append(replaced, header)
			}
		}
	}
	return replaced
}

// leftIn returns the smallest remaining count in a family of the upstream's headers.
func leftIn(upstream []match.Header, family int) (smallest int64, found bool) {
	for _, header := range upstream {
		if dialect.FamilyOf(header.Name) != family {
			continue
		}
		if n, ok := dialect.LeftIn(family, header.Name, header.Value); ok && (!found || n < smallest) {
			smallest, found = n, true
		}
	}
	return smallest, found
}

func (h *Headers) hasFamily(family int) bool {
	for i := range h.n {
		if dialect.FamilyOfName(h.names[i]) == family {
			return true
		}
	}
	return false
}

// dropFamily removes the headers of a family.
func (h *Headers) dropFamily(family int) {
	kept, from, size := 0, 0, 0
	for i := range h.n {
		name, end := h.names[i], h.ends[i]
		if dialect.FamilyOfName(name) != family {
			copy(h.buf[size:], h.buf[from:end])
			size += end - from
			h.names[kept], h.ends[kept] = name, size
			kept++
		}
		from = end
	}
	h.n = kept
}
