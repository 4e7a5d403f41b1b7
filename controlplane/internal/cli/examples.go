package cli

import "strings"

// examples are shown at the end of each command's help, a line each. Tests require examples for
// every command.
var examples = map[string]string{
	"demo":  "weir demo\nweir demo --get-envoy",
	"serve": "weir serve --listen 127.0.0.1:8080 --data-dir /var/lib/weir",
	"init":  "weir init\nweir init api\nweir init login login.yaml",
	"check": "weir check policies.yaml\nweir check --nodes 50 -o json policies.yaml",
	"apply": "weir apply policies.yaml --dry-run\nweir apply policies.yaml\n" +
		"weir apply policies.yaml --nodes 25%",
	"patch": `weir patch api '{"limit": {"quota": 80}}' --dry-run` + "\n" +
		`weir patch api '{"limit": {"quota": 80}}' --nodes 25%`,
	"diff":            "weir diff policies.yaml\nweir diff 7 9",
	"rollback":        "weir rollback 7 --dry-run\nweir rollback 7",
	"get rollout":     "weir get rollout\nweir get rollout -o json",
	"rollout start":   "weir rollout start policies.yaml --nodes 25% --abort-if 'refused > 2x'",
	"rollout status":  "weir rollout\nweir rollout -o json",
	"rollout promote": "weir rollout promote --nodes 50%\nweir rollout promote",
	"rollout cancel":  "weir rollout cancel",
	"get policyset":   "weir get policyset > policies.yaml",
	"get policies":    "weir get policies --search login --state shadow\nweir get policies api-per-consumer",
	"get versions":    "weir get versions\nweir get versions 7",
	"get regions":     "weir get regions",
	"get bans":        "weir get bans\nweir get bans -o json",
	"nodes":           "weir nodes",
	"get nodes":       "weir get nodes --zone eu-1 --behind",
	"consumers get":   "weir consumers get alice --source header:x-user",
	"consumers set":   "weir consumers set alice premium\nweir consumers set - premium < key.txt",
	"consumers list":  "weir consumers list --banned",
	"consumers ban":   "weir consumers ban - --reason 'seen in a public repository' < key.txt",
	"consumers unban": "weir consumers unban alice",
	"consumers bypass": "weir consumers bypass alice --for 10m --reason 'load test'\n" +
		"weir consumers bypass alice --off",
	"consumers override": "weir consumers override alice api 5000/24h/500 --for 48h --reason 'launch week'\n" +
		"weir consumers override alice api none",
	"consumers put":    "weir consumers put alice alice.json",
	"consumers import": "weir consumers import people.csv --dry-run\nweir consumers import people.csv",
	"consumers delete": "weir consumers delete alice",
	"token new":        "weir token new --name ci --role editor --expires 90d",
	"enforcement show": "weir enforcement show",
	"enforcement set": "weir enforcement set off --reason 'half of all checkouts are refused' --for 30m\n" +
		"weir enforcement set shadow --policy api --percent 25 --reason 'is it this one?'",
	"enforcement lift": "weir enforcement lift --policy api\nweir enforcement lift",
	"penalties list":   "weir penalties list --policy login",
	"penalties pardon": "weir penalties pardon --consumer my-key --source header:x-api-key --reason 'it was fixed'",
	"keys get":         "weir keys get api client_ip:192.0.2.1",
	"keys reset":       "weir keys reset api client_ip:192.0.2.1 --reason 'their client was fixed'",
	"keys grant":       "weir keys grant api client_ip:192.0.2.1 --tokens 20 --reason 'for the outage'",
	"keys ban":         "weir keys ban api client_ip:192.0.2.1 --for 1h --reason 'tries passwords'",
	"keys unban": "weir keys unban api client_ip:192.0.2.1\n" +
		"weir keys unban --key 5f0c8a1d2b3e4f60718293a4b5c6d7e8",
	"usage": "weir usage - < key.txt",
	"why": "weir why alice\nweir why alice --source header:x-user\n" +
		"weir why --policy login client_ip:192.0.2.1",
	"explain": "weir explain GET https://shop.example/api/orders -H 'x-api-key: alice' --client-ip 192.0.2.1\n" +
		"weir explain POST /login --verified jwt:sub=alice",
	"top":     "weir top\nweir top --policy api-per-consumer",
	"suggest": "weir suggest api-per-consumer\nweir suggest api-per-consumer --limit 50 --limit 100",
	"series": "weir series\nweir series api-per-consumer --range 24h --outcome refused --outcome requests\n" +
		"weir series --by node",
	"audit": "weir audit --since 24h\nweir audit --resource policies/api-per-consumer",
	"simulate": "weir simulate policies.yaml access.log.gz\n" +
		"weir simulate draft.yaml access.log --against current\n" +
		"kubectl logs envoy | weir simulate draft.yaml - --field consumer=api_key",
	"import kong": "weir import kong kong.yaml > policies.yaml\n" +
		"weir import kong kong.yaml --shadow --out policies.yaml --consumers consumers.csv",
	"import nginx": "weir import nginx /etc/nginx/nginx.conf --shadow --out policies.yaml",
	"import envoy": "weir import envoy envoy.yaml\ncurl -s 127.0.0.1:9901/config_dump | weir import envoy -",
	"import ingress-nginx": "weir import ingress-nginx ingress.yaml --shadow --out policies.yaml\n" +
		"kubectl get ingress -A -o yaml | weir import ingress-nginx - --out policies.yaml",
	"import envoy-gateway": "weir import envoy-gateway policy.yaml route.yaml --shadow --out policies.yaml\n" +
		"kubectl get backendtrafficpolicy,httproute -A -o yaml | weir import envoy-gateway -",
	"import istio": "weir import istio filters.yaml ratelimit-config.yaml --shadow --out policies.yaml\n" +
		"kubectl get envoyfilter,configmap -A -o yaml | weir import istio -",
	"import envoyproxy-ratelimit": "weir import envoyproxy-ratelimit config/*.yaml --out policies.yaml\n" +
		"weir import envoyproxy-ratelimit config.yaml --envoy envoy.yaml --shadow --out policies.yaml",
	"completion": "source <(weir completion bash)\nweir completion zsh > ~/.zfunc/_weir\n" +
		"weir completion fish > ~/.config/fish/completions/weir.fish",
	"version": "weir version",
}

// exampleText returns the examples in the help of a command.
func exampleText(command string) string {
	lines, ok := examples[command]
	if !ok {
		return ""
	}
	return "Examples:\n\n  " + strings.ReplaceAll(lines, "\n", "\n  ")
}
