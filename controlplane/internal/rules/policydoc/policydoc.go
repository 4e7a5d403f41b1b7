// Package policydoc turns the bytes of a policy document, YAML or JSON, into the nodes that the
// policy language reads. Bytes are untrusted: size, depth and the number of values are bounded, and
// nothing in a document is executed or resolved beyond YAML's aliases.
//
// PutPolicy, PatchPolicy and DeletePolicy change one policy of a document and keep the rest of it.
// In YAML, where the policies are a list with lines of its own for each, only the lines of that
// policy are written anew, and all others stay to the byte. Within the policy, comments stay at the
// fields that stay; blank lines and alignment do not. With a policy that is removed go the comments
// right above it. A document that is written in another way, like on one line or with aliases into
// the policy, is written anew as a whole, with aliases written out: most comments stay, blank lines
// do not. JSON is written anew with an indent of two. Whatever way is taken, the result is read
// again, and handed out only if it says exactly what was asked for.
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

// Bounds of a document of policies. The language nests 6 deep.
const (
	MaxBytes  = 1 << 20
	MaxDepth  = 32
	MaxValues = 250_000
)

// Bounds are those of a document: its size in bytes, how deep lists and mappings may nest, and the
// number of values with every alias expanded.
type Bounds struct{ Bytes, Depth, Values int }

// Format is how a document is written.
type Format string

// The formats, named by their media types.
const (
	YAML Format = "application/yaml"
	JSON Format = "application/json"
)

// SyntaxError says why bytes are no document.
type SyntaxError struct {
	// Line is where, counted from 1; 0 if it concerns the document as a whole.
	Line   int
	Reason string
}

func (e *SyntaxError) Error() string {
	if e.Line == 0 {
		return e.Reason
	}
	return fmt.Sprintf("line %d: %s", e.Line, e.Reason)
}

// Sniff tells JSON from YAML. Whatever is valid JSON is JSON.
func Sniff(doc []byte) Format {
	if trimmed := bytes.TrimSpace(doc); len(trimmed) > 0 && trimmed[0] == '{' && json.Valid(trimmed) {
		return JSON
	}
	return YAML
}

// FormatOf returns the format of a file: by the end of its name, or else by its text.
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

// Parse reads a document in the given format. Errors are of type *SyntaxError. The node must not be
// changed: others may have it.
func Parse(doc []byte, format Format) (policy.Node, error) {
	if len(doc) > MaxBytes {
		return policy.Node{}, tooLarge(MaxBytes)
	}
	return remembered(doc, format)
}

func tooLarge(bytes int) error {
	return &SyntaxError{Reason: fmt.Sprintf("the document is larger than %d bytes", bytes)}
}

func parse(doc []byte, format Format) (policy.Node, error) {
	node, problems, err := parseAll(doc, format)
	if err == nil && len(problems) > 0 {
		err = &SyntaxError{Line: problems[0].Line, Reason: problems[0].Reason}
		node = policy.Node{}
	}
	return node, err
}

// parseAll is parse, but goes on behind values that YAML has and the language does not.
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

// ProblemsOf are the problems that an error of Load names: those of the document, or why the bytes
// are none. It reports false for another error.
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

// Load parses and validates a document. The error is a *SyntaxError, or a *Refused, which is a
// policy.Problems, with all mistakes.
func Load(doc []byte, format Format) (*policy.Set, error) {
	node, err := Parse(doc, format)
	var values policy.Problems
	if err != nil && len(doc) <= MaxBytes {
		node, values, err = parseAll(doc, format)
	}
	if err != nil {
		return nil, err
	}
	if another := anotherDocument(node); another != "" {
		return nil, &SyntaxError{Line: 1, Reason: another}
	}
	spellHosts(&node)
	set, err := policy.Decode(node)
	var problems policy.Problems
	if errors.As(err, &problems) || len(values) > 0 {
		for _, p := range problems { // What was put in place of a value is no further mistake.
			if !slices.ContainsFunc(values, func(v policy.Problem) bool { return covers(v.Path, p.Path) }) {
				values = append(values, p)
			}
		}
		locate(doc, values)
		return nil, &Refused{values}
	}
	return set, err
}

// covers reports whether a path leads to what another one leads to, or to what holds it.
func covers(outer, inner string) bool {
	rest, ok := strings.CutPrefix(inner, outer)
	return ok && outer != "" && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// budget counts the values of a document against its bounds.
type budget struct {
	Bounds
	values int
}

// ofPolicies is the budget of a document of policies.
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

// lineAt is the line, counted from 1, of the byte at offset.
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
