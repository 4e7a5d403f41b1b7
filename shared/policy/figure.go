package policy

import (
	"strings"

	"github.com/weir-proxy/weir/shared/quota"
)

// Figure is a quota or a burst in requests: the value at Source, and Default where there is none.
// Without a Source it is Default for all requests.
type Figure struct {
	Source  Source
	Default int64
}

// Figures are the places in requests of the figures of a limit. The limit itself has the most that
// a request may have. A Burst without Source and Default is the quota.
type Figures struct{ Quota, Burst Figure }

// For returns l with the figures of one caller, cut to the figures of l, which are the largest. A
// burst of 0 is the quota, and a quota of 0 makes the limit Suspended. If exact arithmetic cannot
// hold so slow a rate with the burst, the burst is smaller.
func (l Limit) For(units, burst int64) Limit {
	if units == 0 {
		return l.suspended()
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

// Of is For with the figures of one request, or with the defaults. A request's own burst of 0
// allows nothing, as a quota of 0 does.
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

// Usual returns a limit of p for requests without figures of their own.
func (p *Policy) Usual(l Limit) Limit {
	if l.Own == 0 {
		return l
	}
	f := &p.Figures[l.Own-1]
	return l.Of(f.Quota.Default, f.Burst.Default, f.Burst.Source.Kind != 0)
}

// ParseFigure reads a figure as Envoy and headers have it: decimal digits, or the eight bytes of a
// number in a claim or in metadata. A figure above quota.MaxUnits counts as quota.MaxUnits. A
// fraction and a negative number are no figures. Eight digits are never taken for a number in
// bytes: as a number in bytes they are a fraction.
func ParseFigure(text []byte) (figure int64, ok bool) {
	if number, whole := heldNumber(text); whole {
		return int64(min(number, quota.MaxUnits)), true
	}
	return digitsUpTo(text, quota.MaxUnits)
}

// readFigure reads a quota or a burst: a number, or a mapping with its place in requests. most is
// the number, at least least, or the most that a request may have.
func (r *reader) readFigure(path string, n Node, least int64, most *int64, f *Figure) bool {
	if n.Kind != Map {
		return r.readInteger(path, n, least, quota.MaxUnits, most)
	}
	return r.readRequestFigure(path, n, most, f)
}

// readRequestFigure is apart from readFigure because its closures put its arguments on the filter's
// heap at each call, and most figures are numbers.
func (r *reader) readRequestFigure(path string, n Node, most *int64, f *Figure) bool {
	before, trusted := len(r.problems), false
	add := func(kind SourceKind) func(string, Node) {
		return func(path string, n Node) {
			if name, ok := r.readSourceName(path, n, kind); ok {
				f.Source = Source{kind, name}
			}
		}
	}
	*f = Figure{}
	r.readMap(path, n, field{"jwt", add(SourceJWT)}, field{"metadata", add(SourceMetadata)},
		field{"header", add(SourceHeader)},
		field{"trusted", func(path string, n Node) {
			if trusted = n.Kind == Bool && n.Text == "true"; !trusted {
				r.wrongKind(path, n, "true")
			}
		}},
		field{"max", func(path string, n Node) { r.readInteger(path, n, 1, quota.MaxUnits, most) }},
		field{"default", func(path string, n Node) { r.readInteger(path, n, 0, quota.MaxUnits, &f.Default) }})
	r.checkFigure(path, n)
	if len(r.problems) == before {
		r.mustHold(path+".default", f.Default <= *most, "is above max, the most that a request may have")
	}
	return len(r.problems) == before
}

// checkFigure refuses a figure that lacks a field or has too many.
func (r *reader) checkFigure(path string, n Node) {
	sources := 0
	for _, key := range []string{"jwt", "metadata", "header"} {
		if containsText(n.Keys, key) {
			sources++
		}
	}
	header, trusted := containsText(n.Keys, "header"), containsText(n.Keys, "trusted")
	r.mustHold(path, sources == 1, "must have exactly one of jwt, metadata, header")
	r.requireField(path, n, "max", ": write the most that a request may have; guarantees depend on it")
	r.requireField(path, n, "default", ": write the value for requests that have none")
	r.mustHold(path+".trusted", !header || trusted, "is missing: a client can send any header; write trusted: true if "+
		"the proxy before Envoy sets this header and removes any that clients send")
	r.mustHold(path+".trusted", header || !trusted, "is for header only")
}

// figuresFit refuses figures in requests where an algorithm cannot keep its promise.
func (r *reader) figuresFit(path string, c Counting, most int64, window quota.Span) bool {
	switch {
	case c.Algorithm.Queues():
		r.failAt(path, "cannot take figures from requests with "+c.Algorithm.String()+
			": waiting requests got their turns at one rate; use numbers, or algorithm: token_bucket")
	case c.Algorithm.Estimates() && most > quota.MaxUnits/int64(window):
		r.failAt(path+".quota.max",
			"is too large for this window with "+c.Algorithm.String()+", which weighs all figures by the "+
				"microsecond: at most "+inDigits(quota.MaxUnits/int64(window))+"; sliding_window has no such bound")
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

// String returns the figure in one word, like jwt:plan.rpm.
func (f Figure) String() string {
	if f.Source.Kind == 0 {
		return inDigits(f.Default)
	}
	return f.Source.String()
}
