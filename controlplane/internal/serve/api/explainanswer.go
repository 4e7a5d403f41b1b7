package api

import (
	"cmp"
	"net/http"
	"slices"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/serve/explain"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
)

// writeVerdict writes the verdict on the request and its sentence.
func (x *explaining) writeVerdict() {
	a := &x.answer.Answer
	a.Verdict = gen.ExplainedAnswerVerdictPasses
	switch {
	case x.Access == match.Off:
		a.Sentence = "It passes: operators have switched everything off, bans too."
	case x.Access == match.Banned:
		a.Verdict, a.Sentence = gen.ExplainedAnswerVerdictRefused, answer.Bans[x.Ban]
		x.writeStatus(a, cmp.Or(x.by.Set.Response(policy.AnswerBan).Status, 403), answer.BanGRPC)
	case x.Access == match.Exempt:
		a.Sentence = "It passes and is charged nowhere, by " + cmp.Or(x.Exempt, "a bypass of the consumer") + "."
	case x.refusing != nil:
		x.writeRefusal(a, x.refusing)
	case slices.ContainsFunc(x.answer.Policies, func(p gen.ExplainedPolicy) bool {
		return p.Verdict == gen.ExplainedPolicyVerdictDepends && p.State == gen.ExplainedPolicyStateEnforce
	}):
		a.Verdict = gen.ExplainedAnswerVerdictDepends
		a.Sentence = "It depends on the Envoy: see the policies below."
	case slices.ContainsFunc(x.Misses, lacksAddress):
		a.Verdict = gen.ExplainedAnswerVerdictDepends
		a.Sentence = "It depends on the client's address, which is not given: say --client-ip."
	case len(x.answer.Policies) == 0:
		a.Sentence = "It passes: no policy is for it."
	default:
		a.Sentence = "It passes."
	}
}

// lacksAddress reports whether a policy that could refuse the request would match it if the
// client's address were given.
func lacksAddress(m explain.Miss) bool {
	decides := m.Policy.Enforced != policy.EnforcedOff && m.Policy.Enforced != policy.EnforcedShadow
	return decides && m.Unaddressed > 0 && m.Unaddressed == len(m.Fails)
}

// writeRefusal writes the answer to a refusal.
func (x *explaining) writeRefusal(a *gen.ExplainedAnswer, by *refusing) {
	about := answer.About{Reason: by.reason, Source: policy.ByCentral, Policy: []byte(by.policy.Name),
		Limit: &by.limit, Cost: by.cost, Left: by.left}
	a.Verdict, a.RetryAfterSeconds = gen.ExplainedAnswerVerdictRefused, by.wait
	a.Policy, a.Reason = by.policy.Name, by.reason.String()
	status := int(about.Kind().Status)
	x.writeStatus(a, cmp.Or(x.by.Set.ResponseOf(by.policy, by.reason, status).Status, status), about.Kind().GRPC)
	a.Sentence = string(about.AppendSentence(nil, by.wait))
}

// writeStatus fills in the status of a refusal: the HTTP status, or the gRPC status for a gRPC
// caller.
func (x *explaining) writeStatus(a *gen.ExplainedAnswer, ofHTTP int, ofGRPC int32) {
	if a.Status = ofHTTP; x.speaksGRPC {
		a.Status, a.GrpcStatus = http.StatusOK, int(ofGRPC)
	}
}
