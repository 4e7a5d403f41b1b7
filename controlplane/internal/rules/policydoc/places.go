package policydoc

import (
	"errors"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/shared/policy"
)

// Refused is a document with mistakes: all mistakes, each with its place. It is a policy.Problems.
type Refused struct{ Problems policy.Problems }

func (r *Refused) Error() string {
	lines := make([]string, len(r.Problems))
	for i, p := range r.Problems {
		lines[i] = Sentence("", p)
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the problems without their places in the text.
func (r *Refused) Unwrap() error { return r.Problems }

// Sentence returns a problem in the form for people and editors: file, line and policy before the
// reason. file is the name of the document, for a problem without a file; empty if it has no name.
func Sentence(file string, p policy.Problem) string {
	where := file
	if p.File != "" {
		where = p.File
	}
	switch {
	case p.Line > 0 && where == "":
		where = "line " + strconv.Itoa(p.Line)
	case p.Line > 0:
		where += ":" + strconv.Itoa(p.Line)
	}
	parts := []string{where}
	path := p.Path
	if _, field, ok := cutPolicy(path); ok && p.Policy != "" {
		parts, path = append(parts, "policy "+strconv.Quote(p.Policy)), field
	}
	parts = slices.DeleteFunc(append(parts, path, p.Reason), func(part string) bool { return part == "" })
	return strings.Join(parts, ": ")
}

// cutPolicy splits a path like policies[2].limit.window.
func cutPolicy(path string) (index int, field string, ok bool) {
	rest, ok := strings.CutPrefix(path, "policies[")
	number, field, closed := strings.Cut(rest, "]")
	index, err := strconv.Atoi(number)
	return index, strings.TrimPrefix(field, "."), ok && closed && err == nil
}

// locateProblems adds lines and policies to problems, adds hints from their values, and sorts them
// by line.
func locateProblems(doc []byte, problems policy.Problems) {
	root, err := yamlTree(doc) // JSON is YAML too.
	if err != nil {
		return
	}
	for i := range problems {
		p := &problems[i]
		found, line := followPath(root, p.Path, p.Reason == givenTwice)
		if p.Line == 0 {
			p.Line = line
		}
		p.Reason = linesOfPolicies(root, explainProblem(*p, found))
		if index, _, ok := cutPolicy(p.Path); ok {
			p.Policy = nameOf(root, index)
		}
	}
	slices.SortStableFunc(problems, func(a, b policy.Problem) int { return a.Line - b.Line })
}

var policyAt = regexp.MustCompile(`policies\[(\d+)\]`)

// linesOfPolicies replaces the indexes of other policies in a reason by their lines.
func linesOfPolicies(root *yaml.Node, reason string) string {
	return policyAt.ReplaceAllStringFunc(reason, func(path string) string {
		_, line := followPath(root, path, false)
		return "the policy of line " + strconv.Itoa(line)
	})
}

// givenTwice is the decoder's reason for a repeated field.
const givenTwice = "is given twice"

// nameOf returns the name of a policy of a document; empty if it has no name.
func nameOf(root *yaml.Node, index int) string {
	list := yamlValue(root, "policies")
	if list == nil || list.Kind != yaml.SequenceNode || index >= len(list.Content) {
		return ""
	}
	name := yamlValue(list.Content[index], "name")
	if name == nil || name.Kind != yaml.ScalarNode {
		return ""
	}
	return name.Value
}

// followPath returns the value at a path, nil if there is none, and the line of that value or of
// the last value on the way. With last it follows the second of two fields with the same name.
func followPath(n *yaml.Node, path string, last bool) (found *yaml.Node, line int) {
	line = n.Line
	for path != "" {
		var next *yaml.Node
		next, line, path = followStep(n, path, line, last)
		if next == nil {
			return nil, line
		}
		n = next
	}
	return n, line
}

// followStep follows the first part of a path, an index or a key.
func followStep(n *yaml.Node, path string, before int, last bool) (next *yaml.Node, line int, rest string) {
	if inner, ok := strings.CutPrefix(path, "["); ok {
		number, rest, _ := strings.Cut(inner, "]")
		if i, err := strconv.Atoi(number); err == nil && n.Kind == yaml.SequenceNode && i < len(n.Content) {
			return n.Content[i], n.Content[i].Line, strings.TrimPrefix(rest, ".")
		}
		return nil, before, ""
	}
	key := path
	if quoted, err := strconv.QuotedPrefix(path); err == nil {
		key, _ = strconv.Unquote(quoted)
		rest = path[len(quoted):]
	} else if end := strings.IndexAny(path, ".["); end >= 0 && keyAt(n, path) < 0 {
		key, rest = path[:end], path[end:]
	}
	if n.Kind != yaml.MappingNode {
		return nil, before, ""
	}
	line = before
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key && (next == nil || last) {
			next, line = n.Content[i+1], n.Content[i].Line
		}
	}
	return next, line, strings.TrimPrefix(rest, ".")
}

// InFile adds a file to the problems of an error; folder is joined with the file that a problem has
// already.
func InFile(folder string, err error) {
	var problems policy.Problems
	if errors.As(err, &problems) {
		for i := range problems {
			problems[i].File = filepath.Join(folder, problems[i].File)
		}
	}
}

// WithoutLines removes the lines from an error of Load, for a reader who has not written the
// document.
func WithoutLines(err error) error {
	var problems policy.Problems
	if errors.As(err, &problems) {
		for i := range problems {
			problems[i].Line = 0
		}
	}
	return err
}
