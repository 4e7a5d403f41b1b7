package policydoc

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/shared/policy"
)

// parseYAML reads a document. The problems are values that YAML has and the policy language does
// not. A likely value replaces each of them, so that more mistakes can be found after it.
func parseYAML(doc []byte) (policy.Node, policy.Problems, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(doc))
	var root yaml.Node
	if err := decoder.Decode(&root); errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0 {
		return policy.Node{}, nil, &SyntaxError{
			Reason: "the document is empty: it must begin with version: " + policy.Version}
	} else if err != nil {
		return policy.Node{}, nil, yamlError(doc, err)
	}
	var next yaml.Node
	if err := decoder.Decode(&next); err == nil {
		return policy.Node{}, nil, &SyntaxError{Line: max(next.Line, 1),
			Reason: "a second document starts here; put everything into one document"}
	} else if !errors.Is(err, io.EOF) {
		return policy.Node{}, nil, yamlError(doc, err)
	}
	r := &yamlReader{budget: ofPolicies()}
	node, err := r.value(root.Content[0], 0)
	return node, r.problems, err
}

type yamlReader struct {
	budget   budget
	problems policy.Problems
	// path is the path to the present value, one part for each level.
	path []string
}

// problem adds a problem: a value that the policy language does not have.
func (r *yamlReader) problem(n *yaml.Node, reason string) {
	const most = 100
	if len(r.problems) < most {
		path := strings.TrimPrefix(strings.Join(r.path, ""), ".")
		r.problems = append(r.problems, policy.Problem{Path: path, Reason: reason, Line: n.Line})
	}
}

// below reads a value one level deeper, at a part of the path.
func (r *yamlReader) below(part string, n *yaml.Node, depth int) (policy.Node, error) {
	r.path = append(r.path, part)
	node, err := r.value(n, depth)
	r.path = r.path[:len(r.path)-1]
	return node, err
}

func (r *yamlReader) value(n *yaml.Node, depth int) (policy.Node, error) {
	if err := r.budget.enter(depth, n.Line); err != nil {
		return policy.Node{}, err
	}
	if n.Kind == yaml.AliasNode {
		// It counts as a value and as a level, so an alias inside its own anchor ends with an
		// error.
		return r.value(n.Alias, depth+1)
	}
	if n.Style&yaml.TaggedStyle != 0 {
		r.problem(n, noTags(n))
	}
	switch n.Kind {
	case yaml.MappingNode:
		return r.mapping(n, depth)
	case yaml.SequenceNode:
		node := policy.Node{Kind: policy.List}
		for i, item := range n.Content {
			v, err := r.below("["+strconv.Itoa(i)+"]", item, depth+1)
			if err != nil {
				return policy.Node{}, err
			}
			node.Items = append(node.Items, v)
		}
		return node, nil
	}
	return r.scalar(n), nil
}

func noTags(n *yaml.Node) string {
	return "tags like " + n.Tag + " are not part of the policy language: leave it out"
}

func (r *yamlReader) mapping(n *yaml.Node, depth int) (policy.Node, error) {
	node := policy.Node{Kind: policy.Map}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if reason := noKey(key); reason != "" {
			r.problem(key, reason)
			if err := r.count(depth+1, key, value); err != nil {
				return policy.Node{}, err
			}
			continue
		}
		if key.Style&yaml.TaggedStyle != 0 {
			r.problem(key, noTags(key))
		}
		item, err := r.below("."+key.Value, value, depth+1)
		if err != nil {
			return policy.Node{}, err
		}
		node.Keys, node.Items = append(node.Keys, key.Value), append(node.Items, item)
	}
	return node, nil
}

// noKey returns the reason why a key is not valid; "" if it is valid.
func noKey(key *yaml.Node) string {
	switch {
	case key.Kind == yaml.MappingNode && key.Style&yaml.FlowStyle != 0:
		return aTemplate
	case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null":
		return "the key of a mapping must be a plain name"
	case key.ShortTag() == "!!merge":
		return "merge keys (<<) are not part of the policy language; write the fields out"
	}
	return ""
}

// count counts values that are left out against the bounds of the document: other code expands its
// aliases after it has been read.
func (r *yamlReader) count(depth int, values ...*yaml.Node) error {
	noted := r.problems
	for _, n := range values {
		if _, err := r.value(n, depth); err != nil {
			return err
		}
	}
	r.problems = noted
	return nil
}

// scalar keeps the text as written, so that the policy language decides the form of numbers, not
// YAML.
func (r *yamlReader) scalar(n *yaml.Node) policy.Node {
	switch n.ShortTag() {
	case "!!null":
		return policy.Node{Kind: policy.Null}
	case "!!bool":
		return policy.Node{Kind: policy.Bool, Text: strings.ToLower(n.Value)}
	case "!!int", "!!float":
		if isJSONNumber.MatchString(n.Value) {
			return policy.Node{Kind: policy.Number, Text: n.Value}
		}
		// Other spellings, such as 010 or 0x1f, mean different numbers to different readers.
		plain := spellNumber(n.Value)
		reason := strconv.Quote(n.Value) + " is no number that this language has: write it in decimal"
		if plain != "" {
			reason += ", as in " + plain
			if octal := strings.TrimLeft(n.Value, "0"); isJSONNumber.MatchString(octal) && octal != plain {
				reason = strings.TrimSuffix(reason, plain) + octal + ", or " + plain + " if it was meant as octal"
			}
		}
		r.problem(n, reason+", or in quotes if it is a text")
		if plain != "" {
			return policy.Node{Kind: policy.Number, Text: plain}
		}
	}
	return policy.Node{Kind: policy.String, Text: n.Value}
}

var isJSONNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
