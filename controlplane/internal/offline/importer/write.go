package importer

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// writeDocument returns the policy set in YAML, with comments that name the source of each policy.
func (s Set) writeDocument() ([]byte, error) {
	s.Version = policy.Version
	byConsumer := func(p Policy) bool { return slices.Contains(p.Partition, "consumer") }
	if !slices.ContainsFunc(s.Policies, byConsumer) {
		s.Identity.Consumer = nil // No policy uses it.
	}
	root := new(yaml.Node)
	if err := root.Encode(s); err != nil {
		return nil, err
	}
	notes := s.Notes
	if s.Source != "" {
		notes = append([]string{"From " + s.Source + ", by weir import. Try it in shadow before it refuses anything."},
			notes...)
	}
	root.Content[0].HeadComment = commentLines(notes)
	policies := root.Content[len(root.Content)-1]
	for i, p := range s.Policies {
		policies.Content[i].HeadComment = commentLines(p.From)
	}
	return policydoc.EncodeYAML(root)
}

// commentLines writes a line of comment for each text.
func commentLines(texts []string) string {
	var lines []string
	for _, text := range texts {
		lines = append(lines, "# "+strings.Map(func(r rune) rune {
			if r < ' ' || r == 0x7f || r == 0x85 || r == 0x2028 || r == 0x2029 || r == 0xfeff || r == 0xfffd {
				return ' '
			}
			return r
		}, text))
	}
	return strings.Join(lines, "\n")
}

// inLine makes a mapping in one line of names and values by turns.
func inLine(pairs ...any) (*yaml.Node, error) {
	n := &yaml.Node{Kind: yaml.MappingNode, Style: yaml.FlowStyle}
	for _, p := range pairs {
		part := new(yaml.Node)
		if err := part.Encode(p); err != nil {
			return nil, err
		}
		n.Content = append(n.Content, part)
	}
	return n, nil
}

// longest is the largest length, in bytes, of a list on one line.
const longest = 88

// MarshalYAML writes the list in one line, or in several if it is long.
func (l List) MarshalYAML() (any, error) {
	n := new(yaml.Node)
	if err := n.Encode([]string(l)); err != nil {
		return nil, err
	}
	if len(strings.Join(l, `", "`)) <= longest {
		n.Style = yaml.FlowStyle
	}
	return n, nil
}

// MarshalYAML writes the source as identity.consumer has it.
func (s Source) MarshalYAML() (any, error) {
	if s.Name == "" {
		return s.Kind, nil
	}
	return inLine(s.Kind, s.Name)
}

// String returns the source in the form of the list of consumers, like header:apikey.
func (s Source) String() string { return strings.TrimSuffix(s.Kind+":"+s.Name, ":") }

// MarshalYAML writes the span in the language's units.
func (s Span) MarshalYAML() (any, error) { return policy.FormatSpan(quota.Span(s)), nil }

// MarshalYAML writes a number, or the reservation and the place of the cost.
func (c Cost) MarshalYAML() (any, error) {
	if c.Commit == "" {
		return c.Reserve, nil
	}
	return inLine("reserve", max(c.Reserve, 1), "commit", map[string]string{"metadata": c.Commit}, "missing", 0)
}

// MarshalYAML writes the percentage as enforcement has it.
func (s Share) MarshalYAML() (any, error) { return inLine("enforce", int64(s)) }

// MarshalYAML writes the condition in the policy language.
func (e Entry) MarshalYAML() (any, error) {
	pairs := []any{"name", e.Name, e.Value.Op, e.Value.operand()}
	if len(e.Except) > 0 {
		pairs = append(pairs, "except", e.Except)
	}
	return inLine(pairs...)
}

// MarshalYAML writes the condition in the policy language.
func (v Value) MarshalYAML() (any, error) { return inLine(v.Op, v.operand()) }

// MarshalYAML writes the condition in the policy language.
func (h Header) MarshalYAML() (any, error) {
	return inLine("name", h.Name, h.Op, Value{h.Op, h.Value}.operand())
}

// operand returns the text of a condition, or true if its word needs no text.
func (v Value) operand() any {
	if v.Op == "present" || v.Op == "absent" {
		return true
	}
	return v.Text
}

// MarshalYAML writes one limit by itself, and several as a list.
func (l Limits) MarshalYAML() (any, error) {
	if len(l) == 1 {
		return l[0], nil
	}
	return []Limit(l), nil
}

// MarshalYAML writes the limit in one line.
func (l Limit) MarshalYAML() (any, error) {
	switch {
	case l.InFlight > 0:
		return inLine("in_flight", l.InFlight)
	case l.Burst > 0:
		return inLine("quota", l.Quota, "window", Span(l.Window), "burst", l.Burst)
	}
	return inLine("quota", l.Quota, "window", Span(l.Window))
}
