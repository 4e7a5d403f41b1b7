package policy

import (
	"math"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/spelling"
)

// Node is one value of a document: readers of YAML and JSON make Nodes, Decode reads them.
type Node struct {
	Kind Kind
	// Text is the scalar as written, without quotes.
	Text string
	// Items are a list's elements, or a mapping's values in the order of Keys.
	Items []Node
	Keys  []string

	// text is a list of count elements that is still JSON, in place of Items.
	text  []byte
	count int
}

// listSize returns the number of a list's elements.
func (n *Node) listSize() int { return len(n.Items) + n.count }

// eachItem calls a function with a list's elements. The elements of a long list are made one at a
// time, so that only one is in memory: the tree of a document with thousands of policies would be
// many times as large as the document.
func (n *Node) eachItem(read func(i int, item Node)) {
	for i, item := range n.Items {
		read(i, item)
	}
	s := scanner{doc: n.text, at: 1}
	for i := range n.count {
		read(i, s.readNode())
		s.takeByte(',')
	}
}

// Kind is the kind of a Node.
type Kind uint8

// The kinds of values.
const (
	Null Kind = iota
	Bool
	Number
	String
	List
	Map
)

func (k Kind) String() string {
	return [...]string{"nothing", "true or false", "a number", "a string", "a list", "a mapping"}[k]
}

// Problem is one reason to refuse a document.
type Problem struct {
	// Path leads to the value, like policies[2].limit.window; empty for the document as a whole.
	Path string `json:"path"`
	// Reason says why the value is wrong and how it would be right.
	Reason string `json:"reason"`
	// File, Line and Policy say where that is, as far as the reader of the document knows: the
	// file, the line counted from 1, and the name of the policy that the path leads into.
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Policy string `json:"policy,omitempty"`
}

func (p Problem) String() string {
	if p.Path == "" {
		return p.Reason
	}
	return p.Path + ": " + p.Reason
}

// Problems is every reason to refuse a document, in the document's order. As an error it lists the
// reasons, each on its own line.
type Problems []Problem

func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// maxProblems bounds the list for a document with very many mistakes.
const maxProblems = 100

// reader collects problems while a document is read.
type reader struct {
	problems Problems
	// quiet means that a part with a problem is read again, with its path. Problems are rare, and
	// paths would be half of the memory that reading needs.
	quiet bool
	// each takes the policies one after another, until there is a problem; nil if they go into the
	// set.
	each func(*Policy)
	// needs are parts of partitions that the identity must define; noted counts them by kind.
	needs []need
	noted [PartTier + 1]int
	draft draft
	// routing is how the paths of patterns are read.
	routing spelling.Routing
	// wide counts the policies whose penalties hold under every policy.
	wide int
	// defaultTier is the default tier's index, -1 if it is missing or not a tier.
	defaultTier int
}

//go:noinline
func (r *reader) failAt(path, reason string) {
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, Problem{Path: path, Reason: reason})
	}
}

// field is one key that a mapping may have.
type field struct {
	name string
	read func(path string, n Node)
}

// readMap reads a mapping by its fields. Unknown and repeated keys are problems.
func (r *reader) readMap(path string, n Node, fields ...field) {
	if n.Kind != Map {
		r.wrongKind(path, n, "a mapping")
		return
	}
	if len(n.Keys) > MaxListItems { // The search for repeated keys takes quadratic time.
		r.failAt(path, "has "+strconv.Itoa(len(n.Keys))+" fields: at most "+strconv.Itoa(MaxListItems)+" are allowed")
		return
	}
	for i, key := range n.Keys {
		at := r.joinPath(path, key)
		f := findField(fields, key)
		switch {
		case containsText(n.Keys[:i], key):
			r.failAt(at, "is given twice")
		case f == nil:
			r.failAt(at, "unknown field"+r.suggestField(key, fields))
		default:
			f.read(at, n.Items[i])
		}
	}
}

// findKey finds the first key of a mapping with a name. readMap reports problems of the mapping.
func (r *reader) findKey(path string, n Node, key string) (at string, item Node, given bool) {
	for i := range n.Keys {
		if n.Keys[i] == key {
			return r.joinPath(path, key), n.Items[i], true
		}
	}
	return "", Node{}, false
}

// readField reads one key of a mapping, if it is given.
func (r *reader) readField(path string, n Node, key string, read func(path string, n Node)) {
	if at, item, given := r.findKey(path, n, key); given {
		read(at, item)
	}
}

// readList reads each element of a list with at most MaxListItems elements.
//
//go:noinline
func (r *reader) readList(path string, n Node, read func(path string, n Node)) {
	r.readLongList(path, n, MaxListItems, read)
}

// readText reads a string of 1 to MaxText bytes.
//
//go:noinline
func (r *reader) readText(path string, n Node) (string, bool) {
	if n.Kind != String {
		r.wrongKind(path, n, "a string")
		return "", false
	}
	if n.Text == "" || len(n.Text) > MaxText {
		r.failAt(path, "must have 1 to "+strconv.Itoa(MaxText)+" bytes")
		return "", false
	}
	return n.Text, true
}

// readInteger reads a whole number between low and high.
//
//go:noinline
func (r *reader) readInteger(path string, n Node, low, high int64, into *int64) bool {
	if n.Kind != Number {
		r.wrongKind(path, n, "a whole number")
		return false
	}
	v, ok := parseInt(n.Text)
	if !ok || v < low || v > high {
		r.failAt(path, "must be a whole number from "+strconv.FormatInt(low, 10)+" to "+strconv.FormatInt(high, 10)+
			", not "+shorten(n.Text))
		return false
	}
	*into = v
	return true
}

// parseInt reads a whole number, with or without a sign, that fits into 64 bits. It is shorter than
// strconv's, whose errors take two hundredths of the filter.
func parseInt(text string) (value int64, ok bool) {
	digits, negative := strings.CutPrefix(text, "-")
	if !negative {
		digits, _ = strings.CutPrefix(text, "+")
	}
	for _, c := range []byte(digits) {
		digit := int64(c) - '0'
		// Counted below zero, where there is room for one number more.
		if digit < 0 || digit > 9 || value < (math.MinInt64+digit)/10 {
			return 0, false
		}
		value = 10*value - digit
	}
	if !negative {
		if value == math.MinInt64 {
			return 0, false
		}
		value = -value
	}
	return value, len(digits) > 0
}

//go:noinline
func (r *reader) wrongKind(path string, n Node, want string) {
	got := n.Kind.String()
	if n.Kind == Bool || n.Kind == Number {
		got = shorten(n.Text)
	}
	r.failAt(path, "must be "+want+", not "+got)
}

//go:noinline
func (r *reader) joinPath(path, key string) string {
	if r.quiet {
		return ""
	}
	key = shorten(key)
	if path == "" {
		return key
	}
	return path + "." + key
}

//go:noinline
func (r *reader) indexPath(path string, i int) string {
	if r.quiet {
		return ""
	}
	return path + "[" + strconv.Itoa(i) + "]"
}

// shorten keeps a client's text from flooding a message.
//
//go:noinline
func shorten(text string) string {
	if len(text) > 64 {
		return strconv.Quote(text[:64]) + "…"
	}
	for i := range len(text) {
		if text[i] <= ' ' || text[i] >= 0x7f || text[i] == '"' {
			return strconv.Quote(text)
		}
	}
	return text
}

func findField(fields []field, key string) *field {
	for i := range fields {
		if fields[i].name == key {
			return &fields[i]
		}
	}
	return nil
}

func containsText(list []string, text string) bool {
	for _, s := range list {
		if s == text {
			return true
		}
	}
	return false
}

// suggestField names the field that a misspelt key probably means, or the right place of a key that
// is in a wrong place.
func (r *reader) suggestField(key string, fields []field) string {
	names := make([]string, 0, len(fields))
	for _, f := range fields {
		names = append(names, f.name)
	}
	switch best := Guess(key, names); {
	case best != "":
		return ": did you mean " + best + "?"
	case findField(r.draft.fields, key) != nil:
		return " here: it is one of a policy, beside its name"
	}
	return ""
}

// Guess returns the name that a misspelt name probably means; empty if none is near.
func Guess(misspelt string, names []string) string {
	best, distance := "", 3
	for _, name := range names {
		if d := editDistance(misspelt, name, distance); d < distance {
			best, distance = name, d
		}
	}
	return best
}

// editDistance returns the Levenshtein distance of a and b, or limit if it is no smaller.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost = min(diagonal, row[j], row[j+1]) + 1
			}
			diagonal, row[j+1] = row[j+1], cost
		}
	}
	return min(row[len(b)], limit)
}
