package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/api"
	"github.com/weir-proxy/weir/controlplane/internal/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

type applyCommand struct {
	serverFlags
	File   string `arg:"" help:"The policy file, YAML or JSON; - is the standard input."`
	DryRun bool   `help:"Check and show what would change; change nothing."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Run puts the file in place of the version that is current now.
func (c *applyCommand) Run(env *environment) error {
	doc, err := readDocument(env, c.File)
	if err != nil {
		return err
	}
	format := formatOf(c.File, doc)
	if _, err := policydoc.Parse(doc, format); err != nil { // What it means is for the control plane to judge.
		var syntax *policydoc.SyntaxError
		if errors.As(err, &syntax) {
			fmt.Fprintln(env.Err, located(c.File, syntax.Line, policy.Problem{Reason: syntax.Error()}))
			return errReported
		}
		return err
	}
	cl, err := c.client()
	if err != nil {
		return err
	}
	current, err := cl.do(http.MethodGet, "/v1/policyset", nil, nil)
	if err != nil {
		return err
	}
	etag := current.header.Get("ETag")
	if bytes.Equal(current.body, doc) && c.Output == "text" {
		_, err := fmt.Fprintf(env.Out, "version %s is this document already\n", strings.Trim(etag, `"`))
		return err
	}
	path := "/v1/policyset"
	if c.DryRun {
		path += "?dry_run=true"
	}
	got, err := cl.do(http.MethodPut, path, map[string]string{"If-Match": etag, "Content-Type": string(format)}, doc)
	if err != nil {
		return c.explain(env, err)
	}
	if c.Output == "json" {
		_, err := env.Out.Write(got.body)
		return err
	}
	var put api.PutAnswer
	if err := json.Unmarshal(got.body, &put); err != nil {
		return fmt.Errorf("the answer cannot be read: %w", err)
	}
	return printPut(env, put)
}

// explain prints what is wrong with the document, as check does.
func (c *applyCommand) explain(env *environment, err error) error {
	var r *refusal
	if !errors.As(err, &r) {
		return err
	}
	switch {
	case len(r.Problems) > 0:
		for _, p := range r.Problems {
			fmt.Fprintln(env.Err, located(c.File, 0, p))
		}
		return errReported
	case r.Status == http.StatusPreconditionFailed:
		return errors.New("the policy set has been changed by someone else just now: look at weir get policyset, then apply again")
	}
	return fmt.Errorf("%s: %w", c.File, err)
}

func printPut(env *environment, put api.PutAnswer) error {
	var out strings.Builder
	if put.DryRun {
		fmt.Fprintf(&out, "dry run, nothing is changed; this would be version %d: %s\n", put.Version, put.Summary)
	} else {
		fmt.Fprintf(&out, "version %d: %s\n", put.Version, put.Summary)
	}
	for _, change := range []struct {
		sign  string
		names []string
	}{{"+", put.Diff.Added}, {"-", put.Diff.Removed}, {"~", put.Diff.Changed}, {"~", put.Diff.Settings}} {
		for _, name := range change.names {
			fmt.Fprintf(&out, "  %s %s\n", change.sign, name)
		}
	}
	_, err := env.Out.Write([]byte(out.String()))
	return err
}
