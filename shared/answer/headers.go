package answer

import (
	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/text"
)

// Headers are response headers with their values in one reused buffer. They stay valid after their
// policy set is gone. The zero value is empty.
type Headers struct {
	// Items are the decision's limits with a known state. Limits reorders them.
	Items []dialect.Item
	// LeftOut is the number of policies without room in the last decision's headers.
	LeftOut int

	buf   []byte
	names [maxHeaders]string
	ends  [maxHeaders]int
	n     int
	// left is the smallest remaining count in the headers of each family.
	left [len(dialect.Families)]int64
	said dialect.Shown
}

// maxHeaders is the largest number of headers of an answer: an older and an IETF dialect, a
// response's headers, and retry-after, cache-control, content-type and x-envoy-ratelimited.
const maxHeaders = 2*dialect.MaxHeaders + policy.MaxResponseHeaders + 4

// Len returns the number of headers.
func (h *Headers) Len() int { return h.n }

// At returns a header. The value is valid until the next Reset.
func (h *Headers) At(i int) (name string, value []byte) {
	from := 0
	if i > 0 {
		from = h.ends[i-1]
	}
	return h.names[i], h.buf[from:h.ends[i]]
}

// Reset removes all headers and keeps the memory.
func (h *Headers) Reset() { h.buf, h.n = h.buf[:0], 0 }

// Add adds a header. The name must not change.
//
//go:noinline
func (h *Headers) Add(name, value string) {
	h.buf = append(h.buf, value...)
	h.endValue(name)
}

// AddOwn adds the headers of an operator's response, lines of names and values in turn. The text
// must not change. It leaves room for the content type.
func (h *Headers) AddOwn(lines []byte) {
	for len(lines) > 0 && h.n < maxHeaders-1 {
		var name, value []byte
		name, lines = text.Cut(lines, '\n')
		value, lines = text.Cut(lines, '\n')
		h.Add(viewString(name), viewString(value))
	}
}

// Refuse adds the headers of all refusals. retry is the seconds to wait, 0 if that does not help.
func (h *Headers) Refuse(retry int64) {
	if retry > 0 {
		h.buf = dialect.AppendInt(h.buf, retry)
		h.endValue("retry-after")
	}
	h.Add("cache-control", "no-store")
}

// endValue ends the value that was appended to buf since the last value.
func (h *Headers) endValue(name string) {
	h.names[h.n], h.ends[h.n] = name, len(h.buf)
	h.n++
}

// Limits writes Items in the dialects of the policy set: all items, and in older dialects the item
// nearest to exhaustion, or the refusing item. refusing is an index of Items, below 0 if it is not
// among them. retry is 0 for an allowed request; wall is the Unix time in microseconds. The only
// time in a refusal is when the request passes: Retry-After.
func (h *Headers) Limits(ix *match.Index, refused bool, refusing int, retry, wall int64) {
	if retry > 0 {
		h.setWait(refusing, quota.Span(retry)*quota.Second)
	}
	if h.LeftOut = 0; len(h.Items) == 0 {
		return
	}
	fit := dialect.Fit(h.Items, refusing)
	if h.LeftOut = len(h.Items) - fit; h.LeftOut > 0 {
		h.Items, refusing = h.Items[:fit], min(refusing, 0)
	}
	dialects := ix.Headers()
	h.said.Items, h.said.Wall = h.Items, wall
	if dialects.Legacy != dialect.LegacyOff {
		if !refused {
			refusing = dialect.Nearest(h.Items)
		}
		if refusing >= 0 {
			item := &h.Items[refusing]
			h.said.At, h.said.Scope = refusing, ix.Scope(item.Policy).String()
			h.writeRow(&dialect.Legacies[dialects.Legacy], item.Remaining)
		}
	}
	if dialects.Standard != dialect.StandardOff {
		h.writeRow(&dialect.Standards[dialects.Standard], leastOf(h.Items))
	}
}

// setWait sets the wait of the items that lack the request's cost, and removes the times of the
// other items, because their bucket is not full when the request passes.
func (h *Headers) setWait(refusing int, wait quota.Span) {
	for i := range h.Items {
		item := &h.Items[i]
		if i == refusing || item.Remaining < item.Cost {
			item.Reset = wait
		} else {
			item.Reset = quota.Never
		}
	}
}

// writeRow writes the headers of a dialect. left is the number that they show as left.
func (h *Headers) writeRow(row *dialect.Row, left int64) {
	h.left[dialect.FamilyOfName(row.Headers[0].Name)] = left // All headers of a row are of a family.
	for i := range row.Headers {
		header := &row.Headers[i]
		var says bool
		if h.buf, says = header.AppendValue(h.buf, &h.said); says {
			h.endValue(header.Name)
		}
	}
}

func leastOf(items []dialect.Item) (least int64) {
	for i := range items {
		if i == 0 || items[i].Remaining < least {
			least = items[i].Remaining
		}
	}
	return least
}

// NameOf returns the name of a limit in headers and bodies: the policy's name. If the policy has
// several limits, it adds the window, policy.1s, or policy.in_flight. A limit for the classes after
// a class adds the name of that class: policy.1s.after-critical.
func NameOf(ix *match.Index, hit *match.Hit, limit *policy.Limit, several bool) []byte {
	name := ix.Text(ix.Policy(hit.Policy).Name)
	if !several && !ix.Several(hit.Policy) {
		return name
	}
	which := "in_flight"
	if !limit.InFlight {
		which = policy.FormatSpan(limit.Window)
	}
	name = append(append(name[:len(name):len(name)], '.'), which...)
	if after := ix.After(hit); len(after) > 0 {
		name = append(append(name, ".after-"...), after...)
	}
	return name
}

// RetryAfter returns the wait in seconds of all fields of a refusal: until the request passes,
// rounded up and spread. It is 0 if waiting does not help.
func RetryAfter(reason policy.Reason, wait quota.Span, now quota.Instant, hit *match.Hit) int64 {
	switch {
	case wait == quota.Never:
		return 0
	case reason == policy.ReasonPenalty: // It ends when it says, and is spread already.
		return dialect.Seconds(wait)
	}
	k := &hit.Key // The spread depends on the bucket.
	seed := uint32(k[12]) | uint32(k[13])<<8 | uint32(k[14])<<16 | uint32(k[15])<<24
	return dialect.RetryAfter(wait, now+quota.Instant(wait), seed)
}
