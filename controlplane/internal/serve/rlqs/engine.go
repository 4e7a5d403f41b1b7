// Package rlqs is the door for the native quota filter of Envoy (rate_limit_quota). It takes the
// filters' reports, asks package assign for the share of each filter, takes the tokens for it from
// the ledgers that all other doors use too, and sends the assignments.
package rlqs

import (
	"context"
	"math/rand/v2"
	"sync"

	"github.com/weir-proxy/weir/controlplane/internal/serve/assign"
	"github.com/weir-proxy/weir/shared/quota"
)

// Verdict is the policies' decision about a bucket as a whole.
type Verdict uint8

const (
	// Unknown: the policies cannot decide now. Nothing is assigned, and earlier assignments run
	// out.
	Unknown Verdict = iota
	// Limited: the bucket gets tokens of its limits.
	Limited
	// Allowed: no policy that is enforced limits the bucket.
	Allowed
	// Denied: a ban or a penalty refuses every request of the bucket, or a policy refuses it
	// because the bucket lacks the partition key or the cost.
	Denied
)

// ID is one bucket of the filters.
type ID struct {
	Domain string
	// Entries are the bucket's keys and values, and Name the same as one text.
	Entries map[string]string
	Name    string
}

// Standing is the state of one bucket by the policies in force.
type Standing struct {
	Verdict Verdict
	Figures assign.Figures
	// Limits is the Source's own data. The Source needs it to take tokens.
	Limits any
}

// Ask asks for tokens of one bucket, enough for Want requests, to be used within Lease.
type Ask struct {
	ID     ID
	Limits any
	Want   int64
	Lease  quota.Span
	// Granted is the answer: the number of requests that may be admitted. Level is the number of
	// further requests that the limits hold. Failed is true if the store gave no answer.
	Granted, Level int64
	Failed         bool
}

// Source knows the policies and has the tokens.
type Source interface {
	// Stand returns the standing of a bucket.
	Stand(ctx context.Context, id ID) Standing
	// Take takes tokens for all asks, and writes the answers into them.
	Take(ctx context.Context, asks []Ask)
}

// Kind is the kind of an assignment.
type Kind uint8

// The kinds.
const (
	Assign Kind = iota
	Allow
	Deny
	Abandon
)

// Action is one assignment to one filter.
type Action struct {
	Kind   Kind
	Bucket assign.Bucket
	TTL    quota.Span
	ID     ID
	// By is the latest time at which it may be sent; quota.Forever if it may be late.
	By quota.Instant
}

// Outlet takes the assignments of one filter. Offer must not block.
type Outlet interface{ Offer(actions []Action) }

// bucket is a pool with its place in the order of due times.
type bucket struct {
	id   ID
	pool assign.Pool
	// level is the number of requests that the limits held after the last grant; -1 before.
	level int64
	// verdict and figures are from the last standing of the bucket. look is the time of the next
	// check.
	verdict Verdict
	figures assign.Figures
	look    quota.Instant
	due     quota.Instant
	at      int // in Engine.order; -1 if it is not there
}

// Engine assigns. It has no clock: callers give the time. It is safe for concurrent use.
type Engine struct {
	source Source
	jitter func() int64

	mu      sync.Mutex
	buckets map[string]*bucket
	order   order
	outlets map[uint64]*outlet
	next    uint64
	holders int
	most    Room
	wake    chan struct{}
}

type outlet struct {
	to      Outlet
	buckets map[string]*bucket
}

// Room is the largest number of assignments that an Engine keeps: All for all filters together,
// Each for one filter. An assignment that a filter has given up, or reports no more, takes no room.
type Room struct{ All, Each int }

// NewEngine makes an Engine with the room of most. Jitter may be nil.
func NewEngine(source Source, most Room, jitter func() int64) *Engine {
	if jitter == nil {
		jitter = func() int64 { return rand.Int64N(1024) }
	}
	return &Engine{
		source: source, jitter: jitter, most: most,
		buckets: map[string]*bucket{}, outlets: map[uint64]*outlet{}, wake: make(chan struct{}, 1),
	}
}

// Join adds a filter and returns its number.
func (e *Engine) Join(to Outlet) (filter uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.next++
	e.outlets[e.next] = &outlet{to, map[string]*bucket{}}
	return e.next
}

// Leave removes a filter. Its assigned tokens stay leased until their time is over.
func (e *Engine) Leave(filter uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.outlets[filter] == nil {
		return
	}
	for _, b := range e.outlets[filter].buckets {
		b.pool.Leave(filter)
		e.holders--
		e.settleBucket(b)
	}
	delete(e.outlets, filter)
}

// Report notes that a filter had n requests for a bucket since its last report. It reports false if
// there is no room for the bucket.
func (e *Engine) Report(now quota.Instant, filter uint64, id ID, n int64) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	b := e.buckets[id.Name]
	from := e.outlets[filter]
	if from == nil {
		return true
	}
	if from.buckets[id.Name] == nil && (e.holders >= e.most.All || len(from.buckets) >= e.most.Each) {
		return false
	}
	if b == nil {
		b = &bucket{id: id, level: -1, at: -1}
		e.buckets[id.Name] = b
	}
	if b.pool.Report(now, filter, n) {
		e.holders++
		from.buckets[id.Name] = b
		e.settleBucket(b)
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
	return true
}

// Holders returns the number of assignments that the engine keeps.
func (e *Engine) Holders() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.holders
}

// Filters returns the number of filters.
func (e *Engine) Filters() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.outlets)
}

// Due returns the time of the next assignment or check; quota.Forever if there is none.
func (e *Engine) Due() quota.Instant {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.order) == 0 {
		return quota.Forever
	}
	return e.order[0].due
}

// settleBucket puts a bucket in its place in the order, or forgets it if no filter has it.
func (e *Engine) settleBucket(b *bucket) {
	b.due = min(b.pool.Due(), b.look)
	e.order.put(b)
	if b.pool.Size() == 0 {
		e.order.remove(b)
		if e.buckets[b.id.Name] == b { // It may have come back while its round was open.
			delete(e.buckets, b.id.Name)
		}
	}
}
