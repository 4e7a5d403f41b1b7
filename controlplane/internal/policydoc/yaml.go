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

func parseYAML(doc []byte) (policy.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(doc))
	var root yaml.Node
	if err := decoder.Decode(&root); errors.Is(err, io.EOF) || err == nil && len(root.Content) == 0 {
		return policy.Node{}, &SyntaxError{Reason: "the document is empty"}
	} else if err != nil {
		return policy.Node{}, yamlError(err)
	}
	var next yaml.Node
	if err := decoder.Decode(&next); err == nil {
		return policy.Node{}, &SyntaxError{Line: max(next.Line, 1),
			Reason: "a second document starts here; put everything into one"}
	} else if !errors.Is(err, io.EOF) {
		return policy.Node{}, yamlError(err)
	}
	return (&yamlReader{}).value(root.Content[0], 0)
}

type yamlReader struct{ budget budget }

func (r *yamlReader) value(n *yaml.Node, depth int) (policy.Node, error) {
	if err := r.budget.enter(depth, n.Line); err != nil {
		return policy.Node{}, err
	}
	if n.Kind == yaml.AliasNode {
		// Counted as a value of its own and as a level, so that an alias inside its own anchor
		// comes to an end.
		return r.value(n.Alias, depth+1)
	}
	if n.Style&yaml.TaggedStyle != 0 {
		return policy.Node{}, &SyntaxError{Line: n.Line,
			Reason: "tags like " + n.Tag + " are not part of the policy language"}
	}
	switch n.Kind {
	case yaml.MappingNode:
		return r.mapping(n, depth)
	case yaml.SequenceNode:
		node := policy.Node{Kind: policy.List}
		for _, item := range n.Content {
			v, err := r.value(item, depth+1)
			if err != nil {
				return policy.Node{}, err
			}
			node.Items = append(node.Items, v)
		}
		return node, nil
	}
	return scalar(n)
}

func (r *yamlReader) mapping(n *yaml.Node, depth int) (policy.Node, error) {
	node := policy.Node{Kind: policy.Map}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case key.Kind != yaml.ScalarNode || key.ShortTag() == "!!null":
			return policy.Node{}, &SyntaxError{Line: key.Line, Reason: "the key of a mapping must be a plain name"}
		case key.ShortTag() == "!!merge":
			return policy.Node{}, &SyntaxError{Line: key.Line,
				Reason: "merge keys (<<) are not part of the policy language; write the fields out"}
		case key.Style&yaml.TaggedStyle != 0:
			return policy.Node{}, &SyntaxError{Line: key.Line,
				Reason: "tags like " + key.Tag + " are not part of the policy language"}
		}
		item, err := r.value(n.Content[i+1], depth+1)
		if err != nil {
			return policy.Node{}, err
		}
		node.Keys, node.Items = append(node.Keys, key.Value), append(node.Items, item)
	}
	return node, nil
}

// scalar keeps the text as written, so that the language, not YAML, decides what a number may look
// like.
func scalar(n *yaml.Node) (policy.Node, error) {
	switch n.ShortTag() {
	case "!!null":
		return policy.Node{Kind: policy.Null}, nil
	case "!!bool":
		return policy.Node{Kind: policy.Bool, Text: strings.ToLower(n.Value)}, nil
	case "!!int", "!!float":
		// Other spellings, like 010 or 0x1f, mean different numbers to different readers.
		if !isJSONNumber.MatchString(n.Value) {
			return policy.Node{}, &SyntaxError{Line: n.Line, Reason: strconv.Quote(n.Value) +
				" is no number that this language has: write it in decimal, or in quotes if it is a text"}
		}
		return policy.Node{Kind: policy.Number, Text: n.Value}, nil
	}
	return policy.Node{Kind: policy.String, Text: n.Value}, nil
}

var isJSONNumber = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)

// yamlLine is how the YAML reader says where: the line it names is counted from 1.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func yamlError(err error) error {
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	m := yamlLine.FindStringSubmatch(text)
	if m == nil {
		return &SyntaxError{Reason: "is not YAML: " + text}
	}
	line, _ := strconv.Atoi(m[1]) // Without a line the match is empty and so is the number.
	return &SyntaxError{Line: line, Reason: "is not YAML: " + text[len(m[0]):]}
}
