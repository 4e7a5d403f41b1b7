package rls

import (
	"bytes"
	"cmp"
	"context"
	"strconv"
	"strings"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/weir-proxy/weir/controlplane/internal/serve/calls"
	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/decide"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// decision is the state of deciding one call. Its memory is used again for the next call.
type decision struct {
	service *Service
	view    *calls.View
	in      *rlspb.RateLimitRequest

	gatherer   calls.Gatherer
	attributes match.Attributes
	// whole is the number of headers for the call as a whole; headers of a descriptor follow them.
	whole   int
	entries []calls.Entry
	keys    []byte
	matcher match.Matcher

	hits []hit
	// shadows are the hits of policies in shadow and of candidates.
	shadows []hit
	// callers has the caller of the call for each policy with penalties.
	callers []caller
	// bypassed is true if operators have switched off a policy that applies.
	bypassed bool
	items    []wire.LeaseItem
	shares   []*hit
	identity wire.Identity
	// identified is true once identity belongs to this call.
	identified bool
	// refusing is the refused hit with the longest wait; nil for an allowed call.
	refusing *hit
	writer   writer
}

// The messages of a call.
type (
	pbDescriptor = ratelimitpb.RateLimitDescriptor
	pbEntry      = ratelimitpb.RateLimitDescriptor_Entry
)

// wholeCall is the index of a hit that belongs to no descriptor.
const wholeCall = -1

// none is the index of an item that does not exist.
const none = -1

// hit is one limit's part in the decision.
type hit struct {
	match.Hit
	policy *policy.Policy
	// limit decides the hit: the policy's limit, or the consumer's own limit.
	limit policy.Limit
	// descriptor is the index of the descriptor, or wholeCall.
	descriptor int
	// cost is the number of tokens that the call takes from the bucket for this hit.
	cost     int64
	consumer keyhash.Key
	revision uint64
	// item is the index among the asked items; none if the bucket is not asked.
	item int

	refuses bool
	reason  policy.Reason
	source  policy.DecisionSource
	// known is true if remaining and reset are known.
	known        bool
	remaining    int64
	reset, retry quota.Span
}

// reset prepares the memory for the next call.
func (d *decision) reset(s *Service, view *calls.View, in *rlspb.RateLimitRequest) {
	d.service, d.view, d.in = s, view, in
	d.hits, d.shadows, d.shares = d.hits[:0], d.shadows[:0], d.shares[:0]
	d.callers = d.callers[:0]
	d.bypassed, d.refusing, d.identified = false, nil, false
	d.gatherer.Begin()
}

// answerCall answers the call.
func (d *decision) answerCall(ctx context.Context) (*rlspb.RateLimitResponse, error) {
	// Find the limits. An order, an exemption or a ban decides at once.
	found := d.findHits(ctx)
	meter := d.service.config.Meter
	switch found.Access {
	case match.Off:
		meter.Call(Bypassed)
		return plainAnswer(d.in, rlspb.RateLimitResponse_OK), nil
	case match.Exempt:
		meter.Call(Exempt)
		return plainAnswer(d.in, rlspb.RateLimitResponse_OK), nil
	case match.Banned:
		meter.Call(Banned)
		d.recordBanned(&found)
		return d.refuseBanned(&found), nil
	}
	// Suspended limits and penalties need no bucket to refuse.
	limits := len(d.hits)
	penalised := !d.refuseSuspended() && len(d.callers) > 0 && d.refusePenalised()
	// No limit is enforced for this call.
	if len(d.hits) == 0 {
		outcome := Unlimited
		if d.bypassed {
			outcome = Bypassed
		}
		meter.Call(outcome)
		d.watchShadows()
		return plainAnswer(d.in, rlspb.RateLimitResponse_OK), nil
	}
	// Ask the store, unless the request itself is refused.
	switch {
	case penalised:
		d.lookAround(ctx, d.hits[:limits])
	case !d.refusedByRequest():
		if err := d.askStore(ctx); err != nil {
			return nil, err
		}
	}
	d.findRefusing()
	d.countCall()
	return d.buildAnswer(), nil
}

// findHits finds the hits of the call as a whole and of each descriptor. The result has only the
// call's Access and its ban.
func (d *decision) findHits(ctx context.Context) match.Result {
	// Read the attributes of the call as a whole.
	wholeAddend := d.readEntries()
	ix := &d.view.Index
	d.attributes = d.gatherer.Attributes(ix)
	d.whole = len(d.attributes.Headers)
	if d.service.config.Consumers != nil {
		d.attributes.Consumers = d.service.config.Consumers(ctx)
	}
	// Find the limits of the call as a whole. A ban or an order decides at once.
	result := d.matcher.Match(ix, &d.attributes)
	access := result.Access
	if access == match.Off || access == match.Banned {
		return match.Result{Access: access, Ban: result.Ban, BanEnds: result.BanEnds, BannedKey: result.BannedKey}
	}
	d.addHits(&result, wholeCall, wholeAddend)
	// Add the limits of the policies for descriptors.
	found := match.Result{Access: access}
	takePolicy := func(descriptor int, addend int64) func(uint32) {
		return func(number uint32) {
			result := d.matcher.MatchOne(ix, &d.attributes, number, access)
			if result.Access == match.Banned {
				found.BanEnds = laterEnd(&found, &result)
				found.Access, found.Ban = match.Banned, match.KeyBan
				found.BannedKey = cmp.Or(found.BannedKey, result.BannedKey)
			}
			d.addHits(&result, descriptor, addend)
		}
	}
	d.keys = d.view.Find(d.in.Domain, nil, d.keys, takePolicy(wholeCall, wholeAddend))
	for i, one := range d.in.Descriptors {
		d.addEntries(one)
		d.keys = d.view.Find(d.in.Domain, d.entries, d.keys, takePolicy(i, addendOf(d.in, one)))
	}
	return found
}

// readEntries reads the attributes of the request from the entries. It returns the number of hits
// that the call as a whole counts for: the largest number of its own that a descriptor with
// attributes has, else the call's number.
func (d *decision) readEntries() int64 {
	largest := int64(none)
	for _, one := range d.in.Descriptors {
		says := false
		for _, e := range one.GetEntries() {
			says = d.gatherer.Add(calls.Entry{Key: e.Key, Value: e.Value}) || says
		}
		if says && (one.GetHitsAddend() != nil || one.GetIsNegativeHits()) {
			largest = max(largest, addendOf(d.in, one))
		}
	}
	if largest == none {
		largest = int64(max(1, d.in.HitsAddend))
	}
	return largest
}

// laterEnd returns the end of the ban that ends last, of the bans found and one more; 0 for never.
func laterEnd(found, more *match.Result) int64 {
	switch {
	case found.Access != match.Banned:
		return more.BanEnds
	case found.BanEnds == 0 || more.BanEnds == 0:
		return 0
	}
	return max(found.BanEnds, more.BanEnds)
}

// addEntries adds the entries of a descriptor to the attributes, as headers with the names that
// partitions use.
func (d *decision) addEntries(one *pbDescriptor) {
	d.entries, d.attributes.Headers = d.entries[:0], d.attributes.Headers[:d.whole]
	if own := one.GetLimit(); own != nil {
		d.attributes.Headers = append(d.attributes.Headers, match.Header{
			Name:  []byte(ownLimit + strings.ToLower(own.Unit.String())),
			Value: strconv.AppendUint(nil, uint64(own.RequestsPerUnit), 10),
		})
	}
	entries := one.GetEntries()
	for _, e := range entries {
		value := e.Value
		if value == "" && hasSeveral(entries, e.Key) {
			value = emptyOfSeveral
		}
		d.entries = append(d.entries, calls.Entry{Key: e.Key, Value: e.Value})
		d.attributes.Headers = append(d.attributes.Headers,
			match.Header{Name: []byte(policy.Descriptor(e.Key).Name), Value: []byte(value)})
	}
}

// ownLimit and a unit are the name of the header with the limit in a descriptor. A policy that
// takes its quota from there names this header and the largest figure that counts.
const ownLimit = "descriptor-limit-"

// emptyOfSeveral replaces the empty value of an entry whose key is not unique: the values differ
// by their places, and an empty value would count as missing.
const emptyOfSeveral = "\x00"

func hasSeveral(entries []*pbEntry, key string) bool {
	count := 0
	for _, e := range entries {
		if e.Key == key {
			count++
		}
	}
	return count > 1
}

// addendOf returns the number of hits of a descriptor: its own number, else the call's number, else
// 1. A negative number gives nothing back: it counts as 0, and charged tokens stay charged.
func addendOf(in *rlspb.RateLimitRequest, d *pbDescriptor) int64 {
	switch {
	case d.GetIsNegativeHits():
		return 0
	case d.GetHitsAddend() != nil:
		return int64(min(d.GetHitsAddend().GetValue(), policy.MaxCost))
	}
	return int64(max(1, in.HitsAddend))
}

// speaksGRPC reports whether the call is about a gRPC request. Envoy does not answer a gRPC-Web
// request that still has this type here with a gRPC status.
func (d *decision) speaksGRPC() bool {
	for _, h := range d.attributes.Headers[:d.whole] {
		if string(h.Name) == "content-type" {
			return bytes.HasPrefix(h.Value, []byte("application/grpc")) &&
				!bytes.HasPrefix(h.Value, []byte("application/grpc-web"))
		}
	}
	return false
}

// addHits copies the hits of a result. It leaves out policies that only an Envoy can count for:
// local limits, queues, and requests in flight.
func (d *decision) addHits(r *match.Result, descriptor int, addend int64) {
	d.bypassed = d.bypassed || r.Bypassed
	for i := range r.Hits {
		p := &d.view.Set.Policies[r.Hits[i].Policy]
		if p.Mode == policy.ModeLocal || p.Counting.Algorithm.Queues() {
			continue
		}
		h := hit{
			Hit: r.Hits[i], policy: p, descriptor: descriptor, consumer: r.Consumer, revision: r.ExceptionsRevision,
			item: none, source: policy.ByCentral,
		}
		if h.Own > 0 {
			h.limit = r.Own[h.Own-1]
		} else {
			h.limit = *d.view.Index.Limit(h.Limit)
		}
		if h.limit.InFlight { // A call says when a request begins, and never when it ends.
			continue
		}
		h.cost = quota.MaxUnits
		if addend == 0 || h.Cost <= quota.MaxUnits/addend {
			h.cost = h.Cost * addend
		}
		if h.Shadow {
			d.shadows = append(d.shadows, h)
		} else {
			d.hits = append(d.hits, h)
		}
	}
	if d.service.config.Penalties != nil {
		d.addCallers(r, descriptor)
	}
}

// refuseSuspended marks the hits whose quota is 0, and reports whether there are any. They come
// before penalties: no wait helps.
func (d *decision) refuseSuspended() (some bool) {
	for i := range d.hits {
		if h := &d.hits[i]; h.Verdict == match.Suspended {
			h.refuse(policy.ReasonSuspended, policy.ByRequest, quota.Never)
			h.reset, some = quota.Never, true
		}
	}
	return some
}

// refusedByRequest marks the hits that are refused without their bucket, and reports whether there
// are any.
func (d *decision) refusedByRequest() (refused bool) {
	for i := range d.hits {
		h := &d.hits[i]
		if reason, refuses := decide.RefusesAlone(h.Verdict); refuses {
			h.refuse(reason, policy.ByRequest, quota.Never)
		}
		refused = refused || h.refuses
	}
	return refused
}

func (h *hit) refuse(why policy.Reason, by policy.DecisionSource, retry quota.Span) {
	h.refuses, h.reason, h.source, h.retry = true, why, by, max(retry, 1)
	if !answer.Kinds[why].Waits {
		h.retry = quota.Never
		h.known = h.known || why == policy.ReasonSuspended // Nothing is ever left.
	}
}

// findRefusing finds the hit that the caller must wait for.
func (d *decision) findRefusing() {
	for i := range d.hits {
		if h := &d.hits[i]; h.refuses && (d.refusing == nil || h.retry > d.refusing.retry) {
			d.refusing = h
		}
	}
}
