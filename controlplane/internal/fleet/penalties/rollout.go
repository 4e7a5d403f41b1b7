package penalties

import (
	"context"
	"slices"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// versionOf returns the version whose nodes alone obey a penalty of a policy, which one of them has
// begun with a set; 0 if all nodes obey it. A version is for some nodes until it is promoted. If
// the version does not change the policy, its penalties are for all nodes.
func (in *incoming) versionOf(name string, set *policies.Compiled) uint64 {
	v := &set.Version
	switch {
	case v.Number == in.current.Version.Number, v.Rollout == "", v.Rollout == policies.RolloutPromoted:
		return 0
	}
	of := partOf{v.Number, name}
	same, seen := in.same[of]
	if !seen {
		same = policies.Same(in.current.Set, set.Set, name)
		in.same[of] = same
	}
	if same {
		return 0
	}
	return v.Number
}

// partOf names a policy of a version.
type partOf struct {
	version uint64
	policy  string
}

// settleRollouts ends the penalties that nodes of a version began, once the version's rollout has
// ended. If it was promoted, all nodes obey them from now on; if it was taken back, no node does.
// Each replica does this; a second time changes nothing.
func (s *Service) settleRollouts(ctx context.Context) error {
	active, _ := s.Sets.Active()
	s.mu.Lock()
	var versions []uint64
	for v := range s.drafts {
		if active.Draft == nil || active.Draft.Version.Number != v {
			versions = append(versions, v)
		}
	}
	s.mu.Unlock()
	slices.Sort(versions)
	for _, v := range versions {
		set, away, err := s.Sets.Load(ctx, v)
		if away != nil || err != nil {
			continue // No node obeys it in the meantime; the next poll tries again.
		}
		switch set.Rollout {
		case policies.RolloutPromoted:
			err = s.endRollout(ctx, v, true)
		case policies.RolloutTakenBack:
			err = s.endRollout(ctx, v, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// endRollout moves the penalties of a version's nodes to all nodes, or ends them.
func (s *Service) endRollout(ctx context.Context, version uint64, everywhere bool) error {
	s.mu.Lock()
	var keys []keyhash.Key
	for key := range s.drafts[version] {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, keyOrder)
	all := map[keyhash.Key]Known{}
	for _, key := range keys {
		r := *s.records[key]
		// A later pardon knew of the penalty.
		known := Known{Record: r, At: r.Revision}
		known.Key, known.Version = r.Caller(), 0
		all[key] = known
	}
	s.mu.Unlock()
	for chunk := range slices.Chunk(keys, pageSize) {
		var offered []Known
		for _, key := range chunk {
			offered = append(offered, all[key])
		}
		if everywhere {
			if _, err := s.kept.Offer(ctx, offered); err != nil {
				return err
			}
		}
		if _, err := s.kept.Pardon(ctx, chunk, audit.Entry{}); err != nil {
			return err
		}
	}
	return nil
}
