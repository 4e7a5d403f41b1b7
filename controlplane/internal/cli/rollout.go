package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type rolloutCommand struct {
	Start   rolloutStart   `cmd:"" help:"Give a policy set to a share of the nodes, 25% by default (--nodes): the same as weir apply FILE --nodes 25%."`
	Status  rolloutStatus  `cmd:"" default:"withargs" help:"Print the state of the rollout: its share of the nodes, and the number of nodes that have the version."`
	Promote rolloutPromote `cmd:"" help:"Give the version to a larger share of the nodes, or make it the current version of all nodes."`
	Cancel  rolloutCancel  `cmd:"" help:"Take the version back: all nodes use the current version again."`
}

// Help returns the text below the commands.
func (rolloutCommand) Help() string {
	return `weir apply FILE --nodes 25% begins a rollout. A hash of their ids chooses the nodes: the nodes of a smaller share are among the nodes of a larger share.`
}

type rolloutStart struct{ applyCommand }

// Run begins a rollout.
func (c *rolloutStart) Run(env *environment) error {
	if c.Nodes == "" {
		c.Nodes = "25%"
	}
	return c.applyCommand.Run(env)
}

type rolloutStatus struct{ getFlags }

// Run prints how far it is.
func (c *rolloutStatus) Run(env *environment) error {
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	cl.warned[api.RolloutHeader] = true // The command prints it.
	got, err := cl.do(http.MethodGet, "/v1/rollout", nil, nil)
	if err != nil {
		return cl.addLastRollout(explainRollout(err))
	}
	var r api.RolloutAnswer
	if printed, err := got.read(env, c.Output, &r); printed || err != nil {
		return err
	}
	return printRollout(env.Out, r)
}

// shareOf returns n as a share of the requests that a side decided; a dash if it decided none.
func shareOf(side api.RolloutSide, n int64) string {
	if side.Requests == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3g %%", 100*float64(n)/float64(side.Requests))
}

// waitOf returns the number of requests of a side that waited, and their average wait.
func waitOf(side api.RolloutSide) string {
	text := shareOf(side, side.Waited)
	if side.Waited > 0 {
		text += fmt.Sprintf(", %.3g ms", float64(side.WaitedMs)/float64(side.Waited))
	}
	return text
}

// mostSides is the largest number of policies that the status of a rollout lists.
const mostSides = 20

// writeSides writes the decisions of both sides, all requests first.
func writeSides(text *strings.Builder, r api.RolloutAnswer) {
	if r.Its.Requests+r.Others.Requests == 0 {
		text.WriteString("  nothing was decided in the last five minutes, or since it began\n")
		return
	}
	text.WriteString("\ndecided in the last five minutes, or since it began: its nodes / the others\n\n")
	_ = printTable(text, "POLICY\tREQUESTS\tREFUSED\tWAITED\tERRORS", func(w io.Writer) {
		row := func(name string, its, others api.RolloutSide) {
			fmt.Fprintf(w, "%s\t%d / %d\t%s / %s\t%s / %s\t%s / %s\n", name, its.Requests, others.Requests,
				shareOf(its, its.Refused), shareOf(others, others.Refused), waitOf(its), waitOf(others),
				shareOf(its, its.Errors), shareOf(others, others.Errors))
		}
		row("(all requests)", r.Its, r.Others)
		for i, one := range r.Policies {
			if i < mostSides {
				row(one.Policy, one.Its, one.Others)
			}
		}
	})
	if more := len(r.Policies) - mostSides; more > 0 {
		fmt.Fprintf(text, "  and %d more policies, which differ less: -o json\n", more+r.PoliciesLeftOut)
	}
}

// writeRule writes the rule of a rollout and its current result.
func writeRule(text *strings.Builder, r api.RolloutAnswer) {
	if r.AbortIf == "" {
		return
	}
	fmt.Fprintf(text, "  taken back if %s", r.AbortIf)
	switch r.Verdict {
	case "kept":
		text.WriteString("; it is not")
	case "broken":
		text.WriteString("; it is, and is taken back once the store answers: " + r.Because)
	case "too few requests":
		text.WriteString("; too few requests to judge yet")
	}
	text.WriteString("\n")
}

func printRollout(out io.Writer, r api.RolloutAnswer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "version %d for %s of the nodes, the others stay on version %d\n", r.Version, r.Nodes, r.Current)
	fmt.Fprintf(&text, "  %s\n", r.Summary)
	fmt.Fprintf(&text, "  since %s by %s\n\n", r.Since.Format(time.RFC3339), r.By)
	fmt.Fprintf(&text, "  %s  %d of %d nodes have it", drawBar(r.Applied, r.Seen), r.Applied, r.Seen)
	switch left := r.Chosen - r.Applied - r.Refused; {
	case r.Seen == 0:
		text.WriteString("; no node has polled lately")
	case r.Chosen == 0:
		text.WriteString("; none of them is in the share: choose a larger share")
	case left > 0:
		fmt.Fprintf(&text, ", %d more will", left)
	}
	text.WriteString("\n")
	if r.Refused > 0 {
		fmt.Fprintf(&text, "  %d could not apply it: weir get nodes says why\n", r.Refused)
	}
	writeRule(&text, r)
	writeApart(&text, r.Apart)
	writeSides(&text, r)
	_, err := io.WriteString(out, text.String())
	return err
}

// writeApart names the policies of which the two versions share no bucket.
func writeApart(text *strings.Builder, apart []string) {
	if len(apart) > 0 {
		fmt.Fprintf(text, "  counted apart in both versions, which may admit as much as both limits together: %s\n",
			strings.Join(apart, ", "))
	}
}

type rolloutPromote struct {
	serverFlags
	Nodes   string `default:"100%" help:"The share of the nodes, like 50%; 100% makes it the current version and ends the rollout." placeholder:"SHARE"`
	AbortIf string `help:"A new rule that takes the version back, as in weir apply; off removes the rule." placeholder:"RULE"`
	DryRun  bool   `help:"Show the changes; change nothing."`
	Output  string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Run gives the version to that share of the nodes.
func (c *rolloutPromote) Run(env *environment) error {
	if err := checkShare(c.Nodes); err != nil {
		return err
	}
	if c.AbortIf != "" && c.AbortIf != "off" && withSign(c.Nodes) == "100%" {
		return errors.New("--abort-if needs --nodes below 100%, like --nodes 50%: a version that all nodes have is " +
			"compared with nothing")
	}
	step := map[string]string{"nodes": withSign(c.Nodes)}
	if c.AbortIf != "" {
		step["abort_if"] = c.AbortIf
	}
	body, err := json.Marshal(step)
	if err != nil {
		return err
	}
	return c.stepRollout(env, http.MethodPut, c.DryRun, c.Output, body)
}

type rolloutCancel struct {
	serverFlags
	DryRun bool   `help:"Show the changes; change nothing."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Run takes the version back.
func (c *rolloutCancel) Run(env *environment) error {
	return c.stepRollout(env, http.MethodDelete, c.DryRun, c.Output, nil)
}

// stepRollout takes a step of the rollout as it is now.
func (f serverFlags) stepRollout(env *environment, method string, dryRun bool, output string, body []byte) error {
	// Get the rollout's ETag, and send the step.
	cl, err := f.newClient()
	if err != nil {
		return err
	}
	cl.warned[api.RolloutHeader] = true
	current, err := cl.do(http.MethodGet, "/v1/rollout", nil, nil)
	if err != nil {
		return explainRollout(err)
	}
	header := map[string]string{"If-Match": current.header.Get("ETag")}
	got, err := cl.do(method, "/v1/rollout"+dryRunQuery(dryRun), header, body)
	if err != nil {
		return explainRollout(err)
	}
	// Print the result.
	if output == "json" {
		_, err := env.Out.Write(got.body)
		return err
	}
	var step api.RolloutStepAnswer
	if err := got.decode(&step); err != nil {
		return err
	}
	var text strings.Builder
	if step.DryRun {
		text.WriteString("dry run, nothing is changed; this would be: ")
	}
	switch step.Rollout {
	case "promoted":
		fmt.Fprintf(&text, "version %d is the current version of all %s\n", step.Version,
			plural(step.Seen, "node", "nodes"))
	case "taken back":
		fmt.Fprintf(&text, "version %d is taken back\n", step.Version)
	default:
		fmt.Fprintf(&text, "version %d for %s of the nodes: %d of %s\n", step.Version, step.Nodes, step.Chosen,
			plural(step.Seen, "node", "nodes"))
	}
	writeWords(&text, step.Diff, mostRemoved)
	_, err = io.WriteString(env.Out, text.String())
	return err
}

// checkShare returns an error if a text is not a share of the nodes.
func checkShare(text string) error {
	if n, err := strconv.Atoi(strings.TrimSuffix(text, "%")); err != nil || n < 1 || n > 100 {
		return fmt.Errorf("--nodes must be a share of the nodes from 1%% to 100%%, not %s", text)
	}
	return nil
}

// withSign adds the percent sign if it is missing.
func withSign(share string) string { return strings.TrimSuffix(share, "%") + "%" }

var errNoRollout = errors.New("no rollout is under way: weir apply FILE --nodes 25% begins a rollout")

// addLastRollout adds to an error the end of the last rollout, if none is under way: a rule may
// have stopped it, and no other command shows this. Without the right to read the audit it adds
// nothing.
func (cl *client) addLastRollout(err error) error {
	if !errors.Is(err, errNoRollout) {
		return err
	}
	var page api.AuditAnswer
	got, failed := cl.do(http.MethodGet, "/v1/audit?resource=rollout&page_size=1", nil, nil)
	if failed != nil || got.decode(&page) != nil || len(page.Entries) == 0 {
		return err
	}
	last := &page.Entries[0]
	return fmt.Errorf("%w\nthe last rollout: %s (%s, %s)", err, describeChange(last), printable(authorOf(last)),
		last.At.Format(time.RFC3339))
}

func explainRollout(err error) error {
	var r *refusal
	if !errors.As(err, &r) {
		return err
	}
	switch r.Status {
	case http.StatusNotFound:
		return errNoRollout
	case http.StatusPreconditionFailed:
		return errors.New("the rollout has been changed by someone else just now: look at weir rollout, then " +
			"try again")
	}
	return err
}

// forSome are the flags of a change that some of the nodes get first.
type forSome struct {
	Nodes   string `help:"Give it to a share of the nodes first, like 25%; the other nodes stay on the current version until weir rollout promote." placeholder:"SHARE"`
	AbortIf string `help:"A rule that takes the version back if it does harm: 'refused > 2x' is twice the refused share of the other nodes, 'refused > 5%' is a share. Also for waits and errors. 'over 500' at the end needs 500 requests on each side (default 100). 'or' joins rules." placeholder:"RULE"`
}

// checkRule refuses a rule without a share of the nodes.
func (f forSome) checkRule() error {
	if f.AbortIf != "" && f.Nodes == "" {
		return errors.New("--abort-if needs --nodes, like --nodes 25%: a version that all nodes have is compared " +
			"with nothing")
	}
	return nil
}

// query returns the query for a new version that a share of the nodes gets first.
func (f forSome) query(dryRun bool) string {
	query := url.Values{}
	if f.Nodes != "" {
		query.Set("nodes", withSign(f.Nodes))
	}
	if f.AbortIf != "" {
		query.Set("abort_if", f.AbortIf)
	}
	if dryRun {
		query.Set("dry_run", "true")
	}
	if len(query) == 0 {
		return ""
	}
	return "?" + query.Encode()
}
