package match

import (
	"github.com/weir-proxy/weir/shared/policy"
)

// figuresOf returns the figures of a limit that has some.
func (ix *Index) figuresOf(limit uint32) *figures {
	from, to := 0, len(ix.figures)-1
	for from < to {
		middle := (from + to) / 2
		if ix.figures[middle].limit < limit {
			from = middle + 1
		} else {
			to = middle
		}
	}
	return &ix.figures[from]
}

// ownFigure is the number that a request holds at a source, or the one that counts where it holds
// none that can be read.
func (e *encoder) ownFigure(f *figure, a *Attributes) int64 {
	name := e.ix.Text(f.name)
	var text []byte
	switch f.kind {
	case policy.SourceHeader:
		value, count := findHeader(a.Headers, name)
		if count == 1 { // No rule says which one of several counts.
			text = value
		}
	case policy.SourceJWT, policy.SourceMetadata:
		text = e.property(f.kind, name, a)
	}
	if own, ok := policy.ParseFigure(text); ok {
		return own
	}
	return f.standard
}
