// Package policydoc converts the bytes of a policy document, YAML or JSON, to the nodes that the
// policy language decodes. Bytes are untrusted: size, depth and the number of values are bounded,
// and nothing in a document is executed or resolved except YAML's aliases.
//
// PutPolicy, PatchPolicy and DeletePolicy change one policy of a document and keep the rest. In
// YAML, if each policy has lines of its own, only the lines of that policy are written again, and
// all other lines stay unchanged. Inside the policy, comments stay at fields that stay; blank lines
// and alignment do not. If a policy is removed, the comments right above it are removed too. A
// document in another form, such as on one line or with aliases into the policy, is written again
// as a whole, without aliases: most comments stay, blank lines do not. JSON is written again with
// an indent of two. In all cases the result is read again, and returned only if it is exactly the
// expected document.
package policydoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weir-proxy/weir/shared/policy"
)

// Bounds of a policy document. The language nests 6 levels deep.
const (
	MaxBytes  = 1 << 20
	MaxDepth  = 32
	MaxValues = 250_000
)

// Bounds are the bounds of a document: its size in bytes, the depth of lists and mappings, and the
// number of values after the expansion of aliases.
type Bounds struct{ Bytes, Depth, Values int }

// Format is the format of a document.
type Format string

// The formats, named by their media types.
const (
	YAML Format = "application/yaml"
	JSON Format = "application/json"
)

// SyntaxError is the reason why bytes are not a document.
type SyntaxError struct {
	// Line is the line of the mistake, counted from 1; 0 if it concerns the whole document.
	Line   int
	Reason string
}

func (e *SyntaxError) Error() string {
	if e.Line == 0 {
		return e.Reason
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Reason)
}

// Sniff distinguishes JSON from YAML. Valid JSON is JSON.
func Sniff(doc []byte) Format {
	if trimmed := bytes.TrimSpace(doc); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return JSON
	}
	return YAML
}

// FormatOf returns the format of a file: by the extension of its name, or else by its text.
func FormatOf(name string, doc []byte) Format {
	name = strings.ToLower(name)
	switch {
	case strings.HasSuffix(name, ".json"):
		return JSON
	case strings.HasSuffix(name, ".yaml"), strings.HasSuffix(name, ".yml"):
		return YAML
	}
	return Sniff(doc)
}

// Parse reads a document in the given format. Errors are of type *SyntaxError. The caller must not
// change the node, because other callers may have it.
func Parse(doc []byte, format Format) (policy.Node, error) {
	if len(doc) > MaxBytes {
		return policy.Node{}, tooLarge(MaxBytes)
	}
	return parseRemembered(doc, format)
}

func tooLarge(bytes int) error {
	return &SyntaxError{Reason: fmt.Sprintf("the document is larger than %d bytes", bytes)}
}

func parseText(doc []byte, format Format) (policy.Node, error) {
	node, problems, err := parseAll(doc, format)
	if err == nil && len(problems) > 0 {
		err = &SyntaxError{Line: problems[0].Line, Reason: problems[0].Reason}
		node = policy.Node{}
	}
	return node, err
}

// parseAll parses like parseText, but continues after values that YAML has and the policy language
// does not.
func parseAll(doc []byte, format Format) (policy.Node, policy.Problems, error) {
	if reason := somethingElse(doc); reason != "" {
		return policy.Node{}, nil, &SyntaxError{Line: 1, Reason: reason}
	}
	if !utf8.Valid(doc) {
		return policy.Node{}, nil, &SyntaxError{Line: lineAt(doc, invalidUTF8(doc)),
			Reason: "is not UTF-8 but another encoding, like Latin-1: save the file as UTF-8"}
	}
	if format == JSON {
		node, err := parseJSON(doc)
		return node, nil, err
	}
	return parseYAML(doc)
}

// ProblemsOf returns the problems of an error of Load: the mistakes of the document, or the reason
// why the bytes are not a document. ok is false for another error.
func ProblemsOf(err error) (problems policy.Problems, ok bool) {
	var syntax *SyntaxError
	switch {
	case errors.As(err, &problems):
		return problems, true
	case errors.As(err, &syntax):
		return policy.Problems{{Reason: syntax.Reason, Line: syntax.Line}}, true
	}
	return nil, false
}

// Load parses and validates a document. The error is a *SyntaxError if the document cannot be
// parsed, or else a *Refused, which has all mistakes of the document.
func Load(doc []byte, format Format) (*policy.Set, error) {
	// Parse remembers documents, but stops at the first mistake. parseAll goes on: it puts a likely
	// value in the place of each value that YAML has and the policy language does not.
	node, err := Parse(doc, format)
	var mistakes policy.Problems
	if err != nil && len(doc) <= MaxBytes {
		node, mistakes, err = parseAll(doc, format)
	}
	if err != nil {
		return nil, err
	}
	if reason := anotherDocument(node); reason != "" {
		return nil, &SyntaxError{Line: 1, Reason: reason}
	}
	spellHosts(&node)
	set, err := policy.Decode(node)
	var problems policy.Problems
	if !errors.As(err, &problems) && len(mistakes) == 0 {
		return set, err
	}
	// Add the problems of Decode, except in values that parseAll has put there.
	for _, p := range problems {
		if !slices.ContainsFunc(mistakes, func(m policy.Problem) bool { return coversPath(m.Path, p.Path) }) {
			mistakes = append(mistakes, p)
		}
	}
	locateProblems(doc, mistakes)
	return nil, &Refused{mistakes}
}

// coversPath reports whether outer is the path inner, or a path to a part of the document that
// contains inner.
func coversPath(outer, inner string) bool {
	rest, ok := strings.CutPrefix(inner, outer)
	return ok && outer != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// budget counts the values of a document against its bounds.
type budget struct {
	Bounds
	values int
}

// ofPolicies returns the budget of a policy document.
func ofPolicies() budget { return budget{Bounds: Bounds{MaxBytes, MaxDepth, MaxValues}} }

func (b *budget) enter(depth, line int) error {
	b.values++
	switch {
	case depth > b.Depth:
		return &SyntaxError{Line: line, Reason: fmt.Sprintf("lists and mappings nest deeper than %d levels", b.Depth)}
	case b.values > b.Values:
		return &SyntaxError{
			Line: line, Reason: fmt.Sprintf("the document holds more than %d values, aliases included", b.Values),
		}
	}
	return nil
}

// lineAt returns the line of the byte at offset, counted from 1.
func lineAt(doc []byte, offset int) int {
	return 1 + bytes.Count(doc[:min(max(offset, 0), len(doc))], []byte{'\n'})
}

func invalidUTF8(doc []byte) int {
	for i := 0; i < len(doc); {
		r, size := utf8.DecodeRune(doc[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return len(doc)
}
