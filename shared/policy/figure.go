package policy

import (
	"strings"

	"github.com/weir-proxy/weir/shared/quota"
)

// Figure is a quota or a burst that requests hold: the value at Source, and Default where that
// is none. Without a Source it is Default for all.
type Figure struct {
	Source  Source
	Default int64
}

// Figures say where requests hold the figures of a limit, which itself has the most that a
// request may hold. A Burst without Source and Default is the quota.
type Figures struct{ Quota, Burst Figure }

// For is l with the figures of one caller, cut to those of l, which has the most that there may
// be. A burst of 0 is the quota, and a quota of 0 makes the limit Suspended. So slow a rate that
// exact arithmetic does not hold it for the burst has a smaller one.
func (l Limit) For(units, burst int64) Limit {
	if units == 0 {
		return l.suspend()
	}
	units = min(max(units, 1), l.Quota)
	if burst == 0 || l.Algorithm.Windowed() {
		burst = units
	}
	burst = min(max(burst, 1), l.Params.Burst)
	params, err := quota.NewParams(units, l.Window, burst)
	if err != nil {
		rate, _ := quota.NewParams(units, l.Window, 1) // A quota and a window that l has are within its bounds.
		params = rate.Part(1, 1, burst)
	}
	l.Quota, l.Params = units, params
	return l
}

// Of is For with the figures that one request holds, or that count where it holds none. A burst of
// its own that is 0 allows nothing, as a quota of 0 does.
func (l Limit) Of(units, burst int64, ownBurst bool) Limit {
	if ownBurst && burst == 0 {
		units = 0
	}
	return l.For(units, burst)
}

// numberFigures puts the figures into the order of the limits, whatever the document's order is.
func (p *Policy) numberFigures() {
	read := p.Figures
	if len(read) == 0 {
		return
	}
	p.Figures = nil
	places := make([]uint8, len(read)+1)
	for _, limits := range [][]Limit{p.Limits, p.Candidate} {
		for i := range limits {
			own := limits[i].Own
			if own > 0 && places[own] == 0 { // A tier that is not named has those of another.
				p.Figures = append(p.Figures, read[own-1])
				places[own] = uint8(len(p.Figures))
			}
			limits[i].Own = places[own]
		}
	}
}

// Usual is a limit of p as it is for requests that hold no figures of their own.
func (p *Policy) Usual(l Limit) Limit {
	if l.Own == 0 {
		return l
	}
	f := &p.Figures[l.Own-1]
	return l.Of(f.Quota.Default, f.Burst.Default, f.Burst.Source.Kind != 0)
}

// ParseFigure reads a figure as Envoy and headers hold one: decimal digits, or the eight bytes
// of a number in a claim or in metadata. One above quota.MaxUnits counts as that; a fraction and a
// number below 0 are none. Eight digits are never taken for a number in bytes: as such they are
// a fraction.
func ParseFigure(text []byte) (figure int64, ok bool) {
	if number, whole := heldNumber(text); whole {
		return int64(min(number, quota.MaxUnits)), true
	}
	return digitsUpTo(text, quota.MaxUnits)
}

// figure reads a quota or a burst: a number, or a mapping that says where requests hold it.
// most is the number, from least on, or the most that a request may hold.
func (r *reader) figure(path string, n Node, least int64, most *int64, f *Figure) bool {
	if n.Kind != Map {
		return r.integer(path, n, least, quota.MaxUnits, most)
	}
	return r.figureOfRequests(path, n, most, f)
}

// figureOfRequests is apart from figure because its closures put its arguments on the filter's heap
// at each call, and most figures are numbers.
func (r *reader) figureOfRequests(path string, n Node, most *int64, f *Figure) bool {
	before, trusted := len(r.problems), false
	add := func(kind SourceKind) func(string, Node) {
		return func(path string, n Node) {
			if name, ok := r.sourceName(path, n, kind); ok {
				f.Source = Source{kind, name}
			}
		}
	}
	*f = Figure{}
	r.object(path, n, field{"jwt", add(SourceJWT)}, field{"metadata", add(SourceMetadata)},
		field{"header", add(SourceHeader)},
		field{"trusted", func(path string, n Node) {
			if trusted = n.Kind == Bool && n.Text == "true"; !trusted {
				r.wrongKind(path, n, "true")
			}
		}},
		field{"max", func(path string, n Node) { r.integer(path, n, 1, quota.MaxUnits, most) }},
		field{"default", func(path string, n Node) { r.integer(path, n, 0, quota.MaxUnits, &f.Default) }})
	r.figureIsWhole(path, n)
	if len(r.problems) == before {
		r.present(path+".default", f.Default <= *most, "is above max, the most that a request may have")
	}
	return len(r.problems) == before
}

// figureIsWhole refuses a figure that lacks something or has too much.
func (r *reader) figureIsWhole(path string, n Node) {
	sources := 0
	for _, key := range []string{"jwt", "metadata", "header"} {
		if contains(n.Keys, key) {
			sources++
		}
	}
	header, trusted := contains(n.Keys, "header"), contains(n.Keys, "trusted")
	r.present(path, sources == 1, "must have exactly one of jwt, metadata, header")
	r.required(path, n, "max", ": say the most that a request may have; guarantees go by it")
	r.required(path, n, "default", ": say what counts where a request has none")
	r.present(path+".trusted", !header || trusted, "is missing: a client can send any header; write trusted: true if "+
		"what stands before Envoy sets this one and removes what clients send")
	r.present(path+".trusted", header || !trusted, "is for header only")
}

// figuresFit refuses figures of requests where an algorithm cannot hold what it promises.
func (r *reader) figuresFit(path string, c Counting, most int64, window quota.Span) bool {
	switch {
	case c.Algorithm.Queues():
		r.problem(path, "cannot take figures from requests with "+c.Algorithm.String()+
			": those that wait were given their turns by one rate; use numbers, or algorithm: token_bucket")
	case c.Algorithm.Estimates() && most > quota.MaxUnits/int64(window):
		r.problem(path+".quota.max",
			"is too large for this window with "+c.Algorithm.String()+", which weighs all figures by the "+
				"microsecond: at most "+count(quota.MaxUnits/int64(window))+"; sliding_window has no such bound")
	default:
		return true
	}
	return false
}

// metadataName reports whether a text is a name space and a key of Envoy's metadata.
func metadataName(text string) bool {
	space, key, both := strings.Cut(text, "/")
	return both && space != "" && key != "" && strings.IndexByte(text, 0) < 0
}

// String is the figure as it is written in one word, like jwt:plan.rpm.
func (f Figure) String() string {
	if f.Source.Kind == 0 {
		return count(f.Default)
	}
	return f.Source.String()
}
