package api

import (
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// The data of the page, in the order of the page.
type (
	docsView struct {
		Title, Version, Text string
		Style                template.CSS
		Groups               []docsGroup
		Schemas              []docsSchema
	}
	docsGroup struct {
		Name, Text string
		Operations []docsOperation
	}
	docsOperation struct {
		ID, Method, Path, Summary, Text, Role, Curl string
		Parameters                                  []docsField
		Body                                        *docsBody
		Answers                                     []docsAnswer
	}
	docsField struct {
		Name, In, Type, Text string
		Required             bool
	}
	docsBody struct {
		Max   int64
		Text  string
		Media []docsMedia
	}
	docsAnswer struct {
		Status, Text string
		Headers      []string
		Media        []docsMedia
	}
	docsMedia  struct{ Type, Schema, Example string }
	docsSchema struct {
		Name, Text string
		Fields     []docsField
	}
)

func describeOperation(op *operation) (d docsOperation, err error) {
	d = docsOperation{ID: op.OperationID, Method: op.method, Path: op.path, Summary: op.Summary, Text: op.Description,
		Role: string(op.role)}
	for _, p := range op.parameters {
		d.Parameters = append(d.Parameters,
			docsField{Name: p.Name, In: p.In, Type: typeOf(p.Schema), Text: p.Description, Required: p.Required})
	}
	if op.RequestBody != nil {
		d.Body = &docsBody{Max: op.maxBody, Text: op.RequestBody.Value.Description}
		d.Body.Media, err = describeMedia(op.RequestBody.Value.Content)
		if err != nil {
			return d, err
		}
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses.Map())) {
		r := op.Responses.Value(status).Value
		answer := docsAnswer{Status: status, Headers: slices.Sorted(maps.Keys(r.Headers))}
		if r.Description != nil {
			answer.Text = *r.Description
		}
		answer.Media, err = describeMedia(r.Content)
		if err != nil {
			return d, err
		}
		d.Answers = append(d.Answers, answer)
	}
	if op.role != "node" { // Whose messages are not for hands.
		d.Curl, err = curlCommand(op)
	}
	return d, err
}

func describeMedia(content openapi3.Content) (media []docsMedia, err error) {
	for _, name := range slices.Sorted(maps.Keys(content)) {
		m := docsMedia{Type: name}
		if ref := content[name].Schema; ref != nil && ref.Ref != "" {
			m.Schema = path.Base(ref.Ref)
		}
		if example := content[name].Example; example != nil {
			text, err := json.MarshalIndent(example, "", "  ")
			if err != nil {
				return nil, err
			}
			m.Example = string(text)
		}
		media = append(media, m)
	}
	return media, nil
}

// curlCommand returns a command that calls an operation with the description's examples and with
// the required parameters.
func curlCommand(op *operation) (string, error) {
	// The method and the token.
	line, target := []string{"curl"}, op.path
	if op.method != "GET" {
		line = append(line, "-X", op.method)
	}
	if !op.open {
		line = append(line, "-H", quoteForShell("Authorization: Bearer TOKEN"))
	}
	// The parameters.
	for _, p := range op.parameters {
		switch {
		case p.In == openapi3.ParameterInPath:
			target = strings.ReplaceAll(target, "{"+p.Name+"}", url.PathEscape(fmt.Sprint(p.Example)))
		case p.In == openapi3.ParameterInHeader && p.Required:
			line = append(line, "-H", quoteForShell(fmt.Sprintf("%s: %v", p.Name, p.Example)))
		}
	}
	// The body.
	if op.RequestBody != nil {
		for name, media := range op.RequestBody.Value.Content {
			if media.Example == nil {
				continue
			}
			body, err := json.Marshal(media.Example)
			if err != nil {
				return "", err
			}
			line = append(line, "-H", quoteForShell("Content-Type: "+name),
				"--data-binary", quoteForShell(string(body)))
		}
	}
	return strings.Join(append(line, "http://127.0.0.1:8080"+target), " "), nil
}

// quoteForShell writes an argument for a shell.
func quoteForShell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func describeSchemas(doc *openapi3.T) (schemas []docsSchema) {
	for _, name := range slices.Sorted(maps.Keys(doc.Components.Schemas)) {
		schema := doc.Components.Schemas[name].Value
		d := docsSchema{Name: name, Text: schema.Description}
		for _, field := range slices.Sorted(maps.Keys(schema.Properties)) {
			d.Fields = append(d.Fields, docsField{Name: field, Type: typeOf(schema.Properties[field]),
				Text: schema.Properties[field].Value.Description, Required: slices.Contains(schema.Required, field)})
		}
		schemas = append(schemas, d)
	}
	return schemas
}

// proseToHTML turns a text of the description into HTML. Text between backticks becomes code.
func proseToHTML(text string) template.HTML {
	var out strings.Builder
	for i, part := range strings.Split(text, "`") {
		part = template.HTMLEscapeString(part)
		if i%2 == 1 {
			part = "<code>" + part + "</code>"
		}
		out.WriteString(part)
	}
	return template.HTML(out.String())
}

// typeOf describes in a few words the values that a schema allows.
func typeOf(ref *openapi3.SchemaRef) string {
	if ref == nil {
		return "any"
	}
	if ref.Ref != "" {
		return path.Base(ref.Ref)
	}
	s := ref.Value
	switch {
	case len(s.Enum) > 0:
		words := make([]string, len(s.Enum))
		for i, v := range s.Enum {
			words[i] = fmt.Sprint(v)
		}
		return strings.Join(words, " | ")
	case s.Items != nil:
		return "list of " + typeOf(s.Items)
	case s.Format != "" && s.Format != "uint64" && s.Format != "int32":
		return s.Format
	case s.Type != nil:
		return strings.Join(s.Type.Slice(), " or ")
	}
	return "any"
}
