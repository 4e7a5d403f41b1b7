package spelling

import "github.com/weir-proxy/weir/shared/text"

// Routing is how the services behind route paths: a set of the flags below. The zero value is a
// service to which each letter and each slash at the end counts.
type Routing uint8

const (
	// CutParameters: path parameters, which begin at a semicolon, are no part of a path.
	CutParameters Routing = 1 << iota
	// FoldCase: the letters A to Z are those of a to z.
	FoldCase
	// CutSlash: a slash at the end is no part of a path.
	CutSlash

	// AnyRouting is the set of all flags.
	AnyRouting = CutSlash<<1 - 1
)

// AppendPath appends a request path in the form that policies match: without query and fragment,
// percent-encodings decoded but those of AppendPathByte, stray percent signs encoded,
// backslashes read as slashes, slashes merged, dot segments resolved, and as the routing says. A
// path that does not start with a slash, like the * of OPTIONS, stays as it is.
//
// A vague path is one that a server may read as another: it decodes an encoded slash, or decodes
// twice, or leaves out path parameters before it resolves dot segments.
func AppendPath(dst, path []byte, routing Routing) (normal []byte, vague bool) {
	for i, ch := range path {
		if ch == '?' || ch == '#' {
			path = path[:i]
			break
		}
	}
	if len(path) == 0 || path[0] != '/' {
		return append(dst, path...), false
	}
	start, parameters := len(dst), false
	for i := 0; i < len(path); i++ {
		ch := path[i]
		if ch == '/' || ch == '\\' {
			vague = vague || ch == '\\' || isHidden(dst, start)
			dst, parameters = closeSegment(dst, start), false
			if len(dst) == start || dst[len(dst)-1] != '/' {
				dst = push(dst, '/')
			}
			continue
		}
		if parameters = parameters || ch == ';' && routing&CutParameters != 0; parameters {
			continue
		}
		if ch == '%' && i+2 < len(path) {
			// A stray percent sign stays one, which must not become an escape with what follows it.
			if decoded, ok := text.Unhex(path[i+1], path[i+2]); ok {
				ch, i = decoded, i+2
				vague = vague || ch == '/' || ch == '\\' || ch == 0 || ch == '%' && isEscape(path[i+1:])
			}
		}
		dst = AppendPathByte(dst, routing.Letter(ch))
	}
	vague = vague || isHidden(dst, start)
	dst = closeSegment(dst, start)
	if last := len(dst) - 1; routing&CutSlash != 0 && last > start && dst[last] == '/' {
		dst = dst[:last]
	}
	return dst, vague
}

// Letter is a character of a path as the routing reads it.
func (r Routing) Letter(ch byte) byte {
	if r&FoldCase != 0 && 'A' <= ch && ch <= 'Z' {
		return ch + 'a' - 'A'
	}
	return ch
}

// AppendMethod appends a method in upper case: Envoy hands on a post that HTTP/2 brings, and
// servers by the rules of WSGI take it for a POST.
func AppendMethod(dst, method []byte) []byte {
	for _, ch := range method {
		if 'a' <= ch && ch <= 'z' {
			ch -= 'a' - 'A'
		}
		dst = push(dst, ch)
	}
	return dst
}

// AppendPathByte appends a byte of a path that separates no segments: percent-encoded if it is none
// of printable ASCII, if it means something else in a path or a pattern, or if servers disagree
// about it.
func AppendPathByte(dst []byte, ch byte) []byte {
	switch {
	case ch <= ' ' || ch >= 0x7f:
	case ch == '%' || ch == '/' || ch == '\\' || ch == '?' || ch == '#' || ch == '{' || ch == '}' || ch == '*':
	default:
		return push(dst, ch)
	}
	const digits = "0123456789ABCDEF"
	return push(push(push(dst, '%'), digits[ch>>4]), digits[ch&15])
}

// isEscape reports whether what follows a percent sign makes an escape of it.
func isEscape(b []byte) bool {
	if len(b) < 2 {
		return false
	}
	_, ok := text.Unhex(b[0], b[1])
	return ok
}

// isHidden reports whether the last segment of dst is a double dot for servers that leave out path
// parameters.
func isHidden(dst []byte, start int) bool {
	return text.HasPrefix(dst[segmentAt(dst, start):], "..;")
}

// segmentAt is where the last segment of dst begins.
func segmentAt(dst []byte, start int) int {
	last := len(dst)
	for last > start && dst[last-1] != '/' {
		last--
	}
	return last
}

// closeSegment removes a dot segment at the end of dst, and for a double dot also the segment
// before it. The slash stays.
func closeSegment(dst []byte, start int) []byte {
	last := segmentAt(dst, start)
	switch segment := dst[last:]; {
	case last == start:
		return dst
	case text.Is(segment, "."):
		return dst[:last]
	case text.Is(segment, ".."):
		for last--; last > start && dst[last-1] != '/'; last-- {
		}
		return dst[:max(last, start+1)]
	}
	return dst
}
