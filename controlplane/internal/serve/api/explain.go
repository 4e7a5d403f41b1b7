package api

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/controlplane/internal/serve/explain"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// mostMissed is the largest number of policies that an answer lists as not met.
const mostMissed = 100

// explaining is one question about a request.
type explaining struct {
	*server
	by     *policies.Compiled
	secret [16]byte
	view   *calls.View
	explain.Explanation
	answer gen.Explained
	// drafted: the version is rolled out to a part of the nodes.
	drafted bool
	// about is the caller, as the policies that the request meets know it.
	about subject
	// speaksGRPC: its caller gets a status of gRPC.
	speaksGRPC bool
	// refusals are all refusals of the request, and refusing is the refusal in the answer; nil if
	// nothing refuses the request.
	refusals []*refusing
	refusing *refusing
}

// refusing is a policy that refuses a request.
type refusing struct {
	policy *policy.Policy
	limit  policy.Limit
	reason policy.Reason
	cost   int64
	left   int64
	// wait is in whole seconds, 0 where waiting does not help.
	wait int64
	// doubt is true if the store may have lost a part of the bucket.
	doubt bool
}

// ExplainRequest answers how a request would be answered, and why.
func (s *server) ExplainRequest(
	ctx context.Context, r gen.ExplainRequestRequestObject,
) (gen.ExplainRequestResponseObject, error) {
	request, err := requestOf(r.Body)
	if err != nil {
		return nil, err
	}
	x, err := s.startExplaining(ctx, request, r.Body.Version)
	if err != nil {
		return nil, err
	}
	for i, who := range x.Whose {
		x.explainPolicy(ctx, i, &who)
	}
	x.addWide()
	x.refusing = decidingRefusal(x.refusals)
	if x.about.consumer == nil && x.Caller != nil {
		key := match.ConsumerKey(x.secret, x.Caller.Source, string(x.Caller.Text))
		x.about.consumer = (*keyhash.Key)(&key)
	}
	var known bool
	x.answer.Standing, known = s.standingOf(ctx, x.about)
	x.answer.Complete = x.answer.Complete && known
	x.answer.Standing = append([]gen.Standing{}, x.answer.Standing...)
	if x.Access == match.Open {
		x.listMisses()
	}
	x.writeVerdict()
	return gen.ExplainRequest200JSONResponse(x.answer), nil
}

// startExplaining matches a request against a policy set in force: the set of a version, or, if
// version is 0, the set of the nodes outside the rollout.
func (s *server) startExplaining(ctx context.Context, request explain.Request, version uint64) (*explaining, error) {
	x := &explaining{server: s, speaksGRPC: slices.ContainsFunc(request.Headers, func(h match.Header) bool {
		return string(h.Name) == "content-type" && strings.HasPrefix(string(h.Value), "application/grpc")
	})}
	var err error
	x.secret, err = s.config.Hub.Secret()
	if err != nil {
		return nil, err
	}
	active, _ := s.config.Policies.Active()
	x.by = active.Current
	if x.by == nil && s.config.Hub.Ready() != nil {
		return nil, push.ErrNotReady
	}
	if active.Draft != nil && active.Draft.Version.Number == version {
		x.by, x.drafted = active.Draft, true
	} else if version > 0 && (x.by == nil || x.by.Version.Number != version) {
		return nil, badRequest("version %d is not in force: leave it out, or give a version that "+
			"weir rollout names", version)
	}
	x.answer = gen.Explained{Complete: true, Policies: []gen.ExplainedPolicy{}, Others: []gen.MissedPolicy{}}
	if x.by == nil { // There is none yet.
		set, err := policydoc.Load([]byte(policies.EmptyDocument), policydoc.YAML)
		if err != nil {
			return nil, err
		}
		x.by = &policies.Compiled{Set: set}
	}
	x.answer.Version = x.by.Version.Number
	if active.Draft != nil {
		x.answer.RolledOut = active.Draft.Version.Number
	}
	orders := wire.Enforcement{}
	if message, _, _ := s.config.Enforcement.After(0, true); len(message) > 0 {
		if err := wire.DecodeEnforcement(message, &orders); err != nil {
			return nil, err
		}
	}
	snapshot := wire.AppendSnapshot(nil, wire.Snapshot{Version: x.by.Version.Number, Secret: x.secret, Set: x.by.Set})
	now := s.config.Now().UnixMilli()
	x.view, err = calls.NewView(snapshot, x.by.Set, &orders, now)
	if err != nil {
		return nil, err
	}
	x.Explanation, err = explain.Of(explain.Config{View: x.view, Secret: x.secret,
		Consumers: calls.Knowing(s.config.Consumers, s.config.Now)(ctx)}, request)
	if err != nil {
		return nil, badRequest("verified: %v", err)
	}
	x.answer.Access = gen.ExplainedAccess([...]string{"open", "exempt", "banned", "off"}[x.Access])
	return x, nil
}

// explainPolicy explains a policy that the request meets: the caller's key and the remaining quota.
func (x *explaining) explainPolicy(ctx context.Context, i int, who *match.Whose) {
	p := &x.by.Set.Policies[who.Policy]
	one := gen.ExplainedPolicy{Name: p.Name, State: gen.ExplainedPolicyStateOff,
		Verdict: gen.ExplainedPolicyVerdictPasses,
		Mode:    gen.ExplainedPolicyMode(p.Mode.String()), Tier: string(x.view.Index.Tier(who.Tier)),
		Caller: append([]string{}, explain.Label(p, who.Values)...), Limits: []gen.Bucket{}}
	k := newKey(x.secret, x.by, p, who.Values)
	for _, v := range who.Values {
		if v.Source != (policy.Source{}) && len(x.by.Set.Identity.Consumer) > 1 {
			one.Source = v.Source.String()
		}
	}
	if absent := slices.ContainsFunc(who.Values, func(v match.Value) bool { return v.Absent }); !absent ||
		p.IfAbsent == policy.AbsentShared {
		hash := who.Key.String()
		one.Key, k.hash = hash, hash
		x.about.keys = append(x.about.keys, k)
	} else if p.IfAbsent == policy.AbsentSkip {
		return // It is among the missed policies.
	}
	x.about.consumer = cmp.Or(x.about.consumer, k.consumer)
	if x.Access != match.Open {
		return // No policy decides.
	}
	var all []*refusing
	for _, h := range x.Hits {
		if h.Policy != who.Policy || h.Candidate {
			continue
		}
		one.State, one.Cost = gen.ExplainedPolicyStateEnforce, h.Cost
		if h.Shadow {
			one.State = gen.ExplainedPolicyStateShadow
		}
		if found := x.explainHit(ctx, &one, k, &h); found != nil {
			all = append(all, found)
		}
	}
	if by := x.penaltyOf(who.Policy, one.State == gen.ExplainedPolicyStateShadow); by != nil {
		all = append(all, by)
	}
	if by := decidingRefusal(all); by != nil {
		one.Verdict, one.Reason = gen.ExplainedPolicyVerdictRefused, by.reason.String()
		one.RetryAfterSeconds, one.Why = by.wait, ""
	}
	if one.State == gen.ExplainedPolicyStateEnforce {
		x.refusals = append(x.refusals, all...)
	}
	x.answer.Policies = append(x.answer.Policies, one)
}

// decidingRefusal returns the refusal that the request is answered with; nil if there is none. A
// suspended limit comes first. Then come penalties, then missing or wrong values in the request,
// then buckets. Of equal refusals the longest wait counts. A refusal with a wait names the longest
// of all waits. A cost that no bucket ever holds comes before a penalty: no wait helps.
func decidingRefusal(all []*refusing) (worst *refusing) {
	penalised := slices.ContainsFunc(all, func(r *refusing) bool { return r.reason == policy.ReasonPenalty })
	wait := int64(0)
	for _, r := range all {
		wait = max(wait, r.wait)
		if worst == nil || cmp.Or(cmp.Compare(r.rank(penalised), worst.rank(penalised)),
			cmp.Compare(r.wait, worst.wait)) > 0 {
			worst = r
		}
	}
	if worst != nil && worst.wait > 0 {
		longest := *worst
		longest.wait = wait
		return &longest
	}
	return worst
}

// rank returns a greater number for a refusal that comes first. penalised is true if a penalty is
// among the refusals.
func (r *refusing) rank(penalised bool) int {
	switch r.reason {
	case policy.ReasonSuspended:
		return 4
	case policy.ReasonAbsent, policy.ReasonBadCost, policy.ReasonSeveral:
		if !penalised {
			return 3
		}
	case policy.ReasonTooDear:
		return 2
	case policy.ReasonPenalty:
		return 1
	}
	return 0
}

// explainHit explains one limit. It returns the limit's refusal of the request; nil if it does not
// refuse.
func (x *explaining) explainHit(ctx context.Context, one *gen.ExplainedPolicy, k bucketKey, h *match.Hit) *refusing {
	// Find the limit: the consumer's own limit has priority.
	limits := k.policy.Limits
	if h.Tier > 0 {
		limits = k.policy.LimitsOf(int(h.Tier) - 1)
	}
	limit := *x.view.Index.Limit(h.Limit)
	if h.Own > 0 {
		limit = x.Own[h.Own-1]
	}
	// The matcher may have refused the request already.
	no := &refusing{policy: k.policy, limit: limit, cost: h.Cost}
	if because, is := verdicts[h.Verdict]; is {
		no.reason = because
		return no
	}
	// Envoys alone know the state of adaptive and of local limits.
	switch {
	case k.policy.Adaptive.Max > 0:
		x.markDependent(one, "its limit follows how fast the upstream answers, which each Envoy knows")
		return nil
	case k.policy.Mode == policy.ModeLocal:
		x.markDependent(one, "each Envoy counts by itself, "+policies.LimitText(limit))
		return nil
	}
	// Read the bucket from the store.
	at := place{Key: leases.Key{By: k.by, Policy: k.policy, Limits: limits, Consumer: k.consumer, Limit: limit,
		Step: k.policy.StepOf(limits, min(int(h.Position), len(limits)-1)), Bucket: h.Key, Cost: h.Cost},
		tier: one.Tier, limit: limit}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	var err error
	if x.drafted {
		_, at.Twin, err = x.config.Leases.Twin(ctx, at.Key, one.Tier)
	}
	var held gen.Bucket
	var store lease.Holding
	if err == nil {
		held, store, err = x.bucketWith(ctx, at, lease.Change{}, audit.Entry{})
	}
	if err != nil {
		x.answer.Complete = false
		x.markDependent(one, storeFailureText(err)+": on_failure decides, "+k.policy.OnFailure.String())
		return nil
	}
	one.Limits = append(one.Limits, held)
	no.wait = int64((store.AdmitsAfter + quota.Second - 1) / quota.Second)
	no.doubt = store.Doubt
	return x.judgeBucket(one, &held, no)
}

// verdicts are the refusals that no bucket has to be asked for.
var verdicts = map[match.Verdict]policy.Reason{
	match.RefusedAbsent: policy.ReasonAbsent, match.RefusedCost: policy.ReasonBadCost,
	match.Suspended: policy.ReasonSuspended, match.RefusedSeveral: policy.ReasonSeveral,
}

// judgeBucket decides by the level of a bucket.
func (x *explaining) judgeBucket(one *gen.ExplainedPolicy, held *gen.Bucket, no *refusing) *refusing {
	no.left = held.Level
	switch {
	case held.Level >= no.cost:
		return nil
	case no.limit.InFlight:
		x.markDependent(one, "all permits are held by Envoys; an Envoy with a free permit lets it pass")
		return nil
	case no.cost > no.limit.Params.Burst:
		no.reason, no.wait = policy.ReasonTooDear, 0
		return no
	case no.policy.Mode == policy.ModeOptimistic:
		x.markDependent(one, "an Envoy that has not used up its slack lets it pass before it asks")
		return nil
	case held.Leased > 0 && no.policy.Mode != policy.ModeStrict: // In strict mode they were for requests that wait.
		x.markDependent(one, "an Envoy that still holds of the tokens that are leased out lets it pass")
		return nil
	}
	no.reason, no.wait = policy.ReasonQuota, max(no.wait, 1)
	if no.doubt {
		no.reason = policy.ReasonFailure
	}
	return no
}

func (x *explaining) markDependent(one *gen.ExplainedPolicy, on string) {
	one.Verdict, one.Why = gen.ExplainedPolicyVerdictDepends, on
}

// addWide adds the refusals by penalties that hold under every policy, if the request meets a limit
// in force.
func (x *explaining) addWide() {
	if !slices.ContainsFunc(x.Hits, func(h match.Hit) bool { return !h.Shadow && !h.Candidate }) {
		return
	}
	for i := range x.Subjects {
		if by := x.penaltyOf(x.Subjects[i].Policy, false); by != nil {
			x.refusals = append(x.refusals, by)
		}
	}
}

// penaltyOf returns the penalty of a policy that holds for the request; nil if there is none.
// shadow selects penalties in shadow instead of penalties that refuse.
func (x *explaining) penaltyOf(number uint32, shadow bool) (worst *refusing) {
	p := &x.by.Set.Policies[number]
	for i := range x.Subjects {
		s := &x.Subjects[i]
		if s.Policy != number || s.Shadow != shadow {
			continue
		}
		q := penalties.Query{Keys: []keyhash.Key{s.PenaltyKey()}, Version: x.by.Version.Number}
		list, _ := x.config.Penalties.List(q, 1)
		if len(list) == 0 {
			continue
		}
		left := time.UnixMilli(list[0].Until).Sub(x.config.Now())
		by := &refusing{policy: p, limit: p.Limits[0], reason: policy.ReasonPenalty,
			wait: max(1, int64((left+time.Second-1)/time.Second))}
		if worst == nil || by.wait > worst.wait {
			worst = by
		}
	}
	return worst
}

// listMisses lists the policies that the request does not meet. The policies with the fewest failed
// conditions come first.
func (x *explaining) listMisses() {
	slices.SortStableFunc(x.Misses, func(a, b explain.Miss) int { return cmp.Compare(len(a.Fails), len(b.Fails)) })
	for i, miss := range x.Misses {
		if i == mostMissed {
			x.answer.More = len(x.Misses) - i
			break
		}
		fails := miss.Fails
		if len(fails) == 0 {
			fails = []string{"it is switched off, by the policy set or by an order"}
		}
		x.answer.Others = append(x.answer.Others, gen.MissedPolicy{Name: miss.Policy.Name, Fails: fails,
			Conditions: miss.Of})
	}
}
