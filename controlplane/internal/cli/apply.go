package cli

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/policy"
)

type applyCommand struct {
	serverFlags
	File  string `arg:"" optional:"" help:"The policy file, YAML or JSON; - is the standard input."`
	Named string `short:"f" name:"filename" help:"The policy file, as kubectl takes it." placeholder:"FILE"`
	Yes   bool   `short:"y" help:"Also if more than half of the policies would be removed."`
	forSome
	ifVersion
	DryRun bool   `help:"Check and show the changes; change nothing."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// ifVersion is the flag that keeps a change from overwriting a change of another operator.
type ifVersion struct {
	IfVersion *uint64 `help:"Only if the policy set is still this version, which the change starts from; weir get policyset prints the version." placeholder:"N"`
}

// checkVersion returns an error if the policy set is not the version in the flag or, without the
// flag, the version that the change was shown for.
func (f ifVersion) checkVersion(current answer, c change, dryRun bool) error {
	if f.IfVersion == nil && dryRun {
		return nil
	}
	if f.IfVersion == nil {
		return c.checkShown(current)
	}
	wanted := fmt.Sprint(*f.IfVersion)
	now := versionOf(current)
	if now == wanted {
		return nil
	}
	return fmt.Errorf("the policy set is version %s by now, and not %s: weir diff %[2]s %[1]s shows the "+
		"changes since; base your change on version %[1]s and give --if-version %[1]s", now, wanted)
}

// Run puts the file in place of the version that is current now.
func (c *applyCommand) Run(env *environment) error {
	if (c.File == "") == (c.Named == "") {
		return errors.New("give one policy file: weir apply FILE")
	}
	if err := c.checkRule(); err != nil {
		return err
	}
	t, err := tryFile(env, c.serverFlags, c.File+c.Named)
	if err != nil {
		return err
	}
	if err := c.checkVersion(t.current, t.change(), c.DryRun); err != nil {
		return err
	}
	if gone, all := t.countRemoved(); !c.Yes && !c.DryRun {
		if err := guardRemoval(gone, all, "weir diff "+t.file); err != nil {
			if _, _, wrong := t.putFile(env, c.forSome, true); wrong != nil { // A mistake may be the reason.
				return wrong
			}
			return err
		}
	}
	if t.same() && c.Output == "text" {
		_, err := fmt.Fprintf(env.Out, "version %s is this document already\n", t.version())
		return err
	}
	put, body, err := t.putFile(env, c.forSome, c.DryRun)
	if err != nil {
		return err
	}
	t.change().noteShown(t.current, c.DryRun)
	if c.Output == "json" {
		_, err := env.Out.Write(body)
		return err
	}
	if c.DryRun {
		fmt.Fprintf(env.Err, "weir: these are the changes against version %s; with --if-version %[1]s it is "+
			"applied only to this version\n", t.version())
	}
	return printPut(env, put)
}

// guardRemoval returns an error if more than half of the policies would be removed. Shows is the
// command that lists the removed policies.
func guardRemoval(gone, all int, shows string) error {
	if 2*gone <= all || gone <= 1 {
		return nil
	}
	return fmt.Errorf("this would remove %d of %s: %s shows which; give --yes if that is meant",
		gone, plural(all, "policy", "policies"), shows)
}

// trial is a file and the policy set that it replaces.
type trial struct {
	client *client
	file   string
	doc    []byte
	format policydoc.Format
	// current is the policy set that is there now.
	current answer
}

// tryFile reads the file, refuses it if it is not a document, and gets the policy set that it
// replaces.
func tryFile(env *environment, flags serverFlags, file string) (t trial, err error) {
	t.file = file
	doc, err := readSet(env, file)
	if err != nil {
		return t, showProblems(env, file, err)
	}
	t.doc, t.format = doc.Text, doc.Format
	if _, err := policydoc.Parse(t.doc, t.format); err != nil { // The control plane judges the meaning.
		_, all := policydoc.LoadNew(t.doc, t.format) // But all mistakes are shown at once.
		return t, showProblems(env, file, all)
	}
	t.client, err = flags.newClient()
	if err != nil {
		return t, err
	}
	t.current, err = t.client.do(http.MethodGet, "/v1/policyset", nil, nil)
	return t, err
}

// showProblems prints the problems of a policy set with their places, and returns errReported. It
// returns any other error unchanged.
func showProblems(env *environment, name string, err error) error {
	problems, ok := policydoc.ProblemsOf(err)
	if !ok {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(env.Err, policydoc.Sentence(name, p))
	}
	return errReported
}

// countRemoved returns the number of policies that the current set has and the file does not, and
// the number of all policies of the current set.
func (t trial) countRemoved() (gone, all int) {
	after := map[string]bool{}
	for _, name := range policyNames(t.doc, t.format) {
		after[name] = true
	}
	before := policyNames(t.current.body, policydoc.Sniff(t.current.body))
	for _, name := range before {
		if !after[name] {
			gone++
		}
	}
	return gone, len(before)
}

// policyNames returns the names of the policies in a document, as far as it can be read.
func policyNames(doc []byte, format policydoc.Format) (names []string) {
	root, err := policydoc.Parse(doc, format)
	if err != nil {
		return nil
	}
	for _, p := range memberOf(root, "policies").Items {
		if name := memberOf(p, "name"); name.Kind == policy.String {
			names = append(names, name.Text)
		}
	}
	return names
}

// memberOf returns the value of a key in a map, and nothing if the node is not a map.
func memberOf(node policy.Node, key string) policy.Node {
	if at := slices.Index(node.Keys, key); at >= 0 && node.Kind == policy.Map {
		return node.Items[at]
	}
	return policy.Node{}
}

// change returns the change that the file makes.
func (t trial) change() change {
	return changeAt(t.client.base.String(), "weir diff "+t.file, "apply", string(t.doc))
}

func (t trial) same() bool { return bytes.Equal(t.current.body, t.doc) }

func (t trial) version() string { return versionOf(t.current) }

// versionOf returns the version in an ETag, for each form of the document.
func versionOf(a answer) string {
	version, _, _ := strings.Cut(strings.Trim(a.header.Get("ETag"), `"`), "-")
	return version
}

// putFile sends the file to the control plane, for a share of the nodes or for all nodes. With
// dryRun it only asks for the changes.
func (t trial) putFile(env *environment, share forSome, dryRun bool) (put api.PutAnswer, body []byte, err error) {
	header := map[string]string{"If-Match": t.current.header.Get("ETag"), "Content-Type": string(t.format)}
	got, err := t.client.do(http.MethodPut, "/v1/policyset"+share.query(dryRun), header, t.doc)
	if err != nil {
		return put, nil, t.explainProblems(env, err)
	}
	return put, got.body, got.decode(&put)
}

func dryRunQuery(dryRun bool) string {
	if dryRun {
		return "?dry_run=true"
	}
	return ""
}

// explainProblems prints the problems of the document like weir check.
func (t trial) explainProblems(env *environment, err error) error {
	var r *refusal
	if !errors.As(err, &r) {
		return err
	}
	switch {
	case len(r.Problems) > 0:
		for _, p := range r.Problems {
			fmt.Fprintln(env.Err, policydoc.Sentence(t.file, p))
		}
		return errReported
	case r.Status == http.StatusPreconditionFailed:
		return changedMeanwhile("apply")
	}
	return fmt.Errorf("%s: %w", t.file, err)
}

func changedMeanwhile(command string) error {
	return fmt.Errorf("the policy set has been changed by someone else just now: look at weir get policyset, then "+
		"%s again", command)
}

func printPut(env *environment, put api.PutAnswer) error {
	var out strings.Builder
	if put.DryRun {
		fmt.Fprintf(&out, "dry run, nothing is changed; this would be version %d: %s\n", put.Version, put.Summary)
	} else {
		fmt.Fprintf(&out, "version %d: %s\n", put.Version, put.Summary)
	}
	writeWords(&out, put.Diff, mostRemoved)
	if r := put.Rollout; r != nil {
		fmt.Fprintf(&out, "for %s of the nodes: %d of %s; weir rollout shows how far it is\n", r.Nodes, r.Chosen,
			plural(r.Seen, "node", "nodes"))
		fmt.Fprintf(&out, "  %s\n", r.Bound)
		writeRule(&out, api.RolloutAnswer{AbortIf: r.AbortIf})
		writeApart(&out, r.Apart)
	}
	_, err := env.Out.Write([]byte(out.String()))
	return err
}

// mostRemoved is the largest number of removed policies that a command lists.
const mostRemoved = 20

// writeWords lists the changes, a line for each policy and setting, but at most mostRemoved removed
// policies.
func writeWords(out *strings.Builder, diff policies.Diff, removed int) {
	left := 0
	for _, line := range diff.Words {
		if strings.HasPrefix(line, "- ") {
			left++
			if left > removed {
				continue
			}
		}
		fmt.Fprintf(out, "  %s\n", line)
	}
	if more := left - removed; more > 0 {
		fmt.Fprintf(out, "  - and %d more\n", more)
	}
}
