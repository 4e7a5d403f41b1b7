package push

import (
	"context"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/wire"
)

// overrule is how long a node that has later orders and bans than this replica waits before it gets
// the replica's. So long it also waits for nothing but the number of nodes: while many come or go,
// none of them polls more often.
const overrule = 5 * time.Second

// polls is how many polls have begun.
func (h *Hub) polls() uint64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.begun
}

// since reports whether a poll has succeeded that began after that many, and returns a channel that
// is closed when the next one has succeeded.
func (h *Hub) since(begun uint64) (bool, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.confirmed > begun, h.read
}

// lacks reports whether a node ought to get a version now, and returns a channel that is closed
// when that may have changed. A node that has a later one keeps it until the store was asked anew,
// after so many polls: a replica that cannot follow the store would take it back to an older one.
func (h *Hub) lacks(v *policies.Version, node Seen, begun uint64) (bool, <-chan struct{}) {
	has, rekeyed := h.has(v, node.Version, node.Mark)
	if has || node.Version <= v.Number {
		return !has, rekeyed
	}
	return h.since(begun)
}

// Wait returns what the node lacks as soon as there is something: orders and bans, the snapshot
// that it ought to have, changes of consumers, or changes of penalties, the first of these in that
// order. It returns false when ctx ends first, when the node is outdated, and after some seconds
// while the store cannot be followed. The error is ErrNotReady if there is nothing because the
// store has not been reached yet.
func (h *Hub) Wait(ctx context.Context, node Seen) (News, bool, error) {
	patient := time.NewTimer(overrule)
	defer patient.Stop()
	waited, begun := false, h.polls()
	for {
		var ordered <-chan struct{}
		if node.WantsEnforcement {
			var message []byte
			var news bool
			message, news, ordered = h.enforcement.After(node.Enforcement, waited)
			if news {
				return News{Bytes: message}, true, nil
			}
		}
		active, changed := h.policies.Active()
		wanted := active.For(node.Node)
		var rekeyed <-chan struct{}
		if wanted != nil {
			var lacks bool
			if lacks, rekeyed = h.lacks(&wanted.Version, node, begun); lacks {
				news, err := h.encode(wanted, active)
				return news, err == nil, err
			}
		} else {
			if _, err := h.Secret(); err != nil {
				return News{}, false, err
			}
		}
		message, moved := h.changedConsumers(node, waited)
		if message != nil {
			return News{Bytes: message}, true, nil
		}
		var punished <-chan struct{}
		if node.WantsPenalties {
			var m wire.Penalties
			var news bool
			m, news, punished = h.penalties.After(node.Penalties, node.Version)
			if news {
				return News{Bytes: wire.AppendPenalties(nil, &m)}, true, nil
			}
		}
		select {
		case <-ctx.Done():
			return News{}, false, nil
		case <-punished:
		case <-changed:
		case <-rekeyed:
		case <-moved:
		case <-ordered:
		case <-patient.C:
			// While the store cannot be followed here another replica may have news: the node asks
			// anew, there if Envoy calls this one no more.
			if h.Ready() != nil || node.Outdated != nil && node.Outdated(ctx) {
				return News{}, false, nil
			}
			waited = true
			patient.Reset(overrule)
		}
	}
}

// changedConsumers is the message about changes of consumers that the node lacks, nil if there is
// none, and a channel that is closed by the next change.
func (h *Hub) changedConsumers(node Seen, waited bool) ([]byte, <-chan struct{}) {
	if !node.WantsConsumers {
		return nil, nil
	}
	m, news, moved := h.consumers.After(node.Consumers, waited)
	if !news {
		return nil, moved
	}
	return wire.AppendConsumers(nil, m), moved
}
