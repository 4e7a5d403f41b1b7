// Package push brings new versions of the policy set to the nodes that wait for them, within 250 ms over all replicas.
package push

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

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

// Snapshot is the newest policy set as nodes receive it.
type Snapshot struct {
	Version uint64
	// Bytes is a wire snapshot, shared by all readers: never to be changed.
	Bytes []byte
}

// Hub follows the store and wakes waiting nodes. Make one with New, have one goroutine in Run.
type Hub struct {
	sets    *policies.Service
	secrets Secrets
	log     *slog.Logger

	mu      sync.Mutex
	secret  [16]byte
	ready   bool  // the secret is the store's
	failure error // of the last poll
	newest  Snapshot
}

// New makes a Hub. candidate becomes the deployment's secret if the store has none.
func New(sets *policies.Service, secrets Secrets, candidate [16]byte, log *slog.Logger) *Hub {
	return &Hub{sets: sets, secrets: secrets, secret: candidate, log: log, failure: ErrNotReady}
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
		h.newest = Snapshot{}
	}
	h.secret, h.ready = secret, true
	h.mu.Unlock()
	_, err = h.sets.Refresh(ctx)
	return err
}

// Ready is nil if the last poll of the store succeeded, otherwise it says why not.
func (h *Hub) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failure
}

// Wait returns the newest snapshot as soon as its version is not after, or false when ctx ends first. ErrNotReady before the
// store has been reached for the first time.
func (h *Hub) Wait(ctx context.Context, after uint64) (Snapshot, bool, error) {
	for {
		current, changed := h.sets.Current()
		if current != nil && current.Version.Number != after {
			snapshot, err := h.encode(current)
			return snapshot, err == nil, err
		}
		if current == nil {
			if err := h.reached(); err != nil {
				return Snapshot{}, false, err
			}
		}
		select {
		case <-ctx.Done():
			return Snapshot{}, false, nil
		case <-changed:
		}
	}
}

func (h *Hub) reached() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ready {
		return ErrNotReady
	}
	return nil
}

// encode returns the snapshot of a version; its bytes are made once.
func (h *Hub) encode(c *policies.Compiled) (Snapshot, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ready {
		return Snapshot{}, ErrNotReady
	}
	if h.newest.Version == c.Version.Number {
		return h.newest, nil
	}
	snapshot := Snapshot{
		Version: c.Version.Number,
		Bytes:   wire.AppendSnapshot(nil, wire.Snapshot{Version: c.Version.Number, Secret: h.secret, Set: c.Set}),
	}
	if snapshot.Version > h.newest.Version {
		h.newest = snapshot
	}
	return snapshot, nil
}
