package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/weir-proxy/weir/tools/stack"
)

// The parts of the repository's envoy.yaml that contestants change.
var (
	routeText   = "route: {cluster: upstream}"
	directText  = "direct_response: {status: 200, body: {inline_string: ok}}"
	domainsText = "domains: [\"*\"]\n"
	clusterText = "\n  clusters:\n"
)

// With more keys than usual the filter's configuration is envoy.yaml's and places for all of them.
const (
	usualKeys    = 10_000
	tableKeys    = 262_144
	pluginConfig = `{"control_plane": {"cluster": "weir", "token": {"env": "WEIR_NODE_TOKEN"}, "authority": "weir"}, ` +
		`"table": {"keys": %d}}`
)

// limits is the descriptor of Envoy's own filters, with the request's key.
const limits = `                      rate_limits:
                        - actions:
                            - request_headers: {header_name: ` + keyHeader + `, descriptor_key: ` + keyHeader + `}
`

const nativeFilter = `                  - name: envoy.filters.http.local_ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
                      stat_prefix: bench
                      token_bucket: {max_tokens: 60000000, tokens_per_fill: 60000000, fill_interval: 60s}
                      filter_enabled: {default_value: {numerator: 100, denominator: HUNDRED}}
                      filter_enforced: {default_value: {numerator: 100, denominator: HUNDRED}}
`

// A descriptor without a value has a bucket for each value that comes: %[1]d at most, of %[2]d.
const nativeDescriptors = `                      max_dynamic_descriptors: %[1]d
                      descriptors:
                        - entries: [{key: ` + keyHeader + `}]
                          token_bucket: {max_tokens: %[2]d, tokens_per_fill: %[2]d, fill_interval: 60s}
`

const globalFilter = `                  - name: envoy.filters.http.ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit
                      domain: bench
                      timeout: 1s
                      failure_mode_deny: true
                      rate_limit_service:
                        transport_api_version: V3
                        grpc_service: {envoy_grpc: {cluster_name: ratelimit}}
`

const globalCluster = `    - name: ratelimit
      type: STATIC
      connect_timeout: 1s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {http2_protocol_options: {}}
      load_assignment:
        cluster_name: ratelimit
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %d}}}
`

// quotaFilter has a bucket for each key. Before the first assignment Envoy lets all requests
// through.
const quotaFilter = `                  - name: envoy.filters.http.rate_limit_quota
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaFilterConfig
                      domain: bench
                      rlqs_server: {envoy_grpc: {cluster_name: weir-quotas}}
                      bucket_matchers:
                        on_no_match:
                          action:
                            name: quota
                            typed_config:
                              "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings
                              reporting_interval: 5s
                              bucket_id_builder:
                                bucket_id_builder:
                                  "header:` + keyHeader + `":
                                    custom_value:
                                      name: key
                                      typed_config:
                                        "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput
                                        header_name: ` + keyHeader + `
`

// configure turns the finished envoy.yaml into the contestant's. All have in common that there is
// no access log, which would be work for every reader of it.
func (c contestant) configure(config string, servicePort int) (string, error) {
	var problems []error
	replace := func(old, by string) {
		if n := strings.Count(config, old); n != 1 {
			problems = append(problems, fmt.Errorf("envoy.yaml must have %q exactly once, it has it %d times", old, n))
		}
		config = strings.Replace(config, old, by, 1)
	}
	cut := func(what *regexp.Regexp, by string) {
		if n := len(what.FindAllString(config, -1)); n != 1 {
			problems = append(problems, fmt.Errorf("envoy.yaml must match %q exactly once, it does %d times", what, n))
		}
		config = what.ReplaceAllString(config, by+"$1")
	}
	cut(stack.AccessLogText, "")
	if c.Scene == direct {
		replace(routeText, directText)
	}
	switch c.part {
	case nothing:
		cut(stack.FilterText, "")
	case nativeOne:
		cut(stack.FilterText, nativeFilter)
	case nativeKeys:
		descriptors := fmt.Sprintf(nativeDescriptors, 2*max(1000, c.load().keys), stages[c.Scene].quota)
		cut(stack.FilterText, nativeFilter+descriptors)
		replace(domainsText, domainsText+limits)
	case quotas:
		cut(stack.FilterText, quotaFilter)
		cluster := strings.Replace(globalCluster, "ratelimit", "weir-quotas", 2)
		replace(clusterText, clusterText+fmt.Sprintf(cluster, servicePort))
	case global, calls:
		cut(stack.FilterText, globalFilter)
		replace(domainsText, domainsText+limits)
		replace(clusterText, clusterText+fmt.Sprintf(globalCluster, servicePort))
	}
	return config, errors.Join(problems...)
}
