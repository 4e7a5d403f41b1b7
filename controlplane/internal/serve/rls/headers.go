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
	// hits are those of the headers' items.
	hits []*hit
	body answer.Body
}

// write adds the headers in the dialects of the policy set, and to a refusal the rest of what a
// client gets. The status is Envoy's to choose, so no body says it.
func (w *writer) write(d *decision, out *rlspb.RateLimitResponse) {
	w.headers.Reset()
	if h := d.refusing; h != nil {
		now := instant(d.service.config.Now())
		w.body = answer.Body{
			About: answer.About{
				Reason: h.reason, Source: h.source, Policy: []byte(h.policy.Name), After: d.view.Index.After(&h.Hit),
				Limit: &h.limit, Cost: d.costOf(h), Left: h.remaining,
			},
			Name: h.name(d), Tier: d.view.Index.Tier(h.Tier),
			Retry: answer.RetryAfter(h.reason, h.retry, now, &h.Hit), Reset: h.reset,
		}
		w.headers.Refuse(w.body.Retry)
	}
	w.limits(d)
	if h := d.refusing; h != nil {
		own := d.view.Set.ResponseOf(h.policy, h.reason, int(answer.Kinds[h.reason].Status))
		switch {
		case w.own(&own, d, out):
		case d.speaksGRPC(): // Envoy makes the body the message of the status.
			out.RawBody = w.body.AppendSentence(nil, w.body.Retry)
		default:
			w.headers.Add("content-type", answer.ProblemType)
			out.RawBody = w.body.AppendProblem(nil, 0)
		}
	}
	w.send(out)
}

// send hands the headers over.
func (w *writer) send(out *rlspb.RateLimitResponse) {
	for i := range w.headers.Len() {
		name, value := w.headers.At(i)
		out.ResponseHeadersToAdd = append(out.ResponseHeadersToAdd,
			&corepb.HeaderValue{Key: name, Value: string(value)})
	}
}

// limits writes every limit whose state is known, each once: if several descriptors meet it, by the
// bucket that refuses, else by the one nearest to exhaustion.
func (w *writer) limits(d *decision) {
	w.headers.Items, w.hits = w.headers.Items[:0], w.hits[:0]
	refusing := none
	for i := range d.hits {
		h := &d.hits[i]
		if !h.known || h.bucketless() {
			continue
		}
		at := w.place(h, d.refusing)
		if at == none {
			continue
		}
		if h == d.refusing {
			refusing = at
		}
		w.hits[at], w.headers.Items[at] = h, dialect.Item{
			Name: h.name(d), Burst: h.limit.Params.Burst, Window: h.limit.Refill(), Remaining: h.remaining,
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

// place is where a hit is shown: the place of another one of its limit that says less, or a new
// one; none if the other says more.
func (w *writer) place(h, refusing *hit) int {
	for at, other := range w.hits {
		if other.Key != h.Key && (other.Policy != h.Policy || other.Position != h.Position) {
			continue
		}
		if other == refusing || h != refusing && h.rest() >= other.rest() {
			return none
		}
		return at
	}
	w.hits, w.headers.Items = append(w.hits, nil), append(w.headers.Items, dialect.Item{})
	return len(w.hits) - 1
}

// costOf is what the call costs of the bucket of a hit: several descriptors may take from one.
func (d *decision) costOf(h *hit) (cost int64) {
	for i := range d.hits {
		if d.hits[i].Key == h.Key {
			cost = min(cost+d.hits[i].cost, quota.MaxUnits)
		}
	}
	return max(cost, h.cost)
}

// own writes the operator's own response, and reports whether the body is written.
func (w *writer) own(own *policy.Response, d *decision, out *rlspb.RateLimitResponse) bool {
	w.headers.AddOwn([]byte(own.Headers))
	if own.Body == "" || d.speaksGRPC() {
		return false
	}
	contentType := answer.TypeOf([]byte(own.ContentType))
	w.headers.Add("content-type", contentType)
	out.RawBody = w.body.AppendOwn(nil, []byte(own.Body), contentType)
	return true
}
