package match

import (
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// metadataPath is where Envoy keeps what filters know of a request, by name space.
const metadataPath = "metadata\x00filter_metadata\x00"

// figures say where requests hold the figures of one limit, by its place among all limits.
type figures struct {
	limit        uint32
	quota, burst figure
}

// figure is what requests hold at a source, of kind 0 for a number that is the same for all.
type figure struct {
	source
	standard int64
}

// addFigures notes the figures of a limit, which follows those noted before. Few limits have any, so
// they are searched for: a place in each of many policies would cost more.
func (ix *Index) addFigures(limit int, f wire.OwnFigures) {
	ix.figures = append(ix.figures, figures{uint32(limit), figureOf(f.Quota), figureOf(f.Burst)})
	ix.limits[limit].Own = 1
}

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

func figureOf(f wire.OwnFigure) figure {
	return figure{source{kind: f.Kind, name: f.Name}, f.Default}
}

// claim gives a hit its limit with the figures that the request holds, if the limit takes such.
func (ix *Index) claim(a *Attributes, hit *Hit) {
	limit := &ix.limits[hit.Limit]
	if hit.Own > 0 || limit.Own == 0 {
		return
	}
	f := ix.figuresOf(hit.Limit)
	ix.own = append(ix.own, limit.For(ix.figure(&f.quota, a), ix.figure(&f.burst, a)))
	hit.Own = uint32(len(ix.own))
}

// figure is what the request holds, or what counts where it holds none.
func (ix *Index) figure(f *figure, a *Attributes) int64 {
	name := ix.Text(f.name)
	var text []byte
	switch f.kind {
	case policy.SourceHeader:
		value, count := lookup(a.Headers, name)
		if count == 1 { // No rule says which one of several counts.
			text = value
		}
	case policy.SourceJWT, policy.SourceMetadata:
		if a.Properties != nil {
			text = a.Properties.Property(ix.propertyPath(f.kind, name))
		}
	}
	if own, ok := policy.ParseFigure(text); ok {
		return own
	}
	return f.standard
}

// propertyPath is the path of a claim, whose parts dots join, or of metadata, with slashes. The
// bytes are good until the next call.
func (ix *Index) propertyPath(kind policy.SourceKind, name []byte) []byte {
	prefix, separator := claimPath, byte('.')
	if kind == policy.SourceMetadata {
		prefix, separator = metadataPath, '/'
	}
	ix.text = append(ix.text[:0], prefix...)
	for _, c := range name {
		if c == separator {
			c = 0
		}
		ix.text = append(ix.text, c)
	}
	return ix.text
}
