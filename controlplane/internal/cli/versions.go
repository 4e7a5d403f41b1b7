package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type getVersions struct {
	getFlags
	Version uint64 `arg:"" optional:"" help:"A version to print the document of."`
}

// Run prints all versions that are kept, or the document of a version.
func (c *getVersions) Run(env *environment) error {
	if c.Version > 0 {
		return c.printVersion(env)
	}
	all := api.VersionsAnswer{}
	err := c.readPages("/v1/versions", func(body []byte) (string, error) {
		var page api.VersionsAnswer
		err := json.Unmarshal(body, &page)
		all.Versions = append(all.Versions, page.Versions...)
		return page.Next, err
	})
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return printJSON(env.Out, map[string]any{"versions": all.Versions})
	}
	return printTable(env.Out, "VERSION\tTIME\tAUTHOR\tCHANGE", func(w io.Writer) {
		for _, v := range all.Versions {
			change := v.Summary
			if v.Rollout != "" {
				change += " (rollout " + v.Rollout + ")"
			}
			fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", v.Number, v.Time.Format(time.RFC3339), v.Author, change)
		}
	})
}

func (c *getVersions) printVersion(env *environment) error {
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	got, err := cl.do(http.MethodGet, fmt.Sprint("/v1/versions/", c.Version), nil, nil)
	if err != nil {
		return explainVersion(err)
	}
	var v api.VersionAnswer
	if printed, err := got.read(env, c.Output, &v); printed || err != nil {
		return err
	}
	_, err = io.WriteString(env.Out, v.Text)
	return err
}

// explainVersion adds to an error the command that lists the versions.
func explainVersion(err error) error {
	var r *refusal
	if errors.As(err, &r) && r.Status == http.StatusNotFound {
		if strings.Contains(r.Detail, "weir get versions") {
			return errors.New(r.Detail)
		}
		return fmt.Errorf("%s: weir get versions lists the stored versions", r.Detail)
	}
	if errors.As(err, &r) && len(r.Problems) > 0 {
		return fmt.Errorf("%w\n  %s", err, strings.ReplaceAll(r.Problems.Error(), "\n", "\n  "))
	}
	return err
}

type diffCommand struct {
	serverFlags
	From   string `arg:"" name:"file-or-version" help:"A policy file, YAML or JSON (- is the standard input), to see the changes that weir apply would make; or the number of a version."`
	To     string `arg:"" optional:"" name:"version" help:"The version to compare with; the current version by default."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Help returns the text below the flags.
func (diffCommand) Help() string {
	return "A file whose name is a number is given as ./3. To see the changes of a file needs the role editor, as " +
		"to apply it does."
}

// Run prints the difference. The exit code does not depend on it.
func (c *diffCommand) Run(env *environment) error {
	from, err := strconv.ParseUint(c.From, 10, 53)
	if err == nil {
		return c.printVersionDiff(env, from)
	}
	if c.To != "" {
		return fmt.Errorf("%q is not the number of a version; a file is compared with the current version: "+
			"weir diff %s", c.From, c.From)
	}
	t, err := tryFile(env, c.serverFlags, c.From)
	if err != nil {
		return err
	}
	put, body, err := t.putFile(env, forSome{}, true)
	var r *refusal
	if errors.As(err, &r) && r.Status == http.StatusServiceUnavailable {
		return c.printHeldDiff(env, t)
	}
	if err != nil {
		return err
	}
	t.change().noteShown(t.current, true)
	if c.Output == "json" {
		_, err := env.Out.Write(body)
		return err
	}
	return printDiff(env, fmt.Sprintf("version %s to %s", t.version(), c.From),
		api.DiffAnswer{Summary: put.Summary, Diff: put.Diff})
}

// printHeldDiff prints the difference from the policy set in the control plane's memory while its
// store is away.
func (c *diffCommand) printHeldDiff(env *environment, t trial) error {
	header := map[string]string{"Content-Type": string(t.format)}
	got, err := t.client.do(http.MethodPost, "/v1/check", header, t.doc)
	if err != nil {
		return err
	}
	var checked api.CheckedAnswer
	if err := got.decode(&checked); err != nil {
		return err
	}
	d := api.DiffAnswer{Summary: checked.Summary, Diff: checked.Diff}
	if c.Output == "json" {
		return printJSON(env.Out, map[string]any{"summary": d.Summary, "diff": d.Diff})
	}
	return printDiff(env, fmt.Sprintf("version %s to %s", t.version(), c.From), d)
}

func (c *diffCommand) printVersionDiff(env *environment, from uint64) error {
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	to, err := strconv.ParseUint(c.To, 10, 53)
	if c.To == "" {
		to, err = cl.currentVersion()
	} else if err != nil {
		err = fmt.Errorf("%q is not the number of a version", c.To)
	}
	if err != nil {
		return err
	}
	got, err := cl.do(http.MethodGet, fmt.Sprintf("/v1/versions/%d/diff?against=%d", to, from), nil, nil)
	if err != nil {
		return explainVersion(err)
	}
	var d api.DiffAnswer
	if printed, err := got.read(env, c.Output, &d); printed || err != nil {
		return err
	}
	return printDiff(env, fmt.Sprintf("version %d to version %d", from, to), d)
}

// currentVersion returns the number of the control plane's current version, 0 if it has none.
func (c *client) currentVersion() (uint64, error) {
	got, err := c.do(http.MethodGet, "/v1/policyset", nil, nil)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(versionOf(got), 10, 64)
}

func printDiff(env *environment, what string, d api.DiffAnswer) error {
	var out strings.Builder
	if len(d.Diff.Words) == 0 {
		fmt.Fprintf(&out, "%s: %s\n", what, d.Summary)
	} else {
		fmt.Fprintf(&out, "%s:\n", what)
	}
	writeWords(&out, d.Diff, len(d.Diff.Words))
	_, err := io.WriteString(env.Out, out.String())
	return err
}

type rollbackCommand struct {
	serverFlags
	Version uint64 `arg:"" help:"The version to go back to."`
	Yes     bool   `short:"y" help:"Also if more than half of the policies would be removed."`
	ifVersion
	DryRun bool   `help:"Show the changes; change nothing."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Run puts the document of the version in place of the current version.
func (c *rollbackCommand) Run(env *environment) error {
	// Get the current version.
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	current, err := cl.do(http.MethodGet, "/v1/policyset", nil, nil)
	if err != nil {
		return err
	}
	change := changeAt(cl.base.String(), fmt.Sprintf("weir rollback %d --dry-run", c.Version),
		"rollback", fmt.Sprint(c.Version))
	if err := c.checkVersion(current, change, c.DryRun); err != nil {
		return err
	}
	// Try the rollback, and refuse it if it removes too many policies. Then roll back.
	put, body, err := c.rollBack(cl, current, c.DryRun || !c.Yes)
	if err != nil {
		return err
	}
	if !c.Yes && !c.DryRun {
		all := policyNames(current.body, policydoc.Sniff(current.body))
		shows := fmt.Sprintf("weir rollback %d --dry-run", c.Version)
		if err := guardRemoval(len(put.Diff.Removed), len(all), shows); err != nil {
			return err
		}
		put, body, err = c.rollBack(cl, current, false)
		if err != nil {
			return err
		}
	}
	// Print the result.
	change.noteShown(current, c.DryRun)
	if c.Output == "json" {
		_, err := env.Out.Write(body)
		return err
	}
	return printPut(env, put)
}

// rollBack asks the control plane to make a new version of the old version's document.
func (c *rollbackCommand) rollBack(
	cl *client, current answer, dryRun bool,
) (put api.PutAnswer, body []byte, err error) {
	path := fmt.Sprintf("/v1/versions/%d/rollback%s", c.Version, dryRunQuery(dryRun))
	header := map[string]string{"If-Match": current.header.Get("ETag")}
	got, err := cl.do(http.MethodPost, path, header, nil)
	var r *refusal
	if errors.As(err, &r) && r.Status == http.StatusPreconditionFailed {
		return put, nil, changedMeanwhile("roll back")
	}
	if err != nil {
		return put, nil, explainVersion(err)
	}
	return put, got.body, got.decode(&put)
}
