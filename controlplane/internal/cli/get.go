package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type getCommand struct {
	Policyset getPolicySet  `cmd:"" help:"The policy set as it was written."`
	Policies  getPolicies   `cmd:"" aliases:"policy" help:"The policies, or a single policy as it was written."`
	Versions  getVersions   `cmd:"" aliases:"version" help:"The versions of the policy set, newest first, or a single version as it was written."`
	Regions   getRegions    `cmd:"" aliases:"region" help:"The share of each policy that this region uses, and the tokens of all regions."`
	Rollout   rolloutStatus `cmd:"" help:"The state of the rollout, and its nodes beside the other nodes: the same as rollout status."`
	Bans      getBans       `cmd:"" aliases:"ban" help:"The partition keys and the consumers that are banned now, by whom, until when and why."`
	Nodes     getNodes      `cmd:"" aliases:"node" help:"The Envoys, and which version each applies."`
}

type getFlags struct {
	serverFlags
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

type getPolicySet struct{ getFlags }

// Run prints the document.
func (c *getPolicySet) Run(env *environment) error {
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	header := map[string]string{}
	if c.Output == "json" {
		header["Accept"] = "application/json"
	}
	got, err := cl.do(http.MethodGet, "/v1/policyset", header, nil)
	if err != nil {
		return err
	}
	if c.Output == "text" && versionOf(got) != "" {
		fmt.Fprintf(env.Err, "weir: this is version %s; weir apply FILE --if-version %[1]s refuses if another has "+
			"come meanwhile\n", versionOf(got))
	}
	_, err = env.Out.Write(got.body)
	return err
}

type getNodes struct {
	getFlags
	Search string `help:"Only nodes whose id or zone contains this text." placeholder:"TEXT"`
	Zone   string `help:"Only nodes of this zone." placeholder:"ZONE"`
	Behind bool   `help:"Only active nodes that do not have the version that they should have, or the newest orders."`
	Fallen bool   `help:"Only active nodes that have a policy on the failure ladder."`
	Away   bool   `help:"Only nodes that do not poll any more."`
}

func (c *getNodes) path() string {
	return withQuery("/v1/nodes", map[string]string{"search": c.Search, "zone": c.Zone, "behind": ifTrue(c.Behind),
		"fallen": ifTrue(c.Fallen), "away": ifTrue(c.Away)})
}

func ifTrue(is bool) string {
	if is {
		return "true"
	}
	return ""
}

// withQuery returns a path with a query of all parameters that are not empty.
func withQuery(path string, parameters map[string]string) string {
	query := url.Values{}
	for name, value := range parameters {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(query) == 0 {
		return path
	}
	return path + "?" + query.Encode()
}

// Run prints the nodes that polled within the last ten minutes.
func (c *getNodes) Run(env *environment) error {
	// Get all pages.
	all := api.NodesAnswer{}
	err := c.readPages(c.path(), func(body []byte) (string, error) {
		var page api.NodesAnswer
		err := json.Unmarshal(body, &page)
		all.Current = page.Current
		all.Enforcement = page.Enforcement
		all.Complete = page.Complete
		all.Counts = page.Counts
		all.Nodes = append(all.Nodes, page.Nodes...)
		all.Refused = append(all.Refused, page.Refused...)
		return page.Next, err
	})
	if err != nil {
		return err
	}
	// Print them.
	if c.Output == "json" {
		return printJSON(env.Out, map[string]any{"current_version": all.Current, "current_enforcement": all.Enforcement,
			"complete": all.Complete, "counts": all.Counts, "nodes": append([]api.NodeAnswer{}, all.Nodes...),
			"refused": append([]api.RefusedNodeAnswer{}, all.Refused...)})
	}
	if !all.Complete {
		fmt.Fprintln(env.Err, "weir: the store does not answer: these are the nodes that this control plane has "+
			"heard of")
	}
	c.warnOfStore(env)
	err = printTable(env.Out, "NODE\tBOOT\tVERSION\tORDERS\tACTIVE\tLAST SEEN\tSTATE\tFILTER\tZONE\tREFUSED",
		func(w io.Writer) {
			for _, n := range all.Nodes {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%t\t%s\t%s\t%s\t%s\t%s\n", n.ID, n.Boot, appliedVersion(n),
					orderState(n.Enforcement, all.Enforcement), n.Active,
					n.Seen.Format(time.RFC3339), ladderState(n), n.Filter, n.Zone, refusedVersion(n))
			}
		})
	if err != nil || len(all.Refused) == 0 {
		return err
	}
	return printRefused(env.Out, all.Refused)
}

// printRefused prints the addresses whose calls as a node are refused: Envoys there are in no other
// list.
func printRefused(out io.Writer, refused []api.RefusedNodeAnswer) error {
	fmt.Fprint(out, "\nCalls of Envoys that this control plane refuses; an Envoy there enforces the last policy set "+
		"that it received, or the policy set of its own configuration:\n\n")
	return printTable(out, "ADDRESS\tCALLS ITSELF\tSTILL CALLS\tLAST\tCALLS\tWHY", func(w io.Writer) {
		for _, one := range refused {
			fmt.Fprintf(w, "%s\t%s\t%t\t%s\t%d\t%s\n", one.Address, printable(one.Node), one.Active,
				one.Seen.Format(time.RFC3339), one.Calls, printable(one.Reason))
		}
	})
}

// warnOfStore warns of a problem with a store that answers. The problem may be the reason why nodes
// use their shares.
func (c *getNodes) warnOfStore(env *environment) {
	open, err := c.newAnonymousClient()
	if err != nil {
		return
	}
	answered, err := open.do(http.MethodGet, "/readyz/store", nil, nil)
	var state api.StateAnswer
	if err == nil && answered.decode(&state) == nil && state.Warning != "" {
		fmt.Fprintln(env.Err, "weir:", printable(state.Warning))
	}
}

// appliedVersion returns the version that a node has, and the wanted version if it differs.
func appliedVersion(n api.NodeAnswer) string {
	switch {
	case n.Lost:
		return fmt.Sprintf("%d (a lost version)", n.Applied)
	case n.Applied == n.Wanted:
		return fmt.Sprint(n.Applied)
	}
	return fmt.Sprintf("%d of %d", n.Applied, n.Wanted)
}

// orderState reports whether a node obeys the orders that are in force.
func orderState(revision, current uint64) string {
	if revision == current {
		return "obeyed"
	}
	return "behind"
}

// ladderState returns the node's step on the failure ladder, and the number of policies that are
// not on the ground. A node without a report never left the ground.
func ladderState(n api.NodeAnswer) string {
	off := len(n.Steps) + n.MoreSteps
	switch {
	case n.State == "":
		return "normal"
	case off == 0:
		return n.State
	}
	return n.State + " (" + plural(off, "policy", "policies") + ")"
}

func refusedVersion(n api.NodeAnswer) string {
	if n.Refused == 0 {
		return ""
	}
	return fmt.Sprintf("%d: %s", n.Refused, n.Reason)
}

// readPages hands each page of a list to read, which returns the token of the next page. The path
// may have a query.
func (f getFlags) readPages(path string, read func(body []byte) (next string, err error)) error {
	cl, err := f.newClient()
	if err != nil {
		return err
	}
	return cl.readPages(path, read)
}

func (cl *client) readPages(path string, read func(body []byte) (next string, err error)) error {
	path, query, _ := strings.Cut(path, "?")
	for token := ""; ; {
		got, err := cl.do(http.MethodGet, path+"?page_size=200&page_token="+url.QueryEscape(token)+"&"+query, nil, nil)
		if err != nil {
			return err
		}
		token, err = read(got.body)
		if err != nil || !bytes.Contains(got.body, []byte(`"next_page_token"`)) {
			return cl.noWeir(err)
		}
		if token == "" {
			return nil
		}
	}
}

// printTable prints aligned columns.
func printTable(out io.Writer, head string, rows func(io.Writer)) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	rows(w)
	return w.Flush()
}
