package importer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Bounds of a file.
const (
	MaxBytes = 16 << 20
	// maxDepth is how deep lists and mappings may nest, maxValues the number of values with every
	// alias expanded.
	maxDepth  = 100
	maxValues = 1_000_000
)

// Tree is one value of a YAML or JSON file. It remembers its line and which of its fields were
// asked for, so that no field is overlooked. All methods may be called on nil, an absent value.
type Tree struct {
	file  string
	line  int
	kind  kind
	text  string
	keys  []string
	items []*Tree
	read  []bool
}

type kind uint8

const (
	scalar kind = iota
	null
	list
	mapping
)

// Field is a field of a mapping.
type Field struct {
	Name  string
	Value *Tree
}

// ParseTrees reads the documents of a file. The error is a *SyntaxError.
func ParseTrees(f File) (documents []*Tree, err error) {
	if len(f.Text) > MaxBytes {
		return nil, &SyntaxError{f.Name, 0, fmt.Sprintf("is larger than %d bytes", MaxBytes)}
	}
	decoder := yaml.NewDecoder(bytes.NewReader(f.Text))
	r := treeReader{file: f.Name}
	for {
		var root yaml.Node
		err := decoder.Decode(&root)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			return nil, yamlError(f.Name, err)
		}
		if len(root.Content) == 0 {
			continue
		}
		t, err := r.value(root.Content[0], 0)
		if err != nil {
			return nil, err
		}
		if t.kind != null {
			documents = append(documents, t)
		}
	}
}

// yamlLine is how the YAML reader says where.
var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

func yamlError(file string, err error) error {
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	found := yamlLine.FindStringSubmatch(text)
	if found == nil {
		return &SyntaxError{file, 0, "is not YAML: " + text}
	}
	line, _ := strconv.Atoi(found[1]) // Without a line the match is empty and so is the number.
	return &SyntaxError{file, line, "is not YAML: " + text[len(found[0]):]}
}

type treeReader struct {
	file   string
	values int
}

func (r *treeReader) value(n *yaml.Node, depth int) (*Tree, error) {
	r.values++
	switch {
	case depth > maxDepth:
		return nil, &SyntaxError{r.file, n.Line, fmt.Sprintf("lists and mappings nest deeper than %d levels", maxDepth)}
	case r.values > maxValues:
		return nil, &SyntaxError{r.file, n.Line, fmt.Sprintf("holds more than %d values, aliases included", maxValues)}
	}
	t := &Tree{file: r.file, line: n.Line, text: n.Value}
	switch n.Kind {
	case yaml.AliasNode:
		return r.value(n.Alias, depth+1)
	case yaml.MappingNode:
		t.kind = mapping
		return t, r.fields(t, n, depth)
	case yaml.SequenceNode:
		t.kind = list
		for _, item := range n.Content {
			v, err := r.value(item, depth+1)
			if err != nil {
				return nil, err
			}
			t.items = append(t.items, v)
		}
	default:
		if n.ShortTag() == "!!null" {
			t.kind = null
		}
	}
	return t, nil
}

// fields reads a mapping. What merge keys (<<) bring comes last, without the fields that the
// mapping has itself.
func (r *treeReader) fields(t *Tree, n *yaml.Node, depth int) error {
	var merged []*Tree
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		v, err := r.value(n.Content[i+1], depth+1)
		if err != nil {
			return err
		}
		if key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge" {
			merged = append(merged, v)
			continue
		}
		v.line = key.Line // There people look for the field.
		t.add(key.Value, v)
	}
	for _, m := range merged {
		for _, from := range append([]*Tree{m}, m.Items()...) {
			for i, name := range from.keys {
				if t.find(name) < 0 {
					t.add(name, from.items[i])
				}
			}
		}
	}
	return nil
}

func (t *Tree) add(name string, value *Tree) {
	t.keys, t.items, t.read = append(t.keys, name), append(t.items, value), append(t.read, false)
}

func (t *Tree) find(name string) int {
	if t == nil || t.kind != mapping {
		return -1
	}
	for i, key := range t.keys {
		if key == name {
			return i
		}
	}
	return -1
}

// File is the file's name.
func (t *Tree) File() string {
	if t == nil {
		return ""
	}
	return t.file
}

// Line is that of the name for a field, else that of the value; 0 of an absent one.
func (t *Tree) Line() int {
	if t == nil {
		return 0
	}
	return t.line
}

// Exists reports whether there is a value: neither absent nor null.
func (t *Tree) Exists() bool { return t != nil && t.kind != null }

// Get is the field of a mapping, the first of the names that is there. It counts as read.
func (t *Tree) Get(names ...string) *Tree {
	for _, name := range names {
		if i := t.find(name); i >= 0 {
			t.read[i] = true
			return t.items[i]
		}
	}
	return nil
}

// Path is a field of a field, and so on.
func (t *Tree) Path(names ...string) *Tree {
	for _, name := range names {
		t = t.Get(name)
	}
	return t
}

// Items are the elements of a list; none if it is none.
func (t *Tree) Items() []*Tree {
	if t == nil || t.kind != list {
		return nil
	}
	return t.items
}

// Several are the elements of a list, or the value itself if it is a text.
func (t *Tree) Several() []*Tree {
	if t != nil && t.kind == scalar {
		return []*Tree{t}
	}
	return t.Items()
}

// IsMap reports whether the value is a mapping.
func (t *Tree) IsMap() bool { return t != nil && t.kind == mapping }

// Fields are those of a mapping that are not null, in their order. They count as read.
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

// Unread are the fields of a mapping that have not been asked for and are not null.
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

// Text is a scalar as it is written; empty for others.
func (t *Tree) Text() string {
	if t == nil || t.kind != scalar {
		return ""
	}
	return t.text
}

// Or is the text, or another if there is none.
func (t *Tree) Or(other string) string {
	if text := t.Text(); text != "" {
		return text
	}
	return other
}

// Texts are the scalars of a list, or the one scalar.
func (t *Tree) Texts() (texts []string) {
	for _, item := range t.Several() {
		if text := item.Text(); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// Int is a whole number, also one in quotes or written like 5.0.
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

// Short is a value in a few words, for the name of an item.
func (t *Tree) Short() string {
	switch {
	case t == nil || t.kind == null:
		return "null"
	case t.kind == list:
		var texts []string
		for _, item := range t.items {
			texts = append(texts, item.Short())
		}
		return cut("[" + strings.Join(texts, ", ") + "]")
	case t.kind == mapping:
		var texts []string
		for i, name := range t.keys {
			texts = append(texts, Field{name, t.items[i]}.String())
		}
		return cut("{" + strings.Join(texts, ", ") + "}")
	}
	return cut(t.text)
}

// secret finds the names of fields whose values no message shows.
var secret = regexp.MustCompile(`(?i)pass|secret|credential|private|auth|(^|_)token$`)

// String is a field in a few words, without the value of one that may be secret.
func (f Field) String() string {
	if secret.MatchString(f.Name) && f.Value.Exists() {
		return f.Name + ": …"
	}
	return f.Name + ": " + f.Value.Short()
}

// maxShort is how much of a value the name of an item shows, in bytes.
const maxShort = 60

// cut keeps a text printable and short.
func cut(text string) string {
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
