package spelling

import "github.com/weir-proxy/weir/shared/text"

// Routing defines how the services behind Envoy route paths: a set of the flags below. In the zero
// value each letter and each slash at the end counts.
type Routing uint8

const (
	// CutParameters means that path parameters, which begin at a semicolon, are not part of a path.
	CutParameters Routing = 1 << iota
	// FoldCase means that the letters A to Z equal a to z.
	FoldCase
	// CutSlash means that a slash at the end is not part of a path.
	CutSlash

	// AnyRouting is the set of all flags.
	AnyRouting = CutSlash<<1 - 1
)

// AppendPath appends a request path in the form that policies match: without query and fragment,
// percent-encodings decoded except those that AppendPathByte writes, stray percent signs encoded,
// backslashes read as slashes, slashes merged, dot segments resolved, and changed as the routing
// says. A path that does not start with a slash, like the * of OPTIONS, stays unchanged.
//
// A path is vague if a server may read it as another path: the server decodes an encoded slash, or
// decodes twice, or leaves out path parameters before it resolves dot segments.
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
				dst = pushByte(dst, '/')
			}
			continue
		}
		if parameters = parameters || ch == ';' && routing&CutParameters != 0; parameters {
			continue
		}
		if ch == '%' && i+2 < len(path) {
			// A stray percent sign stays a percent sign. It must not form an escape with the bytes
			// after it.
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

// Letter returns a character of a path as the routing reads it.
func (r Routing) Letter(ch byte) byte {
	if r&FoldCase != 0 && 'A' <= ch && ch <= 'Z' {
		return ch + 'a' - 'A'
	}
	return ch
}

// AppendMethod appends a method in upper case: Envoy passes on a post from HTTP/2, and servers with
// WSGI rules treat it as a POST.
func AppendMethod(dst, method []byte) []byte {
	from := len(dst)
	dst = append(dst, method...)
	flipLetters(dst[from:], 'a')
	return dst
}

// AppendPathByte appends a byte of a path that does not separate segments. It is percent-encoded if
// it is not printable ASCII, if it has another meaning in a path or a pattern, or if servers
// disagree about it.
func AppendPathByte(dst []byte, ch byte) []byte {
	switch {
	case ch <= ' ' || ch >= 0x7f:
	case ch == '%' || ch == '/' || ch == '\\' || ch == '?' || ch == '#' || ch == '{' || ch == '}' || ch == '*':
	default:
		return pushByte(dst, ch)
	}
	const digits = "0123456789ABCDEF"
	return pushByte(pushByte(pushByte(dst, '%'), digits[ch>>4]), digits[ch&15])
}

// isEscape reports whether the bytes after a percent sign make it an escape.
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

// segmentAt returns where the last segment of dst begins.
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
