package rls

import (
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// buildAnswer returns the answer to the call: a status for each descriptor, and headers, body and
// metadata for the call as a whole.
func (d *decision) buildAnswer() *rlspb.RateLimitResponse {
	out := &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK}
	if d.refusing != nil {
		out.OverallCode = rlspb.RateLimitResponse_OVER_LIMIT
	}
	out.Statuses = make([]*rlspb.RateLimitResponse_DescriptorStatus, len(d.in.Descriptors))
	statuses := make([]rlspb.RateLimitResponse_DescriptorStatus, len(d.in.Descriptors))
	for i := range statuses {
		d.fillStatus(i, &statuses[i])
		out.Statuses[i] = &statuses[i]
	}
	d.writer.writeHeaders(d, out)
	if d.service.config.Metadata || d.refusing != nil || d.unusual() {
		out.DynamicMetadata = d.buildMetadata()
	}
	return out
}

// unusual reports whether anything but the buckets of the store has decided.
func (d *decision) unusual() bool {
	for i := range d.hits {
		if d.hits[i].source != policy.ByCentral {
			return true
		}
	}
	return false
}

// fillStatus fills in the status of a descriptor. Of its own limits and the limits of the call as a
// whole it shows the limit with the longest wait, else the limit nearest to exhaustion.
func (d *decision) fillStatus(descriptor int, s *rlspb.RateLimitResponse_DescriptorStatus) {
	s.Code = rlspb.RateLimitResponse_OK
	var shown *hit
	for i := range d.hits {
		h := &d.hits[i]
		if h.descriptor != descriptor && h.descriptor != wholeCall {
			continue
		}
		if h.refuses {
			s.Code = rlspb.RateLimitResponse_OVER_LIMIT
		}
		if shown == nil || h.isShownBefore(shown) {
			shown = h
		}
	}
	if shown == nil {
		return
	}
	if shown.bucketless() {
		return
	}
	s.CurrentLimit = d.limitOf(shown)
	if !shown.known && !shown.refuses {
		return
	}
	s.LimitRemaining = uint32(min(shown.remaining, 1<<32-1))
	if shown.reset < quota.Never {
		s.DurationUntilReset = durationpb.New(time.Duration(shown.reset) * time.Microsecond)
	}
}

// bucketless reports whether the hit is refused because its key is missing or its cost is wrong:
// then it has no bucket.
func (h *hit) bucketless() bool {
	return h.refuses && (h.reason == policy.ReasonAbsent || h.reason == policy.ReasonBadCost)
}

// isShownBefore reports whether the caller learns more from this hit than from the other hit.
func (h *hit) isShownBefore(other *hit) bool {
	switch {
	case h.refuses != other.refuses:
		return h.refuses
	case h.refuses:
		return h.retry > other.retry
	case h.known != other.known:
		return h.known
	}
	return h.restShare() < other.restShare()
}

// restShare returns the share of the burst that is left.
func (h *hit) restShare() float64 {
	return float64(h.remaining) / float64(max(h.limit.Params.Burst, 1))
}

// units are the windows that the protocol has names for.
var units = map[quota.Span]rlspb.RateLimitResponse_RateLimit_Unit{
	quota.Second: rlspb.RateLimitResponse_RateLimit_SECOND, quota.Minute: rlspb.RateLimitResponse_RateLimit_MINUTE,
	quota.Hour: rlspb.RateLimitResponse_RateLimit_HOUR, quota.Day: rlspb.RateLimitResponse_RateLimit_DAY,
	7 * quota.Day: rlspb.RateLimitResponse_RateLimit_WEEK, 30 * quota.Day: rlspb.RateLimitResponse_RateLimit_MONTH,
	365 * quota.Day: rlspb.RateLimitResponse_RateLimit_YEAR,
}

// limitOf returns a limit in the protocol's form: its policy's name, its quota, and its window if
// the protocol has a name for the window.
func (d *decision) limitOf(h *hit) *rlspb.RateLimitResponse_RateLimit {
	return &rlspb.RateLimitResponse_RateLimit{
		Name: string(h.limitName(d)), RequestsPerUnit: uint32(min(h.limit.Quota, 1<<32-1)), Unit: units[h.limit.Window],
	}
}

// limitName returns the name of the hit's limit in headers and bodies.
func (h *hit) limitName(d *decision) []byte {
	several := false
	for i := range d.hits { // A consumer's own limits may be more than the policy's.
		other := &d.hits[i]
		several = several || other.Policy == h.Policy && other.Position != h.Position
	}
	return answer.NameOf(&d.view.Index, &h.Hit, &h.limit, several)
}

// buildMetadata returns the policy that has decided, and the source of the decision.
func (d *decision) buildMetadata() *structpb.Struct {
	shown, fields := d.refusing, make(map[string]*structpb.Value, 5)
	fields["decision"] = structpb.NewStringValue("allowed")
	if shown != nil {
		fields["decision"] = structpb.NewStringValue("refused")
		fields["reason"] = structpb.NewStringValue(shown.reason.String())
		if shown.retry != quota.Never {
			fields["retry_us"] = structpb.NewNumberValue(float64(shown.retry))
		}
	} else {
		for i := range d.hits {
			if h := &d.hits[i]; shown == nil || h.isShownBefore(shown) {
				shown = h
			}
		}
	}
	fields["policy"] = structpb.NewStringValue(shown.policy.Name)
	fields["source"] = structpb.NewStringValue(shown.source.String())
	if shown.known {
		fields["remaining"] = structpb.NewNumberValue(float64(shown.remaining))
	}
	return &structpb.Struct{Fields: fields}
}

// refuseBanned refuses a call of a banned caller. The answer has only the kind of the ban and, if
// the ban ends by itself, its end.
func (d *decision) refuseBanned(found *match.Result) *rlspb.RateLimitResponse {
	out, w := plainAnswer(d.in, rlspb.RateLimitResponse_OVER_LIMIT), &d.writer
	w.headers.Reset()
	w.body = answer.Body{}
	if found.BanEnds > 0 {
		left := time.UnixMilli(found.BanEnds).Sub(d.service.config.Now())
		w.body.Retry = max(dialect.Seconds(quota.Span(left.Microseconds())), 1)
	}
	w.headers.Refuse(w.body.Retry)
	own := d.view.Set.Response(policy.AnswerBan)
	switch {
	case w.writeOwn(&own, d, out):
	case d.speaksGRPC():
		out.RawBody = []byte(answer.Bans[found.Ban])
	default:
		w.headers.Add("content-type", answer.ProblemType)
		out.RawBody = answer.AppendBan(nil, found.Ban, 0)
	}
	w.moveHeaders(out)
	out.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{
		"decision": structpb.NewStringValue("banned"),
	}}
	return out
}
