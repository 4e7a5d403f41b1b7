// Package push brings new versions of the policy set and changes of consumers to the nodes that wait for them, within 250 ms over all replicas.
package push

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	pollEvery   = 200 * time.Millisecond
	pollTimeout = 2 * time.Second
)

// ErrNotReady: the store has not been reached since the start, so there is nothing to tell nodes.
var ErrNotReady = errors.New("the store has not been reached since the start")

// Secrets keeps the secret that keys the hash of partition keys.
type Secrets interface {
	// Secret returns the deployment's secret. If there is none, candidate becomes it.
	Secret(ctx context.Context, candidate [16]byte) ([16]byte, error)
}

// Seen is what a node has.
type Seen struct {
	// Version is that of its policy set, Consumers the revision up to which it knows what has changed of consumers.
	Version, Consumers uint64
	// Follows: the node wants to know what changes of consumers, in messages of up to Format.
	Follows bool
	Format  uint64
}

// News is a message for nodes: the newest policy set, or what has changed of consumers.
type News struct {
	// Version is that of the policy set, 0 for consumers.
	Version uint64
	// Bytes is a wire snapshot, shared by all readers and never to be changed, or a message about consumers.
	Bytes []byte
}

// Hub follows the store and wakes waiting nodes. Make one with New, have one goroutine in Run.
type Hub struct {
	sets    *policies.Service
	people  *consumers.Service
	secrets Secrets
	log     *slog.Logger

	mu      sync.Mutex
	secret  [16]byte
	ready   bool  // the secret is the store's
	failure error // of the last poll
	newest  News
}

// New makes a Hub. candidate becomes the deployment's secret if the store has none.
func New(sets *policies.Service, people *consumers.Service, secrets Secrets, candidate [16]byte, log *slog.Logger) *Hub {
	return &Hub{sets: sets, people: people, secrets: secrets, secret: candidate, log: log, failure: ErrNotReady}
}

// Run polls the store until ctx ends. A failing store is polled on; each change between failing and not is logged once.
func (h *Hub) Run(ctx context.Context) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for {
		h.poll(ctx)
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
	switch {
	case err != nil && (before == nil || before == ErrNotReady):
		h.log.Error("the store cannot be followed; what is in memory keeps being served", "error", err)
	case err == nil && before != nil && before != ErrNotReady:
		h.log.Info("the store can be followed again")
	}
}

// follow gets the secret and the newest version. The secret is asked for each time: a store that has lost everything gets it
// back before it gets the policy set back, and a replica that started with another candidate notices.
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
		h.newest = News{}
	}
	h.secret, h.ready = secret, true
	h.mu.Unlock()
	_, err = h.sets.Refresh(ctx)
	return errors.Join(err, h.people.Refresh(ctx))
}

// Secret is the deployment's secret, which keys the hashes of consumers too. ErrNotReady before the store has been reached.
func (h *Hub) Secret() ([16]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ready {
		return [16]byte{}, ErrNotReady
	}
	return h.secret, nil
}

// Ready is nil if the last poll of the store succeeded, otherwise it says why not.
func (h *Hub) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failure
}

// Wait returns the newest snapshot as soon as its version is another than the node's, or what has changed of consumers since the
// node's revision, or false when ctx ends first. ErrNotReady before the store has been reached for the first time.
func (h *Hub) Wait(ctx context.Context, node Seen) (News, bool, error) {
	for {
		current, changed := h.sets.Current()
		if current != nil && current.Version.Number != node.Version {
			news, err := h.encode(current)
			return news, err == nil, err
		}
		if current == nil {
			if _, err := h.Secret(); err != nil {
				return News{}, false, err
			}
		}
		var moved <-chan struct{}
		if node.Follows {
			var m wire.Consumers
			var news bool
			if m, news, moved = h.people.After(node.Consumers); news {
				return News{Bytes: wire.AppendConsumers(nil, consumers.Spoken(m, node.Format))}, true, nil
			}
		}
		select {
		case <-ctx.Done():
			return News{}, false, nil
		case <-changed:
		case <-moved:
		}
	}
}

// encode returns the snapshot of a version; its bytes are made once.
func (h *Hub) encode(c *policies.Compiled) (News, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ready {
		return News{}, ErrNotReady
	}
	if h.newest.Version == c.Version.Number {
		return h.newest, nil
	}
	snapshot := News{
		Version: c.Version.Number,
		Bytes:   wire.AppendSnapshot(nil, wire.Snapshot{Version: c.Version.Number, Secret: h.secret, Set: c.Set}),
	}
	if snapshot.Version > h.newest.Version {
		h.newest = snapshot
	}
	return snapshot, nil
}
