package spelling

// HeaderName is the spelling of a header's name by which names are compared: servers by the rules
// of CGI read X_Api_Key as X-Api-Key, and case does not matter to any.
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

// IsHeader reports whether a header's name in lower case, as Envoy hands it over, is one that
// HeaderName has spelled.
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
