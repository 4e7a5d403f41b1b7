package api

import (
	"context"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/rules/promises"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/policy"
)

// CheckPolicySet answers with the promises and the changes of a document, or with the reasons to
// refuse it.
func (s *server) CheckPolicySet(
	ctx context.Context, r gen.CheckPolicySetRequestObject,
) (gen.CheckPolicySetResponseObject, error) {
	// Read the document.
	text, format, err := readDocument(ctx, r.Body)
	if err != nil {
		return nil, err
	}
	if len(text) == 0 {
		return nil, badRequest("the body is empty: it must be a policy set")
	}
	// Compile it. A wrong document is answered with its problems.
	answer := gen.CheckPolicySet200JSONResponse{Problems: policy.Problems{}, Policies: []promises.Promise{},
		Diff: policies.Compare(&policy.Set{}, &policy.Set{})}
	set, err := policydoc.LoadNew(text, format)
	if problems, ok := policydoc.ProblemsOf(err); ok {
		answer.Problems = problems
		return answer, nil
	} else if err != nil {
		return nil, err
	}
	// Add the promises, and the changes against the set in force.
	answer.Valid, answer.Notes = true, promises.NotesOf(set)
	envoys, doors := s.config.Nodes.Fleet(ctx)
	for _, p := range set.Policies {
		answer.Policies = append(answer.Policies, promises.Of(p, set, max(1, envoys), doors))
	}
	before := &policy.Set{}
	if current, _ := s.config.Policies.Current(); current != nil {
		before = current.Set
	}
	answer.Diff = policies.Compare(before, set)
	answer.Summary = answer.Diff.String()
	return answer, nil
}
