package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type patchCommand struct {
	serverFlags
	Policy string `arg:"" help:"The policy's name."`
	Patch  string `arg:"" help:"The changed fields, as JSON: null removes a field, a list replaces a list (RFC 7396). - is the standard input."`
	forSome
	ifVersion
	DryRun bool   `help:"Check and show the changes; change nothing."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Run changes some fields of one policy.
func (c *patchCommand) Run(env *environment) error {
	if err := c.checkRule(); err != nil {
		return err
	}
	patch := []byte(c.Patch)
	if c.Patch == "-" {
		var err error
		patch, err = io.ReadAll(io.LimitReader(env.In, policydoc.MaxBytes+1)) // The control plane refuses more.
		if err != nil {
			return err
		}
	}
	if !json.Valid(patch) {
		return errors.New(`the patch is not JSON: give the fields that change, like '{"limit": {"quota": 80}}'`)
	}
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	current, err := cl.do(http.MethodGet, "/v1/policyset", nil, nil)
	if err != nil {
		return err
	}
	change := changeAt(cl.base.String(), fmt.Sprintf("weir patch %s … --dry-run", c.Policy),
		"patch", c.Policy, string(patch))
	if err := c.checkVersion(current, change, c.DryRun); err != nil {
		return err
	}
	header := map[string]string{"If-Match": current.header.Get("ETag"), "Content-Type": "application/merge-patch+json"}
	path := "/v1/policies/" + url.PathEscape(c.Policy) + c.query(c.DryRun)
	got, err := cl.do(http.MethodPatch, path, header, patch)
	if err != nil {
		return c.explainProblems(env, err)
	}
	change.noteShown(current, c.DryRun)
	var put api.PutAnswer
	if printed, err := got.read(env, c.Output, &put); printed || err != nil {
		return err
	}
	return printPut(env, put)
}

// explainProblems prints the problems that the policy set would have, as apply does.
func (c *patchCommand) explainProblems(env *environment, err error) error {
	var r *refusal
	if !errors.As(err, &r) {
		return err
	}
	if r.Status == http.StatusPreconditionFailed {
		return changedMeanwhile("patch")
	}
	for _, p := range r.Problems {
		fmt.Fprintln(env.Err, policydoc.Sentence("the patch", p))
	}
	if len(r.Problems) > 0 {
		return errReported
	}
	return err
}
