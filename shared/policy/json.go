package policy

import (
	"unicode/utf16"
	"unicode/utf8"

	"github.com/weir-proxy/weir/shared/text"
)

// maxDepth bounds how deep a document may nest: the filter has a small stack, and the language
// needs no more than ten levels.
const maxDepth = 32

// wholeList is the longest list that is read at once; see Node.each.
const wholeList = 32

// ParseJSON reads a JSON document. It refuses text that is not JSON or nests deeper than maxDepth.
// Decode and DecodePlugin read its meaning; doc must not change until they have. Their results hold
// copies.
func ParseJSON(doc []byte) (Node, error) {
	if !shallow(doc) {
		return Node{}, Problems{{Reason: "nests too deep"}}
	}
	if !validJSON(doc) {
		return Node{}, Problems{{Reason: "is not valid JSON"}}
	}
	s := scanner{doc: doc}
	return s.node(), nil
}

// validJSON reports whether doc is a JSON document that nests at most maxDepth deep.
func validJSON(doc []byte) bool {
	s := scanner{doc: doc}
	return shallow(doc) && s.value() && s.next() == 0 && s.at == len(doc)
}

// shallow reports whether doc nests at most maxDepth deep, without recursion. Brackets in strings
// do not count.
func shallow(doc []byte) bool {
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

// scanner goes through a JSON document: value validates it, and node reads what value has accepted.
type scanner struct {
	doc []byte
	at  int
	// keys and items belong to the mappings that are being read.
	keys  []string
	items []Node
}

// next skips white space and returns the byte after it, 0 at the end.
func (s *scanner) next() byte {
	for s.at < len(s.doc) {
		c := s.doc[s.at]
		if c != ' ' && c != '\n' && c != '\t' && c != '\r' {
			return c
		}
		s.at++
	}
	return 0
}

// take skips white space, and the byte c if it comes next.
func (s *scanner) take(c byte) bool {
	if s.next() != c {
		return false
	}
	s.at++
	return true
}

// value skips a value and reports whether it is valid.
func (s *scanner) value() bool {
	switch c := s.next(); c {
	case '{', '[':
		_, ok := s.elements()
		return ok
	case '"':
		return s.quoted()
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	return s.number()
}

// elements skips a list or a mapping and counts its elements.
func (s *scanner) elements() (count int, ok bool) {
	mapping := s.doc[s.at] == '{'
	last := byte(']')
	if mapping {
		last = '}'
	}
	s.at++
	if s.take(last) {
		return 0, true
	}
	for {
		if mapping && !(s.next() == '"' && s.quoted() && s.take(':')) || !s.value() {
			return 0, false
		}
		count++
		if s.take(last) {
			return count, true
		}
		if !s.take(',') {
			return 0, false
		}
	}
}

func (s *scanner) word(word string) bool {
	for i := range len(word) {
		if s.at == len(s.doc) || s.doc[s.at] != word[i] {
			return false
		}
		s.at++
	}
	return true
}

// quoted skips a string.
func (s *scanner) quoted() bool {
	for s.at++; s.at < len(s.doc); s.at++ {
		switch c := s.doc[s.at]; {
		case c == '"':
			s.at++
			return true
		case c < ' ':
			return false
		case c == '\\':
			s.at++
			if !s.escape() {
				return false
			}
		}
	}
	return false
}

// escape skips what follows a backslash, up to its last byte.
func (s *scanner) escape() bool {
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

func (s *scanner) number() bool {
	s.sign("-")
	if s.at < len(s.doc) && s.doc[s.at] == '0' {
		s.at++
	} else if !s.digits() {
		return false
	}
	if s.sign(".") && !s.digits() {
		return false
	}
	if s.sign("eE") {
		s.sign("+-")
		return s.digits()
	}
	return true
}

// sign skips one of the bytes, if it comes next.
func (s *scanner) sign(any string) bool {
	for i := range len(any) {
		if s.at < len(s.doc) && s.doc[s.at] == any[i] {
			s.at++
			return true
		}
	}
	return false
}

func (s *scanner) digits() bool {
	start := s.at
	for s.at < len(s.doc) && s.doc[s.at] >= '0' && s.doc[s.at] <= '9' {
		s.at++
	}
	return s.at > start
}

// node reads a value that is valid.
func (s *scanner) node() Node {
	switch c := s.next(); c {
	case '{':
		return s.mapping()
	case '[':
		return s.list()
	case '"':
		return Node{Kind: String, Text: s.text()}
	case 'n':
		s.value()
		return Node{}
	default:
		start := s.at
		s.value()
		n := Node{Kind: Number, Text: string(s.doc[start:s.at])}
		if c == 't' || c == 'f' {
			n.Kind = Bool
		}
		return n
	}
}

func (s *scanner) mapping() Node {
	s.at++
	from := len(s.keys)
	for !s.take('}') {
		s.next()
		key := s.text()
		s.take(':')
		item := s.node()
		s.keys, s.items = append(s.keys, key), append(s.items, item)
		s.take(',')
	}
	n := Node{Kind: Map, Keys: make([]string, len(s.keys)-from), Items: make([]Node, len(s.keys)-from)}
	copy(n.Keys, s.keys[from:])
	copy(n.Items, s.items[from:])
	s.keys, s.items = s.keys[:from], s.items[:from]
	return n
}

// list reads a list. A long one stays text until each reads it.
func (s *scanner) list() Node {
	start := s.at
	count, _ := s.elements()
	if count > wholeList {
		return Node{Kind: List, text: s.doc[start:s.at], count: count}
	}
	end := s.at
	s.at = start + 1
	n := Node{Kind: List, Items: make([]Node, count)}
	for i := range n.Items {
		n.Items[i] = s.node()
		s.take(',')
	}
	s.at = end
	return n
}

// text reads a valid string. It is a copy: a collection of the filter's memory walks from a pointer
// into a large object to the object's head. So texts that point into a document of a megabyte would
// make each collection take hundreds of milliseconds.
func (s *scanner) text() string {
	start := s.at + 1
	s.quoted()
	raw := s.doc[start : s.at-1]
	for i := range raw {
		if raw[i] == '\\' {
			return unescape(raw)
		}
	}
	return string(raw)
}

// unescape resolves the escapes of a string. Half a surrogate pair becomes the replacement
// character.
func unescape(raw []byte) string {
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
			case 'u':
				r := unit(raw[i+1:])
				i += 4
				if utf16.IsSurrogate(r) && i+6 < len(raw) && raw[i+1] == '\\' && raw[i+2] == 'u' {
					r = utf16.DecodeRune(r, unit(raw[i+3:]))
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

// unit reads the four digits of a \u escape.
func unit(digits []byte) (r rune) {
	for _, c := range digits[:4] {
		d, _ := text.HexDigit(c)
		r = r<<4 | rune(d)
	}
	return r
}
