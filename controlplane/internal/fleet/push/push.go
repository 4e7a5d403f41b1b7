// Package push sends new versions of the policy set, changes of consumers and of penalties, and
// orders and bans to the nodes that wait for them, within 350 ms over all replicas.
package push

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/penalties"
	"github.com/weir-proxy/weir/controlplane/internal/ground/docs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
	"github.com/weir-proxy/weir/controlplane/internal/ground/storetime"
	"github.com/weir-proxy/weir/controlplane/internal/rules/consumers"
	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	pollEvery   = 300 * time.Millisecond
	pollTimeout = 2 * time.Second
)

// ErrNotReady means that the store has not been reached since the start, so there is nothing to
// send.
var ErrNotReady = errs.New(errs.StoreUnavailable, "the store has not been reached since the start", "")

// Heads has the secret and the head of each topic in the store. A head that could not be read is
// nil.
type Heads struct {
	// Secret is the key of the hash of partition keys. NoSecret is the reason if there is none now.
	Secret   [16]byte
	NoSecret error

	Policies    *policies.State
	Enforcement *uint64
	// Topics has the heads of docs.Topics by their tags.
	Topics map[string]*docs.Head

	// Time is the store's time; zero if it has only this machine's clock.
	Time time.Time
}

// Store is the part of the store that a Hub polls.
type Store interface {
	// Heads returns the heads. If the store has no secret, candidate becomes the secret.
	Heads(ctx context.Context, candidate [16]byte) (Heads, error)
}

// Seen is the state that a node has already.
type Seen struct {
	// Node is the node's id; it decides whether the node gets a version that is rolled out.
	Node string
	// Version is the version of its policy set.
	Version uint64
	// Mark is the policies.Version.Mark of its policy set; empty if it has none.
	Mark string
	// Consumers is the revision up to which it has the changes of consumers. With WantsConsumers it
	// gets later changes.
	Consumers      uint64
	WantsConsumers bool
	// Penalties is the revision up to which it has the changes of penalties. With WantsPenalties it
	// gets later changes.
	Penalties      uint64
	WantsPenalties bool
	// Enforcement is the revision of its orders and bans. With WantsEnforcement it gets later
	// changes.
	Enforcement      uint64
	WantsEnforcement bool
	// Outdated, if not nil, reports whether the node has a wrong number of nodes. It is called
	// every few seconds.
	Outdated func(context.Context) bool
}

// News is a message for nodes: a policy set, changes of consumers or of penalties, or all orders
// and bans.
type News struct {
	// Version and Mark belong to a policy set; 0 and empty in other messages.
	Version uint64
	Mark    string
	// Bytes is the message. All readers share it, so it must not be changed.
	Bytes []byte
}

// Hub follows the store and wakes waiting nodes. Make a Hub with New, and call Run in a goroutine.
type Hub struct {
	policies    *policies.Service
	consumers   *consumers.Service
	penalties   *penalties.Service
	enforcement *enforcement.Service
	store       Store
	log         *slog.Logger
	polled      func(error)
	now         func() time.Time
	clock       *storetime.Clock
	looked      chan struct{}

	mu      sync.Mutex
	secret  [16]byte
	ready   bool          // the secret comes from the store
	rekeyed chan struct{} // closed when the secret changes
	failure error         // the error of the last poll
	// followed is the time when the last successful poll began.
	followed time.Time
	// begun counts polls. ended is the number of the last poll that ended, confirmed the number of
	// the last successful poll; read is closed at the next successful poll.
	begun, ended, confirmed uint64
	read                    chan struct{}
	loaded                  bool    // a poll has succeeded
	encoded                 [2]News // snapshots of the versions in force

	// busy is true while a poll reads topics in the background; reading waits for it.
	busy    atomic.Bool
	reading sync.WaitGroup
}

// Config configures a Hub. All fields are required unless they say otherwise.
type Config struct {
	Policies    *policies.Service
	Consumers   *consumers.Service
	Penalties   *penalties.Service
	Enforcement *enforcement.Service
	Store       Store
	// Candidate becomes the deployment's secret if the store has none.
	Candidate [16]byte
	Log       *slog.Logger
	// Now is the clock of Followed; nil leaves Followed zero.
	Now func() time.Time
	// Clock, if not nil, is compared with the store's clock at each poll.
	Clock *storetime.Clock
	// Polled, if not nil, is called with the result of each poll.
	Polled func(error)
}

// New makes a Hub.
func New(c Config) *Hub {
	if c.Polled == nil {
		c.Polled = func(error) {}
	}
	if c.Now == nil {
		c.Now = func() time.Time { return time.Time{} }
	}
	if c.Clock == nil {
		c.Clock = storetime.New(c.Now, c.Log)
	}
	return &Hub{
		now: c.Now, clock: c.Clock,
		policies: c.Policies, consumers: c.Consumers, penalties: c.Penalties, enforcement: c.Enforcement,
		store: c.Store,
		log:   c.Log, polled: c.Polled, secret: c.Candidate, failure: ErrNotReady,
		looked: make(chan struct{}), rekeyed: make(chan struct{}), read: make(chan struct{}),
	}
}

// Run polls the store until ctx ends. It continues to poll a failing store, and logs once when the
// store begins to fail and once when it answers again.
func (h *Hub) Run(ctx context.Context) {
	defer h.reading.Wait()
	h.pollStore(ctx)
	h.reading.Wait()
	close(h.looked)
	every.Period(ctx, pollEvery, h.pollStore)
}

// pollStore reads all heads, and follows orders and bans. It reads the other topics in the
// background, so that a large topic, or a server that hangs, delays no order. Meanwhile no other
// poll reads them.
func (h *Hub) pollStore(ctx context.Context) {
	timed, cancel := context.WithTimeout(ctx, pollTimeout)
	begun := h.now()
	h.mu.Lock()
	h.begun++
	number := h.begun
	h.mu.Unlock()
	heads, err := h.readHeads(timed)
	if err != nil {
		cancel()
		h.endPoll(ctx, number, begun, err)
		return
	}
	if !h.busy.CompareAndSwap(false, true) {
		cancel()
		return
	}
	h.reading.Go(func() {
		defer cancel()
		defer h.busy.Store(false)
		h.endPoll(ctx, number, begun, h.followTopics(timed, heads))
	})
}

// endPoll records the result of a poll, unless a later poll has ended before.
func (h *Hub) endPoll(ctx context.Context, number uint64, begun time.Time, err error) {
	h.mu.Lock()
	if ctx.Err() != nil || number < h.ended {
		h.mu.Unlock()
		return
	}
	h.ended = number
	before := h.failure
	h.failure, h.loaded = err, h.loaded || err == nil
	if err == nil {
		h.followed = begun
		h.confirmed = number
		close(h.read)
		h.read = make(chan struct{})
	}
	h.mu.Unlock()
	h.polled(err)
	switch {
	case err != nil && (before == nil || before == ErrNotReady):
		h.log.Error("cannot follow the store; the state in memory is still served", "error", err)
	case err == nil && before != nil && before != ErrNotReady:
		h.log.Info("the store can be followed again")
	}
}

// readHeads reads all heads, and follows orders and bans, which need no secret. It asks for the
// secret each time. So a store that has lost everything gets the secret back before the policy set,
// and a replica that started with another candidate notices it.
func (h *Hub) readHeads(ctx context.Context) (Heads, error) {
	h.mu.Lock()
	candidate := h.secret
	h.mu.Unlock()
	var heads Heads
	var err error
	h.clock.Measure(func() time.Time {
		heads, err = h.store.Heads(ctx, candidate)
		return heads.Time
	})
	if err != nil {
		h.enforcement.Unreached(ctx, err)
		return heads, err
	}
	_ = h.enforcement.Follow(ctx, heads.Enforcement) // It logs its own failure, and works without the store.
	return heads, heads.NoSecret
}

// followTopics takes over the secret, and reads the changes of the other topics.
func (h *Hub) followTopics(ctx context.Context, heads Heads) error {
	h.mu.Lock()
	if heads.Secret != h.secret || !h.ready {
		close(h.rekeyed)
		h.rekeyed = make(chan struct{})
	}
	h.secret, h.ready = heads.Secret, true
	h.mu.Unlock()
	return errors.Join(
		h.policies.Follow(ctx, heads.Policies),
		h.consumers.Follow(ctx, heads.Topics[docs.Consumers.Tag]),
		h.penalties.Follow(ctx, heads.Topics[docs.Penalties.Tag]),
	)
}

// Secret returns the deployment's secret, which is also the key of the hashes of consumers. The
// error is ErrNotReady before the store has been reached.
func (h *Hub) Secret() ([16]byte, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ready {
		return keyhash.Key{}, ErrNotReady
	}
	return h.secret, nil
}

// Has reports whether a node with a version's number and mark has v, with the secret. Without a
// mark, and before the store has been reached, the number decides.
func (h *Hub) Has(v *policies.Version, number uint64, mark string) bool {
	has, _ := h.hasVersion(v, number, mark)
	return has
}

// hasVersion returns the result of Has, and a channel that is closed when the secret changes.
func (h *Hub) hasVersion(v *policies.Version, number uint64, mark string) (bool, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	unmarked := mark == "" || v.Digest == "" || !h.ready
	return v.Number == number && (unmarked || mark == v.Mark(h.secret)), h.rekeyed
}

// Looked returns a channel that is closed after the first poll of the store, whatever its result.
func (h *Hub) Looked() <-chan struct{} { return h.looked }

// Ready returns the error of the last poll of the store; nil if it succeeded.
func (h *Hub) Ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.failure
}

// Followed returns the time as of which memory is known to equal the store: the start of the last
// successful poll, zero before the first.
func (h *Hub) Followed() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.followed
}

// Loaded returns nil if a poll of the store has succeeded since the start, and the error of the
// last poll otherwise.
func (h *Hub) Loaded() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.loaded {
		return nil
	}
	return h.failure
}

// snapshotOf returns the snapshot of a version in force; its bytes are made only once.
func (h *Hub) snapshotOf(c *policies.Compiled, active policies.Active) (News, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.ready {
		return News{}, ErrNotReady
	}
	for _, known := range h.encoded {
		if known.isSnapshotOf(c, h.secret) {
			return known, nil
		}
	}
	snapshot := News{
		Version: c.Version.Number, Mark: c.Version.Mark(h.secret),
		Bytes: wire.AppendSnapshot(nil, wire.Snapshot{Version: c.Version.Number, Secret: h.secret, Set: c.Set}),
	}
	// The new snapshot takes the place of a snapshot that is no longer in force.
	for i, known := range h.encoded {
		if !known.isSnapshotOf(active.Current, h.secret) && !known.isSnapshotOf(active.Draft, h.secret) {
			h.encoded[i] = snapshot
			break
		}
	}
	return snapshot, nil
}

// isSnapshotOf reports whether the news is the snapshot of a version with a secret; c may be nil.
func (n News) isSnapshotOf(c *policies.Compiled, secret [16]byte) bool {
	return c != nil && n.Version == c.Version.Number && n.Mark == c.Version.Mark(secret)
}
