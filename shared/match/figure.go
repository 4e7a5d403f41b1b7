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
	if own, ok := policy.ParseFigure(e.number(f.source, a)); ok {
		return own
	}
	return f.standard
}

// number is the text of a number that a request holds at a header, a claim or metadata.
func (e *encoder) number(s source, a *Attributes) []byte {
	if s.kind == policy.SourceHeader {
		return findHeader(a.Headers, e.ix.Text(s.name))
	}
	return e.ask(s.kind, e.ix.Text(s.name), a)
}
