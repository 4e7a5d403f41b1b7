package respond

import (
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
	"github.com/weir-proxy/weir/shared/text"
)

// The families of headers, by how their names begin. All headers of a family come from one limiter,
// so that no client sees the limit of one limiter beside the remaining of another.
const (
	standardFamily = "ratelimit"
	legacyFamily   = "x-ratelimit"
)

// family is the family of a header, empty if it has none.
func family(name []byte) string {
	switch {
	case text.HasPrefix(name, standardFamily):
		return standardFamily
	case text.HasPrefix(name, legacyFamily):
		return legacyFamily
	}
	return ""
}

// YieldTo drops the headers of a family for which the upstream's own, in any line and dialect, are
// stricter: a limiter in between may tighten what the origin says, never loosen it. It returns the
// upstream's headers that h replaces; the result is valid while upstream is.
func (h *Headers) YieldTo(upstream []match.Header) (replaced []match.Header) {
	for _, f := range [...]struct {
		name string
		ours int64
	}{{standardFamily, h.least}, {legacyFamily, h.shown}} {
		if !h.speaks(f.name) {
			continue
		}
		if theirs, ok := least(upstream, f.name); ok && theirs < f.ours {
			h.drop(f.name)
			continue
		}
		for _, header := range upstream {
			if family(header.Name) == f.name {
				replaced = append(replaced, header)
			}
		}
	}
	return replaced
}

// least is the smallest remaining in a family of the upstream's headers.
func least(upstream []match.Header, of string) (smallest int64, found bool) {
	for _, header := range upstream {
		if family(header.Name) != of {
			continue
		}
		n, ok := int64(0), false
		switch {
		case header.Is(standardFamily):
			n, ok = ratelimitheader.LeastRemaining(header.Value)
		case header.Is(standardFamily + "-remaining"), header.Is(legacyFamily + "-remaining"):
			n, ok = ratelimitheader.ParseInt(header.Value)
		}
		if ok && (!found || n < smallest) {
			smallest, found = n, true
		}
	}
	return smallest, found
}

// Speaks are headers of the families that h has: if the upstream has none of them, it has set none
// of the family. Each look costs a call, so the standard's family has only one.
func (h *Headers) Speaks() (signs [3]string, n int) {
	if h.speaks(standardFamily + "-policy") {
		signs[0], n = standardFamily, 1
	} else if h.speaks(standardFamily) {
		signs[0], n = standardFamily+"-remaining", 1
	}
	if h.speaks(legacyFamily) {
		signs[n], signs[n+1] = legacyFamily+"-remaining", legacyFamily+"-limit"
		n += 2
	}
	return signs, n
}

func (h *Headers) speaks(of string) bool {
	for i := range h.n {
		if len(h.names[i]) >= len(of) && h.names[i][:len(of)] == of {
			return true
		}
	}
	return false
}

// drop removes the headers of a family.
func (h *Headers) drop(of string) {
	kept, from, size := 0, 0, 0
	for i := range h.n {
		name, end := h.names[i], h.ends[i]
		if len(name) < len(of) || name[:len(of)] != of {
			copy(h.buf[size:], h.buf[from:end])
			size += end - from
			h.names[kept], h.ends[kept] = name, size
			kept++
		}
		from = end
	}
	h.n = kept
}
