package dialect_test

import (
	"strings"
	"testing"

	"github.com/weir-proxy/weir/shared/dialect"
	"github.com/weir-proxy/weir/shared/keyhash"
	"github.com/weir-proxy/weir/shared/quota"
)

// rows are all dialects.
func rows() []dialect.Row { return append(dialect.Legacies[:], dialect.Standards[:]...) }

// Each header of each dialect is of a family, so no client can forge it and an upstream's are
// known; and each dialect has a sign by which another limiter's answer in it is known.
func TestHeadersHaveAFamily(t *testing.T) {
	for _, row := range rows() {
		signs, family := 0, 0
		for _, h := range row.Headers {
			if h.Name == "" {
				continue
			}
			of := dialect.FamilyOf([]byte(h.Name))
			if of == 0 || family != 0 && of != family || h.Name != strings.ToLower(h.Name) {
				t.Errorf("%s: %s is not of the dialect's family", row.Name, h.Name)
			}
			if family = of; dialect.IsSign(h.Name) {
				signs++
			}
			forged := strings.ReplaceAll(h.Name, "-", "_")
			if dialect.FamilyOf([]byte(forged)) != of {
				t.Errorf("%s: a client may forge %s", row.Name, forged)
			}
		}
		if family != 0 && signs == 0 {
			t.Errorf("%s has no sign", row.Name)
		}
	}
}

// Each header says something of a bucket that fills, and nothing is written of a row's rest.
func TestHeadersSaySomething(t *testing.T) {
	items := []dialect.Item{{Name: []byte("p"), Burst: 3, Window: quota.Hour, Remaining: 1, Reset: quota.Minute,
		Bucket: keyhash.Key{1}}}
	said := dialect.Shown{Items: items, Scope: "user"}
	seen := map[string]bool{}
	for _, row := range rows() {
		if row.Name == "" || row.Name != "off" && seen[row.Name] {
			t.Errorf("the name %q", row.Name)
		}
		seen[row.Name] = true
		for _, h := range row.Headers {
			if value, ok := h.AppendValue(nil, &said); ok != (h.Name != "") || ok != (len(value) > 0) {
				t.Errorf("%s: %q says %q", row.Name, h.Name, value)
			}
		}
	}
}

func TestFamilies(t *testing.T) {
	for header, want := range map[string]string{
		"ratelimit": "ratelimit", "ratelimit_policy": "ratelimit", "x-ratelimit-limit": "x-ratelimit",
		"x_ratelimit_limit": "x-ratelimit", "x-rate": "",
		"x_rate_limit-reset": "x-rate-limit", "rate-limit": "", "": "", "retry-after": "",
	} {
		if got := dialect.Families[dialect.FamilyOf([]byte(header))]; got != want {
			t.Errorf("%q is of %q, want %q", header, got, want)
		}
	}
}
