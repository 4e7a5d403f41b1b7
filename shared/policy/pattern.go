package policy

import (
	"strings"

	"github.com/weir-proxy/weir/shared/spelling"
	"github.com/weir-proxy/weir/shared/text"
)

// Pattern returns a path pattern in the spelling of the paths that it matches, or the reason why it
// is wrong.
func Pattern(pattern string, routing spelling.Routing) (spelled, problem string) {
	if pattern[0] != '/' {
		return "", "must start with /, not " + shorten(pattern)
	}
	dst := make([]byte, 0, len(pattern))
	segments := strings.Split(pattern[1:], "/")
	for i, s := range segments {
		last := i == len(segments)-1
		dst = append(dst, '/')
		if s == "**" && last || isCapture(s) {
			dst = append(dst, s...)
			continue
		}
		if s == "" && last && i > 0 && routing&spelling.CutSlash != 0 {
			dst = dst[:len(dst)-1]
			break
		}
		from := len(dst)
		if dst, problem = appendSegment(dst, s, routing); problem != "" {
			return "", problem + ": " + shorten(pattern)
		}
		own := string(dst[from:])
		if own == "" && !last || own == "." || own == ".." { // A trailing slash makes another path.
			return "", "has an empty or dot segment, which no normalised request path has: " + shorten(pattern)
		}
	}
	return string(dst), ""
}

// appendSegment appends a literal segment, or returns why it cannot.
func appendSegment(dst []byte, s string, routing spelling.Routing) (spelled []byte, problem string) {
	// Refuse patterns of other languages.
	switch {
	case len(s) > 2 && s[0] == '{' && s[len(s)-1] == '}':
		return dst, "has a name in braces that is no plain word; it takes no expression"
	case strings.ContainsAny(s, "{}*"):
		return dst, "{name} and a final ** must be whole segments; write %7B %7D %2A for the characters"
	case strings.ContainsAny(s, "?#"):
		return dst, "is matched without query; write %3F %23 for the characters"
	case strings.IndexByte(s, '\\') >= 0:
		return dst, "has a backslash: write a slash, or %5C"
	case len(s) > 1 && s[0] == ':', len(s) > 2 && s[0] == '<' && s[len(s)-1] == '>':
		return dst, "has " + shorten(s) + ": write {" + strings.TrimSuffix(s[1:], ">") +
			"} for any segment, or %3A and %3C for the characters"
	}
	// Append each character in its normal spelling.
	for i := 0; i < len(s); i++ {
		ch := s[i]
		if ch == '%' {
			var ok bool
			if i+2 < len(s) {
				ch, ok = text.Unhex(s[i+1], s[i+2])
			}
			if !ok {
				return dst, "has a percent sign that begins no escape: write %25"
			}
			i += 2
		} else if ch < ' ' || ch == 0x7f {
			return dst, "has a control character"
		}
		dst = spelling.AppendPathByte(dst, routing.Letter(ch))
	}
	return dst, ""
}

// isCapture reports whether a segment is {name}.
func isCapture(s string) bool {
	return len(s) >= 3 && s[0] == '{' && s[len(s)-1] == '}' && isToken(s[1:len(s)-1]) &&
		strings.IndexByte(s, '*') < 0
}
