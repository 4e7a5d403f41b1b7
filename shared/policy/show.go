package policy

// Bounds of what nodes may report of a request.
const (
	// MaxShown is how many parts of a request may be shown, MaxShownText how many bytes of each.
	MaxShown     = 8
	MaxShownText = 64
)

// show reads what may be shown. The word consumer is refused: to show it, a policy set must name
// its source, so that API keys are not shown by a word that can also mean something else.
func (r *reader) show(path string, n Node, into *[]Part) {
	r.list(path, n, func(path string, n Node) {
		var parts []Part
		r.part(path, n, &parts)
		for _, p := range parts {
			known := p.Kind.CanBeShown() && len(*into) < MaxShown
			r.present(path, known, "must be one of at most 8 parts of a request, not consumer: name where it comes "+
				"from, like jwt:sub, and mind that it is shown in the clear; tier and policy are always shown")
			*into = append(*into, p)
		}
	})
}

// CanBeShown reports whether a policy set can have parts of the kind shown.
func (k PartKind) CanBeShown() bool {
	switch k {
	case PartClientIP, PartMethod, PartHost, PartPath:
		return true
	}
	_, is := k.Source()
	return is
}
