package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
)

// maxTaken is the largest distance of a node's number above the store's highest number that still
// counts. So no node can use up the numbers.
const maxTaken = 64

// attempts bounds how often a change waits until the store has its lost versions back.
const attempts = 5

// Taken records the number of a node's version: no later version gets this number.
func (s *Service) Taken(number uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if number > s.taken && number <= s.active.State.Newest+maxTaken {
		s.taken = number
	}
}

// nextNumber returns the number of the next version: above all numbers that the store, this replica
// and its nodes know.
func (s *Service) nextNumber(state State) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest := max(state.Newest, state.Current, s.active.State.Newest)
	if s.taken > newest && s.taken <= newest+maxTaken {
		newest = s.taken
	}
	return newest + 1
}

// Refresh reads the versions in force from the store and returns the current version, nil if the
// store is empty. After an error the versions in force stay. If the store has lost versions in
// force that this replica has, this replica gives them back.
func (s *Service) Refresh(ctx context.Context) (*Compiled, error) {
	state, err := s.store.State(ctx)
	if err != nil {
		return nil, err
	}
	held, _ := s.Active()
	s.logIfRestored(state, held)
	switch {
	// Nothing has changed, or this replica has nothing yet.
	case held.Current == nil && state.Current == 0:
		return nil, nil
	case held.Current == nil:
		return s.adopt(ctx, state)
	case state.same(held.State):
		return held.Current, nil
	// The store has lost a version, or has another version with the same number.
	case state.behind(held.State), state.lacks(held.State):
		return s.restoreStore(ctx, state, held)
	case state.reused(held.State):
		return s.renumber(ctx, state, held)
	}
	if err := s.noteMissing(ctx, state, held); err != nil {
		return nil, err
	}
	return s.adopt(ctx, state)
}

// Follow reads the versions like Refresh, unless a poll shows that this replica already has the
// store's state. state is nil if the poll could not read it.
func (s *Service) Follow(ctx context.Context, state *State) error {
	if state != nil {
		held, _ := s.Active()
		s.logIfRestored(*state, held)
		if held.Current == nil && state.Current == 0 || held.Current != nil && state.same(held.State) {
			return nil
		}
	}
	_, err := s.Refresh(ctx)
	return err
}

// settled returns the store's state, once the store has back the versions that it lost and this
// replica has.
func (s *Service) settled(ctx context.Context) (State, error) {
	for range attempts {
		state, err := s.store.State(ctx)
		held, _ := s.Active()
		lost := state.behind(held.State) || state.lacks(held.State) || state.reused(held.State)
		if err != nil || held.Current == nil || !lost {
			return state, err
		}
		if _, err := s.Refresh(ctx); err != nil {
			return state, err
		}
	}
	return State{}, errs.Conflict
}

// adopt puts the store's versions into force on this replica.
func (s *Service) adopt(ctx context.Context, state State) (now *Compiled, err error) {
	active := Active{State: state}
	active.Current, err = s.exact(ctx, state.Current, state.Digest)
	if err == nil && state.Rollout != nil {
		active.Draft, err = s.exact(ctx, state.Rollout.Version, state.DraftDigest)
	}
	if errors.Is(err, errs.Conflict) { // The store has changed again since; the next poll finds its state.
		now, _ := s.Current()
		return now, nil
	}
	if err != nil {
		return nil, err
	}
	return s.advance(active), nil
}

// advance puts versions into force unless newer versions are in force, and returns the current
// version.
func (s *Service) advance(next Active) *Compiled {
	s.mu.Lock()
	defer s.mu.Unlock()
	if held := s.active; held.Current != nil && (next.State.same(held.State) || next.State.behind(held.State)) {
		return held.Current
	}
	s.active = next
	s.remember(next.Current)
	if next.Draft != nil {
		s.remember(next.Draft)
	}
	close(s.changed)
	s.changed = make(chan struct{})
	return next.Current
}

// restoreStore gives the store back the versions that it lost and this replica has. If another
// replica does so at the same time, one of them wins; in both cases the next Refresh finds the
// result.
func (s *Service) restoreStore(ctx context.Context, has State, held Active) (*Compiled, error) {
	// Write the state of this replica over the state of the store.
	step := Step{From: has, To: held.State, Entry: audit.Entry{
		Action: "policyset.restore", Resource: "policyset", Before: auditVersion(has.Current, ""),
		After: auditVersion(held.State.Current, held.Current.Version.Summary), Reason: "the store had lost it"}}
	step.To.Revision = max(has.Revision, held.State.Revision)
	if held.State.Rollout != nil {
		rollout := *held.State.Rollout
		step.To.Rollout = &rollout
	}
	// Add the versions that the store lacks, under a new number if theirs is taken.
	next := max(has.Newest, held.State.Newest)
	for _, c := range []*Compiled{held.Current, held.Draft} {
		if c == nil {
			continue
		}
		v := c.Version
		there, taken, err := s.storeHas(ctx, has, v)
		if err != nil {
			return nil, err
		}
		if taken {
			next++
			v.Number = next
			step.To.rename(c.Version.Number, next)
		}
		if !there {
			step.Versions = append(step.Versions, v)
		}
	}
	// Store the step, and log it now or once the store's answer is known.
	slices.SortFunc(step.Versions, func(a, b Version) int { return int(a.Number) - int(b.Number) })
	err := s.store.Roll(ctx, step)
	if errors.Is(err, errs.Conflict) {
		return held.Current, nil
	}
	given := restored{had: has.Current, to: step.To}
	if err == nil {
		s.logRestore(given, held)
		return held.Current, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unlogged = &given
	return held.Current, err
}

// restored is the state that a store was given back, and the version that it had before.
type restored struct {
	had uint64
	to  State
}

// logRestore logs that the store has its lost version back, and forgets the other versions.
func (s *Service) logRestore(given restored, held Active) {
	s.forget(held)
	s.log.Warn("the store had lost the current version of the policy set; this control plane has given it back",
		"had", given.had, "version", given.to.Current, "summary", held.Current.Version.Summary)
}

// logIfRestored logs a restore without an answer, if the store turns out to have the restored
// version.
func (s *Service) logIfRestored(state State, held Active) {
	s.mu.Lock()
	given := s.unlogged
	s.unlogged = nil
	s.mu.Unlock()
	if given != nil && state.Current == given.to.Current && state.Digest == given.to.Digest {
		s.logRestore(*given, held)
	}
}

// storeHas reports whether the store has a version, and if not, whether another version has its
// number.
func (s *Service) storeHas(ctx context.Context, state State, v Version) (there, taken bool, err error) {
	if v.Number > state.Newest {
		return false, false, nil
	}
	stored, err := s.store.Load(ctx, v.Number)
	if errors.Is(err, ErrNotFound) {
		return false, true, nil // The number was used, and its version was deleted or lost.
	}
	there = err == nil && stored.Digest == v.Digest
	return there, !there, err
}

// rename replaces the number of a version in force.
func (s *State) rename(from, to uint64) {
	if s.Current == from {
		s.Current = to
	}
	if s.Rollout == nil {
		return
	}
	if s.Rollout.Version == from {
		s.Rollout.Version = to
	}
	if s.Rollout.Base == from {
		s.Rollout.Base = to
	}
}

// renumber puts into force a version of the store whose number this replica has used for another
// version, which the store has lost. The version gets a new number, so that nodes and buckets,
// which know only numbers, can tell the two apart.
func (s *Service) renumber(ctx context.Context, state State, held Active) (*Compiled, error) {
	if state.Rollout != nil { // A rollout names both versions by number: their digests must be enough.
		s.noteLost(held, state)
		return s.adopt(ctx, state)
	}
	v, err := s.store.Load(ctx, state.Current)
	if err != nil {
		return nil, err
	}
	if v.Digest != state.Digest {
		return held.Current, nil // As in adopt.
	}
	// Store the version again under a new number.
	was := v.Summary
	v.Number = s.nextNumber(state)
	v.Summary = fmt.Sprintf("version %d under a number of its own: %s", state.Current, was)
	to := state
	to.Current, to.Newest = v.Number, v.Number
	entry := audit.Entry{
		Action: "policyset.renumber", Resource: "policyset",
		Before: auditVersion(state.Current, was), After: auditVersion(v.Number, v.Summary),
		Reason: "its number was the number of a version that the store has lost",
	}
	err = s.store.Roll(ctx, Step{From: state, To: to, Versions: []Version{v}, Entry: entry})
	if errors.Is(err, errs.Conflict) {
		return held.Current, nil
	}
	if err != nil {
		return nil, err
	}
	s.noteLost(held, state)
	return s.adopt(ctx, to)
}

// noteMissing logs a loss if the store no longer has the version that this replica has, though the
// store has later versions.
func (s *Service) noteMissing(ctx context.Context, state State, held Active) error {
	same := state.Digest != "" && state.Digest == held.State.Digest // The same version has another number.
	if same || state.Current == held.State.Current || held.State.Current+Kept <= state.Newest {
		return nil
	}
	there, _, err := s.storeHas(ctx, state, held.Current.Version)
	if err == nil && !there {
		s.noteLost(held, state)
	}
	return err
}

// noteLost logs that the store has lost the version in force on this replica and continues without
// it.
func (s *Service) noteLost(held Active, state State) {
	s.forget(Active{})
	s.log.Warn("the store has lost a version of the policy set that was in force, and has another version instead; "+
		"apply the lost version again if you need it",
		"lost", held.State.Current, "lost_digest", held.State.Digest, "summary", held.Current.Version.Summary,
		"version", state.Current, "digest", state.Digest)
}

// forget drops all remembered versions except the given versions, because the store may use their
// numbers for other versions now. It calls lost.
func (s *Service) forget(but Active) {
	s.mu.Lock()
	clear(s.versions)
	for _, c := range []*Compiled{but.Current, but.Draft} {
		if c != nil {
			s.remember(c)
		}
	}
	s.mu.Unlock()
	s.lost()
}
