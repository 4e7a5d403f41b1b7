package api

import (
	"context"
	"net/http"
	"slices"
	"strconv"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/nodes"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/wire"
)

// maxReport is more than wire.MaxSteps steps and the longest name of a node take.
const maxReport = 8 << 10

// report notes on which steps of its failure ladder a node is. A store that is away is no reason to
// refuse it.
func (s *server) report(c echo.Context) error {
	body, err := s.body(c, maxReport)
	if err != nil {
		return err
	}
	var r wire.Report
	if err := wire.DecodeReport(body, &r); err != nil {
		return unreadable("report", err)
	}
	if len(r.Node) == 0 {
		return badRequest("the report does not name the node")
	}
	boot := strconv.FormatUint(r.Boot, 16)
	if !s.mayNote(c, string(r.Node), boot) {
		return c.NoContent(http.StatusNoContent)
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), touchPatience)
	defer cancel()
	if err := s.config.Nodes.Report(ctx, string(r.Node), boot, s.reported(ctx, r)); err != nil {
		s.config.Log.Debug("a report could not be stored", "id", requestID(c), "error", err.Error())
	}
	return c.NoContent(http.StatusNoContent)
}

// reported is a report with the policies' names. Policies of a version that is not known here are
// left out.
func (s *server) reported(ctx context.Context, r wire.Report) nodes.Reported {
	said := nodes.Reported{State: r.Worst.String()}
	set, _ := s.config.Policies.Current()
	if len(r.Steps) > 0 && (set == nil || set.Version.Number != r.Version) {
		var err error
		set, err = s.config.Policies.At(ctx, r.Version)
		if err != nil {
			return said
		}
	}
	slices.SortStableFunc(r.Steps, func(a, b wire.PolicyStep) int { return int(b.Step) - int(a.Step) })
	for _, step := range r.Steps {
		switch {
		case int(step.Policy) >= len(set.Set.Policies) || step.Step == policy.StepGround:
		case len(said.Steps) == nodes.MaxSteps:
			said.MoreSteps++
		default:
			if said.Steps == nil {
				said.Steps = map[string]string{}
			}
			said.Steps[set.Set.Policies[step.Policy].Name] = step.Step.String()
		}
	}
	return said
}
