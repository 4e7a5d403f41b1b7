package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

func invalidConsumer(problems policy.Problems) error {
	return &failure{code: errs.InvalidConsumer, problems: problems}
}

// readBatch reads the changes of many consumers. It returns an error only if the policy set or the
// store cannot be read. It reads earlier records only for consumers with problems.
func (s *server) readBatch(
	ctx context.Context, items []gen.ConsumerItem, by string,
) (writes []consumers.Write, problems policy.Problems, err error) {
	first := make(map[keyhash.Key]int, len(items))
	found := make([]policy.Problems, len(items))
	var again []int
	var unsure []consumer
	var keys []keyhash.Key
	// Read each consumer as a new consumer. Set aside the consumers with problems: an earlier
	// record may make their documents valid.
	for i, it := range items {
		c, err := s.findConsumer(it.ID, it.Source)
		if f := (*failure)(nil); errors.As(err, &f) && f.code == errs.BadRequest {
			found[i] = policy.Problems{{Path: batchAt(i) + "id", Reason: f.detail}}
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		if before, twice := first[c.key]; twice {
			found[i] = policy.Problems{{Path: batchAt(i) + "id",
				Reason: fmt.Sprintf("is the same id as in consumers[%d]", before)}}
			continue
		}
		first[c.key] = i
		record, wrong := s.readItem(c.sets, i, consumers.Record{}, it, by)
		if len(wrong) > 0 {
			again, unsure, keys = append(again, i), append(unsure, c), append(keys, c.key)
			continue
		}
		writes = append(writes, consumers.Write{Key: c.key, Any: true, Record: &record})
	}
	// Read the consumers with problems again, now with their earlier records.
	before, err := s.config.Consumers.GetAll(ctx, keys)
	if err != nil {
		return nil, nil, storeFailure(err)
	}
	for n, i := range again {
		record, wrong := s.readItem(unsure[n].sets, i, before[n], items[i], by)
		found[i] = wrong
		writes = append(writes, consumers.Write{Key: keys[n], Any: true, Record: &record})
	}
	problems = slices.Concat(found...)
	return writes, problems[:min(len(problems), maxBatchProblems)], nil
}

// readItem reads consumer i of a batch into a record. before is the consumer's earlier record.
func (s *server) readItem(
	sets []*policies.Compiled, i int, before consumers.Record, it gen.ConsumerItem, by string,
) (consumers.Record, policy.Problems) {
	r, wrong := s.readRecord(sets, batchAt(i), before,
		gen.ConsumerInput{Tier: it.Tier, Overrides: it.Overrides, Banned: it.Banned, Bypass: it.Bypass})
	r.By = by
	return r, wrong
}

// batchAt returns the prefix of the fields of consumer i in a batch.
func batchAt(i int) string {
	return fmt.Sprintf("consumers[%d].", i)
}

// maxBatchProblems bounds the problems in the answer to a batch.
const maxBatchProblems = 100

// input reads the document of one consumer and collects its problems. A tier and overrides that the
// earlier record has need not fit the present policy sets.
type input struct {
	sets     []*policies.Compiled
	before   consumers.Record
	now      time.Time
	at       string
	problems policy.Problems
}

func (in *input) addProblem(path, format string, args ...any) {
	in.problems = append(in.problems, policy.Problem{Path: in.at + path, Reason: fmt.Sprintf(format, args...)})
}

// readReplacement returns the new record of a consumer. It reads the earlier record from the store
// only if the document is wrong without it.
func (s *server) readReplacement(
	ctx context.Context, c consumer, body gen.ConsumerInput,
) (r consumers.Record, problems policy.Problems, err error) {
	r, problems = s.readRecord(c.sets, "", consumers.Record{}, body)
	if len(problems) == 0 {
		return r, nil, nil
	}
	before, err := s.config.Consumers.Get(ctx, c.key)
	if errors.Is(err, consumers.ErrNotFound) {
		return r, problems, nil
	}
	r, problems = s.readRecord(c.sets, "", before, body)
	return r, problems, err
}

// readRecord reads the document of a consumer into a record. before is the earlier record, and at
// is the prefix of the document's fields.
func (s *server) readRecord(
	sets []*policies.Compiled, at string, before consumers.Record, body gen.ConsumerInput,
) (consumers.Record, policy.Problems) {
	in := &input{sets: sets, before: before, now: s.config.Now(), at: at}
	r := consumers.Record{Tier: body.Tier}
	in.checkTier(body.Tier)
	r.Banned, r.Bypass = in.readMark("banned", body.Banned), in.readMark("bypass", body.Bypass)
	for i, o := range body.Overrides {
		r.Overrides = append(r.Overrides, in.readOverride(fmt.Sprintf("overrides[%d]", i), o, body.Overrides[:i]))
	}
	if body.Tier == "" && body.Banned == nil && body.Bypass == nil && len(body.Overrides) == 0 {
		in.problems = append(in.problems, policy.Problem{Path: strings.TrimSuffix(at, "."),
			Reason: "says nothing: give a tier, overrides, banned or bypass; weir consumers delete or DELETE " +
				"forgets a consumer"})
	}
	if n := len(wire.AppendExceptions(nil, withoutRoots(r.Special(in.now)))); n > wire.MaxUnrooted {
		in.addProblem("overrides", "take %d bytes on each node; at most %d are allowed: give fewer limits", n,
			wire.MaxUnrooted)
	}
	return r, in.problems
}

// withoutRoots returns exceptions as they are before their limits have roots. There is room for
// roots beyond the bound, and roots of an override that stays would count against it.
func withoutRoots(s wire.Exceptions) wire.Exceptions {
	for i := range s.Overrides {
		for n := range s.Overrides[i].Limits {
			s.Overrides[i].Limits[n].Root = 0
		}
	}
	return s
}

func (in *input) checkTier(tier string) {
	var tiers []string
	for _, set := range in.sets {
		tiers = append(tiers, policyTiers(set)...)
	}
	switch {
	case tier == "" || tier == in.before.Tier || slices.Contains(tiers, tier):
	case len(tiers) == 0:
		in.addProblem("tier", "is none: the policy set names no tiers")
	default:
		slices.Sort(tiers)
		tiers = slices.Compact(tiers)
		in.addProblem("tier", "must be one of the tiers %s%s", strings.Join(tiers, ", "), guessName(tier, tiers))
	}
}

func (in *input) readMark(path string, m *gen.Mark) *consumers.Mark {
	if m == nil {
		return nil
	}
	in.checkReason(path, m.Reason)
	return &consumers.Mark{Reason: m.Reason, Expires: in.readExpiry(path, m.ExpiresAt)}
}

// checkReason checks a reason, which operators see. It may be empty.
func (in *input) checkReason(path, reason string) {
	if reason == "" {
		return
	}
	if why := badReason(reason); why != "" {
		in.addProblem(path+".reason", "%s", why)
	}
}

func (in *input) readExpiry(path string, at *time.Time) time.Time {
	if at == nil {
		return time.Time{}
	}
	if !at.After(in.now) {
		in.addProblem(path+".expires_at", "is over: it is %s now", in.now.UTC().Format(time.RFC3339))
	}
	return at.UTC().Truncate(time.Millisecond)
}

// readOverride reads an override. before holds the overrides that precede it in the document.
func (in *input) readOverride(path string, o gen.Override, before []gen.Override) consumers.Override {
	own := consumers.Override{Policy: o.Policy,
		Mark: consumers.Mark{Reason: o.Reason, Expires: in.readExpiry(path, o.ExpiresAt)}}
	in.checkReason(path, o.Reason)
	// Find the policy in the sets in force.
	var sets []*policy.Set
	for _, set := range in.sets {
		if set != nil {
			sets = append(sets, set.Set)
		}
	}
	_, p := consumers.FindPolicy(sets, o.Policy)
	// Keep an override that the earlier record has. Refuse an override that the policy cannot have.
	stood := in.earlierOverride(o)
	switch {
	case slices.ContainsFunc(before, func(other gen.Override) bool { return other.Policy == o.Policy }):
		in.addProblem(path+".policy", "is overridden already: at most one override for each policy")
		return own
	case stood != nil:
		return *stood
	case p == nil:
		in.addProblem(path+".policy", "is none: the policy set has no policy %q%s", o.Policy,
			guessName(o.Policy, in.policyNames()))
		return own
	case !p.ByConsumer():
		in.addProblem(path+".policy", "%q does not count by consumer: "+
			"its partition has no part consumer, so this consumer shares its buckets with "+
			"others and a limit of its own would be a limit of theirs", o.Policy)
		return own
	}
	// Read the limits. A burst that equals the quota is stored as 0.
	node, err := policy.ParseJSON(o.Limit)
	if err != nil {
		in.addProblem(path+".limit", "%v", err)
		return own
	}
	limits, problems := policy.DecodeOverride(in.at+path+".limit", node, p)
	in.problems = append(in.problems, problems...)
	for _, l := range limits {
		figures := consumers.Limit{Quota: l.Quota, Window: l.Window, Burst: l.Burst()}
		if figures.Burst == l.Quota {
			figures.Burst = 0
		}
		own.Limits = append(own.Limits, figures)
	}
	return own
}

func (in *input) policyNames() (names []string) {
	for _, set := range in.sets {
		names = append(names, policyNames(set)...)
	}
	return names
}

// earlierOverride returns the override of the earlier record that equals o in all fields; nil if
// there is none.
func (in *input) earlierOverride(o gen.Override) *consumers.Override {
	for i := range in.before.Overrides {
		was := overrideAnswer(&in.before.Overrides[i])
		var limit, before any
		if was.Policy != o.Policy || was.Reason != o.Reason || json.Unmarshal(o.Limit, &limit) != nil ||
			json.Unmarshal(was.Limit, &before) != nil || !reflect.DeepEqual(limit, before) {
			continue
		}
		ends := was.ExpiresAt != nil
		if ends == (o.ExpiresAt != nil) && (!ends || was.ExpiresAt.Equal(*o.ExpiresAt)) {
			return &in.before.Overrides[i]
		}
	}
	return nil
}

// consumerAnswer returns a record in the form that clients see.
func (s *server) consumerAnswer(key keyhash.Key, r consumers.Record) gen.Consumer {
	c := gen.Consumer{
		Key: key.String(), Tier: r.Tier, Updated: r.Updated, By: r.By,
		Banned: markAnswer(r.Banned), Bypass: markAnswer(r.Bypass), Lifted: r.Banned != nil && s.allOff(),
	}
	for _, o := range r.Overrides {
		c.Overrides = append(c.Overrides, overrideAnswer(&o))
	}
	return c
}

func overrideAnswer(o *consumers.Override) gen.Override {
	m := markAnswer(&o.Mark)
	return gen.Override{Policy: o.Policy, Limit: limitAnswer(o.Limits), Reason: m.Reason, ExpiresAt: m.ExpiresAt}
}

func markAnswer(m *consumers.Mark) *gen.Mark {
	if m == nil {
		return nil
	}
	answer := &gen.Mark{Reason: m.Reason}
	if !m.Expires.IsZero() {
		answer.ExpiresAt = &m.Expires
	}
	return answer
}

// limitAnswer writes limits as documents do.
func limitAnswer(limits []consumers.Limit) json.RawMessage {
	var value any = limits
	switch len(limits) {
	case 0:
		value = "unlimited"
	case 1:
		value = limits[0]
	}
	text, err := json.Marshal(value)
	if err != nil {
		panic("BUG: a limit cannot be written: " + err.Error())
	}
	return text
}
