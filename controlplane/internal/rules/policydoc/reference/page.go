package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// root is the schema that the page begins with.
const root = "PolicySet"

const head = `<!-- Written by make generate from api/openapi.yaml: change it there. -->
# Reference of the policy language

Every field, section by section. [policies.md](../choose/policies.md) explains the choices, and
[guarantees.md](../internals/guarantees.md) explains the promises. A policy set is YAML or JSON, the
same in files, over REST and in the plugin's ` + "`policyset`" + `. A field that is not listed here is
refused, and so is a set with any mistake: ` + "`weir check FILE`" + ` lists them all. A length of time is
a whole number with a unit: ms s m h d.

Where a description is long, its rest is in the list below the table.
`

// section is an object of the language, and where it stands.
type section struct{ name, path string }

// page returns the whole page.
func page(all schemas) (string, error) {
	var out strings.Builder
	out.WriteString(head)
	queue := []section{{root, "The policy set"}}
	var done []string
	for len(queue) > 0 {
		next := queue[0]
		queue = queue[1:]
		if slices.Contains(done, next.name) {
			continue
		}
		done = append(done, next.name)
		below, err := writeSection(&out, all, next)
		if err != nil {
			return "", fmt.Errorf("%s: %w", next.name, err)
		}
		queue = append(below, queue...)
	}
	return out.String(), nil
}

// writeSection writes an object and returns the objects in it.
func writeSection(out *strings.Builder, all schemas, at section) (below []section, err error) {
	s, ok := all[at.name]
	if !ok {
		return nil, fmt.Errorf("there is no such schema")
	}
	fields, err := s.fields()
	if err != nil {
		return nil, err
	}
	// Write the heading and the description.
	fmt.Fprintf(out, "\n## %s\n\n", at.path)
	if at.name != root { // whose description is for callers of the API
		fmt.Fprintf(out, "%s\n\n", wrapped(s.Description, columns))
	}
	// Write the table, and below it the rest of long descriptions.
	out.WriteString("| field | is | default | range | example | |\n| --- | --- | --- | --- | --- | --- |\n")
	var more strings.Builder
	for _, f := range fields {
		object, list := f.refers()
		if object != "" {
			below = append(below, section{object, pathOf(at, f.name, list)})
		}
		text, rest, err := row(all, s, f, object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
		out.WriteString(text)
		if rest != "" {
			fmt.Fprintf(&more, "- %s\n", strings.ReplaceAll(wrapped("`"+f.name+"`: "+rest, columns-2), "\n", "\n  "))
		}
	}
	if more.Len() > 0 {
		fmt.Fprintf(out, "\n%s", more.String())
	}
	if s.XDocument != "" {
		fmt.Fprintf(out, "\n```yaml\n%s```\n", s.XDocument)
	}
	return below, nil
}

// pathOf returns the place of the objects of a field, like policies[].match.
func pathOf(in section, field string, list bool) string {
	path := field
	if in.name != root {
		path = strings.Trim(in.path, "`") + "." + field
	}
	if list {
		path += "[]"
	}
	return "`" + strings.ReplaceAll(path, "[][]", "[]") + "`"
}

// row returns a field's line of the table, and the rest of its description for the text below.
func row(all schemas, of schema, f fieldOf, object string) (line, rest string, err error) {
	description := f.Description
	if description == "" && object != "" {
		description = all[object].Description
	}
	if description == "" {
		return "", "", fmt.Errorf("has no description")
	}
	first, rest, err := splitDescription(description)
	if err != nil {
		return "", "", err
	}
	// A field of an object needs no example: the object's own fields have theirs.
	example := flow(f.Example)
	if example == "" && object == "" {
		return "", "", fmt.Errorf("has no example")
	}
	fallback := flow(f.Default)
	switch {
	case f.XDefault != "":
		fallback = f.XDefault
	case slices.Contains(of.Required, f.name):
		fallback = "required"
	}
	// Write the cells of the row.
	cells := []string{"`" + f.name + "`", kind(f.schema, object),
		code(fallback, f.XDefault == "" && fallback != "required"),
		bounds(f.schema), code(example, true), first}
	for i := range cells {
		cells[i] = strings.ReplaceAll(cells[i], "|", `\|`)
	}
	return "| " + strings.Join(cells, " | ") + " |\n", rest, nil
}

// maxCellWords is the number of words that a cell has at most. It is the number in
// tools/rules/pages_test.go.
const maxCellWords = 25

// sentenceEnd matches the end of a sentence before another sentence.
var sentenceEnd = regexp.MustCompile(`[.!?] `)

// splitDescription returns the sentences of a description that fit into a cell, and the rest.
func splitDescription(text string) (first, rest string, err error) {
	text = oneLine(text)
	if len(strings.Fields(text)) <= maxCellWords {
		return text, "", nil
	}
	fits := 0
	for _, end := range sentenceEnd.FindAllStringIndex(text, -1) {
		if len(strings.Fields(text[:end[0]])) <= maxCellWords {
			fits = end[1]
		}
	}
	if fits == 0 {
		return "", "", fmt.Errorf("has a first sentence of more than %d words", maxCellWords)
	}
	return text[:fits-1], text[fits:], nil
}

// columns is the largest width of a paragraph of the page.
const columns = 100

// wrapped returns a text as a paragraph, broken between words at a width.
func wrapped(text string, columns int) string {
	var out strings.Builder
	width := 0
	for _, word := range strings.Fields(text) {
		length := utf8.RuneCountInString(word)
		switch {
		case width == 0:
		case width+1+length > columns:
			out.WriteByte('\n')
			width = 0
		default:
			out.WriteByte(' ')
			width++
		}
		out.WriteString(word)
		width += length
	}
	return out.String()
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

func code(text string, is bool) string {
	if text == "" || !is {
		return text
	}
	return "`" + text + "`"
}

// words are the names of the types on the page.
var words = map[string]string{
	"string": "text", "integer": "whole number", "boolean": "true", "object": "mapping", "array": "list",
}

// kind describes a field's value.
func kind(s schema, object string) string {
	switch {
	case s.Format == "span":
		return "length of time"
	case len(s.OneOf) > 0:
		var forms []string
		for _, form := range s.OneOf {
			of, _ := form.refers()
			forms = append(forms, kind(form, of))
		}
		return strings.Join(forms, ", or ")
	case s.Items != nil && object != "":
		return "list of mappings"
	case s.Items != nil:
		return "list of " + kind(*s.Items, "")
	case object != "":
		return "mapping"
	case len(s.Enum) > 0:
		return "word"
	case s.Type.Value == "boolean" && s.Const == "":
		return "true or false"
	}
	var names []string
	for _, t := range s.types() {
		names = append(names, words[t])
	}
	return strings.Join(names, " or ")
}

// bounds says which values are allowed.
func bounds(s schema) string {
	switch {
	case s.XRange != "":
		return s.XRange
	case len(s.Enum) > 0:
		return listed(s.Enum)
	case s.Const != "":
		return "`" + s.Const + "`"
	case s.Minimum != "" && s.Maximum != "":
		return s.Minimum + " to " + s.Maximum
	case s.Pattern != "":
		return "1 to 63 of `a-z 0-9 . _ -`, a letter or digit first"
	case s.MaxItems != "":
		return "up to " + s.MaxItems
	case s.MaxLength != "":
		return "up to " + s.MaxLength + " bytes"
	}
	for _, form := range s.OneOf {
		if len(form.Enum) > 0 {
			return listed(form.Enum)
		}
	}
	return ""
}

// listed returns the allowed words as text. YAML 1.1 reads off as false, which is accepted and not
// worth a word.
func listed(words []string) string {
	words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "false" })
	return "`" + strings.Join(words, "` `") + "`"
}
