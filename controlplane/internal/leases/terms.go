package leases

import (
	"context"
	"errors"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
)

// terms are what the items of a request are understood by: the policy set that their indexes refer to, the one in force for the node,
// and how many nodes there are.
type terms struct {
	meant, current *policies.Compiled
	// other is the other version in force while one is rolled out, nil otherwise; main is the number of the one that is no draft.
	other *policies.Compiled
	main  uint64
	nodes int64
	// people are the consumers that items name; late: another replica has found limits of their own ended.
	people map[keyhash.Key]consumers.Knowledge
	late   bool
	// away is for how long consumers could not be looked up while the rest of the store answers; 0 if they could be.
	away time.Duration
}

func newTerms(meant *policies.Compiled, force policies.Force, nodes int64, people map[keyhash.Key]consumers.Knowledge) terms {
	t := terms{meant: meant, nodes: nodes, main: force.Current, people: people}
	t.current, t.other = force.By(meant.Version.Number)
	return t
}

// refresh returns what is in force by the store, as far as this build can read it.
func (s *Service) refresh(ctx context.Context) (policies.Force, error) {
	_, err := s.config.Sets.Refresh(ctx)
	force, _ := s.config.Sets.InForce()
	if errors.Is(err, policies.ErrUnreadable) {
		err = nil
	}
	return force, err
}

// meant is the policy set that the request's indexes refer to, nil if it is not known.
func (s *Service) meant(ctx context.Context, force policies.Force, number uint64) (*policies.Compiled, error) {
	if force.Now == nil || number == 0 {
		return nil, nil
	}
	if c, _ := force.By(number); c.Version.Number == number {
		return c, nil
	}
	meant, err := s.config.Sets.At(ctx, number)
	if errors.Is(err, policies.ErrNotFound) || errors.Is(err, policies.ErrUnreadable) {
		return nil, nil
	}
	return meant, err
}
