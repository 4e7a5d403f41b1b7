package wire_test

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/policy"
	"github.com/weir-proxy/weir/shared/quota"
	"github.com/weir-proxy/weir/shared/wire"
)

// least is an item of each kind with no more than it must have.
var least = []wire.LeaseItem{
	wire.KindAsk:    {Kind: wire.KindAsk, Cost: 1},
	wire.KindReport: {Kind: wire.KindReport, Cost: 1, Used: 1},
	wire.KindSettle: {Kind: wire.KindSettle, Cost: 1, Reserved: 1, Nth: 1},
	wire.KindReturn: {Kind: wire.KindReturn, Reserved: 1, Term: 1},
	wire.KindClaim:  {Kind: wire.KindClaim, Seq: 1},
}

const (
	asks, reports, settles = 1 << wire.KindAsk, 1 << wire.KindReport, 1 << wire.KindSettle
	gives, claims          = 1 << wire.KindReturn, 1 << wire.KindClaim
)

// field sets something in an item, and says of which kinds that can be.
type field struct {
	name  string
	kinds uint
	set   func(*wire.LeaseItem)
}

var fields = []field{
	{"a group", asks, func(it *wire.LeaseItem) { it.Joined = true }},
	{"soon", asks, func(it *wire.LeaseItem) { it.Soon = true }},
	{"figures", asks | reports | settles | gives,
		func(it *wire.LeaseItem) { it.Quota, it.Burst = 1, quota.MaxUnits }},
	{"a consumer", asks | reports | settles | gives,
		func(it *wire.LeaseItem) { it.Position, it.Consumer = wire.TierGuessed, keyhash.Key{2} }},
	{"a name", asks | settles | gives, func(it *wire.LeaseItem) { it.Reserved = 1<<64 - 1 }},
	{"waiting requests", asks | claims, func(it *wire.LeaseItem) { it.Waiting = 1 << 20 }},
	{"tokens to keep", asks | claims, func(it *wire.LeaseItem) { it.Keep = quota.MaxUnits }},
	{"a cost", asks | reports | settles, func(it *wire.LeaseItem) { it.Cost = quota.MaxUnits }},
	{"used tokens", reports | gives, func(it *wire.LeaseItem) { it.Used = quota.MaxUnits }},
	{"a number", settles, func(it *wire.LeaseItem) { it.Nth = 1 << 20 }},
	{"an actual cost", settles, func(it *wire.LeaseItem) { it.Actual = policy.MaxCost }},
	{"a term", gives, func(it *wire.LeaseItem) { it.Term = 1<<32 - 1 }},
	{"returned tokens", gives, func(it *wire.LeaseItem) { it.Returned = quota.MaxUnits }},
	{"a sequence number", claims, func(it *wire.LeaseItem) { it.Seq = 1 << 53 }},
	{"permits", claims, func(it *wire.LeaseItem) { it.Hold, it.Lent = 1<<20, 1<<20 }},
}

// roundTrip returns an item as it is read after it was written.
func roundTrip(it wire.LeaseItem) (wire.LeaseItem, error) {
	m, err := wire.DecodeLeaseRequest(wire.AppendLeaseRequest(nil, wire.LeaseRequest{
		Items: []wire.LeaseItem{it, least[wire.KindAsk]},
	}))
	if err != nil {
		return wire.LeaseItem{}, err
	}
	return m.Items[0], nil
}

// An item has the parts of its kind. Parts of other kinds are refused, or not written.
func TestAnItemCarriesWhatItsKindHas(t *testing.T) {
	for kind, plain := range least {
		if got, err := roundTrip(plain); err != nil || !reflect.DeepEqual(got, plain) {
			t.Errorf("%+v became %+v: %v", plain, got, err)
		}
		for _, f := range fields {
			it := plain
			f.set(&it)
			got, err := roundTrip(it)
			if f.kinds>>kind&1 == 1 {
				if err != nil || !reflect.DeepEqual(got, it) {
					t.Errorf("kind %d with %s became %+v: %v", kind, f.name, got, err)
				}
			} else if err == nil && !reflect.DeepEqual(got, plain) {
				t.Errorf("kind %d with %s became %+v", kind, f.name, got)
			}
		}
	}
}

// Numbers that no item can have are refused.
func TestItemsAreBounded(t *testing.T) {
	for what, it := range map[string]wire.LeaseItem{
		"an ask without a cost":       {},
		"a report of nothing":         {Kind: wire.KindReport, Cost: 1},
		"a settlement without a name": {Kind: wire.KindSettle, Cost: 1, Nth: 1},
		"a settlement of no number":   {Kind: wire.KindSettle, Cost: 1, Reserved: 1},
		"a huge settlement":           {Kind: wire.KindSettle, Cost: 1, Reserved: 1, Nth: 1, Actual: 1 << 62},
		"a return without a name":     {Kind: wire.KindReturn, Term: 1},
		"a return without a term":     {Kind: wire.KindReturn, Reserved: 1},
		"a return of too much":        {Kind: wire.KindReturn, Reserved: 1, Term: 1, Returned: quota.MaxUnits + 1},
		"a claim without a number":    {Kind: wire.KindClaim},
		"a claim that comes too late": {Kind: wire.KindClaim, Seq: 1<<53 + 1},
		"a claim that holds too much": {Kind: wire.KindClaim, Seq: 1, Hold: 1<<20 + 1},
		"a claim that was lent more":  {Kind: wire.KindClaim, Seq: 1, Hold: 1, Lent: 2},
	} {
		if got, err := roundTrip(it); err == nil {
			t.Errorf("%s was accepted: %+v", what, got)
		}
	}
}

// grouped are an ask that belongs to one request with the next item, and that.
func grouped(next wire.LeaseItem) wire.LeaseRequest {
	ask := least[wire.KindAsk]
	ask.Joined = true
	return wire.LeaseRequest{Items: []wire.LeaseItem{ask, next, least[wire.KindAsk]}}
}

// A request needs tokens of all items of its group, so each is an ask.
func TestAGroupHasOnlyAsks(t *testing.T) {
	for kind, next := range least {
		m, err := wire.DecodeLeaseRequest(wire.AppendLeaseRequest(nil, grouped(next)))
		if ok := err == nil; ok != (kind == int(wire.KindAsk)) {
			t.Errorf("an ask joined to an item of kind %d: %+v, %v", kind, m.Items, err)
		}
	}
}

// An item of an unknown kind, or with an unknown part, is refused: it is never read as another
// kind.
func TestUnknownKindsOfItemsAreRefused(t *testing.T) {
	for _, plain := range least {
		b := wire.AppendLeaseRequest(nil, wire.LeaseRequest{Items: []wire.LeaseItem{plain}})
		at := len(wire.AppendLeaseRequest(nil, wire.LeaseRequest{}))
		if b[at] != byte(plain.Kind) {
			t.Fatal("the kind stands elsewhere")
		}
		for kind := len(least); kind < 256; kind++ {
			other := append([]byte(nil), b...)
			other[at] = byte(kind)
			if m, err := wire.DecodeLeaseRequest(other); err == nil {
				t.Errorf("kind %d is read: %+v", kind, m)
			}
		}
		flags := at + 1 + len(plain.Bucket)
		for bit := 5; bit < 63; bit++ {
			other := binary.AppendUvarint(append([]byte(nil), b[:flags]...), 1<<bit)
			if m, err := wire.DecodeLeaseRequest(append(other, b[flags+1:]...)); err == nil {
				t.Errorf("flag %d is read: %+v", bit, m)
			}
		}
	}
}
