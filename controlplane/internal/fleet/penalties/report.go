package penalties

import (
	"context"
	"errors"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/penalty"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// longest is the longest penalty, and the longest time after which a level is forgotten.
	longest = time.Duration(policy.MaxPenalty) * time.Microsecond
	// maxVersions is the number of versions of the policy set in one report: each further version
	// would cost a read of the store.
	maxVersions = 4
)

// incoming is a report that is being processed.
type incoming struct {
	node string
	now  time.Time
	sets map[uint64]*policies.Compiled
	// current is the policy set in force.
	current *policies.Compiled
	// same tells for a policy of a version whether it equals the policy in force.
	same map[partOf]bool
}

// errNoSet is returned if there is no policy set, and so no rule that bounds a penalty. The node
// sends the report again.
var errNoSet = errors.New("cannot judge penalties: this replica has no policy set")

// Report stores the penalties that a node has begun. It leaves out penalties that no node can have
// begun: the node may be faulty, or another program. No penalty is longer than a rule in force
// allows, whichever version the node names.
func (s *Service) Report(ctx context.Context, m *wire.Offences) error {
	in := incoming{
		node: decisions.Clean(string(m.Node)), now: s.Now().UTC().Truncate(time.Millisecond),
		sets: map[uint64]*policies.Compiled{}, same: map[partOf]bool{},
	}
	active, _ := s.Sets.Active()
	if in.current = active.Current; in.current == nil {
		return errNoSet
	}
	// Keep only credible penalties, within the bounds of their rules.
	var offered []Known
	var taken []*wire.Offence
	for i := range m.Items {
		it := &m.Items[i]
		set := s.setOf(ctx, &in, it.Version)
		if in.credible(it, set) {
			offered = append(offered, Known{At: it.Known, Record: in.record(it, set)})
			taken = append(taken, it)
		}
	}
	if len(taken) == 0 {
		return nil
	}
	// Offer them to the store, and count them.
	done, err := s.kept.Offer(ctx, offered)
	if err != nil {
		return err
	}
	s.Meter.PenaltiesFull(done.Full)
	s.countBegun(taken)
	return nil
}

// setOf returns a version of the policy set, or the one in force if it is not known: the store may
// have lost it, or the node may have invented it.
func (s *Service) setOf(ctx context.Context, in *incoming, version uint64) *policies.Compiled {
	set, seen := in.sets[version]
	switch {
	case seen:
		return set
	case len(in.sets) == maxVersions:
		return in.current
	}
	set, err := s.Sets.At(ctx, version)
	if err != nil {
		set = in.current
	}
	in.sets[version] = set
	return set
}

// credible reports whether a node can have begun a penalty. A time that is years ahead, or a level
// that is remembered for longer than rules allow, would keep its place in the store for that time.
func (in *incoming) credible(it *wire.Offence, set *policies.Compiled) bool {
	memory := int64(it.Level) * longest.Milliseconds()
	if it.Until > in.now.Add(2*longest).UnixMilli() || it.Forgotten-it.Until > memory {
		return false
	}
	p, known := set.Policy(string(it.Policy))
	return known && p.Penalty != nil
}

// record returns the record of a reported offence.
func (in *incoming) record(it *wire.Offence, set *policies.Compiled) Record {
	r := Record{
		Key: it.Key, Record: penalty.Record{Level: int(it.Level), Until: it.Until}, Forgotten: it.Forgotten,
		Facts: Facts{Policy: string(it.Policy), Node: in.node, Since: in.now, Shadow: it.Shadow},
	}
	if it.Consumer != (keyhash.Key{}) {
		r.Consumer = it.Consumer.String()
	}
	r.Version = in.versionOf(r.Policy, set)
	r.Key = draftKey(r.Key, r.Version)
	rules := []*policies.Compiled{set, in.current}
	if r.Version > 0 {
		rules = rules[:1] // Only its nodes obey it, by their own rule.
	}
	for _, c := range rules {
		if p, ok := c.Policy(string(it.Policy)); ok && p.Penalty != nil {
			r.Record = boundedBy(p.Penalty, r.Record, in.now.UnixMilli())
			r.Forgotten = min(r.Forgotten, p.Penalty.Forgotten(r.Record))
		}
	}
	if len(it.Shown) > 0 && set.Version.Number == it.Version {
		r.Shown = decisions.ReadShown(set.Set, it.Shown)
	}
	return r
}

// boundedBy limits a penalty to its rule: a node with a wrong clock, or a faulty node, cannot make
// it longer for other nodes.
func boundedBy(rule *penalty.Rule, rec penalty.Record, now int64) penalty.Record {
	rec.Level = min(rec.Level, rule.Top())
	jitter := uint64(rule.Length(rec.Level, 0) * rule.Jitter / 100)
	rec.Until = min(rec.Until, now+rule.Length(rec.Level, jitter))
	return rec
}

// countBegun counts the begun penalties of a report, for metrics and for the audit.
func (s *Service) countBegun(items []*wire.Offence) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range items {
		if it.Prolonged {
			continue
		}
		name := string(it.Policy)
		s.Meter.PenaltyBegun(name, it.Shadow)
		if _, known := s.begun[name]; !known && len(s.begun) == auditedPolicies {
			name = "others"
		}
		s.begun[name]++
	}
}
