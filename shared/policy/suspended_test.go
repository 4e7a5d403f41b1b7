package policy_test

import (
	"strings"
	"testing"
)

// A quota of 0 may stand wherever a quota may, with every algorithm, cost and reserve, and is the
// limit that lets nothing through.
func TestAQuotaOfZeroIsAccepted(t *testing.T) {
	for _, p := range []string{
		`"limit":{"quota":0,"window":"1h"}`,
		`"limit":{"quota":0,"window":"1h"},"cost":7`,
		`"limit":[{"quota":0,"window":"1h"},{"quota":5,"window":"1s"}]`,
		`"limit":{"quota":5,"window":"1h"},"candidate":{"limit":{"quota":0,"window":"1h"}}`,
		`"algorithm":"fixed_window","align":"utc","limit":{"quota":0,"window":"1d"}`,
		`"algorithm":"leaky_bucket","limit":{"quota":0,"window":"1h"},"mode":"strict"`,
		`"limit":{"quota":0,"window":"1h"},"mode":"optimistic"`,
		`"limit":{"quota":0,"window":"1h"},"reserve":{"first":"20%"}`,
		`"limit":{"quota":{"jwt":"plan","max":5,"default":0},"window":"1h"},"cost":3`,
	} {
		set, err := decode(t, `{"version":"weir/v1","priorities":[{"name":"first","match":{"methods":["POST"]}},{"name":"rest"}],`+
			`"policies":[{"name":"p","partition":[],`+p+`}]}`)
		if err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		one := set.Policies[0]
		usual := one.Usual(append(one.Candidate, one.Limits...)[0])
		if !usual.Suspended() || usual.Params.Burst != 0 || usual.Burst() != 0 || usual.Refill() != usual.Window {
			t.Errorf("%s: %+v", p, usual)
		}
		said := one.Bound(nil) + strings.Join(one.Notes(3), "\n")
		if strings.Contains(p, `"limit":{"quota":0`) && !strings.Contains(p, "candidate") &&
			!strings.HasPrefix(said, "nothing: every request is refused as suspended") ||
			strings.Contains(said, "more, which") || strings.Contains(said, "refills within a second") {
			t.Errorf("%s: %s", p, said)
		}
	}
	if _, err := decode(t, `{"version":"weir/v1","policies":[{"name":"p","partition":[],"limit":{"quota":0,"window":"1h","burst":5}}]}`); err == nil ||
		!strings.Contains(err.Error(), "cannot have a burst beside quota: 0") {
		t.Errorf("a burst: %v", err)
	}
}
