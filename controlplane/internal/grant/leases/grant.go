package leases

import (
	"context"
	"errors"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// answerRequest answers a request. An answer means that the store works. So if the store is asked
// for no item, or only to look, it is tried, unless it is far away and has just answered: a node
// whose probe is answered can rely on the control plane. An error is always an error of the store.
func (s *Service) answerRequest(
	ctx context.Context, req wire.LeaseRequest, span quota.Span,
) (reply wire.LeaseReply, err error) {
	nodes := s.config.Nodes.Count(ctx)
	reply = wire.LeaseReply{
		Seq: req.Seq, Nodes: s.allNodes(nodes), Items: make([]wire.LeaseAnswer, len(req.Items)),
	}
	for i := range reply.Items {
		reply.Items[i].State = wire.ItemUnknown
	}
	if asksForNothing(req.Items) && s.isFar() && s.config.Breakers.Failing(StoreName) == 0 {
		return reply, nil
	}
	r, err := s.newResolver(ctx, req, nodes, reply.Items)
	if err != nil {
		return reply, err
	}
	if r != nil {
		r.span = span
		err = s.answerItems(ctx, r)
	}
	if err == nil && (r == nil || !r.asked || asksForNothing(req.Items)) {
		err = s.probeStore(ctx, req.Items)
	}
	return reply, err
}

// answerItems answers all items in one pass. Items for which another replica has already granted
// with newer figures get a second pass.
func (s *Service) answerItems(ctx context.Context, r *resolver) error {
	all := make([]int, len(r.items))
	for i := range all {
		all[i] = i
	}
	stale, err := s.askStore(ctx, r, all)
	if err != nil || len(stale) == 0 {
		return err
	}
	return s.answerStale(ctx, r, stale)
}

// newResolver returns the resolver of a request; nil if the request's policy set is not known.
func (s *Service) newResolver(
	ctx context.Context, req wire.LeaseRequest, nodes int64, answers []wire.LeaseAnswer,
) (*resolver, error) {
	active, _ := s.config.Sets.Active()
	if active.Current == nil || req.Version > active.State.Newest {
		var err error
		active, err = s.refreshSets(ctx)
		if err != nil {
			return nil, err
		}
	}
	requested, err := s.requestedSet(ctx, active, req.Version)
	if err != nil || requested == nil {
		return nil, err
	}
	overrides, away, err := s.loadOverrides(ctx, req.Items)
	if err != nil {
		return nil, err
	}
	r := &resolver{
		service: s, items: req.Items, node: inflight.Node{ID: req.Node, Boot: req.Boot}, answers: answers,
		requested: requested, nodes: nodes,
		overrides: overrides, overridesAway: away,
	}
	r.decideBy(active)
	return r, nil
}

// askStore asks the store for the open items, in whole groups, and fills in the answers. It returns
// the groups with an item whose figures are older than the store's.
func (s *Service) askStore(ctx context.Context, r *resolver, open []int) ([]int, error) {
	// Build the asks.
	resolved := r.buildAsks(open)
	if len(resolved) == 0 {
		return nil, nil
	}
	asks := make([]Item, len(resolved))
	for k := range resolved {
		asks[k] = resolved[k].ask
	}
	// Ask the store.
	r.asked = true
	grants, err := s.config.Store.Grant(ctx, asks)
	var partial *Partial
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	// Fill in the answers; a group with a stale item gets none yet.
	staleGroups := map[int]bool{}
	for k, g := range grants {
		switch it := &resolved[k]; {
		case partial != nil && partial.Away[k] > 0:
			r.answers[it.index] = unavailableAnswer(partial.Away[k])
		case g.Stale:
			staleGroups[it.ask.Group] = true
		default:
			r.answers[it.index] = s.answerOf(it, g, r.span)
		}
	}
	var stale []int
	for k := range resolved {
		if staleGroups[asks[k].Group] {
			stale = append(stale, resolved[k].index)
		}
	}
	return stale, nil
}

// answerStale answers stale items with the store's newer figures. If these cannot be read, the
// items are unavailable and the other answers still count.
func (s *Service) answerStale(ctx context.Context, r *resolver, stale []int) error {
	active, err := s.refreshSets(ctx)
	if err == nil && active.Current == nil {
		return nil
	}
	if err == nil {
		err = errors.Join(s.refreshPart(ctx), s.refreshOverrides(ctx))
	}
	overrides, away := r.overrides, time.Duration(0)
	if err == nil {
		overrides, away, err = s.loadOverrides(ctx, r.items)
	}
	if err == nil {
		newer := *r
		newer.overrides = overrides
		newer.overridesAway = away
		newer.late = true
		newer.decideBy(active)
		_, err = s.askStore(ctx, &newer, stale)
	}
	if err != nil { // The other items have been charged: they need their answers.
		for _, i := range stale {
			r.answers[i] = unavailableAnswer(0)
		}
	}
	return nil
}

// answerOf converts a grant to the node's answer, and counts the outcome. span is the time in which
// the node may use the tokens; see measure.
func (s *Service) answerOf(it *resolved, g lease.Grant, span quota.Span) wire.LeaseAnswer {
	switch it.ask.Kind {
	case wire.KindClaim:
		s.measureClaim(it, g)
		return permitAnswer(it, g)
	case wire.KindSettle:
		s.measureSettled(it, g)
		return wire.LeaseAnswer{State: wire.ItemGranted, Waiting: g.Waiting, Keep: g.Keep, Level: g.Level}
	case wire.KindReturn:
		s.config.Meter(it.useOf(g.Keep))
		return wire.LeaseAnswer{State: wire.ItemGranted}
	}
	s.measure(it, g, span)
	return wire.LeaseAnswer{
		State: wire.ItemGranted, Waiting: g.Waiting, Keep: g.Keep, NotBefore: g.NotBefore, Level: g.Level,
		Delay: min(g.Delay, maxDelay), FullAfter: min(g.FullAfter, wire.MaxFullAfter),
		Debt: s.wholeDebt(it.effective, g.Debt), Term: g.Term,
		Doubt: g.Doubt,
	}
}

// unavailableAnswer answers an item whose part of the store has not answered for some time.
func unavailableAnswer(away time.Duration) wire.LeaseAnswer {
	wait := quota.Span(max(away.Microseconds(), 1))
	return wire.LeaseAnswer{State: wire.ItemUnavailable, NotBefore: wait}
}

// measure counts the outcome of an answered item. An item that takes tokens for a longer span is
// for future requests, so it counts no request. The use of a candidate is not counted for its
// policy.
func (s *Service) measure(it *resolved, g lease.Grant, span quota.Span) {
	if it.candidate {
		return
	}
	use := Use{
		Policy: it.policy, Tier: it.tier, Tokens: g.Waiting*it.item.Cost + g.Keep + it.item.Used,
		Bucket: it.item.Bucket, Window: it.limit.Window,
	}
	if span <= lease.Deadline {
		use.Granted, use.Refused = g.Waiting, it.item.Waiting-g.Waiting
	}
	s.config.Meter(use)
	if s.config.Regions != nil {
		s.config.Regions.Want(it.policy.Name, it.item.Waiting*it.item.Cost+it.item.Keep+it.item.Used)
	}
}

// measureSettled counts the difference between a request's reservation and its cost, when the
// reservation is first settled. It includes tokens that the bucket has earned since: they were not
// used either.
func (s *Service) measureSettled(it *resolved, g lease.Grant) {
	if g.Waiting > 0 {
		s.config.Meter(it.useOf(it.item.Cost - it.item.Actual))
	}
}

// useOf returns the use of an item that gave tokens back; below 0, that took more tokens.
func (it *resolved) useOf(back int64) Use {
	return Use{Policy: it.policy, Tier: it.tier, Tokens: max(-back, 0), Returned: max(back, 0),
		Bucket: it.item.Bucket, Window: it.limit.Window}
}

// refreshSets returns the versions in force in the store, if this build can read them.
func (s *Service) refreshSets(ctx context.Context) (policies.Active, error) {
	_, err := s.config.Sets.Refresh(ctx)
	active, _ := s.config.Sets.Active()
	if errors.Is(err, policies.ErrUnreadable) {
		err = nil
	}
	return active, err
}

// requestedSet returns the policy set that a request's indexes refer to; nil if it is not known.
func (s *Service) requestedSet(
	ctx context.Context, active policies.Active, number uint64,
) (*policies.Compiled, error) {
	if active.Current == nil || number == 0 {
		return nil, nil
	}
	if c, _ := active.Deciding(number); c.Version.Number == number {
		return c, nil
	}
	c, err := s.config.Sets.At(ctx, number)
	if errors.Is(err, policies.ErrNotFound) || errors.Is(err, policies.ErrUnreadable) {
		return nil, nil
	}
	return c, err
}

// mayGrant reports whether the control plane grants an item under a mode. Nodes keep no tokens of
// optimistic limits, but report their use.
func mayGrant(it *wire.LeaseItem, mode policy.Mode) bool {
	switch it.Kind {
	case wire.KindAsk:
		return mode != policy.ModeLocal && (mode != policy.ModeOptimistic || it.Waiting > 0 || it.Keep == 0)
	case wire.KindReport:
		return mode == policy.ModeOptimistic
	case wire.KindSettle, wire.KindReturn, wire.KindClaim:
		return mode == policy.ModeStrict || mode == policy.ModeLeased
	}
	return false
}
