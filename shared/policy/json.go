package policy

import "github.com/tidwall/gjson"

// maxDepth bounds how deep a document may nest: the filter has a small stack, and the language needs no more than ten levels.
const maxDepth = 32

// ParseJSON reads a JSON document. It refuses what is not JSON and what nests deeper than maxDepth; what it means is for
// Decode and DecodePlugin to say.
func ParseJSON(doc []byte) (Node, error) {
	if !shallow(doc) {
		return Node{}, Problems{{"", "nests too deep"}}
	}
	if !gjson.ValidBytes(doc) {
		return Node{}, Problems{{"", "is not valid JSON"}}
	}
	return fromJSON(gjson.ParseBytes(doc)), nil
}

// shallow says whether doc nests at most maxDepth deep, without recursion. Brackets in strings do not count.
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
			if depth++; depth > maxDepth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

func fromJSON(v gjson.Result) Node {
	switch v.Type {
	case gjson.String:
		return Node{Kind: String, Text: v.Str}
	case gjson.Number:
		return Node{Kind: Number, Text: v.Raw}
	case gjson.True, gjson.False:
		return Node{Kind: Bool, Text: v.Raw}
	case gjson.JSON:
		n := Node{Kind: List}
		if v.IsObject() {
			n.Kind = Map
		}
		v.ForEach(func(key, value gjson.Result) bool {
			if n.Kind == Map {
				n.Keys = append(n.Keys, key.Str)
			}
			n.Items = append(n.Items, fromJSON(value))
			return true
		})
		return n
	}
	return Node{}
}
