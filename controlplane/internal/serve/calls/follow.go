package calls

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	// waitTime is the longest time of one wait for news, pause the time between a failed wait and
	// the next wait.
	waitTime = 30 * time.Second
	pause    = 200 * time.Millisecond
)

// Hub has the newest policy set and the orders beside it. *push.Hub implements it.
type Hub interface {
	Wait(ctx context.Context, node push.Seen) (push.News, bool, error)
}

// Sets are the versions of the policy set. *policies.Service implements it.
type Sets interface {
	At(ctx context.Context, number uint64) (*policies.Compiled, error)
}

// Follower keeps the newest View for all services of calls, as a node keeps its policy set. Make
// one with NewFollower, and let a goroutine call Run.
type Follower struct {
	hub  Hub
	sets Sets
	now  func() time.Time
	log  *slog.Logger
	view atomic.Pointer[View]

	// seen names the newest messages that the view contains. The next fields have their contents.
	seen     push.Seen
	snapshot []byte
	set      *policy.Set
	orders   wire.Enforcement
}

// NewFollower makes a Follower that the hub knows as a node with the given name. now is the clock
// for the ends of orders and bans.
func NewFollower(name string, hub Hub, sets Sets, now func() time.Time, log *slog.Logger) *Follower {
	return &Follower{hub: hub, sets: sets, now: now, log: log, seen: push.Seen{Node: name, WantsEnforcement: true}}
}

// View returns the newest view; nil before the first.
func (f *Follower) View() *View { return f.view.Load() }

// Run follows the hub until ctx ends. If it cannot read a change, it logs the error and keeps the
// last view.
func (f *Follower) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := f.takeNews(ctx); err != nil && ctx.Err() == nil {
			f.log.Debug("calls to the gRPC services are decided as before", "error", err.Error())
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// Look reads all news that the hub has now, without waiting. Call it before Run.
func (f *Follower) Look() error {
	for {
		now, cancel := context.WithCancel(context.Background())
		cancel()
		news, fresh, err := f.hub.Wait(now, f.seen)
		if err != nil || !fresh {
			return err
		}
		if err := f.updateView(context.Background(), news); err != nil {
			return err
		}
	}
}

// takeNews waits for a message, or for the end of an order or a ban, and makes a new view.
func (f *Follower) takeNews(ctx context.Context) error {
	timed, cancel := context.WithTimeout(ctx, f.timeToWait())
	defer cancel()
	news, fresh, err := f.hub.Wait(timed, f.seen)
	if err != nil || ctx.Err() != nil {
		return err
	}
	if view := f.View(); !fresh && (view == nil || view.ends == 0 || f.now().UnixMilli() < view.ends) {
		return nil
	}
	return f.updateView(ctx, news)
}

// updateView reads a message and makes a new view. The message is empty if an order or a ban has
// ended: then the new view only leaves it out.
func (f *Follower) updateView(ctx context.Context, news push.News) error {
	// Read the message: a policy set, or orders.
	switch {
	case news.Version > 0:
		compiled, err := f.sets.At(ctx, news.Version)
		if err != nil {
			return err
		}
		f.snapshot, f.set = news.Bytes, compiled.Set
		f.seen.Version, f.seen.Mark = news.Version, news.Mark
	case wire.IsEnforcement(news.Bytes):
		orders := wire.Enforcement{}
		if err := wire.DecodeEnforcement(news.Bytes, &orders); err != nil {
			return err
		}
		f.orders, f.seen.Enforcement = orders, orders.Revision
	}
	// Make the view, once there is a policy set.
	if f.set == nil {
		return nil
	}
	view, err := NewView(f.snapshot, f.set, &f.orders, f.now().UnixMilli())
	if err == nil {
		f.view.Store(view)
	}
	return err
}

// timeToWait returns the time to wait for news: at most until the next order or ban ends.
func (f *Follower) timeToWait() time.Duration {
	view := f.View()
	if view == nil || view.ends == 0 {
		return waitTime
	}
	left := time.Duration(view.ends-f.now().UnixMilli()) * time.Millisecond
	return min(max(left, time.Millisecond), waitTime)
}
