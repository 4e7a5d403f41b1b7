package api_test

import (
	"encoding/binary"
	"math"
	"reflect"
	"testing"

	"github.com/weir-proxy/weir/shared/wire"
)

const fieldSet = `
version: weir/v1
identity: {consumer: [{header: x-api-key}]}
policies:
  - name: api
    partition: [consumer]
    limit: {quota: 10, window: 1d}
`

// bounds name the bound of each field of a lease request, whatever a node sends.
var bounds = map[string]string{
	"LeaseRequest.Node": "a name", "LeaseRequest.Boot": "a name", "LeaseRequest.Seq": "is repeated in the answer",
	"LeaseRequest.Version": "a version that is known", "LeaseRequest.Items": "see LeaseItem",
	"LeaseItem.Kind": "the fields that it has", "LeaseItem.Bucket": "its own tokens",
	"LeaseItem.Limit":   "a limit of the version",
	"LeaseItem.Waiting": "the limit", "LeaseItem.Cost": "the limit", "LeaseItem.Keep": "the limit",
	"LeaseItem.Used": "takes and never gives", "LeaseItem.Joined": "all or none", "LeaseItem.Soon": "a shorter term",
	"LeaseItem.ExceptionsRevision": "what is known here", "LeaseItem.Consumer": "what is known here of it",
	"LeaseItem.Position": "a look-up", "LeaseItem.Root": "a look-up", "LeaseItem.Quota": "the most of the limit",
	"LeaseItem.Burst": "the most of the limit", "LeaseItem.Seq": "permits", "LeaseItem.Hold": "permits",
	"LeaseItem.Lent": "permits", "LeaseItem.Reserved": "a name", "LeaseItem.Nth": "a reservation that there is",
	"LeaseItem.Actual": "a reservation that there is", "LeaseItem.Term": "tokens that are leased",
	"LeaseItem.Returned": "tokens that are leased",
}

// extremes are values of a field as no honest node sends them.
func extremes(of reflect.Type) (all []reflect.Value) {
	for _, n := range []uint64{0, 1, 7, 255, 1_000_000, 1 << 40, math.MaxInt64 / 4} {
		switch of.Kind() {
		case reflect.Int64, reflect.Uint64, reflect.Uint32, reflect.Uint8:
			all = append(all, reflect.ValueOf(n).Convert(of))
		case reflect.Bool:
			all = append(all, reflect.ValueOf(n == 1))
		}
	}
	return all
}

// eachLie calls a function with a field that has each of its extremes in turn. Each field must have
// a row in bounds.
func eachLie[T any](t *testing.T, base T, lie func(field string, it T)) {
	t.Helper()
	of := reflect.TypeOf(base)
	for i := range of.NumField() {
		field := of.Name() + "." + of.Field(i).Name
		if bounds[field] == "" {
			t.Errorf("%s says something that nothing bounds: add a row, with the believed value", field)
		}
		for _, value := range extremes(of.Field(i).Type) {
			it := base
			reflect.ValueOf(&it).Elem().Field(i).Set(value)
			lie(field, it)
		}
	}
}

// Each field of a lease request counts only up to the bound of the limit in force.
func TestNoFieldOfALeaseRequestIsBelievedBeyondTheLimit(t *testing.T) {
	p := newPlane(t)
	if w := p.put(`"0"`, fieldSet); w.Code != 200 {
		t.Fatal(w.Body)
	}
	fresh := uint64(0)
	ask := func(request wire.LeaseRequest) (granted int64) {
		t.Helper()
		w := p.do(call{who: "envoy", method: "POST", path: "/node/v1/leases",
			body: string(wire.AppendLeaseRequest(nil, request))})
		var reply wire.LeaseReply
		if w.Code >= 500 {
			t.Fatalf("%+v: %d %s", request, w.Code, w.Body)
		}
		if w.Code != 200 {
			return 0
		}
		if err := wire.DecodeLeaseReply(w.Body.Bytes(), &reply); err != nil {
			t.Fatal(err)
		}
		for i, a := range reply.Items {
			if a.State == wire.ItemGranted {
				granted += a.Waiting*max(request.Items[i].Cost, 1) + a.Keep
			}
		}
		return granted
	}
	honest := func() wire.LeaseRequest {
		fresh++
		it := wire.LeaseItem{Waiting: 1, Cost: 1}
		binary.BigEndian.PutUint64(it.Bucket[:], fresh)
		return wire.LeaseRequest{Node: "n", Boot: 1, Seq: fresh, Version: 1, Items: []wire.LeaseItem{it}}
	}
	never := func(field string, r, after wire.LeaseRequest) {
		first := ask(r)
		after.Items[0].Waiting = 20
		if then := ask(after); first < 0 || first > 10 || first+then > 10 {
			t.Errorf("%s: of a limit of 10 %d and then %d are granted to %+v", field, first, then, r)
		}
	}
	eachLie(t, honest(), func(field string, r wire.LeaseRequest) {
		r.Items = honest().Items
		after := honest()
		after.Items[0].Bucket = r.Items[0].Bucket
		never(field, r, after)
	})
	for kind := range wire.KindClaim + 1 {
		base := wire.LeaseItem{Kind: kind, Waiting: 1, Cost: 1, Used: 1, Reserved: 1, Nth: 1, Term: 1, Seq: 1}
		eachLie(t, base, func(field string, it wire.LeaseItem) {
			r, after := honest(), honest()
			it.Bucket = r.Items[0].Bucket
			r.Items[0], after.Items[0].Bucket = it, it.Bucket
			never(field, r, after)
		})
	}
}
