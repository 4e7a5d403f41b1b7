package main

import (
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// schema is the part of a JSON schema that the page needs. Fields are in the order of the
// description.
type schema struct {
	Ref         string    `yaml:"$ref"`
	Type        yaml.Node `yaml:"type"`
	Format      string    `yaml:"format"`
	Description string    `yaml:"description"`
	Enum        []string  `yaml:"enum"`
	Const       string    `yaml:"const"`
	Pattern     string    `yaml:"pattern"`
	Default     yaml.Node `yaml:"default"`
	Minimum     string    `yaml:"minimum"`
	Maximum     string    `yaml:"maximum"`
	MaxItems    string    `yaml:"maxItems"`
	MaxLength   string    `yaml:"maxLength"`
	Required    []string  `yaml:"required"`
	Properties  yaml.Node `yaml:"properties"`
	Items       *schema   `yaml:"items"`
	OneOf       []schema  `yaml:"oneOf"`
	Example     yaml.Node `yaml:"example"`

	// XDefault and XRange are texts for facts that a schema cannot express; XDocument is a policy
	// set that shows the object.
	XDefault  string `yaml:"x-default"`
	XRange    string `yaml:"x-range"`
	XDocument string `yaml:"x-document"`
}

// fieldOf is a property with its name.
type fieldOf struct {
	name string
	schema
}

// schemas are the description's, by name.
type schemas map[string]schema

func readSchemas(text []byte) (schemas, error) {
	var doc struct {
		Components struct{ Schemas schemas }
	}
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return nil, err
	}
	for _, name := range []string{root, "Policy"} {
		if _, ok := doc.Components.Schemas[name]; !ok {
			return nil, fmt.Errorf("there is no schema %s", name)
		}
	}
	return doc.Components.Schemas, nil
}

// fields returns the properties of an object.
func (s schema) fields() (all []fieldOf, err error) {
	for i := 0; i+1 < len(s.Properties.Content); i += 2 {
		f := fieldOf{name: s.Properties.Content[i].Value}
		if err := s.Properties.Content[i+1].Decode(&f.schema); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		all = append(all, f)
	}
	return all, nil
}

// refers returns the name of the object that a field has, alone, in a list or as one of several
// forms; empty for none.
func (s schema) refers() (name string, list bool) {
	switch {
	case s.Ref != "":
		return s.Ref[strings.LastIndexByte(s.Ref, '/')+1:], false
	case s.Items != nil:
		name, _ = s.Items.refers()
		return name, name != ""
	}
	for _, form := range s.OneOf {
		if name, list := form.refers(); name != "" {
			return name, list
		}
	}
	return "", false
}

// types returns the words of a schema's type.
func (s schema) types() (all []string) {
	if s.Type.Kind == yaml.ScalarNode {
		return []string{s.Type.Value}
	}
	for _, n := range s.Type.Content {
		all = append(all, n.Value)
	}
	return all
}

// flow writes a value on one line, as the language is written.
func flow(n yaml.Node) string {
	if n.Kind == 0 {
		return ""
	}
	inline(&n)
	text, err := yaml.Marshal(&n)
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

func inline(n *yaml.Node) {
	if n.Kind == yaml.SequenceNode || n.Kind == yaml.MappingNode {
		n.Style = yaml.FlowStyle
	}
	for _, child := range n.Content {
		inline(child)
	}
}
