package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api"
)

type rolloutCommand struct {
	Status  rolloutStatus  `cmd:"" default:"withargs" help:"How far the rollout under way is: which share of the nodes, and how many have the version."`
	Promote rolloutPromote `cmd:"" help:"Give the version to a larger share of the nodes, or make it the current one for all."`
	Cancel  rolloutCancel  `cmd:"" help:"Take the version back: all nodes are on the current one again."`
}

// Help is shown below the commands.
func (rolloutCommand) Help() string {
	return `weir apply FILE --nodes 25% begins a rollout. The nodes are chosen by a hash of their ids: those of a smaller share are among those of a larger one.`
}

type rolloutStatus struct{ getFlags }

// Run prints how far it is.
func (c *rolloutStatus) Run(env *environment) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	cl.warned[api.RolloutHeader] = true // It is what is printed.
	got, err := cl.do(http.MethodGet, "/v1/rollout", nil, nil)
	if err != nil {
		return explainRollout(err)
	}
	var r api.RolloutAnswer
	if printed, err := got.read(env, c.Output, &r); printed || err != nil {
		return err
	}
	return printRollout(env.Out, r)
}

// refusedShare is how much of what some nodes decided they refused.
func refusedShare(side api.RolloutSide) string {
	share := 100 * float64(side.Refused) / float64(max(side.Requests, 1))
	return fmt.Sprintf("%.3g %% (%d of %d)", share, side.Refused, side.Requests)
}

func printRollout(out io.Writer, r api.RolloutAnswer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "version %d for %s of the nodes, the others stay on version %d\n", r.Version, r.Nodes, r.Current)
	fmt.Fprintf(&text, "  %s\n", r.Summary)
	fmt.Fprintf(&text, "  since %s by %s\n\n", r.Since.Format(time.RFC3339), r.By)
	fmt.Fprintf(&text, "  %s  %d of %d nodes have it", bar(r.Applied, r.Seen), r.Applied, r.Seen)
	switch left := r.Chosen - r.Applied - r.Refused; {
	case r.Seen == 0:
		text.WriteString("; no node has polled lately")
	case r.Chosen == 0:
		text.WriteString("; none of them is in the share: choose a larger one")
	case left > 0:
		fmt.Fprintf(&text, ", %d more will", left)
	}
	text.WriteString("\n")
	if r.Refused > 0 {
		fmt.Fprintf(&text, "  %d could not apply it: weir get nodes says why\n", r.Refused)
	}
	if r.Its.Requests+r.Others.Requests > 0 {
		fmt.Fprintf(&text, "  refused lately: %s on its nodes, %s on the others\n", refusedShare(r.Its),
			refusedShare(r.Others))
	}
	writeApart(&text, r.Apart)
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
	Nodes  string `default:"100%" help:"The share of the nodes, like 50%; 100% makes it the current version and ends the rollout." placeholder:"SHARE"`
	DryRun bool   `help:"Show what would change; change nothing."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Run gives the version to that share of the nodes.
func (c *rolloutPromote) Run(env *environment) error {
	body, err := json.Marshal(map[string]string{"nodes": withSign(c.Nodes)})
	if err != nil {
		return err
	}
	return c.roll(env, http.MethodPut, c.DryRun, c.Output, body)
}

type rolloutCancel struct {
	serverFlags
	DryRun bool   `help:"Show what would change; change nothing."`
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Run takes the version back.
func (c *rolloutCancel) Run(env *environment) error {
	return c.roll(env, http.MethodDelete, c.DryRun, c.Output, nil)
}

// roll takes a step of the rollout as it is now.
func (f serverFlags) roll(env *environment, method string, dryRun bool, output string, body []byte) error {
	cl, err := f.client()
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
		fmt.Fprintf(&text, "version %d is the current one for all %s\n", step.Version,
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

// withSign adds what people leave out.
func withSign(share string) string { return strings.TrimSuffix(share, "%") + "%" }

func explainRollout(err error) error {
	var r *refusal
	if !errors.As(err, &r) {
		return err
	}
	switch r.Status {
	case http.StatusNotFound:
		return errors.New("no rollout is under way: weir apply FILE --nodes 25% begins one")
	case http.StatusPreconditionFailed:
		return errors.New("the rollout has been changed by someone else just now: look at weir rollout, then " +
			"try again")
	}
	return err
}

// shareQuery is the query that gives a new version to a share of the nodes, with the rest of it.
func shareQuery(share string, dryRun bool) string {
	query := url.Values{}
	if share != "" {
		query.Set("nodes", withSign(share))
	}
	if dryRun {
		query.Set("dry_run", "true")
	}
	if len(query) == 0 {
		return ""
	}
	return "?" + query.Encode()
}
