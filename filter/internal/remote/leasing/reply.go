package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/rpc"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// handleAnswer handles the end of a call. It runs once for each call that was sent.
func (c *Client) handleAnswer(call *call, status int, body []byte) {
	now := c.clock.Now()
	how := c.readReply(call, status, body)
	c.endTrials(call)
	c.forgetCall(call)
	if how == rpc.Answered {
		c.noteOutrun(call, now)
	}
	// A late call: only its answer still counts.
	if call.late { // Its requests have gone on, and its failure has been counted.
		if how == rpc.Answered && !call.over {
			c.takeIn(call, now)
		}
		c.endCall(call, now)
		return
	}
	// No usable answer: the call fails.
	if how != rpc.Answered {
		c.endCall(call, now)
		c.failCall(call, now, how)
		return
	}
	// An answer in time: the control plane works, so the room grows.
	recovered := c.Health.noteAnswer(now, call.purpose == forProbe, c.drawJitter(call))
	c.room.endCall(call, now, true)
	if recovered {
		c.room.restart()
	}
	c.Stats.Calls[rpc.Answered]++
	c.takeIn(call, now)
	c.endCall(call, now)
	c.shareOutHeld(now)
	c.learnPace(call, now)
	// The answer makes room for further calls.
	if call.purpose == forTrials {
		c.sendTrials(now)
		return
	}
	c.Flush(now) // Lines that queued behind this call would otherwise wait for the next tick.
	c.countEnded(call)
	c.Claim(now)
	if call.purpose == forReports {
		c.sendReports(now)
	}
	if c.room.calls == 0 {
		c.sendSettlements(now)
	}
}

// readReply decodes the reply to a call, and returns the outcome of the call.
func (c *Client) readReply(call *call, status int, body []byte) rpc.Outcome {
	how := rpc.OutcomeOf(status)
	if how != rpc.Answered {
		return how
	}
	err := wire.DecodeLeaseReply(body, &c.reply)
	if err != nil || c.reply.Seq != call.seq || len(c.reply.Items) != len(call.items) {
		return rpc.Unreadable
	}
	return how
}

// takeIn reads a reply item by item.
func (c *Client) takeIn(call *call, now quota.Instant) {
	// The number of nodes goes to all workers of the process.
	if c.reply.Nodes != c.sharedNodes.Load() {
		c.sharedNodes.Store(c.reply.Nodes)
	}
	if c.reply.Nodes != c.reports.nodes { // As of the last tick, so an answer needs no second look.
		c.nodesAsked.Store(c.reply.Nodes)
		c.reports.nodes = c.reply.Nodes
	}
	// Items from to to are joined: they are answered together.
	for from, to := 0, 0; from < len(call.items); from = to {
		to = from + 1
		for call.items[to-1].joined {
			to++
		}
		switch it, a := &call.items[from], &c.reply.Items[from]; it.kind {
		case asks:
			c.shareOut(call, call.items[from:to], c.reply.Items[from:to], now)
		case charges:
			c.takeInCharge(call, it, a, now)
		case reportsUse:
			if a.State == wire.ItemUnknown {
				c.Stats.ItemsUnknown++
			}
			c.reports.takeInAnswer(it, a, now, c.store)
		case settles:
			if !call.late { // Otherwise the settlement waits for another call.
				c.takeInSettlement(it, a, now)
			}
		case givesBack:
			if !call.late { // Otherwise the return travels in another call.
				c.countReturned(it, a.State == wire.ItemGranted)
			}
		case claims:
			c.takeInClaim(it, a, now)
		}
	}
}

// failCall ends a call without an answer. Its requests, and requests that queued behind them in the
// same lines, fail over.
func (c *Client) failCall(call *call, now quota.Instant, how rpc.Outcome) {
	c.Stats.Calls[how]++
	c.countEnded(call)
	c.Health.noteFailure(now, how, call.purpose == forProbe, c.random.Jitter())
	c.room.endCall(call, now, false)
	if c.debts.call == call { // The call's own debts wait for its answer; other debts do not.
		c.debts.call = nil
	}
	c.requeueSettlements(call, now)
	if how == rpc.Overloaded && c.room.most == 1 {
		c.room.rest = now + rpc.Spread(longestRest, c.random.Jitter())
	}
	for i := range call.items {
		it := &call.items[i]
		c.returnAgain(it, now)
		if it.line == nil {
			continue
		}
		for _, r := range slices.Concat(it.openWaiters(), it.line.waiting) {
			c.failRequest(r, now)
		}
		c.queue.callEnded(it.line, nil)
	}
	if !c.Health.breaker.IsOpen() {
		c.Flush(now)
		return
	}
	for _, r := range c.queue.compact() { // No call will carry the other requests in time.
		c.checkRequest(r, now)
	}
}

// lineAnswer is the part of an answer for the requests of one line: about one bucket, or about all
// buckets of one request.
type lineAnswer struct {
	call    *call
	items   []item
	answers []wire.LeaseAnswer
	now     quota.Instant
	// expiry is when the tokens of granted requests expire.
	expiry quota.Instant
	// waiting are the requests that still wait for this answer.
	waiting []*request
	// served is the number of waiting requests that get their tokens at each bucket that answered.
	served int
	// short: some bucket had too few tokens.
	short bool
	// never: some bucket can never hold the cost of the request. The client learns of no wait, so
	// it may come again when the node's knowledge of the other buckets is old.
	never bool
	// asks: requests that keep waiting ask again at once.
	asks bool
	// unknown: the answers are out of range, or the control plane does not know the limit.
	unknown bool
}

// terms are the meaning of a bucket's answer for the requests that wait for it.
type terms struct {
	// served is the number of requests that get their tokens, from the first.
	served int
	// wait is the wait of the requests without tokens. Asks: these requests ask once more, because
	// the wait is shorter when the control plane knows that the tokens are used.
	wait quota.Span
	asks bool
	// before returns the bucket's level and the instant at which it is full, as they were before
	// the last tokens of this answer were taken.
	before func(tokens int64) (level int64, fullAt quota.Instant)
}

// shareOut gives the answers about a line's items to the line's requests.
func (c *Client) shareOut(call *call, items []item, answers []wire.LeaseAnswer, now quota.Instant) {
	s := &lineAnswer{
		call: call, items: items, answers: answers, now: now,
		expiry: lease.Expiry(call.sent, lease.Deadline), waiting: items[0].openWaiters(),
	}
	// Tokens to be used soon expire sooner.
	for i := range items {
		s.expiry = min(s.expiry, lease.Expiry(call.sent, items[i].deadline()))
	}
	if call.purpose == forTrials { // Trials use no tokens: a late answer granted them all the same.
		s.expiry = call.sent + quota.Instant(callTimeout) + 1
	}
	s.judge()
	if s.unknown {
		c.Stats.ItemsUnknown++
	}
	// An answer about several buckets is used as a whole, or held as a whole.
	again := s.mustAskAgain()
	if len(items) > 1 && !again && !c.isSure(s) && c.holdAnswer(s) {
		return
	}
	for nth := range items {
		since, failed := s.unusable(nth)
		switch {
		case again:
			c.learnBucket(s, nth, 0)
			c.returnLate(s, nth)
		case !failed && c.shareOutBucket(s, nth):
		case !failed && len(items) == 1 && c.holdAnswer(s):
			return
		default:
			c.failBucket(s, nth, since)
		}
	}
	// Requests with an outcome end; the others keep waiting.
	var waitOn []*request
	for _, r := range s.waiting {
		if r.tickets[0].Outcome == Waiting {
			waitOn = append(waitOn, r)
		} else {
			c.queue.endRequest(r)
		}
	}
	// After the last of the line's answers another call may take the line.
	if l := items[0].line; l != nil && l.call == call {
		l.waitOn, l.asks = append(l.waitOn, waitOn...), l.asks || s.asks
		if l.parts--; l.parts <= 0 {
			asks := l.asks
			if c.queue.callEnded(l, l.waitOn); asks {
				c.queue.markReady(l)
			}
			c.serveFromHand(l, now)
		}
	} else {
		c.serveFromKept(items[0].need.Bucket, now)
	}
}

// judge reads the answers together. A bucket whose part of the store is away has no vote: the
// request is granted without it.
func (s *lineAnswer) judge() {
	s.served = len(s.waiting)
	for i := range s.answers {
		a, it := &s.answers[i], &s.items[i]
		if a.State == wire.ItemUnavailable {
			continue
		}
		if a.State == wire.ItemUnknown || a.Waiting > it.waiting || a.Keep > it.keep {
			s.unknown = true
		}
		if a.Waiting < it.waiting && a.NotBefore > 0 {
			s.short = true
			s.never = s.never || a.NotBefore == quota.Never
		}
		if it.waiting > 0 { // Otherwise the waiting requests only look.
			s.served = min(s.served, int(a.Waiting))
		}
	}
}

// unusable reports whether the tickets for the nth bucket end without tokens and without a refusal,
// and since when the bucket is unavailable. Tokens that came too late may be lent to another node
// by now. A late answer that no request waits for is still read: it pays debts.
func (s *lineAnswer) unusable(nth int) (since quota.Instant, failed bool) {
	if a := &s.answers[nth]; a.State == wire.ItemUnavailable {
		return s.now - quota.Instant(a.NotBefore), true // In this state NotBefore is the duration of the failure.
	}
	useless := s.late() && (len(s.waiting) > 0 || s.items[nth].need.Optimistic)
	return s.now, s.unknown || useless
}

// failBucket fails the tickets for one bucket. Tokens that were granted for them, or for requests
// that have ended, are charged all the same. Granted tokens to keep are kept.
func (c *Client) failBucket(s *lineAnswer, nth int, since quota.Instant) {
	it, granted := &s.items[nth], s.answers[nth].Waiting
	usable := !s.unknown && s.answers[nth].State == wire.ItemGranted
	if !usable {
		granted = 0
	}
	charged := min(int(granted), len(s.waiting))
	for i, r := range s.waiting {
		t := r.tickets[nth]
		t.Outcome, t.Since = Failed, since
		if i < charged {
			if t.Charged = true; it.need.Reserves {
				t.Name = it.name + uint64(i) + 1
			}
		}
	}
	switch {
	case !usable:
	case it.need.Optimistic:
		it.prepaid = c.debts.payDebt(it.need.Bucket, (granted-int64(charged))*it.need.Cost)
	default:
		c.learnBucket(s, nth, charged)
	}
}

// shareOutBucket reads the answer about one bucket, and sets the outcome of its tickets. Some
// tickets may keep waiting. It reports false if the answer cannot be used.
func (c *Client) shareOutBucket(s *lineAnswer, nth int) bool {
	it, a := &s.items[nth], &s.answers[nth]
	var got terms
	if it.need.Optimistic {
		var noted bool
		got, noted = c.decideOptimistic(s, nth)
		if !noted {
			return false
		}
	} else {
		got = c.learnBucket(s, nth, s.served)
	}
	for i, r := range s.waiting {
		t := r.tickets[nth]
		cost := t.Need.Cost
		// Tokens of the requests behind it are not taken yet.
		t.Level, t.FullAt = got.before(int64(max(got.served-1-i, 0)) * cost)
		switch {
		case it.need.Looks:
			t.Outcome, t.Until = Spared, instantAfter(s.now, a.NotBefore)
		case i < got.served:
			t.Outcome, t.Until = Granted, s.expiry
			if s.answers[nth].Keep == 0 {
				t.Term = s.answers[nth].Term
			}
			if it.need.Reserves {
				t.Name = it.name + uint64(i) + 1
			}
			if it.need.isLeaky() {
				t.Delay = a.Delay + it.need.timeToEarn(int64(i)*cost)
			}
		case got.asks && s.now < r.deadline:
			s.asks = true
		default:
			c.endWithoutTokens(s, r, t, got.wait)
			t.Suspended, t.Doubt = a.State == wire.ItemSuspended, a.Doubt
		}
	}
	return true
}

// learnBucket takes in the answer about a leased or strict bucket, which charges charged requests.
// A bucket that had the tokens, and spent none because another bucket had too few, is not marked as
// empty. A late answer refuses nothing, because its wait ends sooner than it says.
func (c *Client) learnBucket(s *lineAnswer, nth, charged int) terms {
	it, a := &s.items[nth], &s.answers[nth]
	l := &learn{
		need: &it.need, now: s.now, sent: s.call.sent, ask: it.leaseAsk(), jitter: c.drawJitter(s.call),
		deadline: it.deadline(),
		grant: lease.Grant{
			Waiting: a.Waiting, Keep: a.Keep, NotBefore: a.NotBefore, Level: a.Level, FullAfter: a.FullAfter,
			Term: a.Term, Doubt: a.Doubt,
		},
	}
	// An answer that is late, or that spared its tokens, counts no request as waiting.
	l.ask.Nodes, l.late = c.reports.nodes, s.late()
	l.holds = !s.late() && a.Waiting == 0 && a.NotBefore == 0 && (it.waiting > 0 || it.need.Looks)
	if s.late() || a.Waiting == 0 && a.NotBefore == 0 || s.never && a.NotBefore != quota.Never {
		l.ask.Waiting = a.Waiting
	}
	// Granted tokens that no request uses pay debts, and otherwise serve the next requests.
	unused := max(a.Waiting-int64(charged), 0) * it.need.Cost
	if it.need.Reserves { // The next request takes a reservation of its own.
		unused = 0
		c.settleUnused(s.now, &it.need, it.name, int64(charged)+1, a.Waiting)
	}
	again := c.noteLast(s, nth, charged)
	if s.late() {
		it.prepaid = c.debts.payDebt(it.need.Bucket, unused)
	} else if unused = c.debts.payFree(it.need.Bucket, unused, s.call); !it.need.isLeaky() {
		l.unused = unused // A turn that no request takes is no token for the next request.
	}
	// If too many workers change the entry, the update is lost. Lost tokens to keep expire unused
	// at the control plane.
	if err := c.store.Update(bucketstore.Leased, it.need.Bucket, s.now, l); err == nil {
		c.Stats.Lapsed += uint64(c.debts.payDebt(it.need.Bucket, l.lapsed))
		c.watchTokens(s.now, &it.need, l.again)
	}
	wait := a.NotBefore
	if wait > 0 { // A request that comes before the node asks again is refused again.
		wait = max(wait, quota.Span(l.until-s.now))
	}
	return terms{served: charged, wait: wait, asks: again, before: l.levelBefore}
}
