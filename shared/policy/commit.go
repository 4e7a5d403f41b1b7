package policy

import "github.com/weir-proxy/weir/shared/quota"

// Commit says what a request has cost, which is known once it is answered; Cost is then what it
// reserves. The zero value is that of a policy whose costs are known before.
type Commit struct {
	By CommitBy
	// Name is the header that holds the cost, in lower case.
	Name string
	// Unit is the time that costs one token. A part of it costs a whole one.
	Unit quota.Span
	// Statuses are what responses cost by their status: the one with the fewest statuses counts.
	Statuses []StatusCost
	// Missing is the cost if the response does not say; below 0 it is what was reserved.
	Missing int64
}

// CommitBy is where the cost is found. Its number travels in snapshots: never renumber.
type CommitBy uint8

// The places where a cost is found.
const (
	CommitNever CommitBy = iota
	CommitStatus
	CommitHeader
	CommitDuration
)

// MissingReserved is the Commit.Missing that keeps what was reserved.
const MissingReserved = -1

// MaxStatuses bounds the statuses that a policy names.
const MaxStatuses = 64

// StatusCost is the cost of the responses with a status from First to Last.
type StatusCost struct {
	First, Last uint16
	Cost        int64
}

// ByStatus is what a response with this status has cost.
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

// ByDuration is what a request that took so long has cost.
func (c *Commit) ByDuration(took quota.Span) int64 {
	units := int64(max(took, 0) / c.Unit)
	if max(took, 0)%c.Unit > 0 {
		units++
	}
	return min(units, MaxCost)
}

// commitNotes are what an operator should know about costs that are known later.
func (p *Policy) commitNotes() (notes []string) {
	if p.Commit.By == CommitNever {
		return nil
	}
	notes = append(notes, "beyond that, of requests under way, what they cost more than they have reserved; "+
		"nothing where a reservation is the most that a request can cost")
	if p.Counting.Algorithm == quota.TokenBucket {
		notes = append(notes, "a reservation comes back by itself at the rate of the limit, and only what has not "+
			"come back yet is given back; windows give back all of it while it counts")
	}
	return append(notes, "a request that ends without a response costs what it has reserved")
}

// reserving reads the cost of requests that is known only later: what they reserve, and what they
// are found to have cost.
func (r *reader) reserving(path string, n Node, c *Cost, into *Commit) {
	*into = Commit{Missing: MissingReserved}
	r.object(path, n,
		field{"reserve", func(path string, n Node) { r.reservation(path, n, c) }},
		field{"commit", func(path string, n Node) { r.commit(path, n, into) }},
		field{"missing", func(path string, n Node) {
			if n.Kind != String || n.Text != "reserved" {
				r.integer(path, n, 0, MaxCost, &into.Missing)
			}
		}},
	)
	r.required(path, n, "reserve", ": say what a request takes before its cost is known")
	r.required(path, n, "commit", ": say where its cost is found, like {header: x-cost}")
}

// reservation reads what is taken before the cost is known. Nothing is refused: requests that take
// nothing would all pass at once.
func (r *reader) reservation(path string, n Node, c *Cost) {
	if n.Kind == Number {
		r.integer(path, n, 1, MaxCost, &c.Fixed)
		return
	}
	c.Invalid = 1
	r.object(path, n,
		field{"header", func(path string, n Node) { c.Header, _ = r.headerName(path, n) }},
		field{"max", func(path string, n Node) { r.integer(path, n, 1, MaxCost, &c.Max) }},
		field{"missing", func(path string, n Node) { r.integer(path, n, 1, MaxCost, &c.Invalid) }},
	)
	r.required(path, n, "header", ": name the header that holds the reservation")
	r.required(path, n, "max", ": say the most that one request may reserve")
}

// commit reads where the cost of an answered request is found.
func (r *reader) commit(path string, n Node, c *Commit) {
	if len(n.Keys) != 1 {
		r.problem(path, "must have exactly one of status, header, duration")
		return
	}
	r.object(path, n,
		field{"status", func(path string, n Node) { c.By = CommitStatus; r.statuses(path, n, c) }},
		field{"header", func(path string, n Node) {
			c.By = CommitHeader
			c.Name, _ = r.headerName(path, n)
		}},
		field{"duration", func(path string, n Node) {
			c.By, c.Unit = CommitDuration, quota.Second
			r.span(path, n, quota.Millisecond, quota.Hour, &c.Unit)
		}},
	)
}

// statuses reads what responses cost by their status: 401, or 5xx for a hundred of them.
func (r *reader) statuses(path string, n Node, c *Commit) {
	if n.Kind != Map || len(n.Keys) > MaxStatuses {
		r.problem(path, "must be a mapping of at most 64 statuses, like {401: 1, 5xx: 0, rest: 0}")
		return
	}
	for i, key := range n.Keys {
		at := r.join(path, key)
		first, last := statusRange(key)
		if last == 0 || contains(n.Keys[:i], key) {
			r.problem(at, "must be a status like 401, a hundred of them like 5xx, or rest, each once")
			continue
		}
		one := StatusCost{First: first, Last: last}
		r.integer(at, n.Items[i], 0, MaxCost, &one.Cost)
		c.Statuses = append(c.Statuses, one)
	}
	r.required(path, n, "rest", ": say what all other responses cost")
}

// statusRange is the statuses that a key of a mapping means; 0 and 0 for one that means none.
func statusRange(key string) (first, last uint16) {
	switch {
	case key == "rest":
		return 0, 999
	case len(key) != 3 || key[0] < '1' || key[0] > '5':
		return 0, 0
	}
	first = uint16(key[0]-'0') * 100
	if key[1:] == "xx" {
		return first, first + 99
	}
	tens, ones := key[1]-'0', key[2]-'0'
	if tens > 9 || ones > 9 {
		return 0, 0
	}
	first += uint16(tens)*10 + uint16(ones)
	return first, first
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
		what, why = "candidate", "what a draft had reserved would never be settled; write a policy in shadow"
	case p.Match.IsOfCalls():
		what, why = "match.domain", "calls to the gRPC rate limit service say nothing of the response"
	case algorithm == quota.LeakyBucket:
		what, why = "leaky_bucket", "a turn that was waited for cannot be given back; use token_bucket"
	case algorithm == quota.SlidingWindowCounter:
		what, why = "sliding_window_counter", "its estimate does not know its requests; use sliding_window"
	case p.Mode == ModeOptimistic || p.Mode == ModeLeased:
		what, why = "mode leased or optimistic", "this version settles in mode strict and local"
	case p.Mode == ModeStrict && algorithm == quota.TokenBucket:
		what, why = "token_bucket in mode strict", "this version settles windows there; use sliding_window"
	case own && algorithm == quota.TokenBucket:
		what, why = "figures of requests in a token_bucket", "use sliding_window"
	default:
		return
	}
	r.problem(path+".cost.commit", "cannot be with "+what+": "+why)
}

// ParseCost reads decimal digits only: no sign, no fraction, and at most the highest cost.
func ParseCost(digits []byte, highest int64) (int64, bool) {
	var n int64
	for _, c := range digits {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
		if n > highest {
			return 0, false
		}
	}
	return n, len(digits) > 0
}
