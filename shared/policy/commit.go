package policy

import (
	"encoding/binary"
	"math"

	"github.com/weir-proxy/weir/shared/quota"
)

// Commit defines the final cost of a request, which is known once it is answered; Cost is then the
// cost that the request reserves. The zero value is for a policy whose costs are known before.
type Commit struct {
	By CommitBy
	// Name is the header or trailer with the cost, in lower case, or the name space and the key of
	// the metadata, joined by slashes.
	Name string
	// Unit is the time that costs one token. A part of it costs a whole token.
	Unit quota.Span
	// Statuses are the costs of responses by their status, or by their gRPC status. If several
	// match, the entry with the fewest statuses counts.
	Statuses []StatusCost
	// Missing is the cost of a response without a cost; below 0 it is the reserved cost.
	Missing int64
	// Unfinished is the cost of a request whose response is not whole. UnfinishedCost is that cost
	// if it is a number.
	Unfinished     Unfinished
	UnfinishedCost int64
	// Least is the least that a request with a budget reserves; 0 for no such bound.
	Least int64
}

// CommitBy is the place of the cost. Its number travels in snapshots: never renumber.
type CommitBy uint8

// The places of a cost.
const (
	CommitNever CommitBy = iota
	CommitStatus
	CommitHeader
	CommitDuration
	CommitMetadata
	CommitGRPCStatus
	CommitTrailer
)

// MissingReserved is the Commit.Missing that keeps the reserved cost.
const MissingReserved = -1

const (
	// MaxStatuses bounds the statuses that a policy names.
	MaxStatuses = 64
	// MaxStatus is the largest status of a response, of HTTP or gRPC.
	MaxStatus = 999
)

// StatusCost is the cost of the responses with a status from First to Last.
type StatusCost struct {
	First, Last uint16
	Cost        int64
}

// ByStatus returns the cost of a response with this status.
func (c *Commit) ByStatus(status int) int64 {
	cost, width := c.Missing, 1000
	for i := range c.Statuses {
		one := &c.Statuses[i]
		if first, last := int(one.First), int(one.Last); first <= status && status <= last && last-first < width {
			cost, width = one.Cost, last-first
		}
	}
	return cost
}

// ByMetadata returns the cost in metadata: a number, or decimal digits, of which more than MaxCost
// counts as MaxCost. It reports false if the metadata has no cost.
func (c *Commit) ByMetadata(value []byte) (int64, bool) { return numberUpTo(value, MaxCost) }

// ByDuration returns the cost of a request that took the given time.
func (c *Commit) ByDuration(took quota.Span) int64 {
	units := int64(max(took, 0) / c.Unit)
	if max(took, 0)%c.Unit > 0 {
		units++
	}
	return min(units, MaxCost)
}

// commitNotes returns notes for operators about costs that are known later.
func (p *Policy) commitNotes() (notes []string) {
	if p.Commit.By == CommitNever {
		return nil
	}
	if p.Mode == ModeLeased {
		notes = append(notes, "its cost is known later, so each request asks the control plane, as in mode strict")
	}
	if !p.Counting.Algorithm.Windowed() {
		notes = append(notes, "a reservation comes back by itself at the rate of the limit, and a settlement "+
			"gives back only the rest; windows give back all of it while it counts")
	} else {
		notes = append(notes, "the cost of a request beyond its reservation counts until the request leaves the "+
			"window, and is not carried on: each window can be exceeded by that cost; a "+
			"token_bucket has it paid back")
	}
	return append(notes, p.unfinishedNotes()...)
}

// readReservingCost reads the cost of requests that is known only later: the reserved cost, and the
// place of the final cost.
func (r *reader) readReservingCost(path string, n Node, c *Cost, into *Commit) {
	*into = Commit{Missing: MissingReserved}
	r.readMap(path, n,
		field{"reserve", func(path string, n Node) { r.readReservation(path, n, c, into) }},
		field{"commit", func(path string, n Node) { r.readCommit(path, n, into) }},
		field{"missing", func(path string, n Node) {
			switch {
			case n.Kind != String:
				r.readInteger(path, n, 0, MaxCost, &into.Missing)
			case n.Text != "reserved":
				r.failAt(path, "must be reserved, or a whole number from 0 on, not "+shorten(n.Text))
			}
		}},
		field{"unfinished", func(path string, n Node) { r.readUnfinished(path, n, into) }},
	)
	r.unfinishedFits(path, c, into)
	r.requireField(path, n, "reserve", ": name the cost that a request reserves")
	r.requireField(path, n, "commit", ": say where its cost is found, like {header: x-cost}")
}

// readReservation reads the cost that is taken before the final cost is known. A policy that takes
// nothing is refused, because all its requests would pass at once.
func (r *reader) readReservation(path string, n Node, c *Cost, into *Commit) {
	if n.Kind == Number {
		r.readInteger(path, n, 1, MaxCost, &c.Fixed)
		return
	}
	c.Invalid = 1
	sources := 0
	for _, key := range []string{"header", "jwt", "metadata"} {
		if containsText(n.Keys, key) {
			sources++
		}
	}
	r.mustHold(path, n.Kind != Map || sources == 1, "must have exactly one of header, jwt, metadata")
	r.readMap(path, n,
		field{"header", func(path string, n Node) { r.readBudgets(path, n, SourceHeader, c) }},
		field{"jwt", func(path string, n Node) { r.readBudgets(path, n, SourceJWT, c) }},
		field{"metadata", func(path string, n Node) { r.readBudgets(path, n, SourceMetadata, c) }},
		field{"max", func(path string, n Node) { r.readInteger(path, n, 1, MaxCost, &c.Max) }},
		field{"min", func(path string, n Node) { r.readInteger(path, n, 1, MaxCost, &into.Least) }},
		field{"missing", func(path string, n Node) { r.readInteger(path, n, 1, MaxCost, &c.Invalid) }},
	)
	r.requireField(path, n, "max", ": say the most that one request may reserve")
}

// readBudgets reads one source of a reservation, or a list of sources.
func (r *reader) readBudgets(path string, n Node, kind SourceKind, c *Cost) {
	if n.Kind != List {
		r.readCostSource(path, n, kind, c)
		return
	}
	r.mustHold(path, n.listSize() > 0, "is empty: name a source of the reservation")
	at := 0
	r.readLongList(path, n, MaxBudgets, func(path string, n Node) {
		name, ok := r.readSourceName(path, n, kind)
		switch {
		case !ok:
			return
		case at == 0:
			c.Source = Source{kind, name}
		case name == c.Source.Name || containsText(c.Also[:], name):
			r.failAt(path, "is named twice")
			return
		default:
			c.Also[at-1] = name
		}
		at++
	})
}

// readCommit reads where the cost of an answered request is found.
func (r *reader) readCommit(path string, n Node, c *Commit) {
	if len(n.Keys) != 1 {
		r.failAt(path, "must have exactly one of status, grpc_status, header, trailer, metadata, duration")
		return
	}
	r.readMap(path, n,
		field{"status", func(path string, n Node) { r.readStatuses(path, n, CommitStatus, c) }},
		field{"grpc_status", func(path string, n Node) { r.readStatuses(path, n, CommitGRPCStatus, c) }},
		field{"metadata", func(path string, n Node) {
			c.By = CommitMetadata
			c.Name, _ = r.readSourceName(path, n, SourceMetadata)
		}},
		field{"header", func(path string, n Node) {
			c.By = CommitHeader
			c.Name, _ = r.readHeaderName(path, n)
		}},
		field{"trailer", func(path string, n Node) {
			c.By = CommitTrailer
			c.Name, _ = r.readHeaderName(path, n)
		}},
		field{"duration", func(path string, n Node) {
			c.By, c.Unit = CommitDuration, quota.Second
			r.readSpan(path, n, quota.Millisecond, quota.Hour, &c.Unit)
		}},
	)
}

// readStatuses reads the costs of responses by their status: 401, or 5xx for a hundred statuses.
// gRPC statuses are numbers from 0 to 16.
func (r *reader) readStatuses(path string, n Node, by CommitBy, c *Commit) {
	c.By = by
	if n.Kind != Map || len(n.Keys) > MaxStatuses {
		r.failAt(path, "must be a mapping of at most 64 statuses, like {401: 1, 5xx: 0, rest: 0}")
		return
	}
	for i, key := range n.Keys {
		at := r.joinPath(path, key)
		first, last, ok := statusRange(key, by)
		if !ok || containsText(n.Keys[:i], key) {
			r.failAt(at, "must be a status like 401, a hundred of them like 5xx, or rest, each once; one of gRPC "+
				"is a number from 0 to 16")
			continue
		}
		one := StatusCost{First: first, Last: last}
		r.readInteger(at, n.Items[i], 0, MaxCost, &one.Cost)
		c.Statuses = append(c.Statuses, one)
	}
	r.requireField(path, n, "rest", ": write the cost of all other responses")
}

// statusRange returns the statuses that a key of a mapping names; false if it names none.
func statusRange(key string, by CommitBy) (first, last uint16, ok bool) {
	if key == "rest" {
		return 0, MaxStatus, true
	}
	if by == CommitStatus && len(key) == 3 && key[1:] == "xx" {
		first = uint16(key[0]-'0') * 100
		return first, first + 99, first >= 100 && first <= 500
	}
	status, ok := ParseCost([]byte(key), 599)
	if by == CommitGRPCStatus {
		return uint16(status), uint16(status), ok && status <= 16 && (len(key) == 1 || key[0] == '1')
	}
	return uint16(status), uint16(status), ok && status >= 100 && len(key) == 3
}

// commitFits refuses a cost that is known later where it cannot be exact.
func (r *reader) commitFits(path string, p *Policy) {
	if p.Commit.By == CommitNever {
		return
	}
	algorithm, what, why := p.Counting.Algorithm, "", ""
	own := false
	for _, l := range p.Limits {
		own = own || l.Own > 0
	}
	switch some, _ := p.InFlight(); {
	case some:
		what, why = "in_flight", "a request in flight takes one place, whatever it costs; write two policies"
	case len(p.Candidate) > 0:
		what, why = "candidate", "a draft's reservations would never be settled; write a policy in shadow"
	case p.Match.IsOfCalls():
		what, why = "match.domain", "calls to the gRPC rate limit service say nothing of the response"
	case algorithm.Queues():
		what, why = algorithm.String(), "a turn that was waited for cannot be given back; use token_bucket"
	case algorithm.Estimates():
		what, why = algorithm.String(), "its estimate does not know its requests; use sliding_window"
	case p.Mode == ModeOptimistic:
		what, why = "mode optimistic", "a request passes there before anything is reserved; use leased or strict"
	case own && !algorithm.Windowed() && p.Mode == ModeLocal:
		what = "figures of requests in a " + algorithm.String() + " in mode local"
		why = "use sliding_window, or leased or strict"
	default:
		return
	}
	r.failAt(path+".cost.commit", "cannot be with "+what+": "+why)
}

// ParseReserved returns the reserved cost in a value of a kind of source, at most most: decimal
// digits, or in a claim or in metadata a number, as Envoy holds it. It returns 0 for anything but a
// whole number from 1 on.
func ParseReserved(source SourceKind, value []byte, most int64) (n int64) {
	if source == SourceHeader {
		n, _ = digitsUpTo(value, most)
	} else {
		n, _ = numberUpTo(value, most)
	}
	return n
}

// ParseActual returns the final cost in a header or a trailer: decimal digits, of which more than
// MaxCost counts as MaxCost. It reports false if there is no cost.
func ParseActual(value []byte) (int64, bool) { return digitsUpTo(value, MaxCost) }

// heldNumber reads a number as Envoy holds it, and reports whether it is whole and not negative. It
// is 0 and false for anything else.
func heldNumber(value []byte) (number float64, whole bool) {
	if len(value) != 8 {
		return 0, false
	}
	number = math.Float64frombits(binary.LittleEndian.Uint64(value))
	return number, number >= 0 && number == math.Trunc(number)
}

// numberUpTo reads a number as Envoy holds it, or decimal digits, at most most; 0 and false for
// anything else.
func numberUpTo(value []byte, most int64) (int64, bool) {
	number, whole := heldNumber(value)
	switch {
	case number >= float64(most):
		return most, true
	case whole:
		return int64(number), true
	}
	return digitsUpTo(value, most)
}

// digitsUpTo reads decimal digits, at most most; 0 and false for anything else.
func digitsUpTo(value []byte, most int64) (n int64, ok bool) {
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = min(n*10+int64(c-'0'), most)
	}
	return n, len(value) > 0
}

// ParseStatus returns the status of a response, of HTTP or gRPC, from decimal digits. It returns
// false for anything else.
func ParseStatus(digits []byte) (status int, ok bool) {
	n, ok := ParseCost(digits, MaxStatus)
	return int(n), ok
}

// ParseCost reads decimal digits only: no sign, no fraction, and at most the highest cost.
func ParseCost(digits []byte, highest int64) (int64, bool) {
	n, ok := digitsUpTo(digits, highest+1)
	if n > highest {
		return 0, false
	}
	return n, ok
}
