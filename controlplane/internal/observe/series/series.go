// Package series keeps the history of decisions in memory: an hour in slots of 10 seconds and a day
// in slots of 5 minutes, by policy and by node. Each replica counts in slots, stores them, and adds
// up the slots of all replicas from the store, so that all replicas show the same.
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

// Kind is a kind of slot, with its length.
type Kind string

// Fine slots are kept for an hour, Coarse slots for a day, each a little longer: some values are
// compared with an hour and a day ago.
const (
	Fine   Kind = "10s"
	Coarse Kind = "5m"

	// Tops are slots of package decisions: the heaviest callers.
	Tops Kind = "tops"
)

// The lengths of slots, and the number of slots kept.
const (
	fineStep, fineKept     = 10 * time.Second, 396
	coarseStep, coarseKept = 5 * time.Minute, 290
	topsKept               = 3
)

// Step returns the length of a slot.
func (k Kind) Step() time.Duration {
	if k != Fine {
		return coarseStep
	}
	return fineStep
}

// Kept returns the number of slots that are kept.
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

// At returns the slot of an instant.
func (k Kind) At(now time.Time) Slot { return Slot{k, now.UnixNano() / int64(k.Step())} }

var kinds = []Kind{Fine, Coarse}

// Slot is one span of time. Slots of a kind are numbered from 1970 on.
type Slot struct {
	Kind   Kind
	Number int64
}

// start returns the start of the slot.
func (s Slot) start() time.Time { return time.Unix(0, s.Number*int64(s.Kind.Step())) }

// Store keeps the slots of replicas, for as long as each kind is kept.
type Store interface {
	// PutSlot replaces the replica's text of a slot.
	PutSlot(ctx context.Context, slot Slot, replica string, text []byte) error
	// Slots returns for each slot the texts of all replicas, by replica.
	Slots(ctx context.Context, slots []Slot) ([]map[string][]byte, error)
}

// Outcome is a counted quantity.
type Outcome string

// Refused are requests that an enforced policy refused; the count is exact. Requests are decided
// requests, for each policy that applied; they are estimated from samples. Tokens are tokens that
// the control plane granted; they have no node. ShadowRefused and CandidateRefused are requests
// that a policy in shadow or a candidate limit would have refused. These counts are exact, except
// for requests whose outcome is not known: ShadowUndetermined and CandidateUndetermined.
//
// InFlight is the average number of requests in flight. Utilisation is the highest fill of any
// bucket, in percent: by tokens used, or by requests in flight.
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

// Outcomes are all outcomes, in the order of counts and of stored counts.
var Outcomes = []Outcome{
	Refused, Requests, Tokens, ShadowRefused, CandidateRefused, inFlight: InFlight, utilisation: Utilisation,
	ShadowUndetermined, CandidateUndetermined,
}

// Indexes of special counts: a utilisation is not added up, and requests in flight are counted in
// hundredths of a second of one request.
const (
	inFlight    = 5
	utilisation = 6
	outcomes    = 9
	hundredths  = 100
)

// index returns the index of an outcome in counts.
func (o Outcome) index() int { return slices.Index(Outcomes, o) }

// By is the kind of rows of a series.
type By string

// ByAll is the sum of all policies.
const (
	ByAll    By = "all"
	ByPolicy By = "policy"
	ByNode   By = "node"
)

// Every is the interval at which Run calls Tick.
const Every = 5 * time.Second

// maxOwn bounds the slots of each kind that a replica keeps until it can store them: ten minutes,
// two hours, and an hour.
var maxOwn = map[Kind]int64{Fine: 60, Coarse: 24, Callers: 12}

// Config configures a Service.
type Config struct {
	Store Store
	// Replica is the name of this control plane; no other has the same name.
	Replica string
	Now     func() time.Time
	Log     *slog.Logger
}

// Service is the history as this replica knows it. Make a Service with New. It is safe for
// concurrent use.
type Service struct {
	Config

	// ticking is held by Tick. The fields up to mu belong to Tick.
	ticking sync.Mutex
	// reread is the coarse slot in which the slots of a whole hour were last read.
	reread int64
	behind bool

	mu sync.Mutex
	// own has the slots that this replica has counted and that the store may lack.
	own   map[Slot]*tally
	rings map[Kind]*ring
	// versions are the Fine slots of the byVersion rows.
	versions *ring
	// back has tokens of policies that came back and are still to be subtracted.
	back map[string]int64
	// Only Tick uses callers.read.
	callers callers
	// complete is true if the last Tick reached the store.
	complete bool
	// ticked is closed at the next Tick.
	ticked chan struct{}
}

// New makes a Service. Call Tick or Run, so that it follows the store.
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
			// A caller that took another caller's place has that count too, so the sum is right.
			s.add(name, node, Requests, m.Callers[i].Count)
		}
	}
}

// Granted counts tokens that the control plane granted, less the tokens that came back. Later
// grants are reduced by these, because a count in a slot never falls.
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

// add counts in the present slots. The lock is held.
func (s *Service) add(policy, node string, of Outcome, n int64) {
	now := s.Now()
	for _, kind := range kinds {
		s.ownAt(kind.At(now)).addCount(policy, node, of.index(), n)
	}
}

// ownAt returns the counts of this replica in a slot. The lock is held.
func (s *Service) ownAt(slot Slot) *tally {
	t := s.own[slot]
	if t != nil {
		return t
	}
	t = newTally()
	s.own[slot] = t
	// Every number has a slot: Tick makes it even without counts.
	delete(s.own, Slot{slot.Kind, slot.Number - maxOwn[slot.Kind]})
	return t
}

// Run calls Tick until ctx ends.
func (s *Service) Run(ctx context.Context) {
	tick := func(ctx context.Context) {
		timed, cancel := context.WithTimeout(ctx, Every)
		defer cancel()
		if err := s.Tick(timed); err != nil {
			s.Log.Debug("cannot exchange the history with the store", "error", err.Error())
		}
	}
	tick(ctx)
	every.Period(ctx, Every, tick)
}

// Tick stores the new counts of this replica and reads the counts of all replicas. It returns the
// error of the store. After an error the history still contains all counts of this replica.
func (s *Service) Tick(ctx context.Context) error {
	s.ticking.Lock()
	defer s.ticking.Unlock()
	// Exchange slots and callers with the store; stop at the first error.
	now := s.Now()
	err := s.putSlots(ctx, now)
	if err == nil {
		err = s.takeSlots(ctx, now)
	}
	if err == nil {
		err = s.putCallers(ctx, now)
	}
	if err == nil {
		err = s.takeCallers(ctx, now)
	}
	// After an error, show at least this replica's own counts.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behind = err != nil
	s.complete = err == nil
	if err != nil {
		for slot, t := range s.own {
			s.rings[slot.Kind].raiseSlot(slot.Number, t)
			if slot.Kind == Fine {
				s.versions.raiseSlot(slot.Number, t)
			}
		}
	}
	// Wake the readers that wait for new counts.
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

// putSlots stores the slots of this replica that have changed since they were stored. A slot no
// longer changes once the next slot is over; then it is forgotten.
func (s *Service) putSlots(ctx context.Context, now time.Time) error {
	s.mu.Lock()
	texts := map[Slot][]byte{}
	for _, kind := range kinds {
		s.ownAt(kind.At(now)) // A slot without counts is stored too.
	}
	for slot, t := range s.own {
		if !t.stored {
			texts[slot] = t.encode()
			t.stored = true
		}
	}
	s.mu.Unlock()
	// Store them; after an error all are stored again.
	for slot, text := range texts {
		if err := s.Store.PutSlot(ctx, slot, s.Replica, text); err != nil {
			s.markUnstored(texts)
			return err
		}
	}
	// Forget slots that no longer change.
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range s.own {
		if slot.Number < slot.Kind.At(now).Number-1 {
			delete(s.own, slot)
		}
	}
	return nil
}

// markUnstored marks slots, so that they are stored again.
func (s *Service) markUnstored(texts map[Slot][]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot := range texts {
		if t := s.own[slot]; t != nil {
			t.stored = false
		}
	}
}

// chunk is the number of slots in one read.
const chunk = 50

// takeSlots reads the slots that may have changed: the present slot and the two before. Once in
// each coarse slot it reads the whole last hour, because a replica that was cut off stores its
// slots late. The first time it reads all slots.
func (s *Service) takeSlots(ctx context.Context, now time.Time) error {
	// Select the slots.
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
	// Read them in chunks, and replace the counts in the rings.
	for part := range slices.Chunk(slots, chunk) {
		texts, err := s.Store.Slots(ctx, part)
		if err != nil {
			return err
		}
		s.mu.Lock()
		for i, slot := range part {
			t := sumTexts(texts[i])
			s.rings[slot.Kind].setSlot(slot.Number, t)
			if slot.Kind == Fine {
				s.versions.setSlot(slot.Number, t)
			}
		}
		s.mu.Unlock()
	}
	s.reread = turn
	return nil
}
