// Package respond writes what the client sees of a decision: headers on the upstream's answer, or
// the refusal itself.
package respond

import (
	"encoding/binary"

	"github.com/weir-proxy/weir/filter/internal/limiter"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/ratelimitheader"
)

// Headers are response headers with their values in one reused buffer. They stay valid after their
// policy set is gone. The zero value is empty.
type Headers struct {
	buf   []byte
	names [maxHeaders]string
	ends  [maxHeaders]int
	n     int
	items []ratelimitheader.Item
	// hits are the indexes of the items among the request's hits, refusing is the index of the
	// refusing one among the items; below 0 if it is not among them.
	hits     []int
	refusing int
	// least is the smallest remaining of all items, shown the remaining of the item that legacy
	// dialects show.
	least, shown int64
	// LeftOut is how many policies the last decision has left out for want of room.
	LeftOut int
}

// maxHeaders is what a refusal has in the dialect with the most headers, beside those of a
// response.
const maxHeaders = 12 + policy.MaxResponseHeaders

// Len is the number of headers.
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

// close ends the value that was appended to buf since the last one.
func (h *Headers) close(name string) {
	h.names[h.n], h.ends[h.n] = name, len(h.buf)
	h.n++
}

//go:noinline
func (h *Headers) add(name, value string) {
	h.buf = append(h.buf, value...)
	h.close(name)
}

// Limits writes a decision in the dialects of the policy set: every policy that applied and whose
// state is known; in legacy dialects the one nearest to exhaustion, or the refusing one. RetryAfter
// is 0 for an allowed request; wall is the Unix time in microseconds. All that a refusal names as a
// time is when the request passes: Retry-After.
func (h *Headers) Limits(req *limiter.Request, refused bool, retryAfter, wall int64) {
	h.gather(req, refused)
	if retryAfter > 0 {
		h.tellWait(req, quota.Span(retryAfter)*quota.Second)
	}
	if h.LeftOut = 0; len(h.items) == 0 {
		return
	}
	h.fit()
	dialects := req.Rules().Index.Headers()
	if dialects.Legacy != policy.LegacyOff {
		shown := h.refusing
		if !refused {
			shown = ratelimitheader.Nearest(h.items)
		}
		if shown >= 0 {
			h.legacy(dialects.Legacy, req, shown, wall)
		}
	}
	if dialects.Standard == policy.StandardDraft11 {
		h.list("ratelimit-policy", ratelimitheader.AppendPolicy)
		h.list("ratelimit", ratelimitheader.AppendLimit)
		for i, item := range h.items {
			if i == 0 || item.Remaining < h.least {
				h.least = item.Remaining
			}
		}
	}
}

// fit leaves out the items for which the fields have no room: those farthest from exhaustion.
func (h *Headers) fit() {
	fit := ratelimitheader.Fit(h.items, h.hits, h.refusing)
	if h.LeftOut = len(h.items) - fit; h.LeftOut > 0 {
		h.items, h.hits, h.refusing = h.items[:fit], h.hits[:fit], min(h.refusing, 0)
	}
}

// tellWait has the items that lack what the request costs say when it passes, and the others no
// time: when they are full is not when the request passes.
func (h *Headers) tellWait(req *limiter.Request, wait quota.Span) {
	for i := range h.items {
		item, hit := &h.items[i], &req.Hits[h.hits[i]]
		item.Reset = quota.Never
		if i == h.refusing || item.Remaining < hit.Cost {
			item.Reset = wait
		}
	}
}

// gather makes the items of a decision. It leaves out hits whose bucket is unknown, because nothing
// has been heard of it: then there may be no refusing one.
func (h *Headers) gather(req *limiter.Request, refused bool) {
	h.items, h.hits, h.refusing = h.items[:0], h.hits[:0], -1
	for i := range req.Hits {
		hit := &req.Hits[i]
		if !hit.Known {
			continue
		}
		if refused && i == req.Refusing {
			h.refusing = len(h.items)
		}
		limit := req.LimitOf(&hit.Hit)
		h.hits = append(h.hits, i)
		h.items = append(h.items, ratelimitheader.Item{
			Name: name(req, i), Burst: limit.Params.Burst, Window: limit.Refill(), Remaining: hit.Remaining,
			Reset: hit.Reset, InFlight: limit.InFlight,
		})
	}
}

// name is the policy's name; with several limits it adds the window, policy.1s, or
// policy.in_flight. What is left of a limit for the classes after one adds that class:
// policy.1s.after-critical.
func name(req *limiter.Request, i int) []byte {
	ix, hit := &req.Rules().Index, &req.Hits[i]
	name := ix.Text(ix.Policy(hit.Policy).Name)
	several := ix.Several(hit.Policy) || i > 0 && req.Hits[i-1].Policy == hit.Policy ||
		i+1 < len(req.Hits) && req.Hits[i+1].Policy == hit.Policy
	if !several {
		return name
	}
	which := "in_flight"
	if limit := req.LimitOf(&hit.Hit); !limit.InFlight {
		which = policy.FormatSpan(limit.Window)
	}
	name = append(append(name[:len(name):len(name)], '.'), which...)
	if after := ix.After(&hit.Hit); len(after) > 0 {
		name = append(append(name, ".after-"...), after...)
	}
	return name
}

// list writes all items in one dialect. The dialect separates items by what its buffer holds, so it
// gets only the value.
func (h *Headers) list(name string, write func([]byte, ratelimitheader.Item) []byte) {
	start := len(h.buf)
	for _, item := range h.items {
		value := write(h.buf[start:len(h.buf):cap(h.buf)], item)
		h.buf = append(h.buf[:start], value...)
	}
	h.close(name)
}

// reset adds when a bucket is full, if that is ever.
func (h *Headers) reset(name string, after quota.Span, n int64) {
	if after != quota.Never {
		h.number(name, n)
	}
}

func (h *Headers) number(name string, n int64) {
	h.buf = ratelimitheader.AppendInt(h.buf, n)
	h.close(name)
}

// AppendPairs appends all headers in the encoding of the proxy-wasm ABI.
func (h *Headers) AppendPairs(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(h.n))
	for i := range h.n {
		name, value := h.At(i)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(name)))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(value)))
	}
	for i := range h.n {
		name, value := h.At(i)
		dst = append(append(dst, name...), 0)
		dst = append(append(dst, value...), 0)
	}
	return dst
}
