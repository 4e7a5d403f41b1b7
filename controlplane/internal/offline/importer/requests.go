package importer

import (
	"slices"
	"strings"
)

// Paths below are patterns of the policy language.

// Prefix returns the pattern for everything below a prefix; none for all paths.
func Prefix(prefix string) []string {
	prefix = strings.TrimRight(prefix, "/")
	if prefix == "" {
		return nil
	}
	return []string{prefix + "/**"}
}

// segments are regular expressions for one segment of a path. The expressions of the first list
// match any segment.
var (
	anySegment  = []string{`[^/]+`, `[^\/]+`, `[^/]*`, `[^\/]*`, `[^/]+?`}
	someSegment = []string{`\d+`, `[0-9]+`, `\w+`, `[\w-]+`, `[a-z]+`, `[a-zA-Z]+`, `[a-z0-9]+`, `[a-zA-Z0-9]+`,
		`[a-zA-Z0-9_-]+`, `[a-f0-9]+`, `[0-9a-f]+`, `[0-9a-f-]+`, `[a-f0-9-]+`}
)

// mostAlternatives bounds the patterns that one expression becomes.
const mostAlternatives = 32

// RegexPaths translates a regular expression for paths into patterns. The expression is anchored at
// the beginning. It may have literal segments, groups for one segment, groups of alternatives, and
// an end that is fixed ($) or open; for any other expression ok is false. The remark says which
// paths differ: paths that only the patterns cover, or only the expression.
func RegexPaths(expression string) (patterns []string, remark string, ok bool) {
	all := expandGroups(expression)
	for _, one := range all {
		pattern, more, ok := regexPath(one)
		if !ok || len(all) > mostAlternatives {
			return nil, "", false
		}
		remark = joinRemarks(remark, more)
		if !slices.Contains(patterns, pattern) {
			patterns = append(patterns, pattern)
		}
	}
	return patterns, remark, true
}

// expandGroups expands groups like (a|b): it returns an expression for each alternative.
func expandGroups(expression string) []string {
	for open := 0; open < len(expression) && len(expression) < 4096; open++ {
		// Find the first group.
		switch expression[open] {
		case '\\':
			open++
			continue
		case '(':
		default:
			continue
		}
		// Skip groups without alternatives, with a repetition, or with a name or a flag.
		end, bars := findGroup(expression, open)
		after := end + 1
		if len(bars) == 0 || after < len(expression) && strings.IndexByte("?*+{", expression[after]) >= 0 {
			continue
		}
		inner := open + 1
		if strings.HasPrefix(expression[inner:], "?:") {
			inner += 2
		} else if expression[inner] == '?' {
			continue
		}
		// Expand the group, then the groups behind it.
		var all []string
		for _, bar := range append(bars, end) {
			one := expression[:open] + expression[inner:bar] + expression[after:]
			if all = append(all, expandGroups(one)...); len(all) > mostAlternatives {
				break
			}
			inner = bar + 1
		}
		return all
	}
	return []string{expression}
}

// findGroup returns the end of a group and the places of its own bars; without bars if it has no
// end.
func findGroup(expression string, open int) (end int, bars []int) {
	depth := 0
	for i := open; i < len(expression); i++ {
		switch expression[i] {
		case '\\':
			i++
		case '[': // A class may have any sign.
			if close := strings.IndexByte(expression[i:], ']'); close > 0 {
				i += close
			}
		case '(':
			depth++
		case '|':
			if depth == 1 {
				bars = append(bars, i)
			}
		case ')':
			if depth--; depth == 0 {
				return i, bars
			}
		}
	}
	return len(expression), nil
}

// regexPath returns the pattern for an expression without alternatives.
func regexPath(expression string) (pattern, remark string, ok bool) {
	// An end like /.* is open.
	text, fixed := strings.CutSuffix(strings.TrimPrefix(expression, "^"), "$")
	for _, rest := range []string{"/.*", "(/.*)?", "/(.*)", "(?:/.*)?"} {
		if before, found := strings.CutSuffix(text, rest); found {
			text, fixed = before+"/", false
			break
		}
	}
	if !strings.HasPrefix(text, "/") {
		return "", "", false
	}
	// Translate each segment.
	var segments []string
	for _, part := range splitSegments(text[1:]) {
		segment, some, ok := segmentOf(part)
		if !ok {
			return "", "", false
		}
		if some {
			remark = "Weir takes any segment for " + part
		}
		segments = append(segments, segment)
	}
	// Join the segments. An open end becomes **.
	pattern = "/" + strings.Join(segments, "/")
	if fixed {
		return pattern, remark, true
	}
	if !strings.HasSuffix(pattern, "/") {
		remark = joinRemarks(remark, "the expression also covers paths that go on in the last segment of "+pattern)
	}
	return strings.TrimRight(pattern, "/") + "/**", remark, true
}

// splitSegments splits at the slashes outside brackets.
func splitSegments(text string) (parts []string) {
	depth, from := 0, 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case '/':
			if depth == 0 {
				parts, from = append(parts, text[from:i]), i+1
			}
		}
	}
	return append(parts, text[from:])
}

// segmentOf translates one segment of an expression into the policy language. some is true if the
// expression takes only some segments and the language takes all segments.
func segmentOf(text string) (segment string, some, ok bool) {
	name := "segment"
	if inner, found := strings.CutSuffix(text, ")"); found {
		for _, open := range []string{"(?<", "(?P<"} {
			if rest, found := strings.CutPrefix(inner, open); found {
				before, after, _ := strings.Cut(rest, ">")
				name, text = Slug(before), after
			}
		}
		if rest, found := strings.CutPrefix(inner, "(?:"); found {
			text = rest
		} else if rest, found := strings.CutPrefix(text, "("); found {
			text = strings.TrimSuffix(rest, ")")
		}
	}
	switch {
	case slices.Contains(anySegment, text):
		return "{" + name + "}", false, true
	case slices.Contains(someSegment, text):
		return "{" + name + "}", true, true
	}
	for _, c := range []string{`\.`, `\-`, `\_`, `\/`} {
		text = strings.ReplaceAll(text, c, c[1:])
	}
	if strings.ContainsAny(strings.ReplaceAll(text, ".", ""), `\()[]{}*+?|^$`) {
		return "", false, false
	}
	return text, false, true
}

// joinRemarks joins remarks.
func joinRemarks(a, b string) string { return Join("; ", a, b) }

// Join joins the texts that are not empty and not repeated.
func Join(separator string, texts ...string) string {
	var all []string
	for _, text := range texts {
		if text != "" && !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return strings.Join(all, separator)
}

// Merge joins matches into few matches that together hold for the same requests. It joins two
// matches if they differ in only one list of hosts, methods or paths.
func Merge(matches []Match) []Match {
	all := slices.Clone(matches)
	for i := 0; i < len(all); i++ {
		for j := i + 1; j < len(all); j++ {
			if one, ok := mergeMatches(all[i], all[j]); ok {
				all[i] = one
				all = slices.Delete(all, j, j+1)
				j = i // The longer list may now join with those before.
			}
		}
	}
	return all
}

func mergeMatches(a, b Match) (Match, bool) {
	if !slices.Equal(a.Headers, b.Headers) || !slices.Equal(a.ClientIPs, b.ClientIPs) {
		return a, false
	}
	if len(a.Domain)+len(b.Domain)+len(a.Descriptors)+len(b.Descriptors) > 0 {
		return a, false
	}
	hosts, methods, paths := sameSet(a.Hosts, b.Hosts), sameSet(a.Methods, b.Methods), sameSet(a.Paths, b.Paths)
	switch {
	case hosts && methods:
		a.Paths = uniteLists(a.Paths, b.Paths)
	case hosts && paths:
		a.Methods = uniteLists(a.Methods, b.Methods)
	case methods && paths:
		a.Hosts = uniteLists(a.Hosts, b.Hosts)
	default:
		return a, false
	}
	return a, true
}

func sameSet(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// uniteLists returns all elements of both lists. An empty list means everything, so the union with
// it is empty.
func uniteLists(a, b []string) []string {
	if len(a) == 0 || len(b) == 0 {
		return nil
	}
	all := slices.Clone(a)
	for _, text := range b {
		if !slices.Contains(all, text) {
			all = append(all, text)
		}
	}
	return all
}

// Overlap reports whether a request may meet both matches, as far as hosts, methods and paths say.
func Overlap(a, b Match) bool {
	return anyMeet(a.Hosts, b.Hosts, hostsMeet) && anyMeet(a.Methods, b.Methods, equal) &&
		anyMeet(a.Paths, b.Paths, pathsMeet)
}

func anyMeet(a, b []string, one func(a, b string) bool) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	return slices.ContainsFunc(a, func(x string) bool {
		return slices.ContainsFunc(b, func(y string) bool { return one(x, y) })
	})
}

func equal(a, b string) bool { return a == b }

func hostsMeet(a, b string) bool {
	covers := func(wide, host string) bool {
		suffix, found := strings.CutPrefix(wide, "*")
		return found && strings.HasSuffix(host, suffix)
	}
	return a == b || covers(a, b) || covers(b, a)
}

func pathsMeet(a, b string) bool {
	x, y := strings.Split(a, "/"), strings.Split(b, "/")
	for i := 0; ; i++ {
		switch {
		case i < len(x) && x[i] == "**", i < len(y) && y[i] == "**":
			return true
		case i == len(x) || i == len(y):
			return i == len(x) && i == len(y)
		case x[i] != y[i] && !strings.HasPrefix(x[i], "{") && !strings.HasPrefix(y[i], "{"):
			return false
		}
	}
}

// Everywhere reports whether a match holds for all requests.
func (m Match) Everywhere() bool {
	return len(m.Hosts)+len(m.Methods)+len(m.Paths)+len(m.Headers)+len(m.ClientIPs)+len(m.Domain)+
		len(m.Descriptors) == 0
}
