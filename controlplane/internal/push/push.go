// Package push brings new versions of the policy set, changes of consumers and what operators order
// beside them to the nodes that wait for it, within 250 ms over all replicas.
package push

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	pollEvery   = 200 * time.Millisecond
	pollTimeout = 2 * time.Second
)

// ErrNotReady: the store has not been reached since the start, so there is nothing to tell nodes.
var ErrNotReady = errs.New(errs.StoreUnavailable, "the store has not been reached since the start", "")

// Secrets keeps the secret that keys the hash of partition keys.
type Secrets interface {
	// Secret returns the deployment's secret. If there is none, candidate becomes it.
	Secret(ctx context.Context, candidate [16]byte) ([16]byte, error)
}

// Seen is what a node has.
type Seen struct {
	// Node is its id, which decides whether it has a version that is rolled out.
	Node string
	// Version is that of its policy set, Consumers the revision up to which it knows what has
	// changed of consumers.
	Version, Consumers uint64
	// Mark is the policies.Version.Mark of its policy set; empty if it does not know that.
	Mark string
	// Follows: the node wants to know what changes of consumers, in messages of up to Format.
	Follows bool
	Format  uint64
	// Enforcement is the revision of the orders that it obeys; Obeys: it wants to know of others.
	Enforcement uint64
	Obeys       bool
}

// News is a message for nodes: the policy set in force, what has changed of consumers, or all that
// is ordered.
type News struct {
	// Version and Mark are those of the policy set, 0 and empty of other messages.
	Version uint64
	Mark    string
	// Bytes is the message, shared by all readers and never to be changed.
	Bytes []byte
}

// of reports whether the news is a version's snapshot; c may be nil.
func (n News) of(c *policies.Compiled) bool {
	return c != nil && n.Version == c.Version.Number && n.Mark == c.Version.Mark()
}

// Hub follows the store and wakes waiting nodes. Make one with New, have one goroutine in Run.
type Hub struct {
	policies    *policies.Service
	consumers   *consumers.Service
	enforcement *enforcement.Service
	secrets     Secrets
	log         *slog.Logger
	polled      func(error)
	looked      chan struct{}

	mu      sync.Mutex
	secret  [16]byte
	ready   bool    // the secret is the store's
	failure error   // of the last poll
	encoded [2]News // of the versions in force
}

// Config is what a Hub stands on. Fields must be set unless they say otherwise.
type Config struct {
	Policies    *policies.Service
	Consumers   *consumers.Service
	Enforcement *enforcement.Service
	Secrets     Secrets
	// Candidate becomes the deployment's secret if the store has none.
	Candidate [16]byte
	Log       *slog.Logger
	// Polled, if not nil, is called with how each poll of the store ended.
	Polled func(error)
}

// New makes a Hub.
func New(c Config) *Hub {
	if c.Polled == nil {
		c.Polled = func(error) {}
	}
	return &Hub{
		policies: c.Policies, consumers: c.Consumers, enforcement: c.Enforcement, secrets: c.Secrets,
		log: c.Log, polled: c.Polled, secret: c.Candidate, failure: ErrNotReady,
		looked: make(chan struct{}),
	}
}

// Run polls the store until ctx ends. A failing store is polled on; each change between failing and
// not is logged once.
func (h *Hub) Run(ctx context.Context) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	h.poll(ctx)
	close(h.looked)
	for ; ; h.poll(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (h *Hub) poll(ctx context.Context) {
	timed, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	err := h.follow(timed)
	if ctx.Err() != nil {
		return
	}
	h.mu.Lock()
	before := h.failure
	h.failure = err
	h.mu.Unlock()
	h.polled(err)
	switch {
	case err != nil && (before == nil || before == ErrNotReady):
		h.log.Error("the store cannot be followed; what is in memory keeps being served", "error", err)
	case err == nil && before != nil && before != ErrNotReady:
		h.log.Info("the store can be followed again")
	}
}

// follow gets the secret and the newest version. The secret is asked for each time: a store that
// has lost everything gets it back before it gets the policy set back, and a replica that started
// with another candidate notices.
func (h *Hub) follow(ctx context.Context) error {
	h.mu.Lock()
	candidate := h.secret
	h.mu.Unlock()
	secret, err := h.secrets.Secret(ctx, candidate)
	if err != nil {
		return err
	}
	h.mu.Lock()
	if secret != h.secret {
		h.encoded = [2]News{}
	}
	h.secret, h.ready = secret, true
	h.mu.Unlock()
	_, err = h.policies.Refresh(ctx)
	return errors.Join(err, h.consumers.Refresh(ctx))
}

// Secret is the deployment's secret, which keys the hashes of consumers too. ErrNotReady before the
// store has been reached.
func (h *Hub) Secret() ([16]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ready {
		return keyhash.Key{}, ErrNotReady
	}
	return h.secret, nil
}

// Looked is closed once the first poll of the store has ended, however it did.
func (h *Hub) Looked() <-chan struct{} { return h.looked }

// Ready is nil if the last poll of the store succeeded, otherwise it says why not.
func (h *Hub) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failure
}

// overrule is how long a node waits that has later orders than this replica before it hears the
// replica's.
const overrule = 5 * time.Second

// Wait returns what the node does not have as soon as there is something: orders, the snapshot that
// it ought to have, or what has changed of consumers; false when ctx ends first. ErrNotReady before
// the store has been reached for the first time, if there is nothing.
func (h *Hub) Wait(ctx context.Context, node Seen) (News, bool, error) {
	patient := time.NewTimer(overrule)
	defer patient.Stop()
	waited := false
	for {
		var ordered <-chan struct{}
		if node.Obeys {
			var message []byte
			var news bool
			if message, news, ordered = h.enforcement.After(node.Enforcement, waited); news {
				return News{Bytes: message}, true, nil
			}
		}
		active, changed := h.policies.Active()
		wanted := active.For(node.Node)
		if wanted != nil && !wanted.Version.Is(node.Version, node.Mark) {
			news, err := h.encode(wanted, active)
			return news, err == nil, err
		}
		if wanted == nil {
			if _, err := h.Secret(); err != nil {
				return News{}, false, err
			}
		}
		var moved <-chan struct{}
		if node.Follows {
			var m wire.Consumers
			var news bool
			if m, news, moved = h.consumers.After(node.Consumers, waited); news {
				return News{Bytes: wire.AppendConsumers(nil, consumers.Spoken(m, node.Format))}, true, nil
			}
		}
		select {
		case <-ctx.Done():
			return News{}, false, nil
		case <-changed:
		case <-moved:
		case <-ordered:
		case <-patient.C:
			waited = true
		}
	}
}

// encode returns the snapshot of a version in force; its bytes are made once.
func (h *Hub) encode(c *policies.Compiled, active policies.Active) (News, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ready {
		return News{}, ErrNotReady
	}
	for _, known := range h.encoded {
		if known.Version == c.Version.Number && known.Mark == c.Version.Mark() {
			return known, nil
		}
	}
	snapshot := News{
		Version: c.Version.Number, Mark: c.Version.Mark(),
		Bytes: wire.AppendSnapshot(nil, wire.Snapshot{Version: c.Version.Number, Secret: h.secret, Set: c.Set}),
	}
	for i, known := range h.encoded { // In place of one that is no longer in force.
		if !known.of(active.Current) && !known.of(active.Draft) {
			h.encoded[i] = snapshot
			break
		}
	}
	return snapshot, nil
}
