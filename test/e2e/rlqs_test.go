package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// quotaPage has the configuration of the quota filter, which these tests run.
const quotaPage = "docs/integrate/rlqs.md"

// startQuotas starts a set-up whose control plane has the door for quota filters.
func startQuotas(t *testing.T, s setup) (w *world, port int) {
	t.Helper()
	port, err := stack.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, fmt.Sprintf("WEIR_RLQS_LISTEN=127.0.0.1:%d", port))
	return start(t, s), port
}

// quotaEnvoys starts Envoys with the quota filter of the documentation in place of Weir's.
func (w *world) quotaEnvoys(count, port int, rewrite func(string) string) (all []*stack.Envoy) {
	w.t.Helper()
	for i := range count {
		o := w.envoyOptions(fmt.Sprintf("quota-%d", i+1))
		o.Rewrite = func(config string) string {
			config = withQuotas(w.t, config, port)
			if rewrite != nil {
				config = rewrite(config)
			}
			return config
		}
		o.LogLevel = "warning"
		e, err := stack.StartEnvoy(w.within(patience), o)
		if err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() {
			e.Stop()
			w.show(e.Process)
		})
		all = append(all, e)
	}
	return all
}

// withQuotas returns a configuration with the filter and the cluster of the documentation.
func withQuotas(t *testing.T, config string, port int) string {
	t.Helper()
	var filter, cluster string
	for _, b := range blocks(t, quotaPage) {
		switch {
		case strings.HasPrefix(b.text, "name: envoy.filters.http.rate_limit_quota\n"):
			filter = b.text
		case strings.HasPrefix(b.text, "name: weir-quotas\n"):
			cluster = b.text
		}
	}
	filter = strings.Replace(filter, "NODE_TOKEN", nodeToken, 1)
	cluster = strings.Replace(cluster, "{address: controlplane, port_value: 8082}",
		fmt.Sprintf("{address: 127.0.0.1, port_value: %d}", port), 1)
	before, rest, _ := strings.Cut(config, "                  - name: weir\n")
	_, after, found := strings.Cut(rest, "                  - name: envoy.filters.http.router\n")
	if !found || filter == "" || cluster == "" {
		t.Fatalf("the filter or the cluster is not to be found in envoy.yaml and %s", quotaPage)
	}
	config = before + asItem(filter, 18) + "                  - name: envoy.filters.http.router\n" + after
	return strings.Replace(config, "  clusters:\n", "  clusters:\n"+asItem(cluster, 4), 1)
}

// asItem indents a block of YAML as an item of a list.
func asItem(block string, indent int) string {
	var item strings.Builder
	for i, line := range strings.Split(strings.TrimSuffix(block, "\n"), "\n") {
		dash := "  "
		if i == 0 {
			dash = "- "
		}
		item.WriteString(strings.Repeat(" ", indent) + dash + line + "\n")
	}
	return item.String()
}

// quotaTime returns how long a quota filter is loaded: its control plane knows its demand after 5
// s, and then gives it the rest of the burst.
func quotaTime() time.Duration { return max(full(30*time.Second), 15*time.Second) }

// quotaShare is the share of a perfect bucket's requests that quota filters must let through. On a
// calm machine they let 98 % through. A machine that stands still for a moment wastes the tokens
// that were assigned for that moment, and the burst's tokens among them do not come back.
const quotaShare = 0.85

func ofTenant(url string) func(int) *http.Request {
	return func(int) *http.Request { return request(http.MethodGet, url, "x-tenant", "acme") }
}

func tenantLoads(envoys []*stack.Envoy, rate float64, during time.Duration) (loads []load) {
	for _, e := range envoys {
		loads = append(loads, load{
			request: ofTenant(e.URL() + "/"), clients: overloadClients, rate: rate / float64(len(envoys)),
			during: during,
		})
	}
	return loads
}

const tenants = `
version: weir/v1
policies:
  - name: tenants
    match: {domain: edge}
    partition: ["descriptor:tenant"]
    limit: {quota: 1200, window: 1m, burst: 2400}
`

// Two Envoys with Envoy's own quota filter, configured as the documentation says, share a limit.
func TestQuotaFiltersShareALimit(t *testing.T) {
	t.Parallel()
	w, port := startQuotas(t, setup{policies: tenants})
	envoys := w.quotaEnvoys(2, port, nil)
	all := sum(together(w.ctx, tenantLoads(envoys, 300, quotaTime())...))
	mustAdmit(t, all, 2400, 20, quotaShare)
}

// The control plane is killed and comes back: the assignments end, and the limit holds on.
func TestQuotaFiltersOutliveTheControlPlane(t *testing.T) {
	t.Parallel()
	w, port := startQuotas(t, setup{policies: tenants})
	envoys := w.quotaEnvoys(2, port, nil)
	var runs []*background
	for _, l := range tenantLoads(envoys, 300, quotaTime()) {
		runs = append(runs, l.background(w.ctx))
	}
	pause := func(d time.Duration) {
		select {
		case <-time.After(d):
		case <-w.ctx.Done():
		}
	}
	pause(quotaTime() / 4)
	w.controlPlane.Kill()
	pause(2 * time.Second)
	w.startControlPlane()
	w.await("tokens after the control plane is back", func(ctx context.Context) error {
		a, err := send(http.DefaultClient, ofTenant(envoys[0].URL()+"/")(0).WithContext(ctx))
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("the status is %d", a.status)
		}
		return err
	})
	var tallies []tally
	for _, r := range runs {
		tallies = append(tallies, r.end())
	}
	all := sum(tallies)
	all.mustBe(t, 200, 429)
	bound := 2400 + 20*all.last.Sub(all.first).Seconds()
	t.Logf("admitted %d of at most %.0f: %s", all.statuses[200], bound, all)
	if float64(all.statuses[200]) > bound {
		t.Errorf("admitted %d, above the bound %.1f", all.statuses[200], bound)
	}
}

// An Envoy is killed with tokens in hand: the other Envoy gets the killed Envoy's part.
func TestQuotaFiltersOutliveAnEnvoy(t *testing.T) {
	t.Parallel()
	w, port := startQuotas(t, setup{policies: tenants})
	envoys := w.quotaEnvoys(2, port, nil)
	loads := tenantLoads(envoys, 300, quotaTime())
	loads[0].during = quotaTime() / 4
	other := loads[1].background(w.ctx)
	first := loads[0].run(w.ctx)
	envoys[0].Kill()
	all := sum([]tally{first, <-other.result})
	mustAdmit(t, all, 2400, 20, quotaShare)
}
