package policy

// Bounds of the parts of a request that nodes may report.
const (
	// MaxShown is the largest number of shown parts of a request, MaxShownText the largest number
	// of bytes of each part.
	MaxShown     = 8
	MaxShownText = 64
)

// readShow reads the parts that may be shown. The word consumer is refused: to show the consumer, a
// policy set must name its source. Otherwise API keys could be shown by a word that can also mean
// something else.
func (r *reader) readShow(path string, n Node, into *[]Part) {
	r.readList(path, n, func(path string, n Node) {
		var parts []Part
		r.readPart(path, n, &parts)
		for _, p := range parts {
			known := p.Kind.CanBeShown() && len(*into) < MaxShown
			r.mustHold(path, known, "must be one of at most 8 parts of a request, not consumer: name where it comes "+
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
