package penalties

import (
	"context"
	"slices"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// versionOf is the version whose nodes alone obey a penalty of a policy that one of them has begun
// by a set; 0 if all nodes do. A version is for some nodes until it is promoted. A policy that it
// leaves as it is has the same penalties for all.
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

// partOf is a policy of a version.
type partOf struct {
	version uint64
	policy  string
}

// settle ends what nodes of a version began whose rollout has ended: if it was promoted, all nodes
// obey it from now on; if it was taken back, none does. Each replica does it, and doing it twice
// changes nothing.
func (s *Service) settle(ctx context.Context) error {
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
			continue // No node obeys it meanwhile; the next poll asks again.
		}
		switch set.Rollout {
		case policies.RolloutPromoted:
			err = s.end(ctx, v, true)
		case policies.RolloutTakenBack:
			err = s.end(ctx, v, false)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// end has all nodes obey what those of a version began, or none.
func (s *Service) end(ctx context.Context, version uint64, everywhere bool) error {
	s.mu.Lock()
	var keys []keyhash.Key
	for key := range s.drafts[version] {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, keyOrder)
	all := map[keyhash.Key]Known{}
	for _, key := range keys {
		r := *s.records[key]
		// A pardon since then knew of the penalty.
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
