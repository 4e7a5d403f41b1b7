package rls

import (
	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
)

// writer hands decisions to shared/answer, which writes the answers for clients, as it does for
// the filter. Its memory is used again.
type writer struct {
	headers answer.Headers
	// hits are the hits of the headers' items.
	hits []*hit
	body answer.Body
}

// writeHeaders adds the headers in the dialects of the policy set, and the body of a refusal. The
// body does not name the status, since Envoy chooses it.
func (w *writer) writeHeaders(d *decision, out *rlspb.RateLimitResponse) {
	w.headers.Reset()
	if h := d.refusing; h != nil {
		now := toInstant(d.service.config.Now())
		w.body = answer.Body{
			About: answer.About{
				Reason: h.reason, Source: h.source, Policy: []byte(h.policy.Name), After: d.view.Index.After(&h.Hit),
				Limit: &h.limit, Cost: d.costOf(h), Left: h.remaining,
			},
			Name: h.limitName(d), Tier: d.view.Index.Tier(h.Tier),
			Retry: answer.RetryAfter(h.reason, h.retry, now, &h.Hit), Reset: h.reset,
		}
		w.headers.Refuse(w.body.Retry)
	}
	w.collectLimits(d)
	if h := d.refusing; h != nil {
		own := d.view.Set.ResponseOf(h.policy, h.reason, int(answer.Kinds[h.reason].Status))
		switch {
		case w.writeOwn(&own, d, out):
		case d.speaksGRPC(): // Envoy makes the body the message of the status.
			out.RawBody = w.body.AppendSentence(nil, w.body.Retry)
		default:
			w.headers.Add("content-type", answer.ProblemType)
			out.RawBody = w.body.AppendProblem(nil, 0)
		}
	}
	w.moveHeaders(out)
}

// moveHeaders moves the headers into the answer.
func (w *writer) moveHeaders(out *rlspb.RateLimitResponse) {
	for i := range w.headers.Len() {
		name, value := w.headers.At(i)
		out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd,
			&corepb.HeaderValue{Key: name, Value: string(value)})
	}
}

// collectLimits collects every limit whose state is known, each once. If several descriptors meet
// it, it shows the bucket that refuses, else the bucket nearest to exhaustion.
func (w *writer) collectLimits(d *decision) {
	w.headers.Items, w.hits = w.headers.Items[:0], w.hits[:0]
	refusing := none
	for i := range d.hits {
		h := &d.hits[i]
		if !h.known || h.bucketless() {
			continue
		}
		at := w.placeOf(h, d.refusing)
		if at == none {
			continue
		}
		if h == d.refusing {
			refusing = at
		}
		w.hits[at], w.headers.Items[at] = h, dialect.Item{
			Name: h.limitName(d), Burst: h.limit.Params.Burst, Window: h.limit.Refill(), Remaining: h.remaining,
			Reset: h.reset, InFlight: h.limit.InFlight, Cost: h.cost, Policy: h.Policy, Bucket: h.Key,
		}
	}
	retry := int64(0)
	if d.refusing != nil {
		retry = w.body.Retry
	}
	wall := d.service.config.Now().UnixMicro()
	w.headers.Limits(&d.view.Index, d.refusing != nil, refusing, retry, wall)
}

// placeOf returns the place for a hit: the place of a hit of the same limit that the caller learns
// less from, or a new place; none if the caller learns more from the other hit.
func (w *writer) placeOf(h, refusing *hit) int {
	for at, other := range w.hits {
		if other.Key != h.Key && (other.Policy != h.Policy || other.Position != h.Position) {
			continue
		}
		if other == refusing || h != refusing && h.restShare() >= other.restShare() {
			return none
		}
		return at
	}
	w.hits, w.headers.Items = append(w.hits, nil), append(w.headers.Items, dialect.Item{})
	return len(w.hits) - 1
}

// costOf returns the cost of the call in the bucket of a hit, summed over its descriptors.
func (d *decision) costOf(h *hit) (cost int64) {
	for i := range d.hits {
		if d.hits[i].Key == h.Key {
			cost = min(cost+d.hits[i].cost, quota.MaxUnits)
		}
	}
	return max(cost, h.cost)
}

// writeOwn writes the operator's own response, and reports whether it wrote a body.
func (w *writer) writeOwn(own *policy.Response, d *decision, out *rlspb.RateLimitResponse) bool {
	w.headers.AddOwn([]byte(own.Headers))
	if own.Body == "" || d.speaksGRPC() {
		return false
	}
	contentType := answer.TypeOf([]byte(own.ContentType))
	w.headers.Add("content-type", contentType)
	out.RawBody = w.body.AppendOwn(nil, []byte(own.Body), contentType)
	return true
}
