package rollouts

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/ground/every"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
)

// Every is the interval at which a replica checks the rollout under way.
const Every = 2 * time.Second

// Sets provides the versions in force. It is implemented by *policies.Service.
type Sets interface {
	Active() (policies.Active, <-chan struct{})
	Roll(ctx context.Context, c policies.RollChange) (policies.RollOutcome, error)
}

// Config configures a Watch.
type Config struct {
	Sets    Sets
	History History
	Now     func() time.Time
	// Stopped is called when this replica has stopped a rollout, and when a rollout that it could
	// not stop has ended: the store may have made the step, and its answer may be lost.
	Stopped func()
	Log     *slog.Logger
}

// Watch stops rollouts whose rule is broken. Every replica has a Watch. They judge the same counts,
// and the store accepts the step of one replica, so a rollout is watched as long as one replica
// runs.
type Watch struct {
	Config
	// tried is the version that could not be taken back, 0 for none; said is the error.
	tried uint64
	said  string
}

// Run calls Look until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	every.Period(ctx, Every, func(ctx context.Context) {
		timed, cancel := context.WithTimeout(ctx, Every)
		defer cancel()
		w.Look(timed)
	})
}

// Look judges the rollout under way, and takes its version back if its rule is broken. It reports
// whether it did.
func (w *Watch) Look(ctx context.Context) (stopped bool) {
	active, _ := w.Sets.Active()
	r := active.State.Rollout
	if tried := w.tried; tried != 0 && (r == nil || r.Version != tried) {
		w.tried, w.said = 0, ""
		if active.State.Current != tried { // The answer was lost, or another replica was faster.
			w.Stopped()
			w.Log.Warn("the rollout whose rule was broken is taken back", "version", tried)
			return true
		}
	}
	if r == nil || r.AbortIf == "" {
		return false
	}
	c := Compare(*r, active.Unlike(), w.History, w.Now())
	if c.Verdict != Broken || !c.Complete {
		return false
	}
	return w.stopRollout(ctx, *r, active.State.Revision, c.Why())
}

func (w *Watch) stopRollout(ctx context.Context, r policies.Rollout, revision uint64, why string) bool {
	_, err := w.Sets.Roll(ctx, policies.RollChange{
		Expected: revision, Nodes: 0,
		Entry: audit.Entry{Action: "rollout.abort", Resource: "rollout", Reason: why},
	})
	switch {
	case errors.Is(err, errs.Conflict), errors.Is(err, policies.ErrNoRollout):
		// Another replica or an operator was faster.
		return false
	case err != nil:
		if w.tried != r.Version || w.said != err.Error() {
			w.Log.Warn("cannot take back the rollout though its rule is broken; trying again", "version", r.Version,
				"rule", r.AbortIf, "because", why, "error", err.Error())
		}
		w.tried, w.said = r.Version, err.Error()
		return false
	}
	w.tried, w.said = 0, ""
	w.Stopped()
	w.Log.Warn("the rollout is taken back by its rule", "version", r.Version, "rule", r.AbortIf, "because", why)
	return true
}
