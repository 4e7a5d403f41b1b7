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
	// maxVersions is how many versions of the policy set a report may refer to: more cost the store
	// a look for each.
	maxVersions = 4
)

// incoming is a report that is being taken in.
type incoming struct {
	node string
	now  time.Time
	sets map[uint64]*policies.Compiled
	// current is the policy set in force.
	current *policies.Compiled
	// same: a policy of a version is that of the one in force.
	same map[partOf]bool
}

// errNoSet: without a policy set there is no rule to hold a penalty against. The node sends it
// again.
var errNoSet = errors.New("no policy set is known here, by whose rules penalties are judged")

// Report takes in what a node has begun. What no node says that works as it should is left out: the
// node may be damaged, or another program. No penalty is longer than a rule in force says,
// whichever version a node names.
func (s *Service) Report(ctx context.Context, m *wire.Offences) error {
	in := incoming{
		node: decisions.Clean(string(m.Node)), now: s.Now().UTC().Truncate(time.Millisecond),
		sets: map[uint64]*policies.Compiled{}, same: map[partOf]bool{},
	}
	active, _ := s.Sets.Active()
	if in.current = active.Current; in.current == nil {
		return errNoSet
	}
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
	done, err := s.kept.Offer(ctx, offered)
	if err != nil {
		return err
	}
	s.Meter.PenaltiesFull(done.Full)
	s.count(taken)
	return nil
}

// setOf is a version of the policy set, the one in force if it is not known: the store may have
// lost it, or the node may have invented it.
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

// credible reports whether a node can have begun a penalty. A clock that is wrong by years, or a
// level that is remembered for longer than rules can say, would hold its place in the store for as
// long.
func (in *incoming) credible(it *wire.Offence, set *policies.Compiled) bool {
	memory := int64(it.Level) * longest.Milliseconds()
	if it.Until > in.now.Add(2*longest).UnixMilli() || it.Forgotten-it.Until > memory {
		return false
	}
	p, known := set.Policy(string(it.Policy))
	return known && p.Penalty != nil
}

// record is an offence in the words of its policy set.
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
		rules = rules[:1] // Its nodes alone obey it, by their own rule.
	}
	for _, c := range rules {
		if p, ok := c.Policy(string(it.Policy)); ok && p.Penalty != nil {
			r.Record = within(p.Penalty, r.Record, in.now.UnixMilli())
			r.Forgotten = min(r.Forgotten, p.Penalty.Forgotten(r.Record))
		}
	}
	if len(it.Shown) > 0 && set.Version.Number == it.Version {
		r.Shown = decisions.Shown(set.Set, it.Shown)
	}
	return r
}

// within is a penalty as far as its rule goes: no node whose clock is ahead, and none that is
// damaged, makes it longer for others.
func within(rule *penalty.Rule, rec penalty.Record, now int64) penalty.Record {
	rec.Level = min(rec.Level, rule.Top())
	jitter := uint64(rule.Length(rec.Level, 0) * rule.Jitter / 100)
	rec.Until = min(rec.Until, now+rule.Length(rec.Level, jitter))
	return rec
}

// count counts what a report has begun, for metrics and for the audit.
func (s *Service) count(items []*wire.Offence) {
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
