package penalties

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// maxCallers is the number of callers that an Enforcer remembers. If it is reached, a new
	// caller replaces one of someFew others; see makeRoom.
	maxCallers = 1 << 16
	someFew    = 8
	// maxPending bounds the penalties that wait to be reported.
	maxPending = 1024
	// reportTime is the time limit of a report.
	reportTime = time.Second
	// shortestPause and longestPause bound the pause after a report that failed.
	shortestPause = 100 * time.Millisecond
	longestPause  = 5 * time.Second
)

// Caller is the caller of a request, for the penalties of one policy.
type Caller struct {
	// Key is the PenaltyKey of a match.Subject, Shadow its Shadow.
	Key    keyhash.Key
	Shadow bool
	// Policy is the policy's name, Rule its rule of penalties, Version the version of its policy
	// set.
	Policy  string
	Rule    *penalty.Rule
	Version uint64
}

// Enforcer refuses callers of this replica's gRPC services that are under a penalty, and finds
// offences, as the filter does in an Envoy. Make an Enforcer with NewEnforcer, and call Run in a
// goroutine. It is safe for concurrent use.
type Enforcer struct {
	service *Service
	node    []byte
	random  func() uint64

	mu      sync.Mutex
	callers map[keyhash.Key]offender
	// pending are the penalties that wait to be reported, the oldest first. The first of them are
	// under way; sending is their number.
	pending []wire.Offence
	sending int
	wake    chan struct{}
}

// offender is the state of one caller.
type offender struct {
	penalty.Record
	refusals penalty.Refusals
	// known is the service's revision up to which the record contains changes.
	known uint64
	// last is the time of the last refusal, in Unix milliseconds.
	last int64
}

// NewEnforcer makes an Enforcer that reports under a node's name. random decides the jitter; nil
// means a real random source.
func NewEnforcer(s *Service, node string, random func() uint64) *Enforcer {
	if random == nil {
		random = rand.Uint64
	}
	return &Enforcer{
		service: s, node: []byte(node), random: random,
		callers: map[keyhash.Key]offender{}, wake: make(chan struct{}, 1),
	}
}

// Find returns the rest of a caller's penalty, 0 if none is in force. If the rule says so, the
// penalty starts again; then Find calls who for the identity of the caller.
func (e *Enforcer) Find(c *Caller, who func() *wire.Identity) quota.Span {
	now := e.service.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.stateOf(c.Key)
	if !o.InForce(now.UnixMilli()) {
		return 0
	}
	if c.Rule.Extend {
		if next := c.Rule.Prolong(o.Record, now.UnixMilli(), e.random()); next != o.Record {
			o.Record = next
			e.keep(c.Key, o)
			e.queueReport(c, &o, who(), true)
		}
	}
	return o.left(now)
}

// CountRefusal counts a refusal of a caller by a policy whose quota is used up. It returns the rest
// of a penalty, also of a penalty in shadow; 0 if there is none.
func (e *Enforcer) CountRefusal(c *Caller, who *wire.Identity) quota.Span {
	now := e.service.Now()
	at := now.UnixMilli()
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.stateOf(c.Key)
	if !o.InForce(at) { // Otherwise another refusal of this caller has just begun a penalty.
		o.last = at
		offence := o.refusals.Add(c.Rule, at)
		if offence {
			o.Record = c.Rule.Offend(o.Record, at, e.random())
		}
		e.keep(c.Key, o)
		if offence {
			e.queueReport(c, &o, who, false)
		}
	}
	return o.left(now)
}

// left returns the rest of the penalty, 0 if none is in force.
func (o *offender) left(now time.Time) quota.Span {
	if !o.InForce(now.UnixMilli()) {
		return 0
	}
	return quota.Span(o.Until)*quota.Millisecond - quota.Span(now.UnixMicro())
}

// stateOf returns the state of a caller from this Enforcer and from the service. The lock is held.
func (e *Enforcer) stateOf(key keyhash.Key) offender {
	o := e.callers[key]
	held, state := e.service.held(key)
	if o.known < state.Cleared || held.Level == 0 && o.known < held.Revision {
		o = offender{} // The caller was pardoned.
	}
	if held.Beats(o.Record) {
		o.Record, o.refusals = held.Record, penalty.Refusals{}
	}
	o.known = state.Revision
	return o
}

// keep remembers a caller. The lock is held.
func (e *Enforcer) keep(key keyhash.Key, o offender) {
	if _, known := e.callers[key]; !known && len(e.callers) >= maxCallers {
		e.makeRoom()
	}
	e.callers[key] = o
}

// makeRoom forgets one of someFew callers: the one whose last refusal or penalty's end is earliest.
func (e *Enforcer) makeRoom() {
	var first keyhash.Key
	least, seen := int64(0), 0
	for key, o := range e.callers {
		if at := max(o.last, o.Until); seen == 0 || at < least {
			first, least = key, at
		}
		if seen++; seen == someFew {
			break
		}
	}
	delete(e.callers, first)
}

// queueReport adds a caller's penalty to the pending penalties and wakes Run. If a penalty of the
// caller is pending already, the new penalty takes its place. The lock is held.
func (e *Enforcer) queueReport(c *Caller, o *offender, who *wire.Identity, prolonged bool) {
	offence := wire.Offence{
		Key: c.Key, Known: o.known, Policy: []byte(c.Policy), Level: uint8(o.Level), Until: o.Until,
		Forgotten: c.Rule.Forgotten(o.Record), Shadow: c.Shadow, Prolonged: prolonged, Version: c.Version,
		Identity: who.Clone(),
	}
	waiting := e.pending[e.sending:] // Deliver is sending the penalties before them.
	i := slices.IndexFunc(waiting, func(p wire.Offence) bool { return p.Key == offence.Key })
	switch {
	case i >= 0:
		// The report is about a new penalty if either of the two penalties is new.
		offence.Prolonged = prolonged && waiting[i].Prolonged
		waiting[i] = offence
	case len(e.pending) >= maxPending:
		e.service.Meter.PenaltiesFull(1)
	default:
		e.pending = append(e.pending, offence)
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// Deliver sends the pending penalties. If the service does not accept them, they stay pending.
func (e *Enforcer) Deliver(ctx context.Context) error {
	for {
		e.mu.Lock()
		e.sending = min(len(e.pending), wire.MaxOffences)
		m := wire.Offences{Node: e.node, Items: slices.Clone(e.pending[:e.sending])}
		e.mu.Unlock()
		if len(m.Items) == 0 {
			return nil
		}
		err := e.service.Report(ctx, &m)
		e.mu.Lock()
		if err == nil {
			e.pending = slices.Delete(e.pending, 0, e.sending)
		}
		e.sending = 0
		e.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// Run reports penalties until ctx ends.
func (e *Enforcer) Run(ctx context.Context) {
	pause := shortestPause
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.wake:
		}
		for ctx.Err() == nil {
			timed, cancel := context.WithTimeout(ctx, reportTime)
			err := e.Deliver(timed)
			cancel()
			if err == nil {
				pause = shortestPause
				break
			}
			e.service.Log.Debug("cannot report penalties; they are reported again later", "error", err.Error())
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, longestPause)
		}
	}
}
