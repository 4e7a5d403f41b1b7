package leasing

import (
	"slices"

	"github.com/weir-proxy/weir/filter/internal/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/rpc"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// answer handles the end of a call.
func (c *Client) answer(call *call, status int, body []byte) {
	now := c.clock.Now()
	how := c.read(call, status, body)
	c.trialsOver(call)
	c.forgetCall(call)
	if how == rpc.Answered {
		c.outrun(call, now)
	}
	if call.late { // Its requests have gone on, and its failure has been counted.
		if how == rpc.Answered && !call.over {
			c.takeIn(call, now)
		}
		c.over(call, now)
		return
	}
	if how != rpc.Answered {
		c.over(call, now)
		c.fail(call, now, how)
		return
	}
	recovered := c.Health.succeed(now, call.purpose == forProbe, c.jitter(call))
	c.room.ended(call, now, true)
	if recovered {
		c.room.restart()
	}
	c.Stats.Calls[rpc.Answered]++
	c.takeIn(call, now)
	c.over(call, now)
	c.shareOutHeld(now)
	c.learnPace(call, now)
	if call.purpose == forTrials {
		c.sendTrials(now)
		return
	}
	c.Flush(now) // What queued behind this call would wait for the next tick otherwise.
	c.countEnded(call)
	c.Claim(now)
	if call.purpose == forReports {
		c.report(now)
	}
	if c.room.calls == 0 {
		c.sendSettled(now)
	}
}

// read decodes the reply to a call. It returns how the call ended.
func (c *Client) read(call *call, status int, body []byte) rpc.Outcome {
	how := rpc.Of(status)
	if how != rpc.Answered {
		return how
	}
	err := wire.DecodeLeaseReply(body, &c.reply)
	if err != nil || c.reply.Seq != call.seq || len(c.reply.Items) != len(call.items) {
		return rpc.Unreadable
	}
	return how
}

// countEnded counts a call of its purpose as ended.
func (c *Client) countEnded(call *call) {
	switch call.purpose {
	case forReports:
		c.reports.underWay--
	case forClaims:
		c.claiming--
	case forSettlements:
		c.settlements.alone = false
	}
}

// takeIn takes in what a reply says about each item.
func (c *Client) takeIn(call *call, now quota.Instant) {
	if c.reply.Nodes != c.sharedNodes.Load() {
		c.sharedNodes.Store(c.reply.Nodes)
	}
	if c.reply.Nodes != c.reports.nodes { // As of the last tick, so that an answer costs no second look.
		c.nodesAsked.Store(c.reply.Nodes)
		c.reports.nodes = c.reply.Nodes
	}
	for from, to := 0, 0; from < len(call.items); from = to {
		to = from + 1
		for call.items[to-1].joined {
			to++
		}
		switch it, a := &call.items[from], &c.reply.Items[from]; it.kind {
		case asks:
			c.shareOut(call, call.items[from:to], c.reply.Items[from:to], now)
		case charges:
			c.charged(call, it, a, now)
		case reportsUse:
			if a.State == wire.ItemUnknown {
				c.Stats.ItemsUnknown++
			}
			c.reports.answer(it, a, now, c.store)
		case settles:
			if !call.late { // Otherwise it waits for another call.
				c.settled(it, a, now)
			}
		case givesBack:
			if !call.late { // Otherwise it goes with another call.
				c.returned(it, a.State == wire.ItemGranted)
			}
		case claims:
			c.claimed(it, a, now)
		}
	}
}

// fail ends a call without an answer: its requests, and those that queued behind them, fail over.
func (c *Client) fail(call *call, now quota.Instant, how rpc.Outcome) {
	c.Stats.Calls[how]++
	c.countEnded(call)
	c.Health.fail(now, how, call.purpose == forProbe, c.random.Jitter())
	c.room.ended(call, now, false)
	if c.debts.call == call { // What it carries waits for its answer, and other debts do not.
		c.debts.call = nil
	}
	c.settleAgain(call, now)
	if how == rpc.Overloaded && c.room.most == 1 {
		c.room.rest = now + rpc.Spread(longestRest, c.random.Jitter())
	}
	for i := range call.items {
		it := &call.items[i]
		c.returnAgain(it, now)
		if it.line == nil {
			continue
		}
		for _, r := range slices.Concat(it.open(), it.line.waiting) {
			c.failRequest(r, now)
		}
		c.queue.callEnded(it.line, nil)
	}
	if !c.Health.breaker.IsOpen() {
		c.Flush(now)
		return
	}
	for _, r := range c.queue.compact() { // No call will carry the others in time.
		c.lookAfter(r, now)
	}
}

// lineAnswer is what a call brought for the requests of one line: the answer about one bucket, or
// the answers about all buckets of one request.
type lineAnswer struct {
	call    *call
	items   []item
	answers []wire.LeaseAnswer
	now     quota.Instant
	// expiry is when the tokens of granted requests must be used.
	expiry quota.Instant
	// waiting are the requests that still wait for it.
	waiting []*request
	// served is how many of them get their tokens, of each bucket that could be asked.
	served int
	// short: some bucket had too few tokens.
	short bool
	// never: some bucket never holds what a request costs. Its client learns of no wait, so it may
	// come again when what the node remembers of the other buckets is old.
	never bool
	// asks: those that keep waiting ask at once.
	asks bool
	// unknown: the answers make no sense, or the control plane does not know what was asked for.
	unknown bool
}

// terms are what an answer about one bucket means to the requests that wait for it.
type terms struct {
	// served is how many of the requests get their tokens, the first ones.
	served int
	// wait is how long the others must wait. Asks: they ask once more, because it is less when the
	// control plane hears that the tokens are used.
	wait quota.Span
	asks bool
	// before is the level of the bucket, and when it is full, as they were so many tokens ago.
	before func(tokens int64) (level int64, fullAt quota.Instant)
}

// shareOut shares out the answers to the items that the requests of one line wait for.
func (c *Client) shareOut(call *call, items []item, answers []wire.LeaseAnswer, now quota.Instant) {
	s := &lineAnswer{
		call: call, items: items, answers: answers, now: now,
		expiry: lease.Expiry(call.sent, lease.Deadline), waiting: items[0].open(),
	}
	for i := range items {
		s.expiry = min(s.expiry, lease.Expiry(call.sent, items[i].deadline()))
	}
	if call.purpose == forTrials { // Nothing is used by them: what came late was granted all the same.
		s.expiry = call.sent + quota.Instant(callTimeout) + 1
	}
	s.judge()
	if s.unknown {
		c.Stats.ItemsUnknown++
	}
	again := s.again()
	if len(items) > 1 && !again && !c.isSure(s) && c.hold(s) {
		return
	}
	for nth := range items {
		since, failed := s.unusable(nth)
		switch {
		case again:
			c.learn(s, nth, 0)
			c.returnLate(s, nth)
		case !failed && c.shareOutBucket(s, nth):
		case !failed && len(items) == 1 && c.hold(s):
			return
		default:
			c.failBucket(s, nth, since)
		}
	}
	var waitOn []*request
	for _, r := range s.waiting {
		if r.tickets[0].Outcome == Waiting {
			waitOn = append(waitOn, r)
		} else {
			c.queue.end(r)
		}
	}
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

// judge reads the answers together. A bucket whose part of the store is away has no say: the others
// are granted without it.
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
		if it.waiting > 0 { // Otherwise all that wait just look.
			s.served = min(s.served, int(a.Waiting))
		}
	}
}

// unusable reports whether the tickets for the n-th bucket end without tokens and without a
// refusal, and since when the bucket could not be asked for. Tokens that come too late may be lent
// to another node by now. A late answer that no request waits for is still taken in: it pays debts.
func (s *lineAnswer) unusable(nth int) (since quota.Instant, failed bool) {
	if a := &s.answers[nth]; a.State == wire.ItemUnavailable {
		return s.now - quota.Instant(a.NotBefore), true // In this state it is for how long.
	}
	useless := s.late() && (len(s.waiting) > 0 || s.items[nth].need.Optimistic)
	return s.now, s.unknown || useless
}

// failBucket fails the tickets for one bucket. Tokens that were granted for them, or for requests
// that have ended meanwhile, are charged all the same, and those to keep are kept.
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
		it.prepaid = c.debts.pay(it.need.Bucket, (granted-int64(charged))*it.need.Cost)
	default:
		c.learn(s, nth, charged)
	}
}

// shareOutBucket takes in the answer about one bucket, and gives the tickets for it their outcome.
// Some may keep waiting. It reports false if the answer cannot be used.
func (c *Client) shareOutBucket(s *lineAnswer, nth int) bool {
	it, a := &s.items[nth], &s.answers[nth]
	var got terms
	if it.need.Optimistic {
		var noted bool
		got, noted = c.decide(s, nth)
		if !noted {
			return false
		}
	} else {
		got = c.learn(s, nth, s.served)
	}
	for i, r := range s.waiting {
		t := r.tickets[nth]
		cost := t.Need.Cost
		// What those take that waited behind it is not taken yet.
		t.Level, t.FullAt = got.before(int64(max(got.served-1-i, 0)) * cost)
		switch {
		case it.need.Looks:
			t.Outcome, t.Until = Spared, after(s.now, a.NotBefore)
		case i < got.served:
			t.Outcome, t.Until = Granted, s.expiry
			if s.answers[nth].Keep == 0 {
				t.Term = s.answers[nth].Term
			}
			if it.need.Reserves {
				t.Name = it.name + uint64(i) + 1
			}
			if it.need.leaky() {
				t.Delay = a.Delay + it.need.earning(int64(i)*cost)
			}
		case got.asks && s.now < r.deadline:
			s.asks = true
		default:
			c.shareNothing(s, r, t, got.wait)
			t.Suspended, t.Doubt = a.State == wire.ItemSuspended, a.Doubt
		}
	}
	return true
}

// learn takes in the answer about a leased or a strict bucket, by which so many requests are
// charged. A bucket that had the tokens, and spent none because another had not, was not short of
// them. A late answer refuses nothing, because its wait is over sooner than it says.
func (c *Client) learn(s *lineAnswer, nth, charged int) terms {
	it, a := &s.items[nth], &s.answers[nth]
	l := &learn{
		need: &it.need, now: s.now, sent: s.call.sent, ask: it.ask(), jitter: c.jitter(s.call), deadline: it.deadline(),
		grant: lease.Grant{
			Waiting: a.Waiting, Keep: a.Keep, NotBefore: a.NotBefore, Level: a.Level, FullAfter: a.FullAfter,
			Term: a.Term, Doubt: a.Doubt,
		},
	}
	l.ask.Nodes, l.late = c.reports.nodes, s.late()
	l.holds = !s.late() && a.Waiting == 0 && a.NotBefore == 0 && (it.waiting > 0 || it.need.Looks)
	if s.late() || a.Waiting == 0 && a.NotBefore == 0 || s.never && a.NotBefore != quota.Never {
		l.ask.Waiting = a.Waiting
	}
	unused := max(a.Waiting-int64(charged), 0) * it.need.Cost
	if it.need.Reserves { // The next request takes a reservation of its own.
		unused = 0
		c.unused(s.now, &it.need, it.name, int64(charged)+1, a.Waiting)
	}
	again := c.noteLast(s, nth, charged)
	if s.late() {
		it.prepaid = c.debts.pay(it.need.Bucket, unused)
	} else if unused = c.debts.payFree(it.need.Bucket, unused, s.call); !it.need.leaky() {
		l.unused = unused // A turn that no request takes is no token for the next one.
	}
	// What a contended change would have noted is lost. Tokens to keep that are lost so expire
	// unused at the control plane.
	if err := c.store.Update(bucketstore.Leased, it.need.Bucket, s.now, l); err == nil {
		c.Stats.Lapsed += uint64(c.debts.pay(it.need.Bucket, l.lapsed))
		c.watch(s.now, &it.need, l.again)
	}
	wait := a.NotBefore
	if wait > 0 { // A request that comes before the node asks again is refused again.
		wait = max(wait, quota.Span(l.until-s.now))
	}
	return terms{served: charged, wait: wait, asks: again, before: l.before}
}
