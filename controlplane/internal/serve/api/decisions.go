package api

import (
	"cmp"
	"context"
	"errors"
	"math"
	"slices"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// noteDecisions stores the refusals that a worker of a node reports. An error is no reason to
// refuse the report: refusals are samples.
func (s *server) noteDecisions(c echo.Context, m *wire.Decisions) {
	ctx, cancel := context.WithTimeout(c.Request().Context(), touchPatience)
	defer cancel()
	if err := s.config.Decisions.Note(ctx, m); err != nil {
		s.config.Log.Debug("decisions could not be noted", "id", requestID(c), "error", err.Error())
	}
}

// ListDecisions lists recent refusals.
func (s *server) ListDecisions(
	ctx context.Context, r gen.ListDecisionsRequestObject,
) (gen.ListDecisionsResponseObject, error) {
	size, token, err := readPage(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	// Find the refusals that the parameters select.
	query := decisions.Query{Before: token, Policy: r.Params.Policy, Since: r.Params.Since}
	who, err := s.addCaller(&query, r.Params)
	if err != nil {
		return nil, err
	}
	list, next, complete, err := s.config.Decisions.Find(ctx, query, size)
	if errors.Is(err, decisions.ErrCursor) {
		return nil, errToken
	}
	if err != nil {
		return nil, err
	}
	// An empty answer may come from a policy that does not exist.
	if len(list) == 0 {
		if err := s.knowPolicies(ctx, r.Params.Policy); err != nil {
			return nil, err
		}
	}
	// Complete the refusals with own limits and levels.
	s.ownLimits(ctx, list)
	s.addSettles(list)
	if query.Consumer != nil || query.Buckets != nil {
		s.addLevels(ctx, list, who.consumer)
	}
	answer := gen.ListDecisions200JSONResponse{Complete: complete,
		Decisions: append([]decisions.Decision{}, list...), Next: pageToken(next)}
	// The first page about a caller also has the caller's standing.
	if (who.consumer != nil || who.keys != nil) && token == "" {
		known := false
		answer.Standing, known = s.standingOf(ctx, who)
		answer.Complete = answer.Complete && known
	}
	return answer, nil
}

// addCaller adds the caller that the parameters name to a query, and returns the caller.
func (s *server) addCaller(q *decisions.Query, params gen.ListDecisionsParams) (who subject, err error) {
	who.policy = params.Policy
	if params.Consumer != "" {
		if err := s.unlikeKey(params.Policy, params.Consumer); err != nil {
			return who, err
		}
		p, err := s.findConsumer(params.Consumer, params.Source)
		if err != nil {
			return who, err
		}
		q.Consumer, who.consumer = &p.key, &p.key
		who.keys, err = s.keysOf(params.Consumer, params.Source)
		if err != nil {
			return who, err
		}
	}
	switch {
	case params.Key != "" && len(params.Partition) > 0:
		return who, badRequest("key and partition both name a partition key: give key or partition")
	case params.Key != "":
		q.Buckets = []string{params.Key}
		return who, nil
	case len(params.Partition) == 0:
		return who, nil
	case params.Policy == "":
		return who, badRequest("partition needs policy: a partition key belongs to one policy")
	}
	k, err := s.findKey(params.Policy, gen.GetKeyParams{Partition: params.Partition, Source: params.Source})
	if err != nil {
		return who, err
	}
	q.Buckets = k.hashes() // Refusals by bans of the key have these hashes.
	for _, bucket := range k.buckets() {
		q.Buckets = append(q.Buckets, bucket.String())
	}
	if who.consumer == nil {
		who.consumer = k.consumer
		who.keys = s.otherKeys(k, params.Source)
	}
	who.keys = append(who.keys, k)
	return who, nil
}

// unlikeKey refuses a consumer like client-ip:192.0.2.1 beside a policy that has a part of nearly
// that name: it would be another caller, of whom nothing is known.
func (s *server) unlikeKey(policyName, consumer string) (err error) {
	if policyName == "" || !beginsLikePart(consumer) {
		return nil
	}
	_ = s.eachNamed(policyName, func(_ *policies.Compiled, p *policy.Policy) {
		if meant := guessPart(p, consumer); meant != "" && err == nil {
			err = badRequest("%q: the partition of policy %s is [%s]: did you mean the partition %s? A consumer of "+
				"this name is found without policy", consumer, p.Name, policies.PartitionText(p.Partition), meant)
		}
	})
	return err
}

// otherKeys returns the keys of a key's consumer under the other policies that count by consumer
// alone. A version that finds callers at another source adds no key.
func (s *server) otherKeys(k bucketKey, source string) []bucketKey {
	for i, part := range k.policy.Partition {
		if part.Kind == policy.PartConsumer && !k.values[i].Absent {
			keys, _ := s.keysOf(string(k.values[i].Text), source)
			return slices.DeleteFunc(keys, func(one bucketKey) bool { return one.policy.Name == k.policy.Name })
		}
	}
	return nil
}

// ownLimits replaces the policy's limit in a refusal if the consumer's own limit refused. If the
// consumers cannot be read, the policies' limits stay.
func (s *server) ownLimits(ctx context.Context, list []decisions.Decision) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	// Read the records of the consumers.
	var keys []keyhash.Key
	for i := range list {
		if key, err := keyhash.Parse(list[i].Consumer); err == nil {
			keys = append(keys, key)
		}
	}
	known, err := s.config.Consumers.Known(ctx, keys)
	if err != nil {
		return
	}
	// Show a consumer's own limit if the record had it at the time of the refusal.
	for i := range list {
		d := &list[i]
		key, err := keyhash.Parse(d.Consumer)
		record, ok := known[key]
		if err != nil || !ok || record.Updated.After(d.At) {
			continue
		}
		set, err := s.config.Policies.At(ctx, d.Version)
		o := record.Override(d.Policy, d.At)
		if err != nil || o == nil {
			continue
		}
		if p, ok := set.Policy(d.Policy); ok {
			own, err := o.Of(set.Set, p)
			_, limit, _, _ := set.LimitAt(d.LimitIndex)
			if limit, found := p.Find(own, &limit, 0); err == nil && found {
				d.Limit, d.From = policies.LimitText(limit), "override"
			}
		}
	}
}

// addSettles adds to each refusal how its policy charges now, if costs are known later.
func (s *server) addSettles(list []decisions.Decision) {
	active, _ := s.config.Policies.Active()
	for i := range list {
		deciding, _ := active.Deciding(list[i].Version)
		if deciding == nil {
			continue
		}
		if p, ok := deciding.Policy(list[i].Policy); ok {
			list[i].Settles = settlesOf(p)
		}
	}
}

// addLevels adds the present levels of the buckets to a consumer's refusals, as far as the store
// knows them. It asks for no tokens, so it changes nothing.
func (s *server) addLevels(ctx context.Context, list []decisions.Decision, consumer *keyhash.Key) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	type ledger struct {
		key     string
		version uint64
	}
	asked := map[ledger]*decisions.Level{}
	active, _ := s.config.Policies.Active()
	for i := range list {
		d := &list[i]
		if d.Policy == policies.Banned {
			continue // A ban has no bucket.
		}
		deciding, _ := active.Deciding(d.Version)
		if deciding == nil {
			continue
		}
		of := ledger{d.Key, deciding.Version.Number}
		level, known := asked[of]
		if !known && len(asked) < wire.MaxItems {
			level = s.levelOf(ctx, d, deciding, consumer)
			asked[of] = level
		}
		d.Now = level
	}
}

// levelOf returns the present level of a refusal's bucket by the version that decides for its node.
// It returns nil if the store does not know the level: for policies that are local or optimistic,
// and while the store is away.
func (s *server) levelOf(
	ctx context.Context, d *decisions.Decision, by *policies.Compiled, consumer *keyhash.Key,
) *decisions.Level {
	// Find the limit that refused.
	set, err := s.config.Policies.At(ctx, d.Version)
	key, damaged := keyhash.Parse(d.Key)
	if err != nil || damaged != nil {
		return nil
	}
	p, limit, ok := set.Resolve(d.LimitIndex, by)
	if !ok {
		return nil
	}
	item := wire.LeaseItem{Bucket: key, Limit: d.LimitIndex, Cost: 1, ExceptionsRevision: math.MaxUint64}
	// The consumer's own limit takes its place.
	if p.ByConsumer() && consumer != nil {
		item.Position, item.Consumer, item.Root = 1, *consumer, limit.Root
		if own, _, err := s.config.Leases.Own(ctx, by.Set, p, consumer, nil, false); err == nil {
			if mine, found := p.Find(own, &limit, 0); found {
				limit = mine
			}
		}
	}
	// If answers change the cost, the bucket may owe tokens: read its ledger.
	if p.Commit.By != policy.CommitNever && p.Mode != policy.ModeLocal {
		_, limits := set.ResolveAll(d.LimitIndex, by)
		k := leases.Key{By: by, Policy: p, Limits: limits, Consumer: consumer,
			Limit: limit, Step: set.StepOf(d.LimitIndex), Bucket: key, Cost: d.Cost}
		if active, _ := s.config.Policies.Active(); active.Draft == by {
			_, k.Twin, err = s.config.Leases.Twin(ctx, k, d.Tier)
		}
		if err != nil {
			return nil
		}
		return s.levelWithDebt(ctx, k, limit.Params.Burst)
	}
	// Otherwise ask for no tokens: the reply has the level.
	reply, err := s.config.Leases.Grant(ctx, wire.LeaseRequest{Version: d.Version, Items: []wire.LeaseItem{item}})
	if err != nil || len(reply.Items) != 1 || reply.Items[0].State != wire.ItemGranted {
		return nil
	}
	return &decisions.Level{Tokens: max(reply.Items[0].Level, 0), Of: limit.Params.Burst}
}

// levelWithDebt returns the level of a bucket of the given size, with the tokens that it owes; nil
// if the store does not answer.
func (s *server) levelWithDebt(ctx context.Context, k leases.Key, of int64) *decisions.Level {
	held, err := s.adjustOne(ctx, k, lease.Change{}, audit.Entry{})
	if err != nil {
		return nil
	}
	return &decisions.Level{Tokens: held.Level, Of: of, Owed: held.Owed, AdmitsAfterSeconds: seconds(held.AdmitsAfter)}
}

// Top lists the heaviest callers.
func (s *server) Top(ctx context.Context, r gen.TopRequestObject) (gen.TopResponseObject, error) {
	size, _, err := readPage(r.Params.PageSize, "")
	if err != nil {
		return nil, err
	}
	by := decisions.ByRefused
	if r.Params.By != "" {
		by = decisions.By(r.Params.By)
	}
	top := s.config.Decisions.Top(ctx, by, r.Params.Policy, r.Params.Tier, size)
	if len(top.Callers) == 0 && top.Refused == 0 {
		if err := cmp.Or(s.knowPolicies(ctx, r.Params.Policy), s.knowTiers(ctx, r.Params.Tier)); err != nil {
			return nil, err
		}
	}
	return gen.Top200JSONResponse{By: gen.TopBy(top.By), Since: top.Since.UTC(), Refused: top.Refused,
		Complete: top.Complete,
		Callers:  append([]decisions.TopCaller{}, top.Callers...)}, nil
}
