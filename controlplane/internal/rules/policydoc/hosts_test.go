package policydoc_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
)

// Hosts beyond ASCII can be written as people do; requests have them in Punycode.
func TestHostsBeyondASCII(t *testing.T) {
	for in, want := range map[string]string{
		"bücher.example":        "xn--bcher-kva.example",
		"BÜCHER.example":        "xn--bcher-kva.example",
		`"*.bücher.example"`:    "*.xn--bcher-kva.example",
		"xn--bcher-kva.example": "xn--bcher-kva.example",
		"例え.テスト":                "xn--r8jz45g.xn--zckzah",
		"my_host.example":       "my_host.example",
		`"[2001:db8::1]"`:       "[2001:db8:0:0:0:0:0:1]",
	} {
		set, err := policydoc.Load([]byte("version: weir/v1\npolicies:\n  - {name: p, match: {hosts: ["+in+"]}, "+
			"partition: [], limit: {quota: 1, window: 1s}}\n"), policydoc.YAML)
		if err != nil || set.Policies[0].Match.Hosts[0] != want {
			t.Errorf("%s became %+v, %v", in, set, err)
		}
	}
	_, err := policydoc.Load([]byte("version: weir/v1\npriorities:\n"+
		"  [{name: a, match: {hosts: [\"a\u00a0b.example\"]}}, {name: b}]\n"), policydoc.YAML)
	if err == nil || !strings.Contains(err.Error(), "priorities[0].match.hosts[0]: must be a host name") {
		t.Errorf("a host that is none: %v", err)
	}
}
