package rls_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/shared/answer"
	"github.com/weir-proxy/weir/shared/policy"
)

// Each reason that this door has is answered by the same table as the filter's: the problem, the
// sentence, whether there is a Retry-After, and whether it counts for a penalty. Envoy's filter
// adds x-envoy-ratelimited itself.
func TestTheTableOfReasons(t *testing.T) {
	const head = `
version: weir/v1
headers: {standard: "off"}
identity: {consumer: [{header: x-api-key}]}
policies:
  - {name: p, match: {domain: d}, partition: [consumer], limit: {quota: 2, window: 1h}, mode: strict, penalty: {after: {refusals: 1, within: 10s}}`
	for reason, c := range map[policy.Reason]struct{ more, descriptors, want string }{
		policy.ReasonQuota: {"", "header:x-api-key=eve",
			"Policy p allows 2 per 1h, and that is used up. Try again in "},
		policy.ReasonTooDear: {", cost: {header: x-cost, max: 3}", "header:x-api-key=eve header:x-cost=3",
			"This request costs 3, and policy p never allows more than 2 at once: waiting does not help."},
		policy.ReasonAbsent: {", if_absent: deny", "a=b", "Policy p needs to know whose request this is"},
		policy.ReasonBadCost: {`, cost: {header: x-cost, max: 2, invalid: deny}`, "header:x-api-key=eve",
			"Policy p needs a cost, a whole number up to its maximum"},
		policy.ReasonFailure: {", on_failure: [deny]", "header:x-api-key=eve",
			"The limiter cannot reach the counters of policy p now. Try again in 1 second."},
	} {
		w := begin(t, head+c.more+"}\n")
		w.withPenalties()
		for range 2 {
			if reason == policy.ReasonQuota {
				w.ask(request("d", c.descriptors))
			}
		}
		w.store.Down = reason == policy.ReasonFailure
		out := w.ask(request("d", c.descriptors))
		w.store.Down = false
		kind := answer.Kinds[reason]
		var p struct{ Type, Title, Detail string }
		if err := json.Unmarshal(out.RawBody, &p); err != nil {
			t.Fatalf("%v: %s: %v", reason, out, err)
		}
		got := out.DynamicMetadata.GetFields()["reason"].GetStringValue()
		if got != reason.String() || p.Type != kind.Type || p.Title != kind.Title ||
			!strings.HasPrefix(p.Detail, c.want) {
			t.Errorf("%v: %s\n%s", reason, got, out.RawBody)
		}
		if waits := strings.Contains(headersOf(out), "retry-after: "); waits != kind.Waits {
			t.Errorf("%v: %s", reason, headersOf(out))
		}
		w.now = w.now.Add(time.Second)
		out = w.ask(request("d", c.descriptors))
		again := out.DynamicMetadata.GetFields()["reason"].GetStringValue()
		if penalised := again == "penalty"; penalised != kind.Counts {
			t.Errorf("%v: then %q", reason, again)
		}
	}
}

// The class behind which a caller stands is in the sentence and in the name, as the filter has it.
func TestWordsOfAReserve(t *testing.T) {
	w := begin(t, `
version: weir/v1
priorities: [{name: critical, match: {methods: [POST]}}, {name: normal}]
policies:
  - {name: p, partition: [], limit: {quota: 10, burst: 5, window: 1h}, reserve: {critical: 40%}, mode: strict}
`)
	said := ""
	for range 6 {
		if out := w.ask(request("d", "a=b")); out.RawBody != nil {
			said = fmt.Sprintf("%s\n%s", out.RawBody, headersOf(out))
		}
	}
	for _, want := range []string{
		"Policy p allows 3 at once and 6 per 1h in the long run to the classes after critical, and that is " +
			"used up for now.",
		`"violated-policies":["p.1h.after-critical"]`, `"p.1h.after-critical";r=0`,
	} {
		if !strings.Contains(said, want) {
			t.Errorf("no %s in\n%s", want, said)
		}
	}
}

// The sentence names the total cost of all descriptors of a bucket.
func TestACallCostsWhatItsDescriptorsDo(t *testing.T) {
	for _, c := range []struct {
		quota, calls      int
		descriptors, want string
	}{
		{5, 2, "user=a|user=a|user=a", "This request costs 3, and 2 are left."},
		{2, 1, "user=a|user=a|user=a", "This request costs 3, and policy p never allows more than 2 at once"},
		{3, 2, "user=a|user=a|user=b", "Policy p allows 3 per 1h. This request costs 2, and 1 is left."},
	} {
		w := begin(t, fmt.Sprintf(`
version: weir/v1
policies:
  - {name: p, match: {domain: d, descriptors: [{name: user, present: true}]}, partition: ["descriptor:user"],
     limit: {quota: %d, window: 1h}, mode: strict}
`, c.quota))
		said := ""
		for range c.calls {
			said = string(w.ask(request("d", c.descriptors)).RawBody)
		}
		if !strings.Contains(said, c.want) {
			t.Errorf("%s: no %q in %s", c.descriptors, c.want, said)
		}
	}
}
