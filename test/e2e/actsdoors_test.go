package e2e

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// Every act of an operator works on a limit of requests in flight as on other limits: a request
// that is in flight all the while takes the only place. Grant and reset refuse, and say why.
func TestEachActOnRequestsInFlight(t *testing.T) {
	t.Parallel()
	policies := []actPolicy{{"local", inFlight}, {"leased", inFlight}}
	h := &hall{came: make(chan struct{}), out: make(chan struct{})}
	w := &actWorld{world: start(t, setup{handler: h, policies: actSet(policies, "enforce")})}
	for _, p := range policies {
		c := &caller{p, "filter", "filter-" + p.name(), w.envoys[0], w.envoys[0]}
		w.callers = append(w.callers, c)
		held, ended := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			r := request(http.MethodGet, c.envoy.URL()+"/"+c.name()+"/held", "x-api-key", c.id)
			a, err := send(http.DefaultClient, r.WithContext(held))
			for err == nil && a.status == 429 { // On a busy machine no permit comes in time.
				a, err = send(http.DefaultClient, r.WithContext(held))
			}
			if err == nil {
				t.Errorf("%s: the request in flight has ended with %d", c.id, a.status)
			}
		}()
		t.Cleanup(func() {
			ended()
			<-left
		})
		select {
		case <-h.came:
		case <-w.within(patience).Done():
			t.Fatalf("the request of %s does not come", c.id)
		}
	}
	w.each(func(c *caller) error { return c.awaits(w.within(actPatience), false) })
	never := func(*caller) string { return "requests in flight end by themselves" }
	w.take(step{one: keyAct("grant", "--tokens 2 --reason outage"), refuses: never})
	w.take(step{one: keyAct("reset", "--reason fixed"), refuses: never})
	for _, s := range w.acts(policies) {
		w.take(s)
	}
}

// tenantEntry is the entry of the buckets in the documentation of the quota filter.
var tenantEntry = regexp.MustCompile(`(?s)( +)tenant:\n +custom_value:.*?header_name: x-tenant\n`)

// byPathAndKey changes a quota filter's configuration: its buckets get names of the values by which
// the policies of the acts count.
func byPathAndKey(t *testing.T) func(string) string {
	return func(config string) string {
		t.Helper()
		entry := tenantEntry.FindString(config)
		if entry == "" {
			t.Fatalf("%s has no bucket of a tenant", quotaPage)
		}
		path := strings.NewReplacer("tenant:\n", "path:\n", "x-tenant", "\":path\"").Replace(entry)
		key := strings.Replace(entry, "tenant:\n", "\"header:x-api-key\":\n", 1)
		return strings.ReplaceAll(strings.Replace(config, entry, path+key, 1), "x-tenant", "x-api-key")
	}
}

// Every act of an operator reaches Envoy's own quota filter, which decides by itself. It gets the
// tokens of a grant or a reset with its next assignment, as docs/integrate/rlqs.md says.
func TestEachActAtQuotaFilters(t *testing.T) {
	t.Parallel()
	policies := []actPolicy{
		{"leased", "token_bucket"}, {"strict", "fixed_window"}, {"leased", "sliding_log"},
		{"optimistic", "token_bucket"},
	}
	quotas, port := startQuotas(t, setup{policies: actSet(policies, "enforce")})
	w := &actWorld{world: quotas}
	envoy := w.quotaEnvoys(1, port, byPathAndKey(t))[0]
	for _, p := range policies {
		w.callers = append(w.callers, &caller{p, "rlqs", "rlqs-" + p.name(), envoy, envoy})
	}
	w.each(func(c *caller) error {
		if err := c.awaits(w.within(actPatience), true); err != nil { // It is refused until it has tokens.
			return err
		}
		n, err := c.drains(w.within(actPatience))
		if n >= actQuota {
			t.Errorf("%s: %d of %d have passed", c.id, n+1, actQuota)
		}
		return err
	})
	for _, act := range []func(*caller) string{
		keyAct("grant", "--tokens 2 --reason outage"), keyAct("reset", "--reason fixed"),
	} {
		w.each(func(c *caller) error {
			if said, err := w.weir(act(c)); err != nil {
				return fmt.Errorf("%w: %s", err, said)
			}
			return nil
		})
	}
	for _, s := range w.acts(policies) {
		w.take(s)
	}
}
