package assign

import (
	"slices"

	"github.com/weir-proxy/weir/shared/quota"
)

// Pool is one bucket as one control plane assigns it: the filters that report it, and the time of
// the next assignment to each filter. The zero value has no filters. The ledger decides how much
// the filters may admit.
type Pool struct {
	holders []holder
	// ttl is the TTL of the last round. first rotates: it is the index of the filter that gets the
	// first odd token in the next round.
	ttl   quota.Span
	first int
}

type holder struct {
	filter uint64
	demand Demand
	due    quota.Instant
}

// Report notes n requests that a filter had, and reports whether the filter is new. A new filter is
// due at once.
func (p *Pool) Report(now quota.Instant, filter uint64, n int64) (fresh bool) {
	at, known := p.find(filter)
	if !known {
		p.holders = slices.Insert(p.holders, at, holder{filter: filter, due: now})
	}
	h := &p.holders[at]
	h.demand = h.demand.Report(now, n)
	return !known
}

// Leave forgets a filter. Its assigned tokens stay leased.
func (p *Pool) Leave(filter uint64) {
	if at, known := p.find(filter); known {
		p.holders = slices.Delete(p.holders, at, at+1)
	}
}

// Size returns the number of filters.
func (p *Pool) Size() int { return len(p.holders) }

// Due returns the time of the next assignment; quota.Forever without filters.
func (p *Pool) Due() quota.Instant {
	due := quota.Forever
	for i := range p.holders {
		due = min(due, p.holders[i].due)
	}
	return due
}

// Hurry makes every filter due now.
func (p *Pool) Hurry(now quota.Instant) {
	for i := range p.holders {
		p.holders[i].due = min(p.holders[i].due, now)
	}
}

// Forgotten is a filter that Pool.Open has removed from the pool.
type Forgotten struct {
	Filter uint64
	// Silent is true if the filter has not reported for a long time. Otherwise the bucket has had
	// no request for a long time, and the filter needs a message to forget it.
	Silent bool
}

// Open begins a round with the filters that are due. It forgets silent filters and filters without
// requests. Jitter is in [0, 1024). A filter that came between two rounds joins the next round.
func (p *Pool) Open(now quota.Instant, f Figures, jitter int64) (r Round, forgotten []Forgotten) {
	// Forget the silent and the idle filters that are due.
	p.holders = slices.DeleteFunc(p.holders, func(h holder) bool {
		silent := h.demand.gone(now)
		if h.due > now || !silent && !isIdle(h.demand, now, p.ttl) {
			return false
		}
		forgotten = append(forgotten, Forgotten{h.filter, silent})
		return true
	})
	// Plan the round. It ends when the first filter outside it is due.
	demands := make([]Demand, len(p.holders))
	for i := range p.holders {
		demands[i] = p.holders[i].demand
	}
	ttl, rates, all := planRates(f, demands)
	r.TTL, r.Span = ttl, roundLength(ttl, jitter)
	for i := range p.holders {
		if due := p.holders[i].due; due > now {
			r.Span = min(r.Span, quota.Span(due-now))
		}
	}
	// Ask for the tokens of the filters that are due.
	spare := surplusPerFilter(f, len(p.holders), all, r.Span)
	for i := range p.holders {
		if p.holders[i].due <= now {
			n := rates[i] * float64(r.Span) / float64(quota.Second)
			r.Filters = append(r.Filters, p.holders[i].filter)
			r.Wants = append(r.Wants, min(wantedTokens(n, all > f.Rate, spare), f.Burst, MaxTokens))
		}
	}
	p.ttl = ttl
	return r, forgotten
}

// Close ends a round for which granted requests were granted, and returns the requests that each of
// its filters may admit.
func (p *Pool) Close(now quota.Instant, r Round, granted int64) []int64 {
	for _, filter := range r.Filters {
		if at, known := p.find(filter); known {
			p.holders[at].due = now + quota.Instant(r.Span)
		}
	}
	p.first++
	return Split(granted, r.Wants, p.first%max(len(r.Wants), 1))
}

func (p *Pool) find(filter uint64) (at int, known bool) {
	return slices.BinarySearchFunc(p.holders, filter, func(h holder, f uint64) int {
		switch {
		case h.filter < f:
			return -1
		case h.filter > f:
			return 1
		}
		return 0
	})
}
