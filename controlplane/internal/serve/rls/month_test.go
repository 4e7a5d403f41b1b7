//go:build !race

package rls_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/rls"
)

// A door that is open for a month, whose tenants come and go and whose store is away for some
// seconds a day, is as good as a new door. It decides the same, and the tenants of one outage bound
// its memory.
func TestADoorOfAMonthIsAsGoodAsNew(t *testing.T) {
	const days, tenants, strangers = 30, 500, 2250
	w := begin(t, `
version: weir/v1
headers: {standard: "off"}
policies:
  - name: api
    partition: ["descriptor:s"]
    limit: {quota: 4, window: 1h}
    mode: strict
    on_failure: [{share: 30s}, deny]
`)
	day := func(n, tenants, strangers int, who string) {
		t.Helper()
		w.now = start.Add(time.Duration(n) * 24 * time.Hour)
		tell := func(kind string, of int) {
			const want = "KKKKV" // The second letters of OK and OVER_LIMIT. The share of one door is all.
			for tenant := range of {
				got := ""
				for range len(want) {
					ask := request("d", fmt.Sprintf("s=%s-%s-%d-%d", who, kind, n, tenant))
					got += w.ask(ask).OverallCode.String()[1:2]
				}
				if got != want {
					t.Fatalf("day %d: %s tenant %d: %s, want %s", n, kind, tenant, got, want)
				}
			}
		}
		tell("known", tenants)
		w.store.Down, w.now = true, w.now.Add(time.Second)
		tell("alone", strangers)
		w.store.Down, w.now = false, w.now.Add(time.Second)
		w.ask(request("d", "s=back-"+who+fmt.Sprint(n)))
		w.service.Take()
	}
	for n := range days {
		day(n, tenants, strangers, "old")
		if shares, others := w.service.Held(); shares > rls.MaxShares || others > 0 {
			t.Fatalf("day %d: %d shares and %d others", n, shares, others)
		}
	}
	old := w.service
	w.restart()
	day(days, 1, 1, "new")
	w.service, w.now = old, start.Add((days+1)*24*time.Hour)
	w.store.Down = true
	for n := range rls.MaxShares + 1 {
		got := w.ask(request("d", fmt.Sprint("s=flood-", n))).OverallCode.String()
		if want := map[bool]string{false: "OK", true: "OVER_LIMIT"}[n == rls.MaxShares]; got != want {
			t.Fatalf("tenant %d of an outage: %s, want %s", n, got, want)
		}
	}
}
