package api_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/ground/audit"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

func (p *plane) audit(query string) api.AuditAnswer {
	p.t.Helper()
	return decoded[api.AuditAnswer](p.t, p.do(call{"eyes", "GET", "/v1/audit?" + query, nil, ""}))
}

// Each change has an entry with its author and its effect. A refused change and a dry run have no
// entry.
func TestAuditSaysWhoChangedWhat(t *testing.T) {
	p := withTiers(t) // one version
	const alice = "/v1/consumers/alice?source=header:x-api-key"
	any := map[string]string{"If-Match": "*", "X-Request-Id": "the-request"}
	for _, c := range []call{
		{"ed", "PUT", "/v1/policies/b", any, `{"partition": [], "limit": {"quota": 5, "window": "1s"}}`},
		{"ed", "PATCH", "/v1/policies/b?dry_run=true", any, `{"limit": {"quota": 6}}`},
		{"root", "PATCH", "/v1/policies/b", any, `{"limit": {"quota": 6}}`},
		{"root", "DELETE", "/v1/policies/b", any, ""},
		{"ed", "POST", "/v1/versions/2/rollback", any, ""},
		{"ed", "PUT", alice, any, `{"tier": "premium"}`},
		{"root", "PUT", alice, any, `{"tier": "free"}`},
		{"ed", "DELETE", alice, any, ""},
	} {
		if w := p.do(c); w.Code/100 != 2 {
			t.Fatalf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
	p.problem(p.do(call{"eyes", "PUT", alice, any, `{"tier": "free"}`}), 403, "forbidden")
	p.problem(p.do(call{"ed", "DELETE", alice, any, ""}), 404, "not-found")
	p.problem(p.do(call{"", "DELETE", "/v1/policies/a", any, ""}), 401, "unauthorized")

	var got []string
	for _, e := range p.audit("").Entries {
		if e.Resource != "policyset" {
			e.Resource = strings.SplitAfter(e.Resource, "/")[0]
		}
		got = append(got, fmt.Sprintln(e.By, e.Role, e.Action, e.Resource, tier(e.Before), tier(e.After), e.Reason))
		if e.At.IsZero() || e.ID == "" || e.RequestID == "" {
			t.Errorf("%+v", e)
		}
	}
	want := `ed editor consumer.delete consumers/ free - 
root admin consumer.put consumers/ premium free 
ed editor consumer.put consumers/ - premium 
ed editor version.rollback policyset 4 5 back to version 2
root admin policy.delete policies/ 3 4 
root admin policy.patch policies/ 2 3 
ed editor policy.put policies/ 1 2 
`
	if text := strings.Join(got, ""); !strings.HasPrefix(text, want) || len(got) != 8 {
		t.Errorf("got\n%s, want\n%s", text, want)
	}
	if text := p.log.String(); strings.Count(text, "a request was refused") != 2 || strings.Contains(text, "alice") {
		t.Errorf("the log has\n%s", text)
	}
	if all := fmt.Sprint(p.audit("")); strings.Contains(all, "alice") {
		t.Errorf("the audit names a consumer: %s", all)
	}
}

// tier returns the tier, or the version, in a value of an entry.
func tier(value any) any {
	fields, _ := value.(map[string]any)
	for _, name := range []string{"tier", "version"} {
		if v, ok := fields[name]; ok {
			return v
		}
	}
	return "-"
}

func TestAuditFilters(t *testing.T) {
	p := newPlane(t)
	const all = 5
	for n := range all {
		who := []string{"ed", "root"}[n%2]
		if w := p.do(call{who, "PUT", "/v1/policyset", map[string]string{"If-Match": "*"},
			strings.Replace(set, "10", fmt.Sprint(n+1), 1)}); w.Code != 200 {
			t.Fatal(w.Body)
		}
	}
	entries := p.audit("").Entries
	third := url.QueryEscape(entries[2].At.Format(time.RFC3339Nano))
	for query, want := range map[string]int{
		"": all, "by=root": 2, "by=envoy": 0, "resource=policyset": all, "resource=policies/": 0, "since=" + third: 3,
		"since=2099-01-01T00:00:00Z": 0,
		"since=" + third + "&by=ed":  2,
	} {
		if got := p.audit(query); len(got.Entries) != want || got.Next != "" {
			t.Errorf("%s: %d entries, want %d", query, len(got.Entries), want)
		}
	}
	for _, resource := range []string{"policy", "policie/a", "nothing"} {
		got := p.problem(p.do(call{"root", "GET", "/v1/audit?resource=" + resource, nil, ""}), 400, "bad-request")
		if !strings.Contains(got.Detail, "policyset, policies, rollout, consumers, keys, enforcement") {
			t.Errorf("%s: %s", resource, got.Detail)
		}
	}
	seen, token := 0, ""
	for {
		page := p.audit("page_size=2&page_token=" + token)
		for _, e := range page.Entries {
			if e.ID != entries[seen].ID {
				t.Errorf("entry %d is %s, want %s", seen, e.ID, entries[seen].ID)
			}
			seen++
		}
		if token = page.Next; token == "" {
			break
		}
	}
	if seen != all {
		t.Errorf("%d entries on all pages", seen)
	}
	for _, query := range []string{"since=yesterday", "since=", "page_token=eA", "page_token=!", "page_size=-1",
		"x=1"} {
		p.problem(p.do(call{"eyes", "GET", "/v1/audit?" + query, nil, ""}), 400, "bad-request")
	}
	blind := newPlaneOn(t, "away", func(*api.Config) {})
	blind.problem(blind.do(call{"eyes", "GET", "/v1/audit", nil, ""}), 503, "store-unavailable")
}

// busy is a store whose audit has newer entries of other changes.
type busy struct {
	*breakable
	newer []audit.Entry
}

func (b *busy) Audit(ctx context.Context, before string, limit int) ([]audit.Entry, error) {
	var all []audit.Entry
	for _, e := range b.newer {
		if before == "" || e.ID < before {
			all = append(all, e)
		}
	}
	if len(all) >= limit {
		return all[:limit], nil
	}
	if len(all) > 0 {
		before = ""
	}
	older, err := b.breakable.Audit(ctx, before, limit-len(all))
	return append(all, older...), err
}

// A name without any change is refused only if the whole audit was read: entries further back, or
// out of reach, may have the name.
func TestAuditRefusesNoNameThatItMayHave(t *testing.T) {
	var store *busy
	p := newPlaneWith(t, func(c *api.Config) {
		store = &busy{breakable: c.Audit.Store.(*breakable)}
		c.Audit = audit.NewHeld(store, time.Now)
	})
	const gone = "resource=policies/gone"
	any := map[string]string{"If-Match": "*"}
	change := func(c call) {
		t.Helper()
		if w := p.do(c); w.Code/100 != 2 {
			t.Fatalf("%s %s: %d %s", c.method, c.path, w.Code, w.Body)
		}
	}
	change(call{"ed", "PUT", "/v1/policyset", any, set})
	p.problem(p.do(call{"eyes", "GET", "/v1/audit?" + gone, nil, ""}), 400, "bad-request")
	p.audit("") // It is held while the store is away.
	change(call{"ed", "PUT", "/v1/policies/gone", any, `{"partition": [], "limit": {"quota": 5, "window": "1s"}}`})
	change(call{"ed", "DELETE", "/v1/policies/gone", any, ""})
	for query, want := range map[string]int{gone: 2, gone + "&by=root": 0, gone + "&since=2099-01-01T00:00:00Z": 0} {
		if got := p.audit(query); len(got.Entries) != want {
			t.Errorf("%s: %+v, want %d", query, got, want)
		}
	}
	for i := range 5000 { // One answer reads at most this number of entries.
		at := time.Now().Add(2*time.Hour - time.Duration(i)*time.Second)
		store.newer = append(store.newer, audit.Read("meta", at.UnixMicro(),
			fmt.Sprint(at.UnixMicro(), ` {"by": "root", "action": "penalty.pardon", "resource": "penalties"}`)))
	}
	for _, query := range []string{gone, "by=former"} {
		if first := p.audit(query); len(first.Entries) > 0 || first.Next == "" {
			t.Errorf("%s: %+v, want none and where to go on", query, first)
		}
	}
	if found := p.audit(gone + "&page_token=" + p.audit(gone).Next); len(found.Entries) != 2 || found.Next != "" {
		t.Errorf("%+v, want the two changes", found)
	}
	store.newer = nil
	p.store.mode.Store("away")
	for _, query := range []string{gone, "by=former"} {
		w := p.do(call{"eyes", "GET", "/v1/audit?" + query, nil, ""})
		if w.Code != 200 || w.Header().Get(api.HeldHeader) == "" {
			t.Errorf("%s while the store is away: %d %s", query, w.Code, w.Body)
		}
	}
}
