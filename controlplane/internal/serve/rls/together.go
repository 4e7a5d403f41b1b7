package rls

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-proxy/weir/shared/wire"
)

// gatherTime is the longest that a call waits for the calls that are asking the store, unless its
// buckets fill a request earlier.
const gatherTime = 2 * time.Millisecond

var errAnswers = errors.New("the store has not answered for each bucket")

// asked has the items of one call under a version of the policy set, and its answers or the error.
type asked struct {
	version uint64
	items   []wire.LeaseItem
	answers []wire.LeaseAnswer
	err     error
}

// grantOne asks for the items of a call, all or none. Calls that arrive while others are asking the
// store go together in one request, so that they are resolved, asked and measured once. The items
// are copied, since the request may outlive its caller.
func (s *Service) grantOne(
	ctx context.Context, version uint64, items []wire.LeaseItem,
) ([]wire.LeaseAnswer, error) {
	one := &asked{version: version, items: slices.Clone(items)}
	if one.ofConsumer() {
		s.grantAll(ctx, []*asked{one})
		return one.answers, one.err
	}
	if err := s.together.Do(ctx, one, len(items)); err != nil {
		return nil, err
	}
	return one.answers, one.err
}

// ofConsumer reports whether a consumer must be looked up for the limits. Such items go alone, so
// that a failed look-up affects no other call.
func (a *asked) ofConsumer() bool {
	for i := range a.items {
		if a.items[i].Position > 0 {
			return true
		}
	}
	return false
}

// grantTogether asks for the items of all calls, in one request for each version of the policy set
// that they were matched by.
func (s *Service) grantTogether(ctx context.Context, all []*asked) error {
	for len(all) > 0 {
		n := 1
		for n < len(all) && all[n].version == all[0].version {
			n++
		}
		s.grantAll(ctx, all[:n])
		all = all[n:]
	}
	return nil
}

// grantAll asks for the items of calls under one version, and gives each call its answers. The
// items of each call are a group, or a single item.
func (s *Service) grantAll(ctx context.Context, all []*asked) {
	request := wire.LeaseRequest{Node: NodeName, Version: all[0].version, Items: all[0].items}
	if len(all) > 1 {
		request.Items = make([]wire.LeaseItem, 0, wire.MaxItems)
		for _, one := range all {
			request.Items = append(request.Items, one.items...)
		}
	}
	reply, err := s.config.Leases.Grant(ctx, request)
	if err == nil && len(reply.Items) != len(request.Items) {
		err = errAnswers
	}
	if err != nil {
		for _, one := range all {
			one.err = err
		}
		return
	}
	if s.nodes.Load() != reply.Nodes {
		s.nodes.Store(reply.Nodes)
	}
	answers := reply.Items
	for _, one := range all {
		one.answers, answers = answers[:len(one.items)], answers[len(one.items):]
	}
}
