package policy

import (
	"unicode/utf16"
	"unicode/utf8"

	"github.com/weir-proxy/weir/shared/text"
)

// maxDepth bounds the depth of a document: the filter has a small stack, and the language needs no
// more than ten levels.
const maxDepth = 32

// wholeList is the longest list that is read at once; see Node.eachItem.
const wholeList = 32

// ParseJSON reads a JSON document. It refuses text that is not JSON or nests deeper than maxDepth.
// Decode and DecodePlugin read its meaning; doc must not change until they have. Their results hold
// copies.
func ParseJSON(doc []byte) (Node, error) {
	if !isShallow(doc) {
		return Node{}, Problems{{Reason: "nests too deep"}}
	}
	if !validJSON(doc) {
		return Node{}, Problems{{Reason: "is not valid JSON"}}
	}
	s := scanner{doc: doc}
	return s.readNode(), nil
}

// validJSON reports whether doc is a JSON document that nests at most maxDepth deep.
func validJSON(doc []byte) bool {
	s := scanner{doc: doc}
	return isShallow(doc) && s.skipValue() && s.nextByte() == 0 && s.at == len(doc)
}

// isShallow reports whether doc nests at most maxDepth deep, without recursion. Brackets in strings
// do not count.
func isShallow(doc []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
			if depth > maxDepth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

// scanner goes through a JSON document: skipValue validates it, and readNode reads a value that
// skipValue has accepted.
type scanner struct {
	doc []byte
	at  int
	// keys and items belong to the mappings that are being read.
	keys  []string
	items []Node
}

// nextByte skips white space and returns the byte after it, 0 at the end.
func (s *scanner) nextByte() byte {
	for s.at < len(s.doc) {
		c := s.doc[s.at]
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
		s.at++
	}
	return 0
}

// takeByte skips white space, and the byte c if it comes next.
func (s *scanner) takeByte(c byte) bool {
	if s.nextByte() != c {
		return false
	}
	s.at++
	return true
}

// skipValue skips a value and reports whether it is valid.
func (s *scanner) skipValue() bool {
	switch c := s.nextByte(); c {
	case '{', '[':
		_, ok := s.skipElements()
		return ok
	case '"':
		return s.skipString()
	case 't':
		return s.skipWord("true")
	case 'f':
		return s.skipWord("false")
	case 'n':
		return s.skipWord("null")
	}
	return s.skipNumber()
}

// skipElements skips a list or a mapping and counts its elements.
func (s *scanner) skipElements() (count int, ok bool) {
	mapping := s.doc[s.at] == '{'
	last := byte(']')
	if mapping {
		last = '}'
	}
	s.at++
	if s.takeByte(last) {
		return 0, true
	}
	for {
		if mapping && !(s.nextByte() == '"' && s.skipString() && s.takeByte(':')) || !s.skipValue() {
			return 0, false
		}
		count++
		if s.takeByte(last) {
			return count, true
		}
		if !s.takeByte(',') {
			return 0, false
		}
	}
}

func (s *scanner) skipWord(word string) bool {
	for i := range len(word) {
		if s.at == len(s.doc) || s.doc[s.at] != word[i] {
			return false
		}
		s.at++
	}
	return true
}

// skipString skips a string.
func (s *scanner) skipString() bool {
	for s.at++; s.at < len(s.doc); s.at++ {
		switch c := s.doc[s.at]; {
		case c == '"':
			s.at++
			return true
		case c < ' ':
			return false
		case c == '\\':
			s.at++
			if !s.skipEscape() {
				return false
			}
		}
	}
	return false
}

// skipEscape skips the bytes after a backslash, up to the last byte of the escape.
func (s *scanner) skipEscape() bool {
	if s.at == len(s.doc) {
		return false
	}
	switch s.doc[s.at] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		return true
	case 'u':
		for range 4 {
			s.at++
			if s.at == len(s.doc) {
				return false
			}
			if _, ok := text.HexDigit(s.doc[s.at]); !ok {
				return false
			}
		}
		return true
	}
	return false
}

func (s *scanner) skipNumber() bool {
	s.skipSign("-")
	if s.at < len(s.doc) && s.doc[s.at] == '0' {
		s.at++
	} else if !s.skipDigits() {
		return false
	}
	if s.skipSign(".") && !s.skipDigits() {
		return false
	}
	if s.skipSign("eE") {
		s.skipSign("+-")
		return s.skipDigits()
	}
	return true
}

// skipSign skips one of the bytes, if it comes next.
func (s *scanner) skipSign(any string) bool {
	for i := range len(any) {
		if s.at < len(s.doc) && s.doc[s.at] == any[i] {
			s.at++
			return true
		}
	}
	return false
}

func (s *scanner) skipDigits() bool {
	start := s.at
	for s.at < len(s.doc) && s.doc[s.at] >= '0' && s.doc[s.at] <= '9' {
		s.at++
	}
	return s.at > start
}

// readNode reads a value that is valid.
func (s *scanner) readNode() Node {
	switch c := s.nextByte(); c {
	case '{':
		return s.readMapping()
	case '[':
		return s.readList()
	case '"':
		return Node{Kind: String, Text: s.readString()}
	case 'n':
		s.skipValue()
		return Node{}
	default:
		start := s.at
		s.skipValue()
		n := Node{Kind: Number, Text: string(s.doc[start:s.at])}
		if c == 't' || c == 'f' {
			n.Kind = Bool
		}
		return n
	}
}

func (s *scanner) readMapping() Node {
	s.at++
	from := len(s.keys)
	for !s.takeByte('}') {
		s.nextByte()
		key := s.readString()
		s.takeByte(':')
		item := s.readNode()
		s.keys, s.items = append(s.keys, key), append(s.items, item)
		s.takeByte(',')
	}
	n := Node{Kind: Map, Keys: make([]string, len(s.keys)-from), Items: make([]Node, len(s.keys)-from)}
	copy(n.Keys, s.keys[from:])
	copy(n.Items, s.items[from:])
	s.keys, s.items = s.keys[:from], s.items[:from]
	return n
}

// readList reads a list. A long list stays text until eachItem reads it.
func (s *scanner) readList() Node {
	start := s.at
	count, _ := s.skipElements()
	if count > wholeList {
		return Node{Kind: List, text: s.doc[start:s.at], count: count}
	}
	end := s.at
	s.at = start + 1
	n := Node{Kind: List, Items: make([]Node, count)}
	for i := range n.Items {
		n.Items[i] = s.readNode()
		s.takeByte(',')
	}
	s.at = end
	return n
}

// readString reads a valid string. It is a copy: a collection of the filter's memory walks from a
// pointer into a large object to the object's head. So texts that point into a document of a
// megabyte would make each collection take hundreds of milliseconds.
func (s *scanner) readString() string {
	start := s.at + 1
	s.skipString()
	raw := s.doc[start : s.at-1]
	for i := range raw {
		if raw[i] == '\\' {
			return unescapeString(raw)
		}
	}
	return string(raw)
}

// unescapeString resolves the escapes of a string. Half a surrogate pair becomes the replacement
// character.
func unescapeString(raw []byte) string {
	plain := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '\\' {
			i++
			c = raw[i]
			switch c {
			case 'b':
				c = '\b'
			case 'f':
				c = '\f'
			case 'n':
				c = '\n'
			case 'r':
				c = '\r'
			case 't':
				c = '\t'
			// A code point above 16 bits is a pair of escapes.
			case 'u':
				r := readUnit(raw[i+1:])
				i += 4
				if utf16.IsSurrogate(r) && i+6 < len(raw) && raw[i+1] == '\\' && raw[i+2] == 'u' {
					r = utf16.DecodeRune(r, readUnit(raw[i+3:]))
					i += 6
				}
				plain = utf8.AppendRune(plain, r)
				continue
			}
		}
		plain = append(plain, c)
	}
	return string(plain)
}

// readUnit reads the four digits of a \u escape.
func readUnit(digits []byte) (r rune) {
	for _, c := range digits[:4] {
		d, _ := text.HexDigit(c)
		r = r<<4 | rune(d)
	}
	return r
}
