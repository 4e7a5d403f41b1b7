package rls

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
	"github.com/weir-proxy/weir/shared/refusal"
)

const problemType = "application/problem+json"

// writer writes what clients see of a decision, as the filter does. Its memory is used again.
type writer struct {
	items []ratelimitheader.Item
	hits  []*hit
	value []byte
	out   *rlspb.RateLimitResponse
}

func (w *writer) add(name, value string) {
	w.out.ResponseHeadersToAdd = append(w.out.ResponseHeadersToAdd, &corepb.HeaderValue{Key: name, Value: value})
}

func (w *writer) number(name string, n int64) { w.add(name, strconv.FormatInt(n, 10)) }

// reset adds when a bucket is full, if that is ever.
func (w *writer) reset(name string, after quota.Span, n int64) {
	if after != quota.Never {
		w.number(name, n)
	}
}

// write adds the headers in the dialects of the policy set, and to a refusal the rest of what a
// client gets.
func (w *writer) write(d *decision, out *rlspb.RateLimitResponse) {
	w.out = out
	dialects := d.view.Set.Headers
	var retry int64
	if h := d.refusing; h != nil {
		if h.retry != quota.Never {
			ready := instant(d.service.config.Now()) + quota.Instant(h.retry)
			retry = ratelimitheader.RetryAfter(h.retry, ready, seed(h))
			if h.reason == policy.ReasonPenalty { // It ends when it says, and is spread already.
				retry = ratelimitheader.Seconds(h.retry)
			}
			w.number("retry-after", retry)
		}
		w.add("cache-control", "no-store")
	}
	if dialects.Standard != policy.StandardOff || dialects.Legacy != policy.LegacyOff {
		w.limits(d, dialects, retry)
	}
	if d.refusing != nil {
		w.body(d, retry)
	}
}

// seed is the part of the spread of Retry-After that depends on the bucket.
func seed(h *hit) uint32 {
	return uint32(h.Key[12]) | uint32(h.Key[13])<<8 | uint32(h.Key[14])<<16 | uint32(h.Key[15])<<24
}

// limits writes every limit whose state is known, each once: if several descriptors meet it, by the
// bucket that refuses, else by the one nearest to exhaustion.
func (w *writer) limits(d *decision, dialects policy.Headers, retry int64) {
	w.items, w.hits = w.items[:0], w.hits[:0]
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
		w.hits[at], w.items[at] = h, ratelimitheader.Item{
			Name: []byte(h.name(d)), Burst: h.limit.Params.Burst, Window: h.limit.Refill(), Remaining: h.remaining,
			Reset: h.reset,
		}
	}
	if len(w.items) == 0 {
		return
	}
	if fit := ratelimitheader.Fit(w.items, w.hits, refusing); fit < len(w.items) {
		w.items, w.hits, refusing = w.items[:fit], w.hits[:fit], min(refusing, 0)
	}
	// All that a refusal names as a time is when the call passes.
	for i := range w.items {
		if item := &w.items[i]; retry > 0 {
			item.Reset = quota.Never
			if i == refusing || item.Remaining < w.hits[i].cost {
				item.Reset = quota.Span(retry) * quota.Second
			}
		}
	}
	shown := refusing
	if d.refusing == nil {
		shown = ratelimitheader.Nearest(w.items)
	}
	if shown != none {
		w.legacy(d, dialects.Legacy, shown)
	}
	if dialects.Standard == policy.StandardDraft11 {
		w.list("ratelimit-policy", ratelimitheader.AppendPolicy)
		w.list("ratelimit", ratelimitheader.AppendLimit)
	}
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
	w.hits, w.items = append(w.hits, nil), append(w.items, ratelimitheader.Item{})
	return len(w.hits) - 1
}

func (w *writer) list(name string, write func([]byte, ratelimitheader.Item) []byte) {
	w.value = w.value[:0]
	for _, item := range w.items {
		w.value = write(w.value, item)
	}
	w.add(name, string(w.value))
}

// legacy writes one of the older dialects for the item at index shown.
func (w *writer) legacy(d *decision, dialect policy.Legacy, shown int) {
	item, h := w.items[shown], w.hits[shown]
	switch dialect {
	case policy.LegacyOff:
		return
	case policy.LegacyRateLimit:
		w.number("ratelimit-limit", item.Burst)
		w.number("ratelimit-remaining", item.Remaining)
		w.reset("ratelimit-reset", item.Reset, ratelimitheader.Seconds(item.Reset))
		return
	case policy.LegacyEnvoy:
		w.add("x-ratelimit-limit", string(ratelimitheader.AppendEnvoyLimit(nil, item.Burst, w.items)))
		w.number("x-ratelimit-remaining", item.Remaining)
		w.reset("x-ratelimit-reset", item.Reset, ratelimitheader.Seconds(item.Reset))
		return
	}
	w.number("x-ratelimit-limit", item.Burst)
	w.number("x-ratelimit-remaining", item.Remaining)
	w.reset("x-ratelimit-reset", item.Reset, ratelimitheader.ResetAt(d.service.config.Now().UnixMicro(), item.Reset))
	switch dialect {
	case policy.LegacyGitHub:
		w.number("x-ratelimit-used", item.Burst-item.Remaining)
		w.add("x-ratelimit-resource", string(item.Name))
	case policy.LegacyDiscord:
		var id [8]byte
		for i := range id {
			id[i] = h.Key[i] ^ h.Key[i+8]
		}
		w.add("x-ratelimit-bucket", fmt.Sprintf("%x", id))
		if item.Reset != quota.Never {
			w.add("x-ratelimit-reset-after", string(ratelimitheader.AppendSeconds(nil, item.Reset)))
		}
		w.add("x-ratelimit-scope", d.view.Index.Scope(h.Policy).String())
	}
}

// problem is the body of a refusal (RFC 9457). The status is Envoy's to choose, so it is left out.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Detail   string   `json:"detail"`
	Violated []string `json:"violated-policies"`
	Limit    int64    `json:"limit"`
	Window   string   `json:"window"`
	Tier     string   `json:"tier,omitempty"`
	Retry    int64    `json:"retry_after,omitempty"`
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

// body writes the body of a refusal: the policy's own, a problem, or for gRPC the sentence, since
// Envoy makes the body the message of the status.
func (w *writer) body(d *decision, retry int64) {
	h := d.refusing
	own := d.view.Set.ResponseOf(h.policy, h.reason, int(refusal.Kinds[h.reason].Status))
	if w.own(&own, d, h, retry) {
		return
	}
	about := refusal.About{
		Reason: h.reason, Source: h.source, Policy: []byte(h.policy.Name), After: d.view.Index.After(&h.Hit),
		Limit: &h.limit, Cost: d.costOf(h), Left: h.remaining,
	}
	if d.speaksGRPC() {
		w.out.RawBody = about.AppendSentence(nil, retry)
		return
	}
	kind := about.Kind()
	text, err := json.Marshal(problem{
		Type: kind.Type, Title: kind.Title, Detail: string(about.AppendSentence(nil, retry)),
		Violated: []string{h.name(d)}, Limit: h.limit.Quota, Window: policy.FormatSpan(h.limit.Window),
		Tier: string(d.view.Index.Tier(h.Tier)), Retry: retry,
	})
	if err != nil { // Nothing in it can fail.
		return
	}
	w.add("content-type", problemType)
	w.out.RawBody = append(text, '\n')
}

// own writes what a response of the operator's says, and reports whether that is all: whether the
// body is written. A ban, which no limit decides, has no hit.
func (w *writer) own(own *policy.Response, d *decision, h *hit, retry int64) bool {
	for rest := own.Headers; rest != ""; {
		var name, value string
		name, rest, _ = strings.Cut(rest, "\n")
		value, rest, _ = strings.Cut(rest, "\n")
		w.add(name, value)
	}
	if own.Body == "" || d.speaksGRPC() {
		return false
	}
	contentType := cmp.Or(own.ContentType, "text/plain; charset=utf-8")
	w.add("content-type", contentType)
	w.out.RawBody = ownBody(own.Body, d, h, retry, policy.IsJSON(contentType))
	return true
}

// ownBody is a body with its fields filled in.
func ownBody(text string, d *decision, h *hit, retry int64, isJSON bool) (out []byte) {
	for body := []byte(text); ; {
		before, field, rest, ok := policy.CutField(body)
		out = append(out, before...)
		if !ok {
			return out
		}
		switch {
		case field == policy.FieldLiteral:
			out = append(out, body[len(before)+1:len(body)-len(rest)-1]...)
		case field == policy.FieldPolicy:
			out = append(out, h.name(d)...)
		case field == policy.FieldLimit:
			out = strconv.AppendInt(out, h.limit.Quota, 10)
		case field == policy.FieldWindow:
			out = policy.AppendSpan(out, h.limit.Window)
		case field == policy.FieldReset && retry == 0 && h.reset != quota.Never:
			out = strconv.AppendInt(out, ratelimitheader.Seconds(h.reset), 10)
		case retry > 0:
			out = strconv.AppendInt(out, retry, 10)
		case isJSON:
			out = append(out, "null"...)
		default:
			out = append(out, "never"...)
		}
		body = rest
	}
}
