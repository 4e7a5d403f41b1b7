package respond

import (
	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
)

// The gRPC statuses of refusals.
const (
	grpcInvalidArgument   = 3
	grpcPermissionDenied  = 7
	grpcResourceExhausted = 8
	grpcUnavailable       = 14
)

// The problem types of the RateLimit draft, and the one of a problem that its status describes.
const (
	quotaExceeded   = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	reducedCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	abnormalUsage   = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
	plainProblem    = "about:blank"
)

// problem is one kind of refusal: its statuses, its problem type, and the two parts of its
// sentence, around the policy's name. A sentence without parts depends on the limit.
type problem struct {
	status        uint32
	grpc          int32
	kind, title   string
	before, after string
}

// problems are by reason. No sentence says "used up" of a limit that could not be counted.
var problems = [...]problem{
	policy.ReasonQuota:   {429, grpcResourceExhausted, quotaExceeded, "Too Many Requests", "", ""},
	policy.ReasonTooDear: {429, grpcResourceExhausted, quotaExceeded, "Too Many Requests", "", ""},
	policy.ReasonAbsent: {403, grpcPermissionDenied, plainProblem, "Forbidden",
		"Policy ", " needs to know whose request this is, and the request does not say."},
	policy.ReasonBadCost: {400, grpcInvalidArgument, plainProblem, "Bad Request",
		"Policy ", " needs a cost, a whole number up to its maximum, and the request names none."},
	policy.ReasonFailure: {429, grpcResourceExhausted, reducedCapacity, "Temporarily Reduced Capacity",
		"The limiter cannot reach the counters of policy ", " now."},
	policy.ReasonTooManyWaiting: {429, grpcResourceExhausted, reducedCapacity, "Temporarily Reduced Capacity",
		"Too many requests wait for policy ", " already."},
	policy.ReasonPenalty: {429, grpcResourceExhausted, abnormalUsage, "Abnormal Usage Detected",
		"Policy ", " has refused this caller too often, so all its requests are refused until the penalty ends."},
	policy.ReasonContended: {429, grpcResourceExhausted, reducedCapacity, "Temporarily Reduced Capacity",
		"Too many requests ask for the same count of policy ", " at once."},
	policy.ReasonInFlight: {429, grpcResourceExhausted, quotaExceeded, "Too Many Requests", "", ""},
	policy.ReasonShed: {503, grpcUnavailable, reducedCapacity, "Temporarily Reduced Capacity",
		"What policy ", " protects has more to do than it can."},
}

// shareUsed is the refusal by a node's own share, while the counters cannot be reached.
var shareUsed = problem{429, grpcResourceExhausted, reducedCapacity, "Temporarily Reduced Capacity",
	"The limiter cannot reach the counters of policy ", " now, and what this proxy may admit alone is used up."}

// bans are the sentences for banned callers, by what is banned.
var bans = [...]string{
	match.NoBan:       "This request is banned.",
	match.AddressBan:  "Requests from this address are banned.",
	match.ConsumerBan: "The key or identity that this request comes with is banned.",
	match.KeyBan:      "The client, or what else this request is counted by, is banned.",
}

func problemOf(req *limiter.Request) *problem {
	if req.Reason == policy.ReasonFailure && req.Source == policy.ByShare {
		return &shareUsed
	}
	return &problems[req.Reason]
}

// WriteBan makes the answer to a banned caller. It names what is banned and nothing else.
func (r *Refusal) WriteBan(ban match.Ban, grpc bool) {
	r.Headers.Reset()
	r.Body = r.Body[:0]
	r.Status, r.GRPC = 403, grpcPermissionDenied
	r.Headers.add("cache-control", "no-store")
	if !grpc {
		r.Headers.add("content-type", "application/problem+json")
		r.Body = append(r.Body, `{"type":"about:blank","title":"Forbidden","status":403,"detail":"`...)
		r.Body = append(append(r.Body, bans[ban]...), "\"}\n"...)
	}
}

// writeProblem writes problem+json (RFC 9457). Everything in it is a number or comes from the
// operator, so it needs no escaping: validation keeps the names of policies and tiers plain.
func (r *Refusal) writeProblem(kind *problem, req *limiter.Request, hit *limiter.Hit, retry int64) {
	l := req.LimitOf(&hit.Hit)
	b := append(append(r.Body, `{"type":"`...), kind.kind...)
	b = append(append(b, `","title":"`...), kind.title...)
	b = ratelimitheader.AppendInt(append(b, `","status":`...), int64(r.Status))
	b = appendSentence(append(b, `,"detail":"`...), kind, req, hit)
	if retry > 0 {
		b = appendTryAgain(b, retry)
	}
	b = around(b, `","violated-policies":["`, name(req, req.Refusing), `"]`)
	if req.Reason != policy.ReasonShed { // Its limit is another at each moment.
		b = ratelimitheader.AppendInt(append(b, `,"limit":`...), l.Quota)
	}
	if !l.InFlight {
		b = append(policy.AppendSpan(append(b, `,"window":"`...), l.Window), '"')
	}
	if tier := req.Rules().Index.Tier(hit.Tier); len(tier) > 0 {
		b = around(b, `,"tier":"`, tier, `"`)
	}
	if retry > 0 {
		b = ratelimitheader.AppendInt(append(b, `,"retry_after":`...), retry)
	}
	r.Body = append(b, "}\n"...)
}

// around appends a name between two texts, without building a text of all three.
func around(b []byte, before string, name []byte, after string) []byte {
	return append(append(append(b, before...), name...), after...)
}

// appendSentence appends the reason as a sentence.
func appendSentence(b []byte, kind *problem, req *limiter.Request, hit *limiter.Hit) []byte {
	ix := &req.Rules().Index
	policyName, l := ix.Text(ix.Policy(hit.Policy).Name), req.LimitOf(&hit.Hit)
	switch {
	case kind.before != "":
		return around(b, kind.before, policyName, kind.after)
	case req.Reason == policy.ReasonTooDear && hit.Cost <= l.Params.Burst: // A region grants a part only.
		b = ratelimitheader.AppendInt(append(b, "This request costs "...), hit.Cost)
		b = around(b, ", and policy ", policyName, " never allows as much at once in this region")
		return append(b, ": waiting does not help."...)
	case req.Reason == policy.ReasonTooDear:
		b = ratelimitheader.AppendInt(append(b, "This request costs "...), hit.Cost)
		b = around(b, ", and policy ", policyName, " never allows more than ")
		return append(ratelimitheader.AppendInt(b, l.Params.Burst), " at once: waiting does not help."...)
	case l.InFlight:
		b = ratelimitheader.AppendInt(around(b, "Policy ", policyName, " allows "), l.Quota)
		return append(b, " requests at the same time, and as many are under way."...)
	case l.Algorithm.Queues():
		b = appendRate(around(b, "Policy ", policyName, " lets "), l)
		return append(b, " through, and its queue is full."...)
	case l.Params.Burst != l.Quota:
		b = around(b, "Policy ", policyName, " allows ")
		b = append(ratelimitheader.AppendInt(b, l.Params.Burst), " at once and "...)
		b = appendWhom(append(appendRate(b, l), " in the long run"...), ix, hit)
		return append(b, ", and what it allows at once is used up."...)
	}
	b = appendWhom(appendRate(around(b, "Policy ", policyName, " allows "), l), ix, hit)
	return append(b, ", and that is used up."...)
}

// appendRate writes a limit as 100 per 1h.
func appendRate(b []byte, l *policy.Limit) []byte {
	b = append(ratelimitheader.AppendInt(b, l.Quota), " per "...)
	return policy.AppendSpan(b, l.Window)
}

// appendWhom adds whom a limit is for that is what a reserve leaves of another.
func appendWhom(b []byte, ix *match.Index, hit *limiter.Hit) []byte {
	if after := ix.After(&hit.Hit); len(after) > 0 {
		b = around(b, " to the classes after ", after, "")
	}
	return b
}

func appendTryAgain(b []byte, retry int64) []byte {
	b = ratelimitheader.AppendInt(append(b, " Try again in "...), retry)
	if retry == 1 {
		return append(b, " second."...)
	}
	return append(b, " seconds."...)
}
