package metrics_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/ground/breaker"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
)

// However many policies, servers and versions there were, the labels take a bounded number of
// values and nothing goes uncounted.
func TestLabelsAreBounded(t *testing.T) {
	versions := map[uint64]int{}
	for v := range uint64(15) {
		versions[v] = 2
	}
	zero := func() float64 { return 0 }
	m := metrics.New("test")
	m.Read(metrics.Gauges{Enforcement: func() (map[string]int, int, bool) { return map[string]int{"off": 1}, 2, true },
		Nodes: zero, Version: zero, Ready: zero, Regions: zero, Census: func() metrics.Census {
			return metrics.Census{Versions: versions, States: map[string]int{"normal": 29, "deny": 1}, Behind: 28}
		}})
	for i := range 2100 {
		m.Tokens(fmt.Sprint("p", i), "leased", 3)
		m.Transition(breaker.Change{Name: fmt.Sprint("10.0.0.", i), To: breaker.Open})
	}
	for i := range 2100 {
		m.Asked(fmt.Sprint("p", i), []string{"", "gold"}[i%2], 2, 1)
		m.Refused(fmt.Sprint("p", i), []string{"", "gold"}[i%2], 5)
	}
	m.Tokens("p0", "leased", 4)
	m.Tokens("p0", "leased", 0)
	answer := httptest.NewRecorder()
	m.Handler().ServeHTTP(answer, httptest.NewRequest("GET", "/metrics", nil))
	text := answer.Body.String()
	for _, want := range []string{
		`weir_tokens_granted_total{mode="leased",policy="p0"} 7`, `weir_tokens_granted_total{mode="leased",policy="other"} 300`,
		`weir_store_breaker_state{server="10.0.0.0"} 2`, `weir_store_breaker_transitions_total{server="other",to="open"} 2036`,
		`weir_nodes_by_version{version="14"} 2`, `weir_nodes_by_version{version="5"} 2`, `weir_nodes_by_version{version="other"} 10`,
		`weir_nodes_by_state{state="deny"} 1`, `weir_nodes_behind 28`,
		`weir_lease_requests_total{outcome="granted",policy="p0",tier="all"} 2`, `weir_lease_requests_total{outcome="short",policy="p1",tier="gold"} 1`,
		`weir_lease_requests_total{outcome="short",policy="other",tier="other"} 100`,
		`weir_refused_total{policy="p1",tier="gold"} 5`, `weir_refused_total{policy="other",tier="other"} 500`,
		`weir_enforcement_override{state="off"} 1`, `weir_enforcement_bans 2`, `weir_enforcement_unsaved 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
	for name, most := range map[string]int{"weir_tokens_granted_total{": 2001, "weir_store_breaker_state{": 65,
		"weir_nodes_by_version{": 11, "weir_lease_requests_total{": 4002} {
		if got := strings.Count(text, "\n"+name); got != most {
			t.Errorf("%s has %d series, want %d", name, got, most)
		}
	}
}
