package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/rules/promises"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/policy"
)

type getPolicies struct {
	getFlags
	Name   string `arg:"" optional:"" help:"A policy to print as it was written."`
	In     uint64 `help:"The policy NAME in this version, for example in the version of a rollout." placeholder:"VERSION"`
	Search string `help:"Only policies whose name contains this text." placeholder:"TEXT"`
	Mode   string `help:"Only policies with this mode: local, leased, strict or optimistic." placeholder:"MODE"`
	State  string `help:"Only policies with this enforcement, by the policy set or by an order: enforce, shadow or off." placeholder:"STATE"`
}

// Run prints all policies, or one of them.
func (c *getPolicies) Run(env *environment) error {
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	path := withQuery("/v1/policies", map[string]string{"search": c.Search, "mode": c.Mode, "state": c.State})
	switch {
	case c.Name != "" && strings.Contains(path, "?"):
		return errors.New("NAME selects a single policy: give either NAME or the flags that filter policies")
	case c.Name != "":
		return c.printPolicy(env, cl)
	case c.In > 0:
		return errors.New("--in is for one policy: give its name; weir get version VERSION prints all")
	case c.Output == "text" || strings.Contains(path, "?"):
		return c.printPolicies(env, path)
	}
	got, err := cl.do(http.MethodGet, "/v1/policyset", nil, nil)
	if err != nil {
		return err
	}
	return printPolicies(env, got.body, policydoc.Sniff(got.body))
}

// printPolicies prints the policies that are found, with how they are enforced, orders included.
func (c *getPolicies) printPolicies(env *environment, path string) error {
	// Get all pages.
	all := api.PoliciesAnswer{Policies: []api.PolicyInForce{}}
	err := c.readPages(path, func(body []byte) (string, error) {
		var page api.PoliciesAnswer
		err := json.Unmarshal(body, &page)
		all.Version, all.Found = page.Version, page.Found
		all.Policies = append(all.Policies, page.Policies...)
		return page.Next, err
	})
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return printJSON(env.Out, map[string]any{"version": all.Version, "found": all.Found, "policies": all.Policies})
	}
	// The table has a column for versions during a rollout, and a column for policies that no
	// request meets.
	head := "POLICY\tLIMIT\tMODE\tALGORITHM\tENFORCEMENT"
	rolledOut := slices.ContainsFunc(all.Policies, func(p api.PolicyInForce) bool { return p.Version > 0 })
	if rolledOut {
		head = "VERSION\t" + head
	}
	if slices.ContainsFunc(all.Policies, func(p api.PolicyInForce) bool { return p.UnmetSince != nil }) {
		head += "\tMET"
	}
	return printTable(env.Out, head, func(w io.Writer) {
		for _, p := range all.Policies {
			state := string(p.State)
			if p.Percent > 0 {
				state += fmt.Sprintf(" %d %%", p.Percent)
			}
			if p.Ordered {
				state += ", ordered"
			}
			if p.UnmetSince != nil {
				state += "\tby no request since " + p.UnmetSince.Format(time.RFC3339)
			}
			if rolledOut {
				fmt.Fprintf(w, "%s\t", ofVersion(p.Version))
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Name, limitTexts(p.Limits), p.Mode, p.Algorithm, state)
		}
	})
}

// ofVersion returns the version in a table during a rollout.
func ofVersion(version uint64) string {
	if version == 0 {
		return "both"
	}
	return fmt.Sprint(version)
}

func limitTexts(limits []promises.Limit) string {
	var texts []string
	for _, l := range limits {
		texts = append(texts, l.String())
	}
	return strings.Join(texts, "; ")
}

func (c *getPolicies) printPolicy(env *environment, cl *client) error {
	accept := policydoc.YAML
	if c.Output == "json" {
		accept = policydoc.JSON
	}
	path := "/v1/policies/" + url.PathEscape(c.Name)
	if c.In > 0 {
		path += fmt.Sprintf("?version=%d", c.In)
	}
	got, err := cl.do(http.MethodGet, path,
		map[string]string{"Accept": string(accept)}, nil)
	if c.In > 0 && refusedWith(err, http.StatusNotFound) {
		return fmt.Errorf("version %d has no policy %q: weir get versions %[1]d prints all that it has", c.In, c.Name)
	}
	if err != nil {
		return err
	}
	_, err = env.Out.Write(got.body)
	return err
}

// printPolicies prints the list as the document has it.
func printPolicies(env *environment, doc []byte, format policydoc.Format) error {
	root, err := policydoc.Parse(doc, format)
	if err != nil {
		return err
	}
	list := memberOf(root, "policies")
	if list.Kind != policy.List {
		list = policy.Node{Kind: policy.List}
	}
	_, err = env.Out.Write(policydoc.ToJSON(policy.Node{Kind: policy.Map, Keys: []string{"policies"},
		Items: []policy.Node{list}}))
	return err
}
