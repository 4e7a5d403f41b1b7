package rollouts

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/audit"
	"github.com/weir-proxy/weir/controlplane/internal/errs"
	"github.com/weir-proxy/weir/controlplane/internal/every"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
)

// Every is how often a replica looks at the rollout under way.
const Every = 2 * time.Second

// Sets are the versions in force. It is implemented by *policies.Service.
type Sets interface {
	Active() (policies.Active, <-chan struct{})
	Roll(ctx context.Context, c policies.RollChange) (policies.RollOutcome, error)
}

// Config is what a Watch stands on.
type Config struct {
	Sets    Sets
	History History
	Now     func() time.Time
	// Stopped is called when this replica has stopped a rollout.
	Stopped func()
	Log     *slog.Logger
}

// Watch stops rollouts whose rule is broken. Every replica has one: they judge the same counts, and
// the store lets one make the step, so a rollout is watched as long as one replica is there.
type Watch struct{ Config }

// Run calls Look until ctx ends.
func (w Watch) Run(ctx context.Context) {
	every.Period(ctx, Every, func(ctx context.Context) {
		timed, cancel := context.WithTimeout(ctx, Every)
		defer cancel()
		w.Look(timed)
	})
}

// Look judges the rollout under way, and takes its version back if its rule is broken. It reports
// whether it did.
func (w Watch) Look(ctx context.Context) (stopped bool) {
	active, _ := w.Sets.Active()
	r := active.State.Rollout
	if r == nil || r.AbortIf == "" {
		return false
	}
	c := Compare(*r, w.History, w.Now())
	if c.Verdict != Broken || !c.Complete {
		return false
	}
	why := c.Why()
	_, err := w.Sets.Roll(ctx, policies.RollChange{
		Expected: active.State.Revision, Nodes: 0,
		Entry: audit.Entry{Action: "rollout.abort", Resource: "rollout", Reason: why},
	})
	switch {
	case errors.Is(err, errs.Conflict), errors.Is(err, policies.ErrNoRollout): // Someone was faster.
		return false
	case err != nil:
		w.Log.Warn("the rollout cannot be taken back though its rule says so: the store does not answer; trying again",
			"version", r.Version, "rule", r.AbortIf, "because", why, "error", err.Error())
		return false
	}
	w.Stopped()
	w.Log.Warn("the rollout is taken back by its rule", "version", r.Version, "rule", r.AbortIf, "because", why)
	return true
}
