package policydoc

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/weir-proxy/weir/shared/policy"
)

// jsonReader keeps the order of keys, and repeated keys; decoding into a Go map would lose both.
type jsonReader struct {
	doc    []byte
	dec    *json.Decoder
	budget budget
}

func parseJSON(doc []byte) (policy.Node, error) {
	r := &jsonReader{budget: ofPolicies(), doc: doc, dec: json.NewDecoder(bytes.NewReader(doc))}
	r.dec.UseNumber()
	token, err := r.dec.Token()
	if err != nil {
		return policy.Node{}, r.syntax(err)
	}
	node, err := r.value(token, 0)
	if err != nil {
		return policy.Node{}, err
	}
	if _, err := r.dec.Token(); err == nil {
		return policy.Node{}, &SyntaxError{Line: r.line(), Reason: "there is something after the document"}
	} else if !errors.Is(err, io.EOF) {
		return policy.Node{}, r.syntax(err)
	}
	return node, nil
}

func (r *jsonReader) value(token json.Token, depth int) (policy.Node, error) {
	if err := r.budget.enter(depth, r.line()); err != nil {
		return policy.Node{}, err
	}
	switch v := token.(type) {
	case json.Delim:
		if v == '{' {
			return r.object(depth)
		}
		return r.list(depth)
	case bool:
		return policy.Node{Kind: policy.Bool, Text: strconv.FormatBool(v)}, nil
	case json.Number:
		return policy.Node{Kind: policy.Number, Text: v.String()}, nil
	case string:
		return policy.Node{Kind: policy.String, Text: v}, nil
	}
	return policy.Node{Kind: policy.Null}, nil
}

func (r *jsonReader) object(depth int) (policy.Node, error) {
	node := policy.Node{Kind: policy.Map}
	for {
		token, err := r.dec.Token()
		if err != nil {
			return policy.Node{}, r.syntax(err)
		}
		key, ok := token.(string)
		if !ok { // Here the decoder returns only strings, or the closing brace.
			return node, nil
		}
		token, err = r.dec.Token()
		if err != nil {
			return policy.Node{}, r.syntax(err)
		}
		item, err := r.value(token, depth+1)
		if err != nil {
			return policy.Node{}, err
		}
		node.Keys, node.Items = append(node.Keys, key), append(node.Items, item)
	}
}

func (r *jsonReader) list(depth int) (policy.Node, error) {
	node := policy.Node{Kind: policy.List}
	for {
		token, err := r.dec.Token()
		if err != nil {
			return policy.Node{}, r.syntax(err)
		}
		if token == json.Delim(']') {
			return node, nil
		}
		item, err := r.value(token, depth+1)
		if err != nil {
			return policy.Node{}, err
		}
		node.Items = append(node.Items, item)
	}
}

func (r *jsonReader) line() int { return lineAt(r.doc, int(r.dec.InputOffset())) }

func (r *jsonReader) syntax(err error) error {
	var syntax *json.SyntaxError
	at, reason := int(r.dec.InputOffset()), err.Error()
	var whole json.RawMessage // Unmarshal reads the document at once, and reports the right place of a mistake.
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		at, reason = len(r.doc), "ends too early"
	case errors.As(json.Unmarshal(r.doc, &whole), &syntax):
		at = int(syntax.Offset) - 1
		reason = brokenJSON(r.doc, at, syntax.Error())
	}
	return &SyntaxError{Line: lineAt(r.doc, at), Reason: "is not JSON: " + reason}
}

// brokenJSON explains an error of the JSON reader at the byte at an offset.
func brokenJSON(doc []byte, at int, reason string) string {
	if at < 0 || at >= len(doc) {
		return reason
	}
	// Explain mistakes by the byte and the text before it.
	before := bytes.TrimRight(doc[:at], " \t\r\n")
	c := doc[at]
	switch {
	case bytes.HasPrefix(doc, []byte(byteOrderMark)):
		return "it begins with a byte order mark: save it as UTF-8 without the mark"
	case len(before) == 0 && c != '{' && c != '[':
		first, _ := utf8.DecodeRune(doc[at:])
		return "it begins with " + string(first) +
			" and not with {; if it is YAML, let the name of the file end in .yaml"
	case (c == '}' || c == ']') && bytes.HasSuffix(before, []byte(",")):
		return "the comma before the " + string(c) + " is one too many"
	case c == ',' && !strings.Contains(reason, "after"):
		return "the comma is one too many"
	case c == '/' || c == '#':
		return "JSON has no comments: take it out, or let the name of the file end in .yaml"
	case c == '\'':
		return "JSON has texts in double quotes only"
	case c == '_' && bytes.ContainsAny(before[len(before)-1:], "0123456789"):
		return "a number has digits only: leave the _ out"
	}
	// A word without quotes begins before the byte.
	if strings.Contains(reason, "in literal") || isAfterValue(reason) {
		begin := len(bytes.TrimRightFunc(doc[:at], isInWord))
		if word := aPlainText.Find(doc[begin:]); begin < at && bytes.ContainsFunc(word, unicode.IsLetter) {
			return needsQuotes(word)
		}
	}
	return brokenText(doc[at:], reason)
}

// byteOrderMark is a mark that some editors put before a text.
const byteOrderMark = "\ufeff"

func isAfterValue(reason string) bool {
	return strings.Contains(reason, "after object key:value pair") || strings.Contains(reason, "after array element")
}

func isInWord(r rune) bool {
	return strings.ContainsRune("_-.", r) || r < utf8.RuneSelf && (unicode.IsLetter(r) || unicode.IsDigit(r))
}

func needsQuotes[T string | []byte](text T) string {
	return "a text needs double quotes: " + strconv.Quote(string(text))
}

// words are values of other languages, with their form in JSON.
var words = map[string]string{
	"true": "write true in small letters", "false": "write false in small letters",
	"null": "write null in small letters", "none": "None is no value: leave the field out",
	"nil": "nil is no value: leave the field out",
	"yes": "write true, without quotes", "no": "write false, without quotes",
	"on": "write true, without quotes", "off": "write false, without quotes",
}

var (
	aWord = regexp.MustCompile(`^[A-Za-z_][A-Za-z_0-9-]*`)
	// aPlainText also matches a text that begins like a number.
	aPlainText = regexp.MustCompile(`^[A-Za-z_0-9.-]+`)
)

// brokenText explains an error of the JSON reader at the beginning of a text.
func brokenText(rest []byte, reason string) string {
	word := string(aWord.Find(rest))
	after := isAfterValue(reason)
	switch c := rest[0]; {
	case bytes.HasPrefix(rest, []byte("${")):
		return explainForeign("${")
	case bytes.HasPrefix(rest, []byte("{")) && strings.Contains(reason, "object key string"):
		return aTemplate
	case (c == '\n' || c == '\r') && strings.Contains(reason, "in string"):
		return "the text has no closing quote in its line"
	case word != "" && (after || strings.Contains(reason, "after object key")):
		return "a quote is missing before " + word + ", which stands outside of a text"
	case after && (c == '"' || c == '{' || c == '['):
		return "a comma is missing before this line's field or value"
	case after && c >= '0' && c <= '9':
		return "a comma is missing before this line's number, or a number begins with 0: a number begins with no 0"
	case strings.Contains(reason, "after object key"):
		return "a colon is missing between the name of a field and its value"
	case word != "" && strings.Contains(reason, "object key string"):
		return "the name of a field needs double quotes: " + strconv.Quote(word)
	case word != "" && strings.Contains(reason, "beginning of value"):
		if better := words[strings.ToLower(word)]; better != "" {
			return better
		}
		return needsQuotes(word)
	case c == '.' && strings.Contains(reason, "beginning of value"):
		return "write 0 before the point"
	}
	return reason
}

// ToJSON writes a node as JSON, with the keys in their order.
func ToJSON(node policy.Node) []byte {
	return append(appendJSON(nil, node), '\n')
}

func appendJSON(dst []byte, node policy.Node) []byte {
	switch node.Kind {
	case policy.Map:
		dst = append(dst, '{')
		for i, item := range node.Items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendText(dst, node.Keys[i]), ':')
			dst = appendJSON(dst, item)
		}
		return append(dst, '}')
	case policy.List:
		dst = append(dst, '[')
		for i, item := range node.Items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendJSON(dst, item)
		}
		return append(dst, ']')
	case policy.String:
		return appendText(dst, node.Text)
	case policy.Null:
		return append(dst, "null"...)
	}
	return append(dst, node.Text...)
}

func appendText(dst []byte, text string) []byte {
	quoted, _ := json.Marshal(text) // A string always marshals.
	return append(dst, quoted...)
}
