package enforcement_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-proxy/weir/filter/internal/base/bucketstore"
	"github.com/weir-proxy/weir/filter/internal/base/shareddata"
	"github.com/weir-proxy/weir/filter/internal/base/shareddatatest"
	"github.com/weir-proxy/weir/filter/internal/remote/enforcement"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/lease"
	"github.com/weir-proxy/weir/shared/match"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// process is an Envoy with VMs over one shared store.
type process struct {
	t    *testing.T
	data shareddatatest.Data
	vms  []*enforcement.View
	unix int64
	// buckets are the process's buckets.
	buckets *bucketstore.Store
}

func (p *process) Now() quota.Instant { return quota.Instant(p.unix) * 1000 }

func newProcess(t *testing.T, vms int) *process {
	p := &process{t: t, unix: 1_000_000}
	p.buckets = bucketstore.New(&p.data, [4]byte{2}, 64, 0)
	for range vms {
		p.start()
	}
	return p
}

func (p *process) start() {
	p.vms = append(p.vms, enforcement.New(&p.data, p.buckets, p, [4]byte{1}))
}

// tick expects each VM to have something else to obey, or not.
func (p *process) tick(after int64, changed bool) {
	p.t.Helper()
	p.unix += after
	for i, vm := range p.vms {
		if got := vm.Tick(p.unix); got != changed {
			p.t.Errorf("at %d VM %d has something new: %v", p.unix, i, got)
		}
	}
}

func (p *process) tell(m wire.Enforcement) {
	p.t.Helper()
	if err := p.vms[0].Changed(wire.AppendEnforcement(nil, &m)); err != nil {
		p.t.Fatal(err)
	}
}

// off says of each VM whether everything is off in a policy set.
func (p *process) off() (off []bool) {
	var m match.Matcher
	for _, vm := range p.vms {
		var ix match.Index
		vm.Bind(&ix)
		off = append(off, m.Match(&ix, &match.Attributes{}).Access == match.Off)
	}
	return off
}

func (p *process) expect(name string, want bool) {
	p.t.Helper()
	for i, got := range p.off() {
		if got != want {
			p.t.Errorf("%s: everything is off in VM %d: %v", name, i, got)
		}
	}
}

var everything = wire.Order{State: policy.EnforcedOff, Percent: 100}

func TestEveryVMObeys(t *testing.T) {
	p := newProcess(t, 3)
	p.tick(0, false)
	p.expect("at first", false)
	p.tell(wire.Enforcement{Revision: 7, Orders: []wire.Order{everything}})
	p.tick(10, true)
	p.expect("in force", true)
	p.tick(10, false)
	for _, vm := range p.vms {
		if vm.Revision() != 7 || vm.InForce != 1 || vm.Bans != 0 {
			t.Errorf("at revision %d with %d orders and %d bans", vm.Revision(), vm.InForce, vm.Bans)
		}
	}
	// A VM that starts late obeys from its first tick.
	p.start()
	p.vms[3].Tick(p.unix)
	p.expect("a new VM", true)
	// The number does not matter: a control plane that was set up anew begins with a lower
	// revision.
	p.tell(wire.Enforcement{Revision: 3})
	p.tick(10, true)
	p.expect("lifted", false)
	p.tell(wire.Enforcement{Revision: 3, Orders: []wire.Order{everything}})
	p.tick(10, true)
	p.expect("something else by the same number", true)
}

// A message under the version of another one is not obeyed, and the poll asks for it again.
func TestAMessageUnderAnothersVersion(t *testing.T) {
	p := newProcess(t, 2)
	p.tell(wire.Enforcement{Revision: 7, Orders: []wire.Order{everything}})
	message := shareddata.Space{1}.Key(shareddata.Enforcement)
	p.data.Put(message[:], wire.AppendEnforcement(nil, &wire.Enforcement{Revision: 6}))
	p.tick(10, false)
	if got := p.vms[0].Revision(); got != 0 {
		t.Errorf("revision %d is in force", got)
	}
	p.tell(wire.Enforcement{Revision: 7, Orders: []wire.Order{everything}})
	p.tick(10, true)
	p.expect("received again", true)
}

func TestOrdersEndByThemselves(t *testing.T) {
	p := newProcess(t, 2)
	first, second := everything, everything
	first.Expires, second.Expires = p.unix+1000, p.unix+3000
	second.Policy = []byte("p")
	p.tell(wire.Enforcement{Revision: 7, Orders: []wire.Order{second, first},
		Bans: []wire.Ban{{Expires: p.unix + 2000}, {Key: keyhash.Key{1}}}})
	p.tick(10, true)
	p.expect("before", true)
	p.tick(980, false)
	p.tick(10, true)
	p.expect("after", false)
	p.tick(10, false)
	p.tick(990, true)
	if vm := p.vms[1]; vm.InForce != 1 || vm.Bans != 1 {
		t.Errorf("%d orders and %d bans", vm.InForce, vm.Bans)
	}
	p.tick(1000, true)
	p.tick(1_000_000, false)
	if vm := p.vms[1]; vm.InForce != 0 || vm.Bans != 1 || vm.Revision() != 7 {
		t.Errorf("%d orders and %d bans", vm.InForce, vm.Bans)
	}
}

func TestDamageChangesNothing(t *testing.T) {
	p := newProcess(t, 2)
	message := wire.AppendEnforcement(nil, &wire.Enforcement{Revision: 7, Orders: []wire.Order{everything}})
	if err := p.vms[0].Changed(message[:len(message)-1]); err == nil {
		t.Error("a message that was cut is taken")
	}
	p.tick(0, false)
	p.tell(wire.Enforcement{Revision: 7, Orders: []wire.Order{everything}})
	p.tick(0, true)
	p.data.Put([]byte{1, 0, 0, 0, 'e'}, message[:5])
	p.data.Put([]byte{1, 0, 0, 0, 'o'}, make([]byte, 16))
	p.tick(0, false)
	p.expect("the last good one stays", true)
	p.tell(wire.Enforcement{Revision: 8})
	p.tick(0, true)
	p.expect("the next good one counts", false)
}

// entry is a change that makes, or reads, a node's entry of a bucket.
type entry struct {
	write, seen *bucketstore.Entry
}

func (c entry) Apply(e *bucketstore.Entry) bool {
	if c.seen != nil {
		*c.seen = *e
		return false
	}
	e.State, e.Params, e.Account, e.Credit, e.Limit = c.write.State, c.write.Params, c.write.Account,
		c.write.Credit, c.write.Limit
	return true
}

// A bucket that was changed is asked about again, and its tokens in hand stay good; a bucket that
// is full now is full here too. Each change counts once.
func TestFreedBuckets(t *testing.T) {
	p := newProcess(t, 2)
	params, err := quota.NewParams(10, quota.Hour, 10)
	if err != nil {
		t.Fatal(err)
	}
	update := func(kind bucketstore.Kind, key byte, c entry) {
		t.Helper()
		if err := p.buckets.Update(kind, keyhash.Key{key}, p.Now(), c); err != nil {
			t.Fatal(err)
		}
	}
	late := p.Now() + quota.Instant(quota.Hour)
	spend := func() {
		for key := range byte(3) {
			update(bucketstore.Local, key,
				entry{write: &bucketstore.Entry{Params: params,
					State: quota.State{Debt: 5 * params.Den, Last: p.Now()}}})
			update(bucketstore.Optimistic, key,
				entry{write: &bucketstore.Entry{Params: params,
					Account: lease.Account{Debt: params.Den, Unknown: 3, Last: p.Now(), Since: p.Now(),
						Heard: p.Now()}}})
			update(bucketstore.Leased, key, entry{write: &bucketstore.Entry{Limit: 7, Credit: lease.Credit{
				NotBefore: late, DenyCost: 1, FullAt: late, Leases: [2]lease.Lease{{Tokens: 4, Expiry: late}}}}})
		}
	}
	// left are the parts of each bucket that are still to forget: its refusal, the node's own
	// bucket, its debt.
	left := func() (all []string) {
		for key := range byte(3) {
			var own, leased, account bucketstore.Entry
			update(bucketstore.Local, key, entry{seen: &own})
			update(bucketstore.Leased, key, entry{seen: &leased})
			update(bucketstore.Optimistic, key, entry{seen: &account})
			if leased.Credit.Available(p.Now()) != 4 || account.Account.Unknown != 3 {
				t.Errorf("bucket %d: tokens in hand %+v, used %+v", key, leased.Credit, account.Account)
			}
			if full := leased.Credit.FullAt; (full != 0) != (leased.Credit.NotBefore != 0) {
				t.Errorf("bucket %d is refused until %d, and full at %d", key, leased.Credit.NotBefore, full)
			}
			owes := account.Account.Debt != 0 && !account.Account.Stale
			all = append(all, fmt.Sprint(leased.Credit.NotBefore != 0, own.State.Debt != 0, owes))
		}
		return all
	}
	expect := func(name string, want ...string) {
		t.Helper()
		if got := left(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	spend()
	p.tell(wire.Enforcement{Revision: 7,
		Freed: []wire.Freed{{Bucket: keyhash.Key{1}, Revision: 7}, {Bucket: keyhash.Key{2}, Revision: 6, Full: true},
			{Bucket: keyhash.Key{9}, Revision: 5, Full: true}}})
	expect("changed", "true true true", "false true false", "false false false")
	p.tick(10, true)
	spend()
	p.tell(wire.Enforcement{Revision: 8,
		Freed: []wire.Freed{{Bucket: keyhash.Key{1}, Revision: 7, Full: true}, {Bucket: keyhash.Key{2}, Revision: 8}}})
	expect("an old change", "true true true", "true true true", "false true false")
}
