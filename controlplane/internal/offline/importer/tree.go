package importer

import (
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

// MaxBytes is the size of a file.
const MaxBytes = 16 << 20

// bounds are the bounds of a file.
var bounds = policydoc.Bounds{Bytes: MaxBytes, Depth: 100, Values: 1_000_000}

// Tree is one value of a YAML or JSON file. It remembers its line and which of its fields were
// asked for, so that no field is overlooked. All methods may be called on nil, an absent value.
type Tree struct {
	file  string
	line  int
	node  *yaml.Node
	keys  []string
	items []*Tree
	read  []bool
}

// Field is a field of a mapping.
type Field struct {
	Name  string
	Value *Tree
}

// ParseTrees reads the documents of a file. The error is a *SyntaxError.
func ParseTrees(f File) (documents []*Tree, err error) {
	roots, err := policydoc.Trees(f.Text, bounds)
	var syntax *policydoc.SyntaxError
	if errors.As(err, &syntax) {
		err = &SyntaxError{f.Name, syntax.Line, syntax.Reason}
	}
	for _, root := range roots {
		if t := newTree(f.Name, root.Line, root); t.Exists() {
			documents = append(documents, t)
		}
	}
	return documents, err
}

// newTree makes the tree of a value at a line.
func newTree(file string, line int, n *yaml.Node) *Tree {
	t := &Tree{file: file, line: line, node: n}
	for i, child := range n.Content {
		switch {
		case n.Kind == yaml.SequenceNode:
			t.items = append(t.items, newTree(file, child.Line, child))
		case i%2 == 0:
			t.keys = append(t.keys, child.Value)
		default: // People look for a field where its name is.
			t.items = append(t.items, newTree(file, n.Content[i-1].Line, child))
		}
	}
	t.read = make([]bool, len(t.keys))
	return t
}

// isKind reports whether there is a value of a kind.
func (t *Tree) isKind(kind yaml.Kind) bool { return t != nil && t.node.Kind == kind }

func (t *Tree) findField(name string) int {
	if t == nil {
		return -1
	}
	return slices.Index(t.keys, name)
}

// File returns the name of the file.
func (t *Tree) File() string {
	if t == nil {
		return ""
	}
	return t.file
}

// Line returns the line of the value. For a field it is the line of its name; for an absent value
// it is 0.
func (t *Tree) Line() int {
	if t == nil {
		return 0
	}
	return t.line
}

// Exists reports whether there is a value: neither absent nor null.
func (t *Tree) Exists() bool {
	return t != nil && (t.node.Kind != yaml.ScalarNode || t.node.ShortTag() != "!!null")
}

// Get returns a field of a mapping: the first of the names that exists. The field counts as read.
func (t *Tree) Get(names ...string) *Tree {
	for _, name := range names {
		if i := t.findField(name); i >= 0 {
			t.read[i] = true
			return t.items[i]
		}
	}
	return nil
}

// Path returns a field of a field, and so on.
func (t *Tree) Path(names ...string) *Tree {
	for _, name := range names {
		t = t.Get(name)
	}
	return t
}

// Items returns the elements of a list; none if it is not a list.
func (t *Tree) Items() []*Tree {
	if !t.isKind(yaml.SequenceNode) {
		return nil
	}
	return t.items
}

// Several returns the elements of a list, or the value itself if it is a text.
func (t *Tree) Several() []*Tree {
	if t.isKind(yaml.ScalarNode) && t.Exists() {
		return []*Tree{t}
	}
	return t.Items()
}

// IsMap reports whether the value is a mapping.
func (t *Tree) IsMap() bool { return t.isKind(yaml.MappingNode) }

// Fields returns the fields of a mapping that are not null, in their order. They count as read.
func (t *Tree) Fields() (fields []Field) {
	if !t.IsMap() {
		return nil
	}
	for i, name := range t.keys {
		t.read[i] = true
		if t.items[i].Exists() {
			fields = append(fields, Field{name, t.items[i]})
		}
	}
	return fields
}

// Unread returns the fields of a mapping that have not been asked for and are not null.
func (t *Tree) Unread() (fields []Field) {
	if !t.IsMap() {
		return nil
	}
	for i, name := range t.keys {
		if !t.read[i] && t.items[i].Exists() {
			fields = append(fields, Field{name, t.items[i]})
		}
	}
	return fields
}

// Text returns a scalar as it is written; empty if it is not a scalar.
func (t *Tree) Text() string {
	if !t.isKind(yaml.ScalarNode) || !t.Exists() {
		return ""
	}
	return t.node.Value
}

// Or returns the text, or the given text if there is none.
func (t *Tree) Or(other string) string {
	if text := t.Text(); text != "" {
		return text
	}
	return other
}

// Texts returns the scalars of a list, or the value itself if it is a scalar.
func (t *Tree) Texts() (texts []string) {
	for _, item := range t.Several() {
		if text := item.Text(); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// Int returns a whole number, also a number in quotes or written like 5.0.
func (t *Tree) Int() (int64, bool) {
	text := strings.TrimSpace(t.Text())
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != float64(int64(f)) || f > 1<<53 || f < -(1<<53) {
		return 0, false
	}
	return int64(f), true
}

// Is reports whether the value is true.
func (t *Tree) Is() bool { return strings.EqualFold(t.Text(), "true") }

// Short returns the value in a few words, for the name of an item.
func (t *Tree) Short() string {
	switch {
	case !t.Exists():
		return "null"
	case t.isKind(yaml.SequenceNode):
		var texts []string
		for _, item := range t.items {
			texts = append(texts, item.Short())
		}
		return cutText("[" + strings.Join(texts, ", ") + "]")
	case t.IsMap():
		var texts []string
		for i, name := range t.keys {
			texts = append(texts, Field{name, t.items[i]}.String())
		}
		return cutText("{" + strings.Join(texts, ", ") + "}")
	}
	return cutText(t.node.Value)
}

// secret finds the names of fields whose values no message shows.
var secret = regexp.MustCompile(`(?i)pass|secret|credential|private|auth|(^|_)token$`)

// String returns the field in a few words. It hides a value that may be secret.
func (f Field) String() string {
	if secret.MatchString(f.Name) && f.Value.Exists() {
		return f.Name + ": …"
	}
	return f.Name + ": " + f.Value.Short()
}

// maxShort is the largest part of a value, in bytes, that the name of an item shows.
const maxShort = 60

// cutText keeps a text printable and short.
func cutText(text string) string {
	text = strings.Map(func(r rune) rune {
		if r < ' ' || !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) <= maxShort {
		return text
	}
	end := maxShort
	for end > 0 && text[end]&0xc0 == 0x80 {
		end--
	}
	return text[:end] + "…"
}
