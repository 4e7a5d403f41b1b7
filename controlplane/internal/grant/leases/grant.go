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

// answerRequest answers a request. An answer means that the store works: if the store is asked for
// no item, or only to look, it is tried, unless it is far and has just answered. So a node whose
// probe is answered can rely on the control plane. An error is always the store's.
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
	if asksForNothing(req.Items) && s.far() && s.config.Breakers.Failing(StoreName) == 0 {
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

// answerItems answers all items in one pass. Those for which another replica has granted under
// newer figures already get a second pass.
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

// newResolver returns the resolver for a request; nil if its policy set is not known.
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
	requested, err := s.requested(ctx, active, req.Version)
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

// askStore asks the store for the open items, whole groups each, and fills in the answers. It
// returns the groups that have an item whose figures are older than those of the store.
func (s *Service) askStore(ctx context.Context, r *resolver, open []int) ([]int, error) {
	resolved := r.buildAsks(open)
	if len(resolved) == 0 {
		return nil, nil
	}
	asks := make([]Item, len(resolved))
	for k := range resolved {
		asks[k] = resolved[k].ask
	}
	r.asked = true
	grants, err := s.config.Store.Grant(ctx, asks)
	var partial *Partial
	if err != nil && !errors.As(err, &partial) {
		return nil, err
	}
	staleGroups := map[int]bool{}
	for k, g := range grants {
		switch it := &resolved[k]; {
		case partial != nil && partial.Away[k] > 0:
			r.answers[it.index] = unavailable(partial.Away[k])
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

// answerStale answers items that were stale, by what the store has now. If the newer state cannot
// be read, these items are unavailable and the other answers still count.
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
	if err != nil { // The others have been charged: they need their answers.
		for _, i := range stale {
			r.answers[i] = unavailable(0)
		}
	}
	return nil
}

// answerOf turns a grant into the node's answer, and notes the outcome.
func (s *Service) answerOf(it *resolved, g lease.Grant, span quota.Span) wire.LeaseAnswer {
	switch it.ask.Kind {
	case wire.KindClaim:
		s.measureClaim(it, g)
		return permitted(it, g)
	case wire.KindSettle:
		s.measureSettled(it, g)
		return wire.LeaseAnswer{State: wire.ItemGranted, Waiting: g.Waiting, Keep: g.Keep, Level: g.Level}
	case wire.KindReturn:
		s.config.Meter(it.use(g.Keep))
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

// unavailable answers an item whose part of the store has not answered for a time.
func unavailable(away time.Duration) wire.LeaseAnswer {
	wait := quota.Span(max(away.Microseconds(), 1))
	return wire.LeaseAnswer{State: wire.ItemUnavailable, NotBefore: wait}
}

// measure notes the outcome of an answered item. An item that takes tokens for a longer span asks
// for many requests to come, so it counts none. What candidates take is no use of their policy.
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

// measureSettled notes by how much a request has cost less than it had reserved, or more, the first
// time that its reservation is settled. What of it the bucket had earned meanwhile was not used
// either.
func (s *Service) measureSettled(it *resolved, g lease.Grant) {
	if g.Waiting > 0 {
		s.config.Meter(it.use(it.item.Cost - it.item.Actual))
	}
}

// use says that tokens were not used; below 0, that more were.
func (it *resolved) use(back int64) Use {
	return Use{Policy: it.policy, Tier: it.tier, Tokens: max(-back, 0), Returned: max(back, 0),
		Bucket: it.item.Bucket, Window: it.limit.Window}
}

// refreshSets returns the versions that are active by the store, as far as this build can read
// them.
func (s *Service) refreshSets(ctx context.Context) (policies.Active, error) {
	_, err := s.config.Sets.Refresh(ctx)
	active, _ := s.config.Sets.Active()
	if errors.Is(err, policies.ErrUnreadable) {
		err = nil
	}
	return active, err
}

// requested returns the policy set that a request's indexes refer to, nil if it is not known.
func (s *Service) requested(
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

// grants reports whether the control plane does what an item wants with limits of a mode. Nodes
// keep no tokens of optimistic limits, but report them.
func grants(it *wire.LeaseItem, mode policy.Mode) bool {
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
