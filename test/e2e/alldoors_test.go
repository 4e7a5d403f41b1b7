package e2e

import (
	"fmt"
	"testing"

	"github.com/weir-proxy/weir/tools/stack"
)

// One bucket is spent at once through Weir's filter, Envoy's ratelimit filter and Envoy's
// rate_limit_quota filter, two Envoys each. A step of on_failure that admits would add to the bound
// whenever the control plane answers late, as on a busy machine.
func TestOneBucketForAllDoors(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"strict", "leased"} {
		t.Run(mode, func(t *testing.T) {
			calls, err := stack.FreePort()
			if err != nil {
				t.Fatal(err)
			}
			w, port := startQuotas(t, setup{
				envoys: 2, env: []string{fmt.Sprintf("WEIR_RLS_LISTEN=127.0.0.1:%d", calls)}, policies: `
version: weir/v1
policies:
  - name: everyone
    partition: []
    limit: {quota: 1200, window: 1m, burst: 2400}
    on_failure: [deny]
    mode: ` + mode + "\n"})
			envoys := append(w.quotaEnvoys(2, port, nil), w.envoys...)
			w.rewrite = func(string) string { return callsConfig(t, w.upstream.Port, calls) }
			for i := range 2 {
				w.startEnvoy(fmt.Sprintf("calls-%d", i+1))
				envoys = append(envoys, w.envoys[len(w.envoys)-1])
			}
			each := together(w.ctx, tenantLoads(envoys, 900, quotaTime())...)
			for i, one := range each {
				if one.statuses[200] == 0 || one.statuses[429] == 0 {
					t.Errorf("%s: %s", envoys[i].Name, one)
				}
			}
			mustAdmit(t, sum(each), 2400, 20, quotaShare)
		})
	}
}
