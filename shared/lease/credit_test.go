package lease_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/quota"
)

func TestExpiryLeavesAMargin(t *testing.T) {
	if got, want := lease.Expiry(1000, 200*quota.Millisecond), quota.Instant(1000+200_000-200-1000); got != want {
		t.Errorf("expiry %d, want %d", got, want)
	}
}

func TestSpendTakesTheEarlierLeaseFirst(t *testing.T) {
	c := lease.Credit{Leases: [2]lease.Lease{{Tokens: 5, Expiry: 2 * sec}, {Tokens: 3, Expiry: 1 * sec}}}
	c, _, ok := c.Spend(0, params(t, 1000, quota.Second, 1000), 4)
	if !ok || c.Leases[0].Tokens != 4 || c.Leases[1].Tokens != 0 {
		t.Errorf("spent %v: %+v", ok, c.Leases)
	}
	if _, _, ok = c.Spend(0, params(t, 1000, quota.Second, 1000), 5); ok {
		t.Error("spent more than it holds")
	}
	if got := c.Available(2 * sec); got != 0 {
		t.Errorf("%d tokens alive at their expiry", got)
	}
}

func TestReceiveNeverExtendsALease(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var c lease.Credit
		now := quota.Instant(0)
		type received struct {
			tokens int64
			expiry quota.Instant
		}
		var got []received
		for range rapid.IntRange(1, 20).Draw(t, "leases") {
			now += quota.Instant(rapid.Int64Range(0, 50).Draw(t, "pause"))
			one := lease.Lease{Tokens: rapid.Int64Range(0, 9).Draw(t, "tokens"),
				Expiry: now + quota.Instant(rapid.Int64Range(-5, 100).Draw(t, "life"))}
			c = c.Receive(now, one)
			got = append(got, received{one.Tokens, one.Expiry})
		}
		for at := now; at < now+120; at++ {
			var alive int64
			for _, r := range got {
				if at < r.expiry {
					alive += r.tokens
				}
			}
			if c.Available(at) > alive {
				t.Fatalf("at %d: %d available, only %d granted and alive", at, c.Available(at), alive)
			}
		}
	})
}

func TestKeepFollowsDemand(t *testing.T) {
	p := params(t, 1000, quota.Second, 1000) // TTL 200 ms: keeps cover 50 ms
	var cold lease.Credit
	if got, _ := cold.Keep(0, p, 0, 10*quota.Millisecond); got != 0 {
		t.Errorf("a cold key wants to keep %d", got)
	}
	// 400 requests a second for two seconds.
	var c lease.Credit
	now := quota.Instant(0)
	for range 800 {
		now += 2500
		c = c.Observe(now, p, 1)
	}
	if got, _ := c.Keep(now, p, 0, 10*quota.Millisecond); got < 19 || got > 21 {
		t.Errorf("keeps %d at 400/s, want 20", got)
	}
	c = c.Receive(now, lease.Lease{Tokens: 20, Expiry: now + sec})
	if got, _ := c.Keep(now, p, 0, 10*quota.Millisecond); got != 0 {
		t.Errorf("asks for %d with 20 in hand and a demand of 4 per round trip", got)
	}
	if got, _ := c.Keep(now+20*sec, p, 0, 10*quota.Millisecond); got > 1 {
		t.Errorf("keeps %d after 20 idle seconds", got)
	}
	slow := params(t, 100, quota.Hour, 100) // TTL 30 s: keeps cover 7.5 s
	var s lease.Credit
	for i := range 5 {
		s = s.Observe(quota.Instant(i)*60*sec, slow, 1)
	}
	if got, _ := s.Keep(300*sec, slow, 0, 10*quota.Millisecond); got != 0 {
		t.Errorf("a key used once a minute keeps %d", got)
	}
	// A few quick requests to a slow bucket do not strand more tokens than there are requests.
	var quick lease.Credit
	for i := range 5 {
		quick = quick.Observe(quota.Instant(i)*100*ms, slow, 1)
	}
	if got, _ := quick.Keep(500*ms, slow, 0, 10*quota.Millisecond); got < 3 || got > 5 {
		t.Errorf("after 5 requests in half a second it keeps %d", got)
	}
}

func TestLearnBacksOffAndRecovers(t *testing.T) {
	p := params(t, 1000, quota.Second, 1000)
	ask := lease.Ask{Params: p, Waiting: 4, Cost: 2}
	short := lease.Grant{Waiting: 1, NotBefore: 2 * quota.Millisecond}
	var c lease.Credit
	waits := []quota.Instant{2 * ms, 4 * ms, 8 * ms, 16 * ms, 32 * ms, 50 * ms, 50 * ms}
	for i, want := range waits {
		c = c.Learn(0, ask, short, lease.BackOff(p), 0)
		if until, refused := c.Refused(0, p, 2, false); !refused || until != want {
			t.Errorf("short grant %d: refused %v until %d, want %d", i+1, refused, until, want)
		}
	}
	if _, refused := c.Refused(0, p, 1, false); refused {
		t.Error("a cheaper request is refused for a dearer one's sake")
	}
	if _, refused := c.Refused(50*ms, p, 2, false); refused {
		t.Error("refused at the very instant")
	}
	c = c.Learn(0, ask, lease.Grant{Waiting: 4}, lease.BackOff(p), 0)
	if _, refused := c.Refused(0, p, 2, false); refused {
		t.Error("refused after a full grant")
	}
	// Strict buckets do not back off: they ask at the promised instant.
	c = lease.Credit{}
	for range 5 {
		c = c.Learn(0, ask, short, 0, 512)
	}
	if until, _ := c.Refused(0, p, 2, false); until != 2*ms {
		t.Errorf("strict waits until %d", until)
	}
	// A long wait is never cut short by the back-off's limit.
	c = lease.Credit{}.Learn(0, ask, lease.Grant{NotBefore: quota.Minute}, lease.BackOff(p), 0)
	if until, _ := c.Refused(0, p, 2, false); until != 60*sec {
		t.Errorf("waits until %d", until)
	}
}

// A node refuses by itself for the time that an exact bucket would, for each cost: a dear request
// does not get the wait of the cheap request before it. In windows the node knows this only for the
// cost that was refused.
func TestARefusalIsRememberedForItsCost(t *testing.T) {
	p := params(t, 100, quota.Hour, 100)
	ask := lease.Ask{Params: p, Waiting: 1, Cost: 1}
	c := lease.Credit{}.Learn(0, ask, lease.Grant{NotBefore: 30 * quota.Second}, lease.BackOff(p), 0)
	for cost, want := range map[int64]quota.Instant{
		1: 30 * sec, 2: 66 * sec, 50: (30 + 49*36) * sec, 100: (30 + 99*36) * sec,
	} {
		if until, refused := c.Refused(10*sec, p, cost, false); !refused || until != want {
			t.Errorf("a cost of %d is refused %v until %d, want %d", cost, refused, until, want)
		}
	}
	// A refusal of a dear request does not change the knowledge about cheap requests.
	dear := ask
	dear.Cost = 50
	c = c.Learn(20*sec, dear, lease.Grant{NotBefore: (10 + 49*36) * quota.Second}, lease.BackOff(p), 0)
	if until, refused := c.Refused(20*sec, p, 1, false); !refused || until != 30*sec {
		t.Errorf("after a dear refusal a cheap one: %v until %d", refused, until)
	}
	if until, refused := c.Refused(20*sec, p, 51, false); !refused || until != (30+50*36)*sec {
		t.Errorf("after a dear refusal a dearer one: %v until %d", refused, until)
	}
	c = lease.Credit{}.Learn(0, ask, lease.Grant{NotBefore: 30 * quota.Second, FullAfter: quota.Hour}, 0, 0)
	if until, refused := c.Refused(0, p, 1, true); !refused || until != 30*sec {
		t.Errorf("a window: %v until %d", refused, until)
	}
	if _, refused := c.Refused(0, p, 2, true); refused {
		t.Error("a window refuses a dearer request for the time of a cheap request")
	}
}

// If a node refuses for longer than the control plane said, it stops after the shortest wait that a
// refusal names.
func TestABackOffIsNoLongerThanTheShortestWait(t *testing.T) {
	p := params(t, 6000, quota.Hour, 6000)
	var c lease.Credit
	for i := range 10 {
		now := quota.Instant(i) * 300 * ms
		c = c.Learn(now, lease.Ask{Params: p, Waiting: 1, Keep: 20, Cost: 1},
			lease.Grant{NotBefore: 100 * quota.Millisecond}, lease.BackOff(p), 1023)
		for _, cost := range []int64{1, 2} {
			if until, _ := c.Refused(now, p, cost, false); until > now+1*sec {
				t.Errorf("short grant %d: a cost of %d is refused for %d µs", i+1, cost, until-now)
			}
		}
	}
}

// Unused tokens of a rationed window are lost each time. So a window is scarce below a twentieth of
// its quota, also if the back-off is a larger part of it. A window longer than the shortest wait is
// asked all the same: if other nodes use the rest, that wait is too short.
func TestAWindowIsScarceWhenItIsNearlyUsedUp(t *testing.T) {
	for _, c := range []struct {
		window          quota.Span
		level           int64
		scarce, refused bool
	}{
		{quota.Second, 50, false, false}, {quota.Second, 49, true, true}, {2 * quota.Second, 50, false, false},
		{2 * quota.Second, 49, true, false}, {4 * quota.Second, 50, false, false}, {4 * quota.Second, 49, true, false},
		{quota.Hour, 8, false, false}, {quota.Hour, 7, true, false}, // Four back-offs are less.
	} {
		p := params(t, 1000, c.window, 1000)
		var credit lease.Credit
		for range 3 {
			credit = credit.Learn(0, lease.Ask{Params: p, Keep: 40, Cost: 1},
				lease.Grant{Keep: 10, Level: c.level, FullAfter: c.window}, lease.BackOff(p), 512)
		}
		_, refused := credit.Refused(0, p, 1, true)
		scarce := credit.AskAfter == quota.Instant(lease.BackOff(p))
		if scarce != c.scarce || refused != c.refused {
			t.Errorf("%d of 1000 in %d s left: scarce %v, refused %v", c.level, c.window/quota.Second, scarce, refused)
		}
	}
}

// A bucket of 1000/s earns 50 tokens in a back-off, so it is scarce below 200.
func TestScarceBucketIsRationed(t *testing.T) {
	p := params(t, 1000, quota.Second, 1000)
	backOff := lease.BackOff(p)
	keep := lease.Ask{Params: p, Keep: 40, Cost: 1}
	short := lease.Grant{Keep: 10, Level: 199}
	var c lease.Credit
	for i := range 2 {
		c = c.Learn(0, keep, short, backOff, 512)
		if _, refused := c.Refused(0, p, 1, false); refused {
			t.Errorf("refused after %d short grants: a burst that fits may be no more", i+1)
		}
	}
	// The third short grant in a row: the node uses its tokens until it may ask again, also for
	// dearer requests.
	c = c.Learn(0, keep, short, backOff, 512)
	for _, cost := range []int64{1, 100} {
		if until, refused := c.Refused(0, p, cost, false); !refused || until != 50*ms {
			t.Errorf("cost %d: refused %v until %d, want 50 ms", cost, refused, until)
		}
	}
	// The request that comes then asks; others do not while it does, and no longer than a request
	// may wait.
	called := c.Call(50*ms, 300*ms, p)
	if until, refused := called.Refused(50*ms, p, 1, false); !refused || until != 100*ms || called.KeepCall != 300*ms {
		t.Errorf("while the call is under way: refused %v until %d, %+v", refused, until, called)
	}
	// A full grant of a scarce bucket is to last as well.
	both := lease.Ask{Params: p, Waiting: 1, Keep: 40, Cost: 1}
	full := called.Learn(52*ms, both, lease.Grant{Waiting: 1, Keep: 40, Level: 100}, backOff, 0)
	if until, refused := full.Refused(52*ms, p, 1, false); !refused || until != 77*ms {
		t.Errorf("after a full grant: refused %v until %d, want 77 ms", refused, until)
	}
	// A bucket that has recovered is not rationed, whatever was.
	well := called.Learn(52*ms, both, lease.Grant{Waiting: 1, Keep: 10, Level: 200}, backOff, 0)
	if until, refused := well.Refused(52*ms, p, 1, false); refused {
		t.Errorf("refused until %d by a bucket with 200 tokens", until)
	}
	// Nor is a bucket rationed that was not asked for a while: its first request does not keep
	// other requests from asking.
	if _, refused := c.Call(100*ms, 350*ms, p).Refused(100*ms, p, 1, false); refused {
		t.Error("a call after a pause has others refused")
	}
}

// A node that rations a bucket refuses by itself the costs that the bucket earns within the
// shortest wait: that is true whatever other nodes have used since. For higher costs it asks,
// because other nodes may have used the tokens of the last answer.
func TestARationedBucketThatEarnsLittleIsAskedFor(t *testing.T) {
	for _, c := range []struct {
		window  quota.Span
		cost    int64
		refused bool
	}{
		{100 * quota.Second, 1, true}, {100 * quota.Second, 2, false},
		{600 * quota.Second, 1, false}, {10 * quota.Second, 10, true}, {10 * quota.Second, 11, false},
	} {
		p := params(t, 100, c.window, 100)
		keep := lease.Ask{Params: p, Keep: 40, Cost: 1, Nodes: 2}
		var credit lease.Credit
		for range 3 {
			credit = credit.Learn(0, keep, lease.Grant{Keep: 1, Level: 2}, lease.BackOff(p), 512)
		}
		if until, refused := credit.Refused(ms, p, c.cost, false); refused != c.refused {
			t.Errorf("%+v: refused %v until %d", c, refused, until)
		}
	}
}

// After a short grant the node asks for more tokens to keep when half of its tokens may be used up;
// for an empty bucket after a back-off.
func TestShortGrantsToKeepAreAskedForAgain(t *testing.T) {
	for _, c := range []struct {
		p          quota.Params
		got, level int64
		want       quota.Instant
	}{
		{params(t, 1000, quota.Second, 1000), 8, 500, 5 * ms}, // a fifth of 40 lasts for a fifth of 50 ms
		{params(t, 1000, quota.Second, 1000), 8, 100, 50 * ms},
		{params(t, 100, quota.Hour, 100), 20, 1, 7500 * ms / 4},
		{params(t, 100, quota.Hour, 100), 20, 0, 7500 * ms},
	} {
		ask := lease.Ask{Params: c.p, Keep: 40, Cost: 1}
		got := lease.Credit{}.Learn(0, ask, lease.Grant{Keep: c.got, Level: c.level}, lease.BackOff(c.p), 512).AskAfter
		if got != c.want {
			t.Errorf("%d of 40, level %d: asks after %d, want %d", c.got, c.level, got, c.want)
		}
	}
}

// A node asks for twice as much of a bucket that is more than three quarters full, and while it
// still has an eighth of that.
func TestKeepAheadWhileThereIsPlenty(t *testing.T) {
	p := params(t, 1000, quota.Second, 1000) // TTL 200 ms: keeps cover 50 ms, or 100
	for _, c := range []struct {
		demand, level, inHand, cost, want int64
	}{
		{demand: 100, level: 750, inHand: 1, cost: 1, want: 0},
		{demand: 100, level: 750, inHand: 0, cost: 0, want: 5},
		{demand: 100, level: 751, inHand: 0, cost: 0, want: 10},
		{demand: 100, level: 751, inHand: 2, cost: 1, want: 10},
		{demand: 100, level: 751, inHand: 3, cost: 1, want: 0},
		{demand: 100, level: 751, inHand: 4, cost: 3, want: 10},
		{demand: 100, level: 1000, inHand: 2, cost: 2, want: 10},
		{demand: 400, level: 1000, inHand: 7, cost: 1, want: 40},
		{demand: 400, level: 1000, inHand: 9, cost: 1, want: 0},
		// One token is likely to be used in three quarters of 200 ms, or not.
		{demand: 7, level: 1000, inHand: 1, cost: 1, want: 1},
		{demand: 7, level: 750, inHand: 1, cost: 1, want: 0},
		{demand: 6, level: 1000, inHand: 1, cost: 1, want: 0},
	} {
		credit := lease.Credit{Demand: c.demand * 1024, Level: c.level,
			Leases: [2]lease.Lease{{Tokens: c.inHand, Expiry: sec}}}
		if got, _ := credit.Keep(0, p, c.cost, 5*quota.Millisecond); got != c.want {
			t.Errorf("%d/s, level %d, %d of %d in hand spent: asks for %d, want %d", c.demand, c.level, c.cost,
				c.inHand, got, c.want)
		}
	}
}

// A time for which requests were refused says nothing of the demand, but no longer than a back-off.
func TestDemandOutlastsRationing(t *testing.T) {
	p := params(t, 1000, quota.Second, 1000)
	c := lease.Credit{Short: 8, NotBefore: 10 * sec, Demand: 400 * 1024}
	for at, want := range map[quota.Instant]int64{0: 20, 50 * ms: 20, 550 * ms: 10} {
		if got, _ := c.Keep(at, p, 0, 10*quota.Millisecond); got != want {
			t.Errorf("at %d ms it keeps %d, want %d", at/ms, got, want)
		}
	}
}

func TestShareDividesRateAndBurst(t *testing.T) {
	p := params(t, 100, quota.Minute, 100)
	share := lease.Share(p, 4)
	if share.Burst != 25 || share.Window() != quota.Minute {
		t.Errorf("a quarter of 100 per minute: %+v", share)
	}
	if one := lease.Share(p, 0); one != p {
		t.Errorf("share among 0 nodes: %+v", one)
	}
	// All shares together never exceed the rate, and the arithmetic stays exact however many nodes
	// there are.
	rapid.Check(t, func(t *rapid.T) {
		burst := rapid.Int64Range(1, 1000).Draw(t, "burst")
		p, err := quota.NewParams(rapid.Int64Range(1, 1000).Draw(t, "quota"),
			quota.Span(rapid.Int64Range(1, int64(quota.Day)).Draw(t, "window")), burst)
		if err != nil {
			t.Skip("beyond exact arithmetic")
		}
		nodes := rapid.Int64Range(1, 1<<40).Draw(t, "nodes")
		share := lease.Share(p, nodes)
		if share.Burst < 1 || share.Num != p.Num || share.Den < p.Den || share.Burst*share.Den > 2*quota.MaxUnits {
			t.Fatalf("share of %d nodes: %+v of %+v", nodes, share, p)
		}
	})
}

// The moment at which a bucket is full, as clients learn it, never steps back, though the control
// plane's level is in whole tokens, and a refusal's wait is exact.
func TestCreditsResetNeverStepsBack(t *testing.T) {
	p, err := quota.NewParams(60, quota.Hour, 60)
	if err != nil {
		t.Fatal(err)
	}
	ask := lease.Ask{Params: p, Waiting: 1, Cost: 1}
	at := func(s int64) quota.Instant { return quota.Instant(s) * quota.Instant(quota.Second) }
	var c lease.Credit
	for _, step := range []struct {
		second int64
		grant  lease.Grant
		full   int64
	}{
		{0, lease.Grant{Waiting: 1, Level: 59}, 60},
		{1, lease.Grant{Waiting: 1, Level: 10}, 1 + 50*60},
		{59, lease.Grant{Waiting: 1, Level: 10}, 59 + 50*60},
		{60, lease.Grant{Waiting: 1, Level: 11}, 59 + 50*60}, // really 60 + 49·60: the level was not quite 10 before
		{61, lease.Grant{NotBefore: 60 * quota.Second}, 61 + 60 + 59*60},
		{100, lease.Grant{NotBefore: 21 * quota.Second}, 100 + 21 + 59*60}, // the same as before
	} {
		c = c.Learn(at(step.second), ask, step.grant, 0, 0)
		if got := c.Full(at(step.second), p); got != at(step.full) {
			t.Errorf("at %d s: full at %d, want %d", step.second, got/quota.Instant(quota.Second), step.full)
		}
	}
}

func TestLapseTakesWhatHasEnded(t *testing.T) {
	c := lease.Credit{Leases: [2]lease.Lease{{Tokens: 3, Expiry: 100}, {Tokens: 5, Expiry: 200}}}
	for _, step := range []struct {
		at             quota.Instant
		lapsed, remain int64
	}{{99, 0, 8}, {100, 3, 5}, {150, 0, 5}, {200, 5, 0}, {300, 0, 0}} {
		var n int64
		if c, n = c.Lapse(step.at); n != step.lapsed || c.Leases[0].Tokens+c.Leases[1].Tokens != step.remain {
			t.Errorf("at %d: %d lapsed, %+v; want %d and %d left", step.at, n, c.Leases, step.lapsed, step.remain)
		}
	}
}
