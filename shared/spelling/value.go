package spelling

import "github.com/weir-proxy/weir/shared/text"

// AppendCredentials appends the value of an Authorization header: the scheme in lower case, one
// blank, the rest. Base64, of the scheme Basic, has neither padding nor foreign characters: servers
// decode it with little care.
func AppendCredentials(dst, value []byte) []byte {
	value = text.Trim(value)
	scheme := 0
	for scheme < len(value) && !isBlank(value[scheme]) {
		scheme++
	}
	rest, from := text.Trim(value[scheme:]), len(dst)
	dst = append(dst, value[:scheme]...)
	if len(rest) == 0 {
		return dst
	}
	flipLetters(dst[from:], 'A')
	basic := text.Is(dst[from:], "basic")
	if dst = pushByte(dst, ' '); basic {
		return appendBase64(dst, rest)
	}
	return append(dst, rest...)
}

// pushByte appends a byte. To append one in place is a hundred bytes of the filter.
//
//go:noinline
func pushByte(dst []byte, c byte) []byte { return append(dst, c) }

// IsToken reports whether credentials, as AppendCredentials has spelled them, have a scheme with a
// single token: a comma then begins other credentials.
func IsToken(credentials []byte) bool {
	return text.HasPrefix(credentials, "bearer ") || text.HasPrefix(credentials, "basic ")
}

// appendBase64 appends a text in Base64 in the usual alphabet, without padding and without
// characters that are no digits.
func appendBase64(dst, value []byte) []byte {
	for _, c := range value {
		switch {
		case c == '-':
			c = '+'
		case c == '_':
			c = '/'
		}
		if c|32 >= 'a' && c|32 <= 'z' || c >= '/' && c <= '9' || c == '+' {
			dst = pushByte(dst, c)
		}
	}
	return dst
}

// AppendCookie appends the value of a cookie without the blanks and the quotes around it, escapes
// and percent-encodings decoded.
func AppendCookie(dst, value []byte) []byte {
	value = text.Trim(value)
	quoted := len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"'
	if quoted {
		value = value[1 : len(value)-1]
	}
	for i := 0; i < len(value); i++ {
		c := value[i]
		switch {
		case quoted && c == '\\' && i+3 < len(value) && isOctal(value[i+1:i+4]):
			c = (value[i+1]-'0')<<6 + (value[i+2]-'0')<<3 + value[i+3] - '0'
			i += 3
		case quoted && c == '\\' && i+1 < len(value):
			i++
			c = value[i]
		case c == '%' && i+2 < len(value):
			if decoded, ok := text.Unhex(value[i+1], value[i+2]); ok {
				c, i = decoded, i+2
			}
		}
		dst = pushByte(dst, c)
	}
	return dst
}

func isOctal(b []byte) bool {
	return b[0] >= '0' && b[0] <= '3' && b[1] >= '0' && b[1] <= '7' && b[2] >= '0' && b[2] <= '7'
}

// AppendQuery appends a name or a value of a query with its percent-encoding and its plus signs
// decoded. An invalid escape stays unchanged.
func AppendQuery(dst, query []byte) []byte {
	for i := 0; i < len(query); i++ {
		c := query[i]
		if c == '+' {
			c = ' '
		} else if c == '%' && i+2 < len(query) {
			if decoded, ok := text.Unhex(query[i+1], query[i+2]); ok {
				c, i = decoded, i+2
			}
		}
		dst = pushByte(dst, c)
	}
	return dst
}

// CutCookie splits the text after the name of a cookie into its value and further pairs, which for
// some servers begin at a blank: in a=1 b=2 they see b.
func CutCookie(sent []byte) (value, further []byte) {
	at := 0
	for at < len(sent) && isBlank(sent[at]) {
		at++
	}
	first := at
	if at < len(sent) && sent[at] == '"' {
		for at++; at < len(sent) && sent[at] != '"'; at++ {
			if sent[at] == '\\' {
				at++
			}
		}
	}
	for word := first; at < len(sent); at++ {
		switch {
		case sent[at] == '=' && word > first:
			return sent[:word], sent[word:]
		case !isBlank(sent[at]) && sent[at] != '=' && at > first && isBlank(sent[at-1]):
			word = at
		}
	}
	return sent, nil
}

func isBlank(c byte) bool { return c == ' ' || c == '\t' }
