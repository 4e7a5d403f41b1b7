package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// contestant is a filter in Envoy before the service.
type contestant struct {
	name string
	// filter takes the place of Weir's in Envoy's configuration, unless it isWeir.
	filter string
	isWeir bool
}

var contestants = []contestant{
	{name: "no limit"},
	{name: "Envoy's adaptive_concurrency", filter: gradient},
	{name: "Weir's adaptive limit", isWeir: true},
}

// gradient is Envoy's filter with the figures of its documentation.
const gradient = `                  - name: envoy.filters.http.adaptive_concurrency
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.adaptive_concurrency.v3.AdaptiveConcurrency
                      gradient_controller_config:
                        sample_aggregate_percentile: {value: 90}
                        concurrency_limit_params: {concurrency_update_interval: 0.1s}
                        min_rtt_calc_params: {jitter: {value: 10}, interval: 60s, request_count: 50}
                      enabled: {default_value: true, runtime_key: adaptive_concurrency.enabled}
`

// policies are Weir's.
const policies = `{"policyset": {"version": "weir/v1", "identity": {"consumer": [{"header": "x-key"}]}, "priorities": [` +
	`{"name": "critical", "match": {"headers": [{"name": "x-class", "equals": "critical", "trusted": true}]}}, ` +
	`{"name": "normal", "match": {"headers": [{"name": "x-class", "equals": "normal"}]}}, ` +
	`{"name": "reads", "match": {"headers": [{"name": "x-class", "equals": "reads"}]}}, {"name": "bulk"}], ` +
	`"policies": [{"name": "worker", "partition": ["upstream"], "adaptive": {"min": 20, "max": 2000}, "mode": "local"}]}}`

// cluster is a part of the repository's envoy.yaml that changes.
var cluster = regexp.MustCompile(`(    - name: upstream\n)`)

// configure turns the finished envoy.yaml into the contestant's. Envoy's own bounds of requests and
// connections are lifted for all.
func (c contestant) configure(config string) string {
	const many = "{max_connections: 100000, max_pending_requests: 100000, max_requests: 100000}"
	config = stack.AccessLogText.ReplaceAllString(config, "$1")
	config = cluster.ReplaceAllString(config, "${1}      circuit_breakers: {thresholds: ["+many+"]}\n")
	if !c.isWeir {
		config = stack.FilterText.ReplaceAllString(config, c.filter+"$1")
	}
	return config
}

// measure lets a contestant take its course.
func (c contestant) measure(ctx context.Context, root string, phase time.Duration) (*course, error) {
	config, err := os.ReadFile(filepath.Join(root, "envoy.yaml"))
	if err != nil {
		return nil, err
	}
	for _, part := range []*regexp.Regexp{stack.AccessLogText, stack.FilterText, cluster} {
		if n := len(part.FindAll(config, -1)); n != 1 {
			return nil, fmt.Errorf("envoy.yaml must match %q exactly once, it does %d times", part, n)
		}
	}
	s := newService()
	upstream, err := stack.StartUpstream(s)
	if err != nil {
		return nil, err
	}
	defer upstream.Stop()
	starting, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	envoy, err := stack.StartEnvoy(starting, stack.EnvoyOptions{
		Config: string(config), Wasm: filepath.Join(root, "build/weir.wasm"), NodeID: "overload",
		PluginConfig: policies, UpstreamPort: upstream.Port, Concurrency: 2, Rewrite: c.configure,
	})
	if err != nil {
		return nil, err
	}
	defer envoy.Stop()
	one := newCourse(c.name, phase)
	one.foreign, err = observe(envoy.PID(), func() { one.run(ctx, envoy.URL(), s) })
	if err = errors.Join(ctx.Err(), err); err != nil {
		return nil, err
	}
	if flaw := one.flaw(); flaw != "" {
		return nil, errors.New(flaw)
	}
	return one, nil
}
