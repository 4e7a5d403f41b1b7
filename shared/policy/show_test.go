package policy_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/policy"
)

func decodeShow(t *testing.T, show string) (*policy.Set, error) {
	t.Helper()
	doc, err := policy.ParseJSON([]byte(`{"version": "weir/v1", "policies": [], "show": ` + show + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return policy.Decode(doc)
}

func TestShow(t *testing.T) {
	set, err := decodeShow(t, `["client_ip", "method", "host", "path", "header:X-App", "cookie:c", "jwt:sub", "spiffe"]`)
	want := []policy.Part{{Kind: policy.PartClientIP}, {Kind: policy.PartMethod}, {Kind: policy.PartHost},
		{Kind: policy.PartPath},
		{Kind: policy.PartHeader, Name: "x-app"}, {Kind: policy.PartCookie, Name: "c"}, {Kind: policy.PartJWT,
			Name: "sub"}, {Kind: policy.PartSPIFFE}}
	if err != nil || !reflect.DeepEqual(set.Show, want) {
		t.Errorf("%+v: %v", set, err)
	}
	for show, reason := range map[string]string{
		`["consumer"]`:    "show[0]: must be one of at most 8 parts of a request, not consumer",
		`["path","tier"]`: "show[1]: must be one of at most 8 parts",
		`["policy_path"]`: "show[0]: must be one of at most 8 parts",
		`["cookies"]`:     "show[0]: must be one of",
		`"path"`:          "show: must be a list",
		`["query:1","query:2","query:3","query:4","query:5","query:6","query:7","query:8","query:9"]`: "show[8]: must be one of at most 8",
	} {
		if _, err := decodeShow(t, show); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, want %s", show, err, reason)
		}
	}
}
