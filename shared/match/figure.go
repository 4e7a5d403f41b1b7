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

// ownFigure returns the request's number at a source, or the default if there is no number that can
// be read.
func (e *encoder) ownFigure(f *figure, a *Attributes) int64 {
	if own, ok := policy.ParseFigure(e.numberText(f.source, a)); ok {
		return own
	}
	return f.standard
}

// numberText returns the text of a number in a header, a claim or metadata of the request.
func (e *encoder) numberText(s source, a *Attributes) []byte {
	if s.kind == policy.SourceHeader {
		return findHeader(a.Headers, e.ix.Text(s.name))
	}
	return e.askEnvoy(s.kind, e.ix.Text(s.name), a)
}
