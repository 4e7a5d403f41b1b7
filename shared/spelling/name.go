package spelling

// flipLetters changes the case of the 26 letters from first on: 'A' makes the text lower case, 'a'
// upper case.
func flipLetters(b []byte, first byte) {
	for i, c := range b {
		if c-first < 26 {
			b[i] = c ^ ('a' - 'A')
		}
	}
}

// HeaderName returns the spelling of a header's name for comparisons. Servers with CGI rules read
// X_Api_Key as X-Api-Key, and no server distinguishes case.
func HeaderName(name string) string {
	spelled := []byte(name)
	for i, c := range spelled {
		switch {
		case c == '_':
			spelled[i] = '-'
		case c >= 'A' && c <= 'Z':
			spelled[i] += 'a' - 'A'
		}
	}
	return string(spelled)
}

// IsHeader reports whether a header's name in lower case, as Envoy returns it, equals a name
// spelled by HeaderName.
func IsHeader(sent, name []byte) bool {
	if len(sent) != len(name) {
		return false
	}
	for i, c := range sent {
		if c == '_' {
			c = '-'
		}
		if c != name[i] {
			return false
		}
	}
	return true
}
