package policydoc

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/shared/policy"
)

// Part is one file of a policy set in several files.
type Part struct {
	// Name is the shown name of the file.
	Name string
	Text []byte
	// Format is the format of the text.
	Format Format
}

// Join makes one document of the parts, in their order. Each part is a document of its own with a
// version. The policies of all parts go into one list. Every other field may be in one part only,
// so that no team changes the meaning of another team's policies. Comments stay, and a comment with
// the name of the part is above its first policy. The document is YAML.
//
// The error is a *Refused if the parts do not make a valid set. Its problems name parts, with lines
// and paths in the parts. read is Load or LoadNew.
func Join(parts []Part, read func([]byte, Format) (*policy.Set, error)) ([]byte, error) {
	j := joiner{fields: map[string]place{}, names: map[string]place{}, texts: map[string][]byte{}}
	for _, part := range parts {
		j.texts[part.Name] = part.Text
		j.addPart(part)
	}
	if j.unread {
		return nil, &Refused{j.problems} // A part that cannot be read may define names that other parts use.
	}
	doc, err := EncodeYAML(j.buildDocument())
	if err != nil {
		return nil, err
	}
	_, err = read(doc, YAML)
	if err != nil {
		j.addProblems(err)
	}
	if len(j.problems) > 0 {
		return nil, &Refused{j.problems}
	}
	return doc, nil
}

// place is a position in a part.
type place struct {
	part string
	line int
	// index is the index of a policy in its own part.
	index int
}

func (p place) String() string {
	if p.line == 0 {
		return p.part
	}
	return p.part + ":" + strconv.Itoa(p.line)
}

type joiner struct {
	// content are the keys and values of the document without its policies.
	content  []*yaml.Node
	policies []*yaml.Node
	// places are the positions of the policies, fields of the keys, names of the policies by name.
	places   []place
	fields   map[string]place
	names    map[string]place
	texts    map[string][]byte
	problems policy.Problems
	// unread is true if a part could not be read.
	unread bool
}

func (j *joiner) problem(at place, format string, args ...any) {
	j.problems = append(j.problems, policy.Problem{File: at.part, Line: at.line, Reason: fmt.Sprintf(format, args...)})
}

// addPart adds a part.
func (j *joiner) addPart(part Part) {
	root, values, err := partTree(part)
	if problems, ok := ProblemsOf(err); ok {
		values = problems
	} else if err != nil {
		j.problem(place{part: part.Name}, "%v", err)
	}
	for _, p := range values {
		p.File = part.Name
		j.problems = append(j.problems, p)
	}
	if err != nil || len(values) > 0 {
		j.unread = true
		return
	}
	if keyAt(root, "version") < 0 {
		j.problem(place{part: part.Name}, "has no version: begin it with version: %s", policy.Version)
	}
	for i := 0; i+1 < len(root.Content); i += 2 {
		j.addField(part.Name, root.Content[i], root.Content[i+1])
	}
}

// partTree reads a part; JSON is YAML too.
func partTree(part Part) (*yaml.Node, policy.Problems, error) {
	if len(part.Text) > MaxBytes {
		return nil, nil, tooLarge(MaxBytes)
	}
	node, values, err := parseAll(part.Text, part.Format)
	if err != nil {
		return nil, nil, err
	}
	if another := anotherDocument(node); another != "" {
		return nil, nil, &SyntaxError{Line: 1, Reason: another}
	}
	root, err := yamlTree(part.Text)
	return root, values, err
}

// addField adds a field of a part.
func (j *joiner) addField(part string, key, value *yaml.Node) {
	at := place{part: part, line: key.Line}
	first, again := j.fields[key.Value]
	switch {
	case key.Value == "policies" && value.Kind != yaml.SequenceNode:
		j.problem(at, "policies must be a list")
		return
	case key.Value == "policies" && (!again || first.part != part):
		j.fields[key.Value] = at
		j.addPolicies(part, value)
		return
	case key.Value == "version" && again && first.part != part:
		if value.Value != policy.Version {
			j.problem(at, "version must be %s", policy.Version)
		}
		return
	case again:
		j.problem(at, "%s stands in %s already: it can stand in one place only", key.Value, first)
		return
	}
	j.fields[key.Value] = at
	j.content = append(j.content, key, value)
}

// addPolicies adds the policies of a part.
func (j *joiner) addPolicies(part string, list *yaml.Node) {
	for i, item := range list.Content {
		at := place{part: part, line: item.Line, index: i}
		if name := yamlValue(item, "name"); name != nil && name.Kind == yaml.ScalarNode {
			if first, again := j.names[name.Value]; again {
				j.problem(at, "the policy %q stands in %s already: names are unique over all files", name.Value, first)
			}
			j.names[name.Value] = at
		}
		if i == 0 {
			item.HeadComment = strings.TrimRight("# "+part+"\n"+item.HeadComment, "\n")
		}
		j.policies = append(j.policies, item)
		j.places = append(j.places, at)
	}
}

// buildDocument returns the tree of the whole document.
func (j *joiner) buildDocument() *yaml.Node {
	root := &yaml.Node{Kind: yaml.MappingNode, Content: j.content}
	list := yamlPolicies(root)
	list.Content = j.policies
	if len(j.policies) == 0 {
		list.Style = yaml.FlowStyle
	}
	return root
}

// addProblems adds the problems of the whole document, with their parts and lines.
func (j *joiner) addProblems(err error) {
	problems, ok := ProblemsOf(err)
	if !ok {
		problems = policy.Problems{{Reason: err.Error()}}
	}
	for _, p := range problems {
		j.locateProblem(&p)
		said := func(other policy.Problem) bool { return other.File == p.File && other.Line == p.Line && p.Line > 0 }
		if !slices.ContainsFunc(j.problems, said) || !strings.HasSuffix(p.Path, ".name") {
			j.problems = append(j.problems, p)
		}
	}
	slices.SortStableFunc(j.problems, func(a, b policy.Problem) int {
		return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line)
	})
}

// locateProblem finds the part of a problem of the whole document, such as policies[7].limit.
func (j *joiner) locateProblem(p *policy.Problem) {
	at, ok := j.fields[firstKey(p.Path)]
	if i, field, inner := cutPolicy(p.Path); inner && i < len(j.places) {
		at, ok = j.places[i], true
		p.Path = strings.TrimSuffix(fmt.Sprintf("policies[%d].%s", at.index, field), ".")
	}
	if !ok {
		p.Line = 0
		return
	}
	p.File, p.Line = at.part, at.line
	if root, err := yamlTree(j.texts[at.part]); err == nil {
		_, p.Line = followPath(root, p.Path, p.Reason == givenTwice)
	}
}

func firstKey(path string) string {
	key, _, _ := strings.Cut(path, ".")
	key, _, _ = strings.Cut(key, "[")
	return key
}
