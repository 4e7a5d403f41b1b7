package policy

import (
	"encoding/binary"
	"errors"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// DefaultMaxWait is the longest delay of a leaky bucket that does not name a longest delay.
const DefaultMaxWait = quota.Second

// NewLimit makes a limit; a burst of 0 is the quota. A quota of 0 makes a limit that is Suspended.
// The error names the figure to change.
func NewLimit(c Counting, units int64, window quota.Span, burst int64) (Limit, error) {
	if units == 0 {
		if burst != 0 {
			return Limit{}, errors.New(
				"cannot have a burst beside quota: 0, which refuses every request: leave one out")
		}
		l, err := NewLimit(c, 1, window, 1)
		return l.suspended(), err
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

// Suspended reports whether the limit refuses every request, whatever is in its bucket: its quota
// is 0.
func (l *Limit) Suspended() bool { return l.Quota == 0 && !l.InFlight }

// Refill returns the time in which an empty bucket of the limit refills. A Suspended limit never
// refills; then it is the window.
func (l *Limit) Refill() quota.Span {
	if l.Suspended() {
		return l.Window
	}
	return l.Params.Window()
}

// suspended returns l with a quota of 0.
func (l Limit) suspended() Limit {
	l.Quota, l.Params.Burst = 0, 0
	return l
}

// Burst returns the burst as policies write it. The request that a queue serves takes no place in
// it.
func (l Limit) Burst() int64 {
	if l.Algorithm.Queues() && !l.Suspended() {
		return l.Params.Burst - 1
	}
	return l.Params.Burst
}

// WindowsOf returns the figures with which the limit counts the bucket of a hash, zero unless it
// counts in windows. Windows on a grid begin at an offset that follows from the hash, so that keys
// do not all start anew at the same instant, and all nodes and the control plane agree on it. Other
// windows need no offset, and windows of the calendar begin with the calendar's windows.
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

// readLimits reads one limit, or a list of limits with different windows.
func (r *reader) readLimits(path string, n Node, c Counting) []Limit {
	if n.Kind == List {
		return r.readLimitList(path, n, c)
	}
	if l, ok := r.readLimit(path, n, c); ok {
		return []Limit{l}
	}
	return nil
}

func (r *reader) readLimitList(path string, n Node, c Counting) (limits []Limit) {
	r.mustHold(path, n.listSize() > 0, "is empty: write at least one limit")
	r.readLongList(path, n, MaxLimits, func(path string, n Node) {
		l, ok := r.readLimit(path, n, c)
		if !ok {
			return
		}
		for _, other := range limits {
			switch {
			case other.InFlight != l.InFlight:
			case l.InFlight:
				r.failAt(path+".in_flight", "is a second one in the list: the smaller of the two is enough")
			case other.Window == l.Window:
				r.failAt(path+".window", "is the window of another limit in the list: the stricter limit is enough")
			}
		}
		limits = append(limits, l)
	})
	return limits
}

func (r *reader) readLimit(path string, n Node, c Counting) (l Limit, good bool) {
	if n.Kind != Map {
		r.wrongKind(path, n, "a mapping like {quota: 100, window: 1m}")
		return l, false
	}
	d := &r.draft
	if d.ofLimit == nil {
		d.ofLimit = []field{
			{"quota", func(path string, n Node) {
				d.good = r.readFigure(path, n, 0, &d.limit.Quota, &d.figures.Quota) && d.good
			}},
			{"window", func(path string, n Node) {
				d.good = r.readSpan(path, n, quota.Second, quota.MaxWindow, &d.limit.Window) && d.good
			}},
			{"in_flight", func(string, Node) {}}, // Such a limit is read by inFlight.
			{"burst", func(path string, n Node) {
				d.good = r.readFigure(path, n, 1, &d.burst, &d.figures.Burst) && d.good
			}},
		}
	}
	d.limit, d.burst, d.figures, d.good = Limit{}, 0, Figures{}, true
	r.readMap(path, n, d.ofLimit...)
	if containsText(n.Keys, "in_flight") {
		return r.readInFlight(path, n, c)
	}
	l, good = d.limit, d.good
	for _, key := range []string{"quota", "window"} {
		r.requireField(path, n, key, "")
		good = good && containsText(n.Keys, key)
	}
	if !good {
		return l, false
	}
	if d.burst != 0 && c.Algorithm.Windowed() {
		r.failAt(path+".burst", "is for "+algorithmsThat(isBucket)+" only: "+c.Algorithm.String()+" admits the quota")
		return l, false
	}
	l, err := NewLimit(c, l.Quota, l.Window, d.burst)
	if err != nil {
		r.failAt(path, err.Error())
		return l, false
	}
	return r.addOwnFigures(path, c, l)
}

// addOwnFigures records the places in requests of the figures of the limit that was read, if there
// are any. It takes the limit by value: in the filter a pointer would put each limit on the heap.
func (r *reader) addOwnFigures(path string, c Counting, l Limit) (Limit, bool) {
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

// readCounting reads how a policy's limits count, from keys beside the limits. Keys of another
// algorithm are refused.
func (r *reader) readCounting(path string, n Node, c *Counting) {
	subwindows := int64(quota.DefaultSubwindows)
	c.MaxWait = DefaultMaxWait
	var calendar uint8
	if at, item, given := r.findKey(path, n, "algorithm"); given {
		r.readEnum(at, item, (*uint8)(&c.Algorithm), algorithms[:])
	}
	if at, item, fits := r.keyOfAlgorithm(path, n, "subwindows", c, quota.Algorithm.Divided); fits {
		r.readInteger(at, item, 1, quota.MaxSubwindows, &subwindows)
	}
	if at, item, fits := r.keyOfAlgorithm(path, n, "align", c, quota.Algorithm.Fixed); fits {
		r.readEnum(at, item, &calendar, alignments)
	}
	at, item, waits := r.findKey(path, n, "max_wait")
	switch {
	case waits && c.Algorithm.Queues():
		r.readSpan(at, item, quota.Millisecond, quota.Hour, &c.MaxWait)
	case waits: // Of requests in flight, unless inFlightFits refuses it.
		r.readSpan(at, item, 0, quota.Hour, &c.MaxWait)
	case !c.Algorithm.Queues():
		c.MaxWait = 0
	}
	c.Subwindows, c.Calendar = int(subwindows), calendar == 1
	if !c.Algorithm.Divided() {
		c.Subwindows = 0
	}
}

// keyOfAlgorithm finds a key that only algorithms with a property have.
func (r *reader) keyOfAlgorithm(
	path string, n Node, key string, c *Counting, has func(quota.Algorithm) bool,
) (at string, item Node, fits bool) {
	at, item, given := r.findKey(path, n, key)
	if given && !has(c.Algorithm) {
		r.failAt(at, "is for algorithm: "+algorithmsThat(has)+" only")
		return at, item, false
	}
	return at, item, given
}

func (r *reader) readCost(path string, n Node, c *Cost) {
	if n.Kind == Number {
		r.readInteger(path, n, 0, MaxCost, &c.Fixed)
		return
	}
	if n.Kind != Map {
		r.wrongKind(path, n, "a whole number or a mapping like {header: x-cost, max: 50, invalid: 1}")
		return
	}
	if containsText(n.Keys, "reserve") || containsText(n.Keys, "commit") {
		r.readReservingCost(path, n, c, &r.draft.policy.Commit)
		return
	}
	c.Invalid = 1
	r.readMap(path, n,
		field{"header", func(path string, n Node) { r.readCostSource(path, n, SourceHeader, c) }},
		field{"max", func(path string, n Node) { r.readInteger(path, n, 1, MaxCost, &c.Max) }},
		field{"invalid", func(path string, n Node) {
			if n.Kind == String && n.Text == "deny" {
				c.DenyInvalid = true
				return
			}
			r.readInteger(path, n, 0, MaxCost, &c.Invalid)
		}},
	)
	r.requireField(path, n, "header", ": name the header that holds the cost")
	r.requireField(path, n, "max", ": say the most that one request may cost")
}

func (r *reader) readCostSource(path string, n Node, kind SourceKind, c *Cost) {
	name, _ := r.readSourceName(path, n, kind)
	c.Source = Source{kind, name}
}
