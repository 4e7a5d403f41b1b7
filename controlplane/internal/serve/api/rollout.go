package api

import (
	"context"
	"regexp"
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/rollouts"
	"github.com/weir-proxy/weir/controlplane/internal/observe/series"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
)

// rolloutBound explains how limits hold while two versions are in force.
const rolloutBound = "each node decides by the limits of its version, and the requests that it admits count for " +
	"both: over all nodes at most the larger of both limits passes, and the limits in force lose no count"

// GetRollout describes the rollout that is under way.
func (s *server) GetRollout(ctx context.Context, _ gen.GetRolloutRequestObject) (gen.GetRolloutResponseObject, error) {
	timed, cancel := s.atHand(ctx)
	defer cancel()
	view, away, err := s.config.Policies.Rollout(timed)
	if err != nil {
		return nil, storeFailure(err)
	}
	s.noteHeld(ctx, away, s.config.Hub.Followed())
	r := view.Rollout
	census := s.countRollout(ctx, r)
	both := rollouts.Compare(r, view.Unlike, s.config.Series, s.config.Now())
	return gen.GetRollout200JSONResponse{
		Headers: gen.GetRollout200ResponseHeaders{ETag: etag(view.Revision), CacheControl: "no-cache"},
		Body: gen.Rollout{Version: r.Version, Current: r.Base, Nodes: shareText(r.Nodes), Since: r.Since, By: r.By,
			Summary: view.Diff.String(),
			Seen:    census.seen, Chosen: census.chosen, Applied: census.applied, Refused: census.refused,
			AbortIf: r.AbortIf, Verdict: verdictOf(r, both), Because: both.Why(),
			Its: sideOf(both.All.Its), Others: sideOf(both.All.Others), Policies: rowsOf(both.Rows),
			PoliciesLeftOut: max(len(both.Rows)-mostCompared, 0), Apart: view.Apart},
	}, nil
}

// mostCompared is the largest number of policies in an answer.
const mostCompared = 200

func verdictOf(r policies.Rollout, both rollouts.Comparison) gen.RolloutVerdict {
	switch {
	case r.AbortIf == "":
		return ""
	case both.Verdict == rollouts.Few:
		return gen.TooFewRequests
	case both.Verdict == rollouts.Broken:
		return gen.Broken
	}
	return gen.Kept
}

func rowsOf(rows []rollouts.Row) []gen.RolloutPolicy {
	list := []gen.RolloutPolicy{}
	for _, row := range rows[:min(len(rows), mostCompared)] {
		list = append(list, gen.RolloutPolicy{Policy: row.Policy, Its: sideOf(row.Its), Others: sideOf(row.Others)})
	}
	return list
}

func sideOf(side series.Side) gen.RolloutSide {
	return gen.RolloutSide{Requests: side.Decided, Refused: side.Refused, Errors: side.Unsure, Waited: side.Waited,
		WaitedMs: side.Held.Milliseconds()}
}

// ruleOf reads the rule by which a rollout is cancelled; the texts "" and off are no rule.
func ruleOf(text string) (string, error) {
	if text == "" || text == "off" {
		return "", nil
	}
	if _, err := rollouts.Parse(text); err != nil {
		return "", badRequest("abort_if: %v", err)
	}
	return text, nil
}

// PutRollout gives the version that is rolled out to another share of the nodes. With all nodes it
// becomes the current version, and the rollout ends.
func (s *server) PutRollout(ctx context.Context, r gen.PutRolloutRequestObject) (gen.PutRolloutResponseObject, error) {
	percent, err := shareOf(r.Body.Nodes)
	if err != nil {
		return nil, err
	}
	change := policies.RollChange{Nodes: percent, DryRun: r.Params.DryRun}
	if r.Body.AbortIf != "" {
		rule, err := ruleOf(r.Body.AbortIf)
		if err != nil {
			return nil, err
		}
		if rule != "" && percent == policies.Everyone {
			return nil, badRequest("abort_if needs nodes below 100%%: a version that all nodes have is compared " +
				"with nothing")
		}
		change.AbortIf = &rule
	}
	answer, err := s.stepRollout(ctx, "rollout.put", change, r.Params.IfMatch)
	return gen.PutRollout200JSONResponse{RolloutStepJSONResponse: answer}, err
}

// DeleteRollout cancels the rollout: all nodes get the current version.
func (s *server) DeleteRollout(
	ctx context.Context, r gen.DeleteRolloutRequestObject,
) (gen.DeleteRolloutResponseObject, error) {
	answer, err := s.stepRollout(ctx, "rollout.delete", policies.RollChange{DryRun: r.Params.DryRun}, r.Params.IfMatch)
	return gen.DeleteRollout200JSONResponse{RolloutStepJSONResponse: answer}, err
}

// stepRollout makes a step of the rollout and describes it.
func (s *server) stepRollout(
	ctx context.Context, action string, change policies.RollChange, match gen.IfMatch,
) (answer gen.RolloutStepJSONResponse, err error) {
	change.Entry = newEntry(ctx, action, "rollout")
	percent, dryRun := change.Nodes, change.DryRun
	change.Expected, change.Any, err = ifMatch(match)
	if err != nil {
		return answer, err
	}
	out, err := s.config.Policies.Roll(ctx, change)
	if err != nil {
		return answer, storeFailure(explainConflict(err, rolloutChanged))
	}
	census := s.countRollout(ctx, out.Rollout)
	answer.Body = gen.RolloutStep{Version: out.Rollout.Version, DryRun: dryRun,
		Rollout: gen.RolloutStepRollout(out.Ended), Nodes: shareText(percent),
		Seen: census.seen, Chosen: census.chosen, Summary: out.Diff.String(), Diff: out.Diff, Apart: out.Apart}
	if !dryRun {
		s.config.Log.Info("rollout changed", "id", callerOf(ctx).id, "version", out.Rollout.Version, "nodes_percent",
			percent, "rollout", out.Ended,
			"author", change.Entry.By)
		if out.Ended == policies.RolloutUnderWay {
			tag := etag(out.Revision)
			answer.Headers.ETag = &tag
		}
	}
	return answer, nil
}

// describeBegun describes the rollout that a change begins; nil for other changes.
func (s *server) describeBegun(ctx context.Context, out policies.Outcome) *gen.RolloutBegun {
	if out.Rollout == nil {
		return nil
	}
	census := s.countRollout(ctx, *out.Rollout)
	return &gen.RolloutBegun{Nodes: shareText(out.Rollout.Nodes), Seen: census.seen, Chosen: census.chosen,
		AbortIf: out.Rollout.AbortIf, Bound: rolloutBound, Apart: out.Apart}
}

// census counts the nodes that share the buckets: seen nodes in all, and chosen nodes in the
// rollout. Among the chosen nodes, applied nodes have its version, and refused nodes could not
// apply it.
type census struct{ seen, chosen, applied, refused int }

func (s *server) countRollout(ctx context.Context, r policies.Rollout) (c census) {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	all, _ := s.config.Nodes.List(ctx)
	draft := policies.Version{Number: r.Version}
	if active, _ := s.config.Policies.Active(); active.Draft != nil && active.Draft.Version.Number == r.Version {
		draft = active.Draft.Version
	}
	for _, n := range all {
		if s.config.Now().Sub(n.Seen) >= nodes.Counted {
			continue
		}
		c.seen++
		if !r.Includes(n.ID) {
			continue
		}
		c.chosen++
		switch {
		case s.config.Hub.Has(&draft, n.Applied, n.Mark):
			c.applied++
		case n.Refused == r.Version:
			c.refused++
		}
	}
	return c
}

func shareText(percent int) string { return strconv.Itoa(percent) + "%" }

// shareOf reads a share of the nodes, in percent; all of them if there is none.
func shareOf(text string) (int, error) {
	if text == "" {
		return policies.Everyone, nil
	}
	percent, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
	if err != nil || percent < 1 || percent > policies.Everyone {
		return 0, badRequest("nodes must be a share of the nodes from 1%% to 100%%, not %q", text)
	}
	return percent, nil
}

var plainPercent = regexp.MustCompile(`(^|&)(nodes=[0-9]{1,3})%(&|$)`)

// plainShare lets people write nodes=25% in a query, where a percent sign should be %25.
func plainShare(query string) string { return plainPercent.ReplaceAllString(query, "$1$2%25$3") }
