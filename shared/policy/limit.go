package policy

import (
	"encoding/binary"
	"errors"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// DefaultMaxWait is the longest delay of a leaky bucket that names none.
const DefaultMaxWait = quota.Second

// NewLimit makes a limit; a burst of 0 is the quota. A quota of 0 makes one that is Suspended. The
// error names the figure to change.
func NewLimit(c Counting, units int64, window quota.Span, burst int64) (Limit, error) {
	if units == 0 {
		if burst != 0 {
			return Limit{}, errors.New(
				"cannot have a burst beside quota: 0, which refuses every request: leave one out")
		}
		l, err := NewLimit(c, 1, window, 1)
		return l.suspend(), err
	}
	l := Limit{Counting: c, Quota: units, Window: window}
	if burst == 0 {
		burst = units
	}
	if c.Algorithm.Windowed() {
		windows, err := quota.NewWindows(c.Algorithm, units, window, c.Subwindows)
		if err != nil {
			return Limit{}, err
		}
		l.Grain = windows.Grain
	}
	if c.Algorithm.Queues() {
		// A request with n before it waits n/rate, so more places than fit in MaxWait would never
		// be used.
		rate, err := quota.NewParams(units, window, 1)
		if err != nil {
			return Limit{}, err
		}
		burst = min(burst, rate.Earned(c.MaxWait)) + 1
	}
	var err error
	l.Params, err = quota.NewParams(units, window, burst)
	return l, err
}

// Suspended reports whether the limit refuses every request, whatever its bucket holds: its quota
// is 0.
func (l *Limit) Suspended() bool { return l.Quota == 0 && !l.InFlight }

// Refill is the time in which an empty bucket of the limit refills. One that is Suspended never
// does, and has its window.
func (l *Limit) Refill() quota.Span {
	if l.Suspended() {
		return l.Window
	}
	return l.Params.Window()
}

// suspend is l with a quota of 0.
func (l Limit) suspend() Limit {
	l.Quota, l.Params.Burst = 0, 0
	return l
}

// Burst is the burst as policies write it. The request that a queue serves takes no place in it.
func (l Limit) Burst() int64 {
	if l.Algorithm.Queues() && !l.Suspended() {
		return l.Params.Burst - 1
	}
	return l.Params.Burst
}

// WindowsOf are the figures with which the limit counts the bucket of a hash, zero unless it counts
// in windows. Windows on a grid begin at an offset that follows from the hash, so that keys do not
// all start anew at the same instant, and every node and the control plane agree on it. Others need
// no offset, and windows of the calendar begin where the calendar says.
func (l Limit) WindowsOf(key keyhash.Key) quota.Windows {
	if !l.Algorithm.Windowed() {
		return quota.Windows{}
	}
	w := quota.Windows{Algorithm: l.Algorithm, Quota: max(l.Quota, 1), Length: l.Window, Grain: l.Grain}
	if l.Algorithm.OnGrid() && !l.Calendar {
		return w.At(binary.LittleEndian.Uint64(key[8:]))
	}
	return w
}

// limits reads one limit, or a list of limits with different windows.
func (r *reader) limits(path string, n Node, c Counting) []Limit {
	if n.Kind == List {
		return r.limitList(path, n, c)
	}
	if l, ok := r.limit(path, n, c); ok {
		return []Limit{l}
	}
	return nil
}

func (r *reader) limitList(path string, n Node, c Counting) (limits []Limit) {
	r.present(path, n.size() > 0, "is empty: write at least one limit")
	r.longList(path, n, MaxLimits, func(path string, n Node) {
		l, ok := r.limit(path, n, c)
		if !ok {
			return
		}
		for _, other := range limits {
			switch {
			case other.InFlight != l.InFlight:
			case l.InFlight:
				r.problem(path+".in_flight", "is a second one in the list: the smaller of the two is enough")
			case other.Window == l.Window:
				r.problem(path+".window", "is that of another limit in the list: the stricter of the two is enough")
			}
		}
		limits = append(limits, l)
	})
	return limits
}

func (r *reader) limit(path string, n Node, c Counting) (l Limit, good bool) {
	if n.Kind != Map {
		r.wrongKind(path, n, "a mapping like {quota: 100, window: 1m}")
		return l, false
	}
	d := &r.draft
	if d.ofLimit == nil {
		d.ofLimit = []field{
			{"quota", func(path string, n Node) {
				d.good = r.figure(path, n, 0, &d.limit.Quota, &d.figures.Quota) && d.good
			}},
			{"window", func(path string, n Node) {
				d.good = r.span(path, n, quota.Second, quota.MaxWindow, &d.limit.Window) && d.good
			}},
			{"in_flight", func(string, Node) {}}, // Such a limit is read by inFlight.
			{"burst", func(path string, n Node) {
				d.good = r.figure(path, n, 1, &d.burst, &d.figures.Burst) && d.good
			}},
		}
	}
	d.limit, d.burst, d.figures, d.good = Limit{}, 0, Figures{}, true
	r.object(path, n, d.ofLimit...)
	if contains(n.Keys, "in_flight") {
		return r.inFlight(path, n, c)
	}
	l, good = d.limit, d.good
	for _, key := range []string{"quota", "window"} {
		r.required(path, n, key, "")
		good = good && contains(n.Keys, key)
	}
	if !good {
		return l, false
	}
	if d.burst != 0 && c.Algorithm.Windowed() {
		r.problem(path+".burst", "is for "+algorithmsThat(isBucket)+" only: "+c.Algorithm.String()+" admits the quota")
		return l, false
	}
	l, err := NewLimit(c, l.Quota, l.Window, d.burst)
	if err != nil {
		r.problem(path, err.Error())
		return l, false
	}
	return r.own(path, c, l)
}

// own notes where requests hold the figures of the limit that has been read, if they do. It takes
// the limit by value: in the filter a pointer would put each of them on the heap.
func (r *reader) own(path string, c Counting, l Limit) (Limit, bool) {
	f := r.draft.figures
	if f.Quota.Source.Kind == 0 && f.Burst.Source.Kind == 0 {
		return l, true
	}
	if f.Quota.Source.Kind == 0 {
		f.Quota.Default = l.Quota
	}
	if f.Burst.Source.Kind == 0 {
		f.Burst.Default = r.draft.burst
	}
	p := &r.draft.policy
	p.Figures = append(p.Figures, f)
	l.Own = uint8(len(p.Figures))
	return l, r.figuresFit(path, c, l.Quota, l.Window)
}

// counting reads how a policy's limits count, which stands beside them. Keys of another algorithm
// are refused.
func (r *reader) counting(path string, n Node, c *Counting) {
	subwindows := int64(quota.DefaultSubwindows)
	c.MaxWait = DefaultMaxWait
	var calendar uint8
	if at, item, given := r.given(path, n, "algorithm"); given {
		r.enum(at, item, (*uint8)(&c.Algorithm), algorithms[:])
	}
	if at, item, fits := r.ofAlgorithm(path, n, "subwindows", c, quota.Algorithm.Divided); fits {
		r.integer(at, item, 1, quota.MaxSubwindows, &subwindows)
	}
	if at, item, fits := r.ofAlgorithm(path, n, "align", c, quota.Algorithm.Fixed); fits {
		r.enum(at, item, &calendar, alignments)
	}
	at, item, waits := r.given(path, n, "max_wait")
	switch {
	case waits && c.Algorithm.Queues():
		r.span(at, item, quota.Millisecond, quota.Hour, &c.MaxWait)
	case waits: // Of requests in flight, unless inFlightFits refuses it.
		r.span(at, item, 0, quota.Hour, &c.MaxWait)
	case !c.Algorithm.Queues():
		c.MaxWait = 0
	}
	c.Subwindows, c.Calendar = int(subwindows), calendar == 1
	if !c.Algorithm.Divided() {
		c.Subwindows = 0
	}
}

// ofAlgorithm finds a key that only algorithms with a property have.
func (r *reader) ofAlgorithm(
	path string, n Node, key string, c *Counting, has func(quota.Algorithm) bool,
) (at string, item Node, fits bool) {
	at, item, given := r.given(path, n, key)
	if given && !has(c.Algorithm) {
		r.problem(at, "is for algorithm: "+algorithmsThat(has)+" only")
		return at, item, false
	}
	return at, item, given
}

func (r *reader) cost(path string, n Node, c *Cost) {
	if n.Kind == Number {
		r.integer(path, n, 0, MaxCost, &c.Fixed)
		return
	}
	if n.Kind != Map {
		r.wrongKind(path, n, "a whole number or a mapping like {header: x-cost, max: 50, invalid: 1}")
		return
	}
	if contains(n.Keys, "reserve") || contains(n.Keys, "commit") {
		r.reserving(path, n, c, &r.draft.policy.Commit)
		return
	}
	c.Invalid = 1
	r.object(path, n,
		field{"header", func(path string, n Node) { r.costSource(path, n, SourceHeader, c) }},
		field{"max", func(path string, n Node) { r.integer(path, n, 1, MaxCost, &c.Max) }},
		field{"invalid", func(path string, n Node) {
			if n.Kind == String && n.Text == "deny" {
				c.DenyInvalid = true
				return
			}
			r.integer(path, n, 0, MaxCost, &c.Invalid)
		}},
	)
	r.required(path, n, "header", ": name the header that holds the cost")
	r.required(path, n, "max", ": say the most that one request may cost")
}

func (r *reader) costSource(path string, n Node, kind SourceKind, c *Cost) {
	name, _ := r.sourceName(path, n, kind)
	c.Source = Source{kind, name}
}
