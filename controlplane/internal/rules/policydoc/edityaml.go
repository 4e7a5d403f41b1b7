package policydoc

import (
	"bytes"
	"errors"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/shared/policy"
)

var errNotSpliced = errors.New("the policies have no lines of their own")

// yamlValue returns the value of a key in a mapping, nil if there is no such key.
func yamlValue(mapping *yaml.Node, key string) *yaml.Node {
	if at := keyAt(mapping, key); at >= 0 {
		return mapping.Content[at+1]
	}
	return nil
}

// yamlPolicies returns the list of policies. It adds the list if there is none.
func yamlPolicies(root *yaml.Node) *yaml.Node {
	list := yamlValue(root, "policies")
	if list == nil {
		list = &yaml.Node{Kind: yaml.SequenceNode}
		root.Content = append(root.Content, scalarYAML(policy.Node{Kind: policy.String, Text: "policies"}), list)
	}
	if list.Kind != yaml.SequenceNode {
		*list = yaml.Node{Kind: yaml.SequenceNode, HeadComment: list.HeadComment, LineComment: list.LineComment,
			FootComment: list.FootComment}
	}
	return list
}

// rewrite edits the tree of the whole document and writes the whole document again.
func (e edit) rewrite(doc []byte, at int) ([]byte, error) {
	root, err := yamlTree(doc)
	if err != nil {
		return nil, err
	}
	list := yamlPolicies(root)
	if len(list.Content) == 0 {
		list.Style = 0 // [] on one line becomes a list with lines.
	}
	switch {
	case e.next == nil:
		list.Content = slices.Delete(list.Content, at, at+1)
	case at < 0:
		item, err := e.itemNode(nil)
		if err != nil {
			return nil, err
		}
		list.Content = append(list.Content, item)
	default:
		list.Content[at], err = e.itemNode(list.Content[at])
		if err != nil {
			return nil, err
		}
	}
	return EncodeYAML(root)
}

// itemNode returns the edited policy, with the comments of the old policy that still belong to it.
func (e edit) itemNode(old *yaml.Node) (*yaml.Node, error) {
	if e.body == nil {
		if old == nil {
			return buildYAML(*e.next, true), nil
		}
		return reconcileTree(old, *e.next), nil
	}
	item, err := yamlTree(e.body)
	if err != nil {
		return nil, err
	}
	if yamlValue(item, "name") == nil {
		item.Content = slices.Insert(item.Content, 0, scalarYAML(policy.Node{Kind: policy.String, Text: "name"}),
			scalarYAML(e.next.Items[0]))
	}
	if old != nil && item.HeadComment == "" {
		item.HeadComment = old.HeadComment
	}
	return item, nil
}

// excerpt does the same as splice, but faster, for a replaced policy that another policy follows,
// in a list in the usual form. It only looks for the policy's lines and does not read the whole
// document, which takes most of the time if the document is large. If it finds the wrong lines, the
// result is not the expected document, and is not used.
func (e edit) excerpt(doc []byte, at int) ([]byte, error) {
	const key = "policies:\n"
	begin := bytes.Index(append([]byte("\n"), doc...), []byte("\n"+key))
	if at < 0 || e.next == nil || begin < 0 {
		return nil, errNotSpliced
	}
	// Find the lines of the policy, from its dash to the next dash.
	from := -1
	to := -1
	indent := -1
	count := -1
	for offset := begin + len(key); offset < len(doc) && to < 0; {
		line, _, _ := bytes.Cut(doc[offset:], []byte("\n"))
		text := bytes.TrimLeft(line, " ")
		if len(text) > 0 && text[0] == '-' && (indent < 0 || indent == len(line)-len(text)) {
			indent = len(line) - len(text)
			count++
			switch count {
			case at:
				from = offset
			case at + 1:
				to = offset
			}
		}
		offset += len(line) + 1
	}
	if to < 0 {
		return nil, errNotSpliced
	}
	// Replace these lines.
	text, err := e.splice(append([]byte(key), doc[from:to]...), 0)
	if err != nil {
		return nil, err
	}
	return slices.Concat(doc[:from], text[len(key):], doc[to:]), nil
}

// splice writes the lines of one policy again and keeps all other lines. It fails if policies have
// no lines of their own.
func (e edit) splice(doc []byte, at int) ([]byte, error) {
	root, err := yamlTree(doc)
	if err != nil {
		return nil, err
	}
	list := yamlValue(root, "policies")
	if list == nil || list.Kind != yaml.SequenceNode || list.Style&yaml.FlowStyle != 0 || len(list.Content) == 0 {
		return nil, errNotSpliced
	}
	// Find the lines of the policy, or of the last policy for a new policy.
	lines := bytes.SplitAfter(doc, []byte("\n"))
	index := at
	if at < 0 {
		index = len(list.Content) - 1
	}
	from, to, err := itemLines(lines, root, list, index)
	if err != nil {
		return nil, err
	}
	// Delete the policy with the comments right above it.
	if e.next == nil {
		if len(list.Content) == 1 {
			return nil, errNotSpliced // The rest would not be a list with lines.
		}
		for indent := dashColumn(lines, list.Content[at]); from > 0 && isComment(lines[from-1], indent); {
			from-- // A comment right above would belong to the next policy.
		}
		return bytes.Join(slices.Concat(lines[:from], lines[to:]), nil), nil
	}
	// Replace the policy, or add one at the end.
	var old *yaml.Node
	if at >= 0 {
		old = list.Content[at]
	} else {
		from = to
	}
	text, err := e.itemText(old, dashColumn(lines, list.Content[index]))
	if err != nil {
		return nil, err
	}
	if before := lines[:from]; from > 0 && !bytes.HasSuffix(before[from-1], []byte("\n")) {
		text = append([]byte("\n"), text...)
	}
	return bytes.Join(slices.Concat(lines[:from], [][]byte{text}, lines[to:]), nil), nil
}

// itemText returns the edited policy as an item of a list, indented by indent columns.
func (e edit) itemText(old *yaml.Node, indent int) ([]byte, error) {
	item, err := e.itemNode(old)
	if err != nil {
		return nil, err
	}
	item.HeadComment, item.FootComment = "", "" // Their lines stay unchanged.
	text, err := EncodeYAML(&yaml.Node{Kind: yaml.SequenceNode, Content: []*yaml.Node{item}})
	if err != nil {
		return nil, err
	}
	var out []byte
	for _, line := range bytes.SplitAfter(text, []byte("\n")) {
		if len(bytes.TrimSpace(line)) > 0 {
			out = append(out, strings.Repeat(" ", indent)...)
		}
		out = append(out, line...)
	}
	return out, nil
}

// dashColumn returns the column of the dash before an item, counted from 0; -1 if there is none on
// the item's line.
func dashColumn(lines [][]byte, item *yaml.Node) int {
	if item.Line < 1 || item.Line > len(lines) {
		return -1
	}
	line := lines[item.Line-1]
	at := len(line) - len(bytes.TrimLeft(line, " "))
	if at < len(line) && line[at] == '-' {
		return at
	}
	return -1
}

// isComment reports whether a line has only a comment, at a column counted from 0.
func isComment(line []byte, column int) bool {
	text := bytes.TrimLeft(line, " ")
	return len(text) > 0 && text[0] == '#' && len(line)-len(text) == column
}

// itemLines returns the lines of an item of the list, from its dash to the last line with a deeper
// indent. Blank lines and comments after that belong to the next item.
func itemLines(lines [][]byte, root, list *yaml.Node, index int) (from, to int, err error) {
	item := list.Content[index]
	indent := dashColumn(lines, item)
	if indent < 0 {
		return 0, 0, errNotSpliced
	}
	// The lines end before the next item, or before the next field of the document.
	from, to = item.Line-1, len(lines)
	if index+1 < len(list.Content) {
		to = list.Content[index+1].Line - 1
	} else {
		for i := 0; i < len(root.Content); i += 2 {
			if line := root.Content[i].Line - 1; line > from {
				to = min(to, line)
			}
		}
	}
	// Leave out lines at the end that do not belong to the item.
	for to > from+1 {
		last := lines[to-1]
		if text := bytes.TrimLeft(last, " "); len(bytes.TrimSpace(text)) > 0 && len(last)-len(text) > indent {
			break
		}
		to--
	}
	if to <= from {
		return 0, 0, errNotSpliced
	}
	return from, to, nil
}

// reconcileTree changes a tree to the content of a node. It keeps the order, the style and the
// comments of all parts that stay.
func reconcileTree(old *yaml.Node, next policy.Node) *yaml.Node {
	if said, err := (&yamlReader{budget: ofPolicies()}).value(old, 0); err == nil && reflect.DeepEqual(said, next) {
		return old
	}
	if old.Kind != yaml.MappingNode || next.Kind != policy.Map {
		built := buildYAML(next, false)
		built.HeadComment = old.HeadComment
		built.LineComment = old.LineComment
		built.FootComment = old.FootComment
		return built
	}
	var content []*yaml.Node
	for i, key := range next.Keys {
		if at := keyAt(old, key); at >= 0 {
			content = append(content, old.Content[at], reconcileTree(old.Content[at+1], next.Items[i]))
			continue
		}
		content = append(content, scalarYAML(policy.Node{Kind: policy.String, Text: key}),
			buildYAML(next.Items[i], false))
	}
	old.Content = content
	return old
}

// keyAt returns the index of a key in a mapping's content, -1 if it has no such key.
func keyAt(mapping *yaml.Node, key string) int {
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		if mapping.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// buildYAML writes a node in the style of the documentation: a mapping or list of plain values is
// on one line, except a policy.
func buildYAML(node policy.Node, lines bool) *yaml.Node {
	if node.Kind != policy.Map && node.Kind != policy.List {
		return scalarYAML(node)
	}
	n := &yaml.Node{Kind: yaml.SequenceNode}
	if node.Kind == policy.Map {
		n.Kind = yaml.MappingNode
	}
	plain := true
	for i, item := range node.Items {
		plain = plain && item.Kind != policy.Map && item.Kind != policy.List
		if node.Kind == policy.Map {
			n.Content = append(n.Content, scalarYAML(policy.Node{Kind: policy.String, Text: node.Keys[i]}))
		}
		n.Content = append(n.Content, buildYAML(item, false))
	}
	if plain && !lines {
		n.Style = yaml.FlowStyle
	}
	return n
}

func scalarYAML(node policy.Node) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: node.Text}
	switch node.Kind {
	case policy.Null:
		n.Value = "null"
	case policy.String:
		n.Tag = "!!str" // Written in quotes if it would otherwise not be read as a string.
		if node.Text == "off" || node.Text == "on" || node.Text == "yes" || node.Text == "no" {
			n.Style = yaml.DoubleQuotedStyle // For readers of YAML 1.1.
		}
	}
	return n
}
