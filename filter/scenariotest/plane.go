package scenariotest

import (
	"strconv"

	"github.com/weir-proxy/weir/shared/inflight"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// Plane grants tokens and permits like a control plane: by the arithmetic of leases, with the
// figures of the newest policy set. Make a Plane with NewPlane.
type Plane struct {
	// Now is its own clock.
	Now func() quota.Instant
	// Sets are the policy sets that it knows, by version, and Version is the newest.
	Sets    map[uint64]*policy.Set
	Version uint64
	// Ledgers, Windows and Permits are by bucket.
	Ledgers map[keyhash.Key]lease.Ledger
	Windows map[keyhash.Key]lease.WindowLedger
	Permits map[keyhash.Key]inflight.Ledger
	// Status is the status of the answers to calls; 0 is a good answer, and -1 no answer.
	Status int
	// Nodes is the number of nodes that it reports.
	Nodes int64
	// Part is the largest burst that its region may grant; 0 is any.
	Part int64
	// Elsewhere is how many permits of each bucket another node holds.
	Elsewhere int64
	// LostUntil is until when it is in doubt about buckets and permits that it does not know.
	LostUntil quota.Instant
	// Names: replies name the terms of tokens to keep. Returned are the tokens that came back.
	Names    bool
	Returned int64
	// Granted, if set, hears of each item that asks for tokens, and Claimed of each answered claim.
	Granted func(node int, item wire.LeaseItem, g lease.Grant)
	Claimed func(bucket keyhash.Key, c inflight.Claim, granted int64)

	claims uint64
	took   map[uint64]bool
}

// NewPlane returns a control plane of one node that knows nothing.
func NewPlane(now func() quota.Instant) *Plane {
	return &Plane{Now: now, Nodes: 1, Sets: map[uint64]*policy.Set{}, Ledgers: map[keyhash.Key]lease.Ledger{},
		Windows: map[keyhash.Key]lease.WindowLedger{}, Permits: map[keyhash.Key]inflight.Ledger{},
		took: map[uint64]bool{}}
}

// Push makes a policy set the newest.
func (p *Plane) Push(version uint64, set *policy.Set) { p.Version, p.Sets[version] = version, set }

// Grant answers a lease request.
func (p *Plane) Grant(node int, req wire.LeaseRequest) wire.LeaseReply {
	reply := wire.LeaseReply{Seq: req.Seq, Nodes: p.Nodes}
	for from := 0; from < len(req.Items); {
		to := from + 1
		for req.Items[to-1].Joined {
			to++
		}
		reply.Items = append(reply.Items, p.grantTogether(node, req.Version, req.Items[from:to])...)
		from = to
	}
	return reply
}

// grantTogether answers the items of one request, or a single item. Several items are all granted,
// or none: then items whose bucket had the tokens have no wait.
func (p *Plane) grantTogether(node int, version uint64, items []wire.LeaseItem) []wire.LeaseAnswer {
	answers := make([]wire.LeaseAnswer, len(items))
	whole := true
	// Several items: look whether all buckets have the tokens.
	if len(items) > 1 {
		for i, it := range items {
			if ask, ok := p.ask(version, it); ok {
				g := p.look(it.Bucket, ask)
				answers[i] = wire.LeaseAnswer{NotBefore: g.NotBefore, Level: g.Level, FullAfter: g.FullAfter}
				whole = whole && g.NotBefore == 0
			} else {
				answers[i].State, whole = wire.ItemUnknown, false
			}
		}
	}
	// Answer claims and returns, and grant the other items if all buckets have the tokens.
	for i, it := range items {
		if it.Seq > 0 {
			answers[i] = p.claim(node, version, it)
			continue
		}
		ask, ok := p.ask(version, it)
		if !ok {
			answers[i].State = wire.ItemUnknown
			continue
		}
		if ask.Params.Burst == 0 { // Its quota is 0.
			answers[i] = wire.LeaseAnswer{State: wire.ItemSuspended, NotBefore: quota.Never}
			continue
		}
		if it.Term != 0 {
			p.takeBack(&it)
			continue
		}
		var g lease.Grant
		if whole {
			g = p.charge(it.Bucket, ask)
			answers[i] = wire.LeaseAnswer{Waiting: g.Waiting, Keep: g.Keep, NotBefore: g.NotBefore, Level: g.Level,
				FullAfter: g.FullAfter, Debt: g.Debt, Doubt: g.Tells() && p.Now() < p.LostUntil}
			if p.Names {
				answers[i].Term = g.Term
			}
			if ask.Deadline == 0 {
				answers[i].Delay = g.Delay
			}
		}
		if p.Granted != nil {
			p.Granted(node, it, g)
		}
	}
	return answers
}

// takeBack takes tokens back, once by the name of the return.
func (p *Plane) takeBack(it *wire.LeaseItem) {
	if p.took[it.Reserved] {
		return
	}
	p.took[it.Reserved] = true
	back := lease.Back{Unused: it.Returned, Used: it.Used}
	if l, ok := p.Windows[it.Bucket]; ok {
		p.Windows[it.Bucket], back = l.TakeBack(p.Now(), it.Term, back)
	} else {
		p.Ledgers[it.Bucket], back = p.Ledgers[it.Bucket].TakeBack(p.Now(), it.Term, back)
	}
	p.Returned += back.Unused
}

// claim answers a claim of permits.
func (p *Plane) claim(node int, version uint64, it wire.LeaseItem) wire.LeaseAnswer {
	_, limit := p.resolve(version, it.Limit)
	if !limit.InFlight {
		return wire.LeaseAnswer{State: wire.ItemUnknown}
	}
	claim := inflight.Claim{
		Node: inflight.Node{ID: strconv.Itoa(node)}, Seq: it.Seq, Hold: it.Hold, Lent: it.Lent, Need: it.Waiting,
		Spare: it.Keep, Limit: limit.Quota, Nodes: p.Nodes, Doubt: quota.Span(max(p.LostUntil-p.Now(), 0)),
	}
	ledger := p.Permits[it.Bucket]
	if p.claims > 0 || p.Elsewhere > 0 {
		p.claims++
		ledger, _ = ledger.Claim(p.Now(), inflight.Claim{
			Node: inflight.Node{ID: "elsewhere"}, Seq: p.claims, Hold: p.Elsewhere,
		})
	}
	ledger, a := ledger.Claim(p.Now(), claim)
	p.Permits[it.Bucket] = ledger
	if a.For > 0 && p.Claimed != nil {
		p.Claimed(it.Bucket, claim, a.Permits)
	}
	return wire.LeaseAnswer{Keep: a.Permits, Level: a.Free, For: a.For, NotBefore: a.Doubt}
}

// Held is how many permits are with nodes.
func (p *Plane) Held() (permits int64) {
	for _, ledger := range p.Permits {
		permits += ledger.Held(p.Now())
	}
	return permits
}

// ask returns the ask of an item, in the newest figures.
func (p *Plane) ask(version uint64, it wire.LeaseItem) (lease.Ask, bool) {
	of, limit := p.resolve(version, it.Limit)
	if of == nil {
		return lease.Ask{}, false
	}
	ask := lease.Ask{
		Params: limit.Params, Version: p.Version, Waiting: it.Waiting, Cost: it.Cost, Deadline: lease.Deadline,
		Keep: it.Keep, Nodes: p.Nodes, Used: it.Used,
		Optimistic: of.Mode == policy.ModeOptimistic,
	}
	if it.Quota > 0 {
		ask.Params, ask.Most = limit.For(it.Quota, it.Burst).Params, limit.Params
	}
	if p.Part > 0 {
		ask.Params.Burst = min(ask.Params.Burst, p.Part)
	}
	if limit.Algorithm.Windowed() {
		ask.Windows = limit.WindowsOf(it.Bucket)
	}
	if limit.Algorithm == quota.LeakyBucket {
		ask.Deadline = 0 // A turn in a queue is used at its own time.
	}
	if of.Mode == policy.ModeStrict {
		ask.Keep = 0
	}
	return ask, true
}

// ledger is a bucket's, which starts half full while the control plane is in doubt.
func (p *Plane) ledger(bucket keyhash.Key, ask lease.Ask) lease.Ledger {
	held := p.Ledgers[bucket]
	if held.Params.Den == 0 && p.Now() < p.LostUntil {
		return lease.Fresh(ask.Params, p.Version, p.Now(), 50)
	}
	return held
}

func (p *Plane) look(bucket keyhash.Key, ask lease.Ask) (g lease.Grant) {
	if ask.Windows.Quota > 0 {
		_, g = p.Windows[bucket].Look(p.Now(), ask)
	} else {
		_, g = p.ledger(bucket, ask).Look(p.Now(), ask)
	}
	return g
}

func (p *Plane) charge(bucket keyhash.Key, ask lease.Ask) lease.Grant {
	if ask.Windows.Quota > 0 {
		l, g := p.Windows[bucket].Grant(p.Now(), ask)
		if g.Changed {
			p.Windows[bucket] = l
		}
		return g
	}
	l, g := p.ledger(bucket, ask).Grant(p.Now(), ask)
	if g.Changed {
		p.Ledgers[bucket] = l
	}
	return g
}

// resolve finds the policy and limit of a limit's index in a version, as they are in the newest
// version: by the policy's name and the limit's index in it, or among its candidates, which come
// after the limits.
func (p *Plane) resolve(version uint64, number uint32) (*policy.Policy, policy.Limit) {
	meant, current := p.Sets[version], p.Sets[p.Version]
	if meant == nil {
		return nil, policy.Limit{}
	}
	limits := func(of *policy.Policy, candidate bool) []policy.Limit {
		if candidate {
			return of.Candidate
		}
		return of.Limits
	}
	for i := range meant.Policies {
		was := &meant.Policies[i]
		for _, candidate := range []bool{false, true} {
			if n := uint32(len(limits(was, candidate))); number >= n {
				number -= n
				continue
			}
			for i := range current.Policies {
				now := &current.Policies[i]
				of := limits(now, candidate)
				if now.Name == was.Name && now.Mode != policy.ModeLocal && int(number) < len(of) {
					return now, of[number]
				}
			}
			return nil, policy.Limit{}
		}
	}
	return nil, policy.Limit{}
}
