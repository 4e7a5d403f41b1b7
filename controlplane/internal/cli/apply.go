package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/api"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
	"github.com/weir-proxy/weir/controlplane/internal/policydoc"
	"github.com/weir-proxy/weir/shared/policy"
)

type applyCommand struct {
	serverFlags
	File   string `arg:"" help:"The policy file, YAML or JSON; - is the standard input."`
	Nodes  string `help:"Give it to a share of the nodes first, like 25%; the others stay on the current version until weir rollout promote." placeholder:"SHARE"`
	DryRun bool   `help:"Check and show what would change; change nothing."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Run puts the file in place of the version that is current now.
func (c *applyCommand) Run(env *environment) error {
	t, err := tryFile(env, c.serverFlags, c.File)
	if err != nil {
		return err
	}
	if t.same() && c.Output == "text" {
		_, err := fmt.Fprintf(env.Out, "version %s is this document already\n", t.version())
		return err
	}
	put, body, err := t.put(env, c.Nodes, c.DryRun)
	if err != nil {
		return err
	}
	if c.Output == "json" {
		_, err := env.Out.Write(body)
		return err
	}
	return printPut(env, put)
}

// trial is a file and the policy set that it is to replace.
type trial struct {
	client *client
	file   string
	doc    []byte
	format policydoc.Format
	// current is the policy set that is there now.
	current answer
}

// tryFile reads the file, refuses it if it is no document, and gets what it is to replace.
func tryFile(env *environment, flags serverFlags, file string) (t trial, err error) {
	t.file = file
	if t.doc, err = readDocument(env, file); err != nil {
		return t, err
	}
	t.format = formatOf(file, t.doc)
	if _, err := policydoc.Parse(t.doc, t.format); err != nil { // What it means is for the control plane to judge.
		var syntax *policydoc.SyntaxError
		if errors.As(err, &syntax) {
			fmt.Fprintln(env.Err, located(file, syntax.Line, policy.Problem{Reason: syntax.Error()}))
			return t, errReported
		}
		return t, err
	}
	if t.client, err = flags.client(); err != nil {
		return t, err
	}
	t.current, err = t.client.do(http.MethodGet, "/v1/policyset", nil, nil)
	return t, err
}

func (t trial) same() bool { return bytes.Equal(t.current.body, t.doc) }

func (t trial) version() string { return strings.Trim(t.current.header.Get("ETag"), `"`) }

// put asks the control plane to take the file for a share of the nodes, all of them if none is named, or only what would change.
func (t trial) put(env *environment, share string, dryRun bool) (put api.PutAnswer, body []byte, err error) {
	header := map[string]string{"If-Match": t.current.header.Get("ETag"), "Content-Type": string(t.format)}
	got, err := t.client.do(http.MethodPut, "/v1/policyset"+shareQuery(share, dryRun), header, t.doc)
	if err != nil {
		return put, nil, t.explain(env, err)
	}
	return put, got.body, readAnswer(got.body, &put)
}

func dryRunQuery(dryRun bool) string {
	if dryRun {
		return "?dry_run=true"
	}
	return ""
}

func readAnswer(body []byte, into any) error {
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("the answer cannot be read: %w", err)
	}
	return nil
}

// explain prints what is wrong with the document, as check does.
func (t trial) explain(env *environment, err error) error {
	var r *refusal
	if !errors.As(err, &r) {
		return err
	}
	switch {
	case len(r.Problems) > 0:
		for _, p := range r.Problems {
			fmt.Fprintln(env.Err, located(t.file, 0, p))
		}
		return errReported
	case r.Status == http.StatusPreconditionFailed:
		return changedMeanwhile("apply")
	}
	return fmt.Errorf("%s: %w", t.file, err)
}

func changedMeanwhile(command string) error {
	return fmt.Errorf("the policy set has been changed by someone else just now: look at weir get policyset, then %s again", command)
}

func printPut(env *environment, put api.PutAnswer) error {
	var out strings.Builder
	if put.DryRun {
		fmt.Fprintf(&out, "dry run, nothing is changed; this would be version %d: %s\n", put.Version, put.Summary)
	} else {
		fmt.Fprintf(&out, "version %d: %s\n", put.Version, put.Summary)
	}
	writeWords(&out, put.Diff)
	if r := put.Rollout; r != nil {
		fmt.Fprintf(&out, "for %s of the nodes: %d of %s; weir rollout shows how far it is\n", r.Nodes, r.Chosen, counted(r.Seen))
		fmt.Fprintf(&out, "  %s\n", r.Bound)
		writeApart(&out, r.Apart)
	}
	_, err := env.Out.Write([]byte(out.String()))
	return err
}

// writeWords lists what changes, a line for each policy and setting.
func writeWords(out *strings.Builder, diff policies.Diff) {
	for _, line := range diff.Words {
		fmt.Fprintf(out, "  %s\n", line)
	}
}
