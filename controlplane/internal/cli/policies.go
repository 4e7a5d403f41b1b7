package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/promises"
	"github.com/weir-proxy/weir/shared/policy"
)

type getPolicies struct {
	getFlags
	Name string `arg:"" optional:"" help:"One policy, which is printed as it was written."`
}

// Run prints what the policies are, or one of them.
func (c *getPolicies) Run(env *environment) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	if c.Name != "" {
		return c.one(env, cl)
	}
	got, err := cl.do(http.MethodGet, "/v1/policyset", nil, nil)
	if err != nil {
		return err
	}
	format := policydoc.Sniff(got.body)
	if c.Output == "json" {
		return printPolicies(env, got.body, format)
	}
	set, err := policydoc.Load(got.body, format)
	if err != nil {
		return fmt.Errorf("the policy set of %s cannot be read by this version of weir (%s); weir get policyset "+
			"prints it: %w", cl.base, env.version, err)
	}
	return table(env.Out, "POLICY\tLIMIT\tMODE\tALGORITHM\tENFORCEMENT", func(w io.Writer) {
		for _, p := range set.Policies {
			var limits []string
			for _, l := range promises.LimitsOf(p, set.Tiers) {
				limits = append(limits, l.String())
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", p.Name, strings.Join(limits, "; "), p.Mode, p.Counting.Algorithm,
				enforcementOf(p.Enforced))
		}
	})
}

func (c *getPolicies) one(env *environment, cl *client) error {
	accept := policydoc.YAML
	if c.Output == "json" {
		accept = policydoc.JSON
	}
	got, err := cl.do(http.MethodGet, "/v1/policies/"+url.PathEscape(c.Name),
		map[string]string{"Accept": string(accept)}, nil)
	var r *refusal
	if errors.As(err, &r) && r.Status == http.StatusNotFound {
		return fmt.Errorf("there is no policy %s: weir get policies lists what there is", c.Name)
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
	list := member(root, "policies")
	if list.Kind != policy.List {
		list = policy.Node{Kind: policy.List}
	}
	_, err = env.Out.Write(policydoc.ToJSON(policy.Node{Kind: policy.Map, Keys: []string{"policies"},
		Items: []policy.Node{list}}))
	return err
}

func enforcementOf(e policy.Enforced) string {
	switch e {
	case policy.EnforcedAll:
		return "enforce"
	case policy.EnforcedShadow:
		return "shadow"
	case policy.EnforcedOff:
		return "off"
	}
	return fmt.Sprintf("%d %%", e)
}
