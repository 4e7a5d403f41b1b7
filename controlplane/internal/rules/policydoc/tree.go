package policydoc

import (
	"bytes"
	"errors"
	"io"

	"go.yaml.in/yaml/v3"
)

// Trees reads the documents of a file of another product, in YAML or JSON, as trees with lines and
// comments. It expands aliases and merge keys (<<). The error is a *SyntaxError.
func Trees(text []byte, bounds Bounds) (roots []*yaml.Node, err error) {
	if len(text) > bounds.Bytes {
		return nil, tooLarge(bounds.Bytes)
	}
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	left := budget{Bounds: bounds}
	for {
		var document yaml.Node
		err := decoder.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return roots, nil
		case err != nil:
			return nil, yamlError(text, err)
		case len(document.Content) == 0:
			continue
		}
		root, err := left.writeOut(document.Content[0], 0)
		if err != nil {
			return nil, err
		}
		writeOutMerges(root)
		roots = append(roots, root)
	}
}

// yamlTree reads a document that Parse has accepted, with its comments. It expands aliases.
func yamlTree(doc []byte) (*yaml.Node, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(doc, &root); err != nil {
		return nil, yamlError(doc, err)
	}
	left := ofPolicies()
	return left.writeOut(root.Content[0], 0)
}

// writeOut copies a tree, with copies of their anchors in place of aliases. An alias counts as a
// value and as a level, so an alias inside its own anchor ends with an error.
func (b *budget) writeOut(n *yaml.Node, depth int) (*yaml.Node, error) {
	if err := b.enter(depth, n.Line); err != nil {
		return nil, err
	}
	if n.Kind == yaml.AliasNode {
		out, err := b.writeOut(n.Alias, depth+1)
		if err == nil {
			out.HeadComment, out.LineComment, out.FootComment = n.HeadComment, n.LineComment, n.FootComment
		}
		return out, err
	}
	out := *n
	out.Anchor, out.Content = "", nil
	for i, child := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && child.Kind == yaml.ScalarNode {
			name := *child // Names do not count as values.
			name.Anchor = ""
			out.Content = append(out.Content, &name)
			continue
		}
		own, err := b.writeOut(child, depth+1)
		if err != nil {
			return nil, err
		}
		out.Content = append(out.Content, own)
	}
	return &out, nil
}

// writeOutMerges adds the fields of merge keys to a mapping, after the mapping's own fields, which
// take precedence.
func writeOutMerges(n *yaml.Node) {
	for _, child := range n.Content {
		writeOutMerges(child)
	}
	if n.Kind != yaml.MappingNode {
		return
	}
	var content, merged []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		switch key, value := n.Content[i], n.Content[i+1]; {
		case key.ShortTag() != "!!merge":
			content = append(content, key, value)
		case value.Kind == yaml.SequenceNode:
			merged = append(merged, value.Content...)
		default:
			merged = append(merged, value)
		}
	}
	n.Content = content
	for _, m := range merged {
		for i := 0; m.Kind == yaml.MappingNode && i+1 < len(m.Content); i += 2 {
			if keyAt(n, m.Content[i].Value) < 0 {
				n.Content = append(n.Content, m.Content[i], m.Content[i+1])
			}
		}
	}
}

// EncodeYAML writes a tree with its comments.
func EncodeYAML(n *yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	e := yaml.NewEncoder(&out)
	e.SetIndent(2)
	if err := e.Encode(n); err != nil {
		return nil, err
	}
	return out.Bytes(), e.Close()
}
