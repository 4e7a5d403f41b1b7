package leases_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/grant/leases"
	"github.com/weir-proxy/weir/shared/wire"
)

// An item says which figures its caller brings. They are cut to the largest of the policy that is
// in force, whatever the node says; an item without, as of a node that has not got the policy yet,
// has the default.
func TestFiguresOfCallers(t *testing.T) {
	const figures = "quota: {jwt: rpm, max: 600, default: 60}, window: 1m"
	w := newWorld(t)
	w.put(1, "name: a, partition: [], limit: {quota: 7, window: 1m}")
	w.put(2, "name: a, partition: [], limit: {"+figures+"}",
		"name: b, partition: [], limit: {"+figures+", burst: 5}",
		"name: c, partition: [], limit: {"+figures+"}, algorithm: fixed_window",
		"name: d, partition: [], limit: {quota: 100, window: 1m, burst: {jwt: b, max: 10, default: 1}}, mode: strict",
		"name: e, partition: [], limit: {quota: 100, window: 1m}")
	w.current = 2
	s := leases.New(w.config(time.Now))
	for i, c := range []struct {
		version      uint64
		limit        uint32
		quota, burst int64
		want         string // burst, num/den of the ask; the largest; the quota of its windows
	}{
		{2, 0, 30, 30, "30 1/2000000 of 600, 0"},
		{2, 0, 600, 600, "600 1/100000 of 600, 0"},
		{2, 0, 1 << 50, 1 << 50, "600 1/100000 of 600, 0"},
		{2, 0, 1, 1 << 50, "600 1/60000000 of 600, 0"},
		{2, 0, 0, 0, "60 1/1000000 of 600, 0"},
		{1, 0, 0, 0, "60 1/1000000 of 600, 0"},
		{2, 1, 30, 5, "5 1/2000000 of 5, 0"},
		{2, 1, 30, 1 << 50, "5 1/2000000 of 5, 0"},
		{2, 2, 30, 30, "30 1/2000000 of 600, 600"},
		{2, 2, 1 << 50, 1, "600 1/100000 of 600, 600"},
		{2, 3, 100, 4, "4 1/600000 of 10, 0"},
		{2, 3, 1 << 50, 1 << 50, "10 1/600000 of 10, 0"},
		{2, 4, 1 << 50, 1 << 50, "100 1/600000 of 0, 0"}, // A limit that takes no figures.
	} {
		w.asked = nil
		it := item(byte(i), c.limit, 1, 0)
		it.Quota, it.Burst = c.quota, c.burst
		if _, err := s.Grant(t.Context(),
			wire.LeaseRequest{Version: c.version, Items: []wire.LeaseItem{it}}); err != nil {
			t.Fatal(err)
		}
		a := w.asked[0][0].Ask
		if got := fmt.Sprintf("%d %d/%d of %d, %d", a.Params.Burst, a.Params.Num, a.Params.Den, a.Most.Burst,
			a.Windows.Quota); got != c.want {
			t.Errorf("%d: %s, want %s", i, got, c.want)
		}
	}
}

// While a draft is rolled out, buckets of callers with figures of their own have one ledger if both
// versions have the same largest figures, and two if they differ, whatever a caller brings.
func TestFiguresOfCallersInARollout(t *testing.T) {
	same := "name: same, partition: [], limit: {quota: {jwt: rpm, max: 600, default: 60}, window: 1m}"
	w := newWorld(t)
	w.put(1, same, "name: more, partition: [], limit: {quota: {jwt: rpm, max: 600, default: 60}, window: 1m}",
		"name: new, partition: [], limit: {quota: 60, window: 1m}")
	w.put(2, same, "name: more, partition: [], limit: {quota: {jwt: rpm, max: 700, default: 60}, window: 1m}",
		"name: new, partition: [], limit: {quota: {jwt: rpm, max: 60, default: 60}, window: 1m}")
	w.current, w.stored, w.draft = 1, 1, 2
	s := leases.New(w.config(time.Now))
	for i, c := range []struct {
		version uint64
		limit   uint32
		quota   int64
		want    string
	}{
		{1, 0, 30, "30 of 600"},
		{2, 0, 700, "600 of 600"},
		{1, 1, 30, "30 of 600 twin 30 of 700"},
		{2, 1, 30, "30 of 700 twin 30 of 600"},
		{2, 1, 700, "700 of 700 twin 600 of 600"},
		{2, 2, 30, "30 of 60 twin 60 of 0"},
	} {
		w.asked = nil
		it := item(byte(i), c.limit, 1, 0)
		it.Quota, it.Burst = c.quota, c.quota
		if _, err := s.Grant(t.Context(),
			wire.LeaseRequest{Version: c.version, Items: []wire.LeaseItem{it}}); err != nil {
			t.Fatal(err)
		}
		asked := w.asked[0][0]
		got := fmt.Sprintf("%d of %d", asked.Ask.Params.Burst, asked.Ask.Most.Burst)
		if asked.Twin != nil {
			got += fmt.Sprintf(" twin %d of %d", asked.Twin.Params.Burst, asked.Twin.Most.Burst)
		}
		if got != c.want {
			t.Errorf("%d: %s, want %s", i, got, c.want)
		}
	}
}
