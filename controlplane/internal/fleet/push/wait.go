package push

import (
	"context"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/wire"
)

// overrule is how long a node with later orders and bans than this replica waits before it gets the
// replica's. It also waits that long before it gets only a new number of nodes: while many nodes
// come or go, no node polls more often.
const overrule = 5 * time.Second

// pollsBegun returns the number of polls that have begun.
func (h *Hub) pollsBegun() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun
}

// succeededSince reports whether a poll has succeeded that began after the first begun polls. The
// channel is closed at the next successful poll.
func (h *Hub) succeededSince(begun uint64) (bool, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.confirmed > begun, h.read
}

// needsVersion reports whether a node needs a version now. The channel is closed when that may have
// changed. A node with a later version keeps it until a poll that began after the first begun polls
// has succeeded: a replica that cannot follow the store would take the node back to an older
// version.
func (h *Hub) needsVersion(v *policies.Version, node Seen, begun uint64) (bool, <-chan struct{}) {
	has, newSecret := h.hasVersion(v, node.Version, node.Mark)
	if has || node.Version <= v.Number {
		return !has, newSecret
	}
	return h.succeededSince(begun)
}

// Wait returns the first message that the node lacks: orders and bans, the snapshot that it needs,
// changes of consumers, or changes of penalties, in that order. It returns false when ctx ends
// before, when the node is outdated, and after some seconds while the store cannot be followed. The
// error is ErrNotReady if the store has not been reached yet.
func (h *Hub) Wait(ctx context.Context, node Seen) (News, bool, error) {
	patient := time.NewTimer(overrule)
	defer patient.Stop()
	waited, begun := false, h.pollsBegun()
	for {
		// Orders and bans.
		message, newOrders := h.changedOrders(node, waited)
		if message != nil {
			return News{Bytes: message}, true, nil
		}
		// The policy set.
		active, newSets := h.policies.Active()
		wanted := active.For(node.Node)
		var newSecret <-chan struct{}
		if wanted != nil {
			var lacks bool
			if lacks, newSecret = h.needsVersion(&wanted.Version, node, begun); lacks {
				news, err := h.snapshotOf(wanted, active)
				return news, err == nil, err
			}
		} else {
			if _, err := h.Secret(); err != nil {
				return News{}, false, err
			}
		}
		// Consumers, then penalties.
		message, newConsumers := h.changedConsumers(node, waited)
		if message != nil {
			return News{Bytes: message}, true, nil
		}
		message, newPenalties := h.changedPenalties(node)
		if message != nil {
			return News{Bytes: message}, true, nil
		}
		// Wait for a change.
		select {
		case <-ctx.Done():
			return News{}, false, nil
		case <-newOrders:
		case <-newSets:
		case <-newSecret:
		case <-newConsumers:
		case <-newPenalties:
		case <-patient.C:
			// While the store cannot be followed, another replica may have news: the node asks
			// again, and asks that replica if Envoy no longer calls this replica.
			if h.Ready() != nil || node.Outdated != nil && node.Outdated(ctx) {
				return News{}, false, nil
			}
			waited = true
			patient.Reset(overrule)
		}
	}
}

// changedOrders returns the message with the orders and bans that the node lacks, nil if it has
// them all, and a channel that is closed at the next change.
func (h *Hub) changedOrders(node Seen, waited bool) ([]byte, <-chan struct{}) {
	if !node.WantsEnforcement {
		return nil, nil
	}
	message, news, changed := h.enforcement.After(node.Enforcement, waited)
	if !news {
		return nil, changed
	}
	return message, changed
}

// changedPenalties returns the message with changes of penalties that the node lacks, nil if there
// are none, and a channel that is closed at the next change.
func (h *Hub) changedPenalties(node Seen) ([]byte, <-chan struct{}) {
	if !node.WantsPenalties {
		return nil, nil
	}
	m, news, changed := h.penalties.After(node.Penalties, node.Version)
	if !news {
		return nil, changed
	}
	return wire.AppendPenalties(nil, &m), changed
}

// changedConsumers returns the message with changes of consumers that the node lacks, nil if there
// are none, and a channel that is closed at the next change.
func (h *Hub) changedConsumers(node Seen, waited bool) ([]byte, <-chan struct{}) {
	if !node.WantsConsumers {
		return nil, nil
	}
	m, news, changed := h.consumers.After(node.Consumers, waited)
	if !news {
		return nil, changed
	}
	return wire.AppendConsumers(nil, m), changed
}
