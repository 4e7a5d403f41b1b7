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
	if own, ok := policy.ParseFigure(e.number(f.kind, e.ix.Text(f.name), a)); ok {
		return own
	}
	return f.standard
}

// number is the text of a number that a request holds at a header, a claim or metadata.
func (e *encoder) number(kind policy.SourceKind, name []byte, a *Attributes) []byte {
	switch kind {
	case policy.SourceHeader:
		if value, count := findHeader(a.Headers, name); count == 1 { // No rule says which one of several counts.
			return value
		}
	case policy.SourceJWT, policy.SourceMetadata:
		return e.property(kind, name, a)
	}
	return nil
}
