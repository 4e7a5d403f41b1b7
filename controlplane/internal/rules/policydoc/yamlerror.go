package policydoc

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// yamlLine matches the place in an error of the YAML reader: the line where it began to read the
// value that it could not read. That line may be far above the mistake; for some mistakes it is the
// line before.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// yamlError returns the line where a document stops being YAML, and the reason, in words for a
// reader who does not know the parser.
func yamlError(doc []byte, err error) error {
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	reason, line := text, 0
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1]) // Without a line the match is empty and so is the number.
		reason = text[len(m[0]):]
	}
	// Mistakes that are easy to recognise.
	lines := strings.Split(string(doc), "\n")
	if name, unknown := strings.CutPrefix(reason, "unknown anchor '"); unknown {
		name, _, _ = strings.Cut(name, "'")
		line = 1 + slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "*"+name) })
		return notYAML(line, "a text that begins with * needs quotes, as in '*"+name+"'")
	}
	if at := slices.IndexFunc(lines, isMergeMark); at >= 0 {
		return notYAML(at+1, "a merge has left its mark here: settle the conflict first")
	}
	// A line that no later text can complete.
	if at := brokenLine(doc); at > 0 {
		from := line + 1
		if strings.Contains(reason, "',' or") && from < at && strings.ContainsAny(lines[from-1], "[{") {
			return notYAML(from, "a bracket is opened here, and not closed before line "+strconv.Itoa(at))
		}
		ofColon := strings.Contains(reason, "':'") || strings.HasPrefix(reason, "mapping")
		if glued, better := gluedAt(lines, at); ofColon && glued > 0 {
			return notYAML(glued, better)
		}
		return notYAML(at, brokenReason(lines, at, reason))
	}
	if !strings.HasPrefix(reason, "found") { // Otherwise the reader is in the middle of a word, and the line is right.
		line++
	}
	line = min(max(line, 1), len(lines))
	for line > 1 && strings.Contains(reason, "node content") && !strings.ContainsAny(lines[line-1], "[{") {
		line--
	}
	return notYAML(line, explainUnfinished(lines[line-1], reason))
}

func notYAML(line int, reason string) error {
	return &SyntaxError{Line: line, Reason: "is not YAML: " + reason}
}

// lineReader returns a text line by line, so that it knows how far a parser has read.
type lineReader struct {
	left []byte
	// lines is the number of lines read; ended is true if the parser asked for more text than there
	// is.
	lines int
	ended bool
}

func (r *lineReader) Read(into []byte) (int, error) {
	if len(r.left) == 0 {
		r.ended = true
		return 0, io.EOF
	}
	end := bytes.IndexByte(r.left, '\n') + 1
	if end == 0 {
		end = len(r.left)
	}
	n := copy(into, r.left[:end])
	if n == end {
		r.lines++
	}
	r.left = r.left[n:]
	return n, nil
}

// maxRetried is the size in bytes up to which a document is read repeatedly to find the line of a
// mistake, which takes half a second. For a larger document the line of the YAML reader is used.
const maxRetried = 128 << 10

// brokenLine returns the line, counted from 1, that no later text can complete; 0 if the text only
// ends too early.
func brokenLine(doc []byte) int {
	// A comment ends everything that a line can continue, except quotes and brackets.
	tail := []byte("\n#\n#\n#\n#\n")
	stops := func(text []byte) (lines int, broken bool) {
		r := &lineReader{left: slices.Concat(text, tail)}
		decoder := yaml.NewDecoder(r)
		for {
			err := decoder.Decode(new(yaml.Node))
			if err != nil {
				return r.lines, !errors.Is(err, io.EOF) && !r.ended
			}
		}
	}
	if len(doc) > maxRetried {
		return 0
	}
	// Find the line at which the parser stops.
	line, broken := stops(doc)
	if !broken {
		return 0
	}
	// Go up as long as the text is broken without that line too.
	starts := lineStarts(doc)
	line = min(line, len(starts))
	for tries := 0; line > 1 && tries < 8; line-- { // The reader looks ahead to see whether a text continues.
		end := starts[line-1]
		if text := bytes.TrimSpace(doc[end:lineEnd(doc, end)]); len(text) == 0 || text[0] == '#' {
			continue
		}
		tries++
		if _, still := stops(doc[:end]); !still {
			return line
		}
	}
	return line
}

// lineStarts returns the offsets at which lines begin.
func lineStarts(doc []byte) []int {
	starts := []int{0}
	for i, c := range doc {
		if c == '\n' && i+1 < len(doc) {
			starts = append(starts, i+1)
		}
	}
	return starts
}

func lineEnd(doc []byte, from int) int {
	if n := bytes.IndexByte(doc[from:], '\n'); n >= 0 {
		return from + n
	}
	return len(doc)
}

const aTemplate = "{{ }} is a place of a template: fill it in first, as with helm template"

var (
	secondColon = regexp.MustCompile(`^[\s-]*[^\s:#'"{\[]+: +[^'"{\[#].*: `)
	gluedColon  = regexp.MustCompile(`^\s*([a-z_]+):([^\s:/]\S*)\s*$`)
	oddStart    = regexp.MustCompile("(?::|-|,|\\[|\\{) *([@`%])")
)

func isMergeMark(line string) bool {
	line = strings.TrimRight(line, "\r")
	return strings.HasPrefix(line, "<<<<<<< ") || strings.HasPrefix(line, ">>>>>>> ") ||
		strings.HasPrefix(line, "||||||| ") || line == "======="
}

// explainForeign explains a line with text that is not YAML of a policy set; empty if there is
// none.
func explainForeign(line string) string {
	indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	switch {
	case strings.Contains(indent, "\t"):
		return "the line begins with a tab, and YAML indents with blanks only: put blanks in its place"
	case strings.Contains(line, "{{"):
		return aTemplate
	case strings.Contains(line, "${"):
		return "${ } is a variable, which nobody replaces: put the value there before, as with envsubst"
	}
	return ""
}

// gluedAt finds a field without a blank after its colon, in a line or in the line above; 0 if there
// is none.
func gluedAt(lines []string, at int) (line int, reason string) {
	for line = at; line > max(at-2, 0); line-- {
		if m := gluedColon.FindStringSubmatch(lines[line-1]); m != nil {
			return line, "a blank is missing after the colon, as in " + m[1] + ": " + m[2]
		}
	}
	return 0, ""
}

// brokenReason explains an error of the YAML reader in a line, counted from 1.
func brokenReason(lines []string, at int, reason string) string {
	line := strings.TrimRight(lines[at-1], "\r")
	if better := explainForeign(line); better != "" {
		return better
	}
	switch m := oddStart.FindStringSubmatch(line); {
	case m != nil && strings.HasPrefix(reason, "found character that cannot start"):
		return "a text that begins with " + m[1] + " needs quotes"
	case strings.HasPrefix(reason, "did not find expected alphabetic"):
		return "a text that begins with * or & needs quotes, as in '*.example.com'"
	}
	if strings.HasPrefix(reason, "mapping values") && secondColon.MatchString(line) {
		return "a text with a colon and a blank in it needs quotes"
	}
	if better := explainIndent(lines, at); better != "" {
		return better
	}
	return reason
}

// explainIndent explains an indent that no line above allows; empty if the indent is allowed.
func explainIndent(lines []string, at int) string {
	var open []int // The columns of the mappings and lists that the line could continue.
	last := ""
	for _, l := range lines[:at-1] {
		body := strings.TrimLeft(l, " ")
		if body == "" || body[0] == '#' || body[0] == '\r' {
			continue
		}
		indent := len(l) - len(body)
		open = slices.DeleteFunc(open, func(column int) bool { return column > indent })
		open = append(open, indent)
		for strings.HasPrefix(body, "- ") {
			inner := strings.TrimLeft(body[1:], " ")
			indent += len(body) - len(inner)
			body = inner
			open = append(open, indent)
		}
		last = strings.TrimSpace(l)
	}
	// Compare the indent of the line with these columns.
	slices.Sort(open)
	open = slices.Compact(open)
	line := strings.TrimLeft(lines[at-1], " ")
	indent := len(lines[at-1]) - len(line)
	if len(open) == 0 {
		return ""
	}
	if deepest := open[len(open)-1]; indent > deepest {
		return "the line is indented deeper than the one above it, " + strconv.Quote(last) +
			", which is complete: fields of one mapping begin in one column"
	}
	if slices.Contains(open, indent) {
		if strings.HasPrefix(line, "- ") {
			return "an item of a list stands here, among the fields of a mapping: give it the indent of its list"
		}
		return "a field stands here, among the items of a list: give it the indent of its mapping"
	}
	columns := make([]string, len(open))
	for i, c := range open {
		columns[i] = strconv.Itoa(c)
	}
	return "the line is indented by " + strconv.Itoa(indent) + " blanks, and nothing above it that it could belong " +
		"to is: that is indented by " + strings.Join(columns, ", ")
}

// explainUnfinished explains a text or bracket that is not closed, from the line where it begins.
func explainUnfinished(line, reason string) string {
	if better := explainForeign(line); better != "" {
		return better
	}
	switch {
	case strings.Contains(reason, "end of stream"):
		return "a text in quotes begins here and does not end"
	case strings.Contains(reason, "',' or"), strings.Contains(reason, "node content"):
		return "a bracket is opened here and not closed"
	}
	return reason
}
