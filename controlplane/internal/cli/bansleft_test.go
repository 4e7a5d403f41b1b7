package cli

import (
	"slices"
	"testing"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// A ban that a command has ended does not stay, even if a replica that has not heard of it answers.
func TestBansLeft(t *testing.T) {
	all := []api.StandingAnswer{
		{What: api.StandingBan, Reason: api.BannedBySet},
		{What: api.StandingBan, Reason: "stolen"},
		{What: api.StandingBan, Policy: "a", Reason: "floods"},
		{What: api.StandingBan, Policy: "b", Reason: "scans"},
		{What: api.StandingBypass, Reason: "pays"},
	}
	for _, test := range []struct {
		of    string
		ended isEnded
		stay  []string
	}{
		{"keys unban", (&unbanKey{Policy: "a"}).ofKey, []string{api.BannedBySet, "stolen", "scans"}},
		{"consumers unban", ofRecord, []string{api.BannedBySet, "floods", "scans"}},
	} {
		var stay []string
		for _, is := range bansLeft(slices.Clone(all), test.ended) {
			stay = append(stay, is.Reason)
		}
		if !slices.Equal(stay, test.stay) {
			t.Errorf("%s: %q stay, want %q", test.of, stay, test.stay)
		}
	}
}
