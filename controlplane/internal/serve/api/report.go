package api

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// offencesPatience and twice touchPatience are less than a node waits for the answer to a report.
const offencesPatience = 500 * time.Millisecond

// report takes the sections of a worker's report. Only offences must not be lost: if the store does
// not take them, the answer is 202, and the node sends only the offences again. The offences come
// first, because other sections wait for the store, too.
func (s *server) report(c echo.Context) error {
	body, err := s.readBody(c, wire.MaxReport)
	if err != nil {
		return err
	}
	r, err := wire.DecodeReport(body)
	if err != nil {
		return errUnreadable("report", err)
	}
	if len(r.Node) == 0 {
		return badRequest("the report does not name the node")
	}
	r.SetNode([]byte(nodes.Node{ID: string(r.Node)}.Clean().ID)) // As it is listed.
	if r.Measures != nil {
		s.noteMeasures(r.Measures)
	}
	taken := true
	if r.Offences != nil {
		taken = s.noteOffences(c, r.Offences)
	}
	if r.Ladder != nil {
		s.noteLadder(c, &r)
	}
	if r.Decisions != nil {
		s.noteDecisions(c, r.Decisions)
	}
	if !taken {
		return c.NoContent(http.StatusAccepted)
	}
	return c.NoContent(http.StatusNoContent)
}

// noteLadder stores on which steps of its failure ladder a node is. A failure of the store is only
// logged.
func (s *server) noteLadder(c echo.Context, r *wire.Report) {
	boot := strconv.FormatUint(r.Boot, 16)
	if !s.mayNote(c, string(r.Node), boot) {
		return
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), touchPatience)
	defer cancel()
	if err := s.config.Nodes.Report(ctx, string(r.Node), boot, s.reportedLadder(ctx, r.Ladder)); err != nil {
		s.config.Log.Debug("a node's ladder could not be stored", "id", requestID(c), "error", err.Error())
	}
}

// reportedLadder returns a node's ladder with the names of the policies: the nodes.MaxSteps highest
// steps, and the number of the other policies on a step. It sorts r.Steps. If the version of the
// policy set cannot be read, the ladder names no policy.
func (s *server) reportedLadder(ctx context.Context, r *wire.Ladder) nodes.Reported {
	reported := nodes.Reported{State: r.Worst.String()}
	// Find the version of the policy set that the node applies.
	set, _ := s.config.Policies.Current()
	if len(r.Steps) > 0 && (set == nil || set.Version.Number != r.Version) {
		var err error
		set, err = s.config.Policies.At(ctx, r.Version)
		if err != nil {
			return reported
		}
	}
	// Name the policies, the highest steps first.
	slices.SortStableFunc(r.Steps, func(a, b wire.PolicyStep) int { return int(b.Step) - int(a.Step) })
	for _, step := range r.Steps {
		switch {
		case int(step.Policy) >= len(set.Set.Policies) || step.Step == policy.StepGround:
			// The policy does not exist, or is on no step.
		case len(reported.Steps) == nodes.MaxSteps:
			reported.MoreSteps++
		default:
			if reported.Steps == nil {
				reported.Steps = map[string]string{}
			}
			reported.Steps[set.Set.Policies[step.Policy].Name] = step.Step.String()
		}
	}
	return reported
}
