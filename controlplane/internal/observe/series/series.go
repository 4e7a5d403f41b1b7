// Package series keeps the history of decisions in memory: an hour in slots of 10 seconds and a day
// in slots of 5 minutes, by policy and by node. Each replica counts what it hears in slots, puts
// them into the store, and adds up what all replicas have put there, so that all show the same.
package series

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/wire"
)

// Kind is a length of slots.
type Kind string

// Fine slots are kept for an hour, Coarse ones for a day. What is compared with an hour and a day
// ago needs some more of both.
const (
	Fine   Kind = "10s"
	Coarse Kind = "5m"

	// Tops are of the package decisions: the heaviest callers.
	Tops Kind = "tops"
)

// The lengths of slots, and how many of them are kept.
const (
	fineStep, fineKept     = 10 * time.Second, 396
	coarseStep, coarseKept = 5 * time.Minute, 290
	topsKept               = 3
)

// Step is the length of a slot.
func (k Kind) Step() time.Duration {
	if k != Fine {
		return coarseStep
	}
	return fineStep
}

// Kept is how many slots are kept.
func (k Kind) Kept() int64 {
	switch k {
	case Tops:
		return topsKept
	case Coarse:
		return coarseKept
	case Callers:
		return callersKept
	}
	return fineKept
}

// At is the slot of an instant.
func (k Kind) At(now time.Time) Slot { return Slot{k, now.UnixNano() / int64(k.Step())} }

var kinds = []Kind{Fine, Coarse}

// Slot is one span of time. Slots of a kind are numbered from 1970 on.
type Slot struct {
	Kind   Kind
	Number int64
}

// start is when the slot begins.
func (s Slot) start() time.Time { return time.Unix(0, s.Number*int64(s.Kind.Step())) }

// Store keeps what replicas have counted in slots, for as long as the slots are kept.
type Store interface {
	// PutSlot keeps text in place of what the replica has put before.
	PutSlot(ctx context.Context, slot Slot, replica string, text []byte) error
	// Slots returns for each slot what each replica has put.
	Slots(ctx context.Context, slots []Slot) ([]map[string][]byte, error)
}

// Outcome is what is counted.
type Outcome string

// Refused are the requests that an enforced policy refused; they are exact. Requests are those that
// were decided, for each policy that applied; they are estimated from samples. Tokens are those
// that the control plane granted; they have no node. ShadowRefused and CandidateRefused are the
// requests that a policy in shadow and a candidate limit would have refused; they are exact but for
// ShadowUndetermined and CandidateUndetermined, of which these do not know what they would have
// done.
//
// InFlight is how many requests were in flight on average. Utilisation is how full the fullest
// bucket was at most, in percent: by tokens used, or by requests in flight.
const (
	Refused          Outcome = "refused"
	Requests         Outcome = "requests"
	Tokens           Outcome = "tokens"
	ShadowRefused    Outcome = "shadow_refused"
	CandidateRefused Outcome = "candidate_refused"
	InFlight         Outcome = "in_flight"
	Utilisation      Outcome = "utilisation"

	ShadowUndetermined    Outcome = "shadow_undetermined"
	CandidateUndetermined Outcome = "candidate_undetermined"
)

// Outcomes are all, in the order of counts. That of stored counts is the same.
var Outcomes = []Outcome{
	Refused, Requests, Tokens, ShadowRefused, CandidateRefused, inFlight: InFlight, utilisation: Utilisation,
	ShadowUndetermined, CandidateUndetermined,
}

// Places among counts that need care: a utilisation is not added up, and what was in flight is
// counted in hundredths of a second, each for one request.
const (
	inFlight    = 5
	utilisation = 6
	outcomes    = 9
	hundredths  = 100
)

// index is that of an outcome among counts.
func (o Outcome) index() int { return slices.Index(Outcomes, o) }

// By is what a series is about.
type By string

// ByAll is the sum of all policies.
const (
	ByAll    By = "all"
	ByPolicy By = "policy"
	ByNode   By = "node"
)

// Every is how often Run calls Tick.
const Every = 5 * time.Second

// maxOwn bounds the slots of each kind that a replica holds until the store takes them: ten minutes
// and two hours.
var maxOwn = map[Kind]int64{Fine: 60, Coarse: 24, Callers: 12}

// Config is what a Service stands on.
type Config struct {
	Store Store
	// Replica is a name that no other control plane has.
	Replica string
	Now     func() time.Time
	Log     *slog.Logger
}

// Service is the history as this replica knows it. Make one with New. It is safe for concurrent
// use.
type Service struct {
	Config

	// ticking is held by Tick. Its fields follow.
	ticking sync.Mutex
	// reread is the coarse slot in which all slots of an hour were read last.
	reread int64
	behind bool

	mu sync.Mutex
	// own is what this replica has counted in slots that the store may lack.
	own   map[Slot]*tally
	rings map[Kind]*ring
	// versions are the Fine slots of the byVersion rows.
	versions *ring
	// back are tokens of policies that went back and have not made their figures less yet.
	back map[string]int64
	// callers.read belongs to Tick.
	callers callers
	// complete: the last Tick has reached the store.
	complete bool
	// ticked is closed by the next Tick.
	ticked chan struct{}
}

// New makes a Service. Call Tick, or Run, to have it follow the store.
func New(c Config) *Service {
	return &Service{
		Config: c, own: map[Slot]*tally{}, ticked: make(chan struct{}),
		callers: callers{own: map[int64]*samples{}},
		back:    map[string]int64{},
		rings:   map[Kind]*ring{Fine: newRing(fineKept), Coarse: newRing(coarseKept)},
		versions: &ring{kept: versionsKept, ofVersions: true, known: make([]bool, versionsKept), rows: map[row]*line{},
			of: map[By]int{}},
	}
}

// Heard counts a node's report about a policy set. It has the form of decisions.Config.Heard.
func (s *Service) Heard(c *policies.Compiled, m *wire.Decisions) {
	node := string(m.Node)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range m.Counts {
		if name, ok := c.NameOf(one.Policy); ok && c.HasTier(one.Tier) {
			s.add(name, node, Refused, one.Refused)
		}
	}
	s.refusedCallers(c, m)
	for i := range m.Callers {
		if name, ok := c.NameOf(m.Callers[i].Policy); ok && c.HasTier(m.Callers[i].Tier) {
			// A caller that took another's place has its count as well, so the sum is right.
			s.add(name, node, Requests, m.Callers[i].Count)
		}
	}
}

// Granted counts tokens that the control plane granted, without those that went back. These count
// less among the next ones: what a slot has counted stays.
func (s *Service) Granted(policy string, tokens, back int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if back > 0 && (s.back[policy] > 0 || len(s.back) < maxPolicies) {
		s.back[policy] += back
	}
	if tokens <= 0 {
		return
	}
	if less := min(s.back[policy], tokens); less > 0 {
		tokens -= less
		if s.back[policy] -= less; s.back[policy] == 0 {
			delete(s.back, policy)
		}
	}
	s.add(policy, "", Tokens, tokens)
}

// add counts in the slots of now. The lock is held.
func (s *Service) add(policy, node string, of Outcome, n int64) {
	now := s.Now()
	for _, kind := range kinds {
		s.ownAt(kind.At(now)).add(policy, node, of.index(), n)
	}
}

// ownAt is what this replica counts in a slot. The lock is held.
func (s *Service) ownAt(slot Slot) *tally {
	t := s.own[slot]
	if t != nil {
		return t
	}
	t = newTally()
	s.own[slot] = t
	// There is a slot of each number: Tick makes it even if nothing is counted.
	delete(s.own, Slot{slot.Kind, slot.Number - maxOwn[slot.Kind]})
	return t
}

// Run calls Tick until ctx ends.
func (s *Service) Run(ctx context.Context) {
	tick := func(ctx context.Context) {
		timed, cancel := context.WithTimeout(ctx, Every)
		defer cancel()
		if err := s.Tick(timed); err != nil {
			s.Log.Debug("the history could not be exchanged", "error", err.Error())
		}
	}
	tick(ctx)
	every.Period(ctx, Every, tick)
}

// Tick puts what is new into the store and takes in what all replicas have there. After an error,
// of the store, the history has at least what this replica heard.
func (s *Service) Tick(ctx context.Context) error {
	s.ticking.Lock()
	defer s.ticking.Unlock()
	now := s.Now()
	err := s.put(ctx, now)
	if err == nil {
		err = s.take(ctx, now)
	}
	if err == nil {
		err = s.putCallers(ctx, now)
	}
	if err == nil {
		err = s.takeCallers(ctx, now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behind = err != nil
	s.complete = err == nil
	if err != nil {
		for slot, t := range s.own {
			s.rings[slot.Kind].raise(slot.Number, t)
			if slot.Kind == Fine {
				s.versions.raise(slot.Number, t)
			}
		}
	}
	close(s.ticked)
	s.ticked = make(chan struct{})
	return err
}

// Ticked returns a channel that the next Tick closes.
func (s *Service) Ticked() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ticked
}

// put stores this replica's slots that it has not yet stored as they are. Nothing is added to a
// slot once the one behind it is over; it is forgotten then.
func (s *Service) put(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	texts := map[Slot][]byte{}
	for _, kind := range kinds {
		s.ownAt(kind.At(now)) // A slot without counts is known too.
	}
	for slot, t := range s.own {
		if !t.stored {
			texts[slot] = t.encode()
			t.stored = true
		}
	}
	s.mu.Unlock()
	for slot, text := range texts {
		if err := s.Store.PutSlot(ctx, slot, s.Replica, text); err != nil {
			s.unstored(texts)
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range s.own {
		if slot.Number < slot.Kind.At(now).Number-1 {
			delete(s.own, slot)
		}
	}
	return nil
}

// unstored has slots stored again.
func (s *Service) unstored(texts map[Slot][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range texts {
		if t := s.own[slot]; t != nil {
			t.stored = false
		}
	}
}

// chunk is how many slots are read at a time.
const chunk = 50

// take reads the slots that may have changed: the present one and the two before, and now and then
// all of the last hour, since a replica that was cut off puts its slots later. The first time it
// reads all that is kept.
func (s *Service) take(ctx context.Context, now time.Time) error {
	var slots []Slot
	turn := Coarse.At(now).Number
	for _, kind := range kinds {
		count := int64(3)
		switch {
		case s.reread == 0:
			count = kind.Kept()
		case s.reread != turn || s.behind:
			count = max(int64(time.Hour/kind.Step()), maxOwn[kind])
		}
		newest := kind.At(now).Number
		for n := newest - count + 1; n <= newest; n++ {
			slots = append(slots, Slot{kind, n})
		}
	}
	for part := range slices.Chunk(slots, chunk) {
		texts, err := s.Store.Slots(ctx, part)
		if err != nil {
			return err
		}
		s.mu.Lock()
		for i, slot := range part {
			t := sum(texts[i])
			s.rings[slot.Kind].set(slot.Number, t)
			if slot.Kind == Fine {
				s.versions.set(slot.Number, t)
			}
		}
		s.mu.Unlock()
	}
	s.reread = turn
	return nil
}
