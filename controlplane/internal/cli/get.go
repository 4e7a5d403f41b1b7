package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api"
)

type getCommand struct {
	Policyset getPolicySet `cmd:"" help:"The policy set as it was written."`
	Policies  getPolicies  `cmd:"" help:"The policies, or one of them as it was written."`
	Versions  getVersions  `cmd:"" help:"The versions of the policy set, newest first, or one of them as it was written."`
	Regions   getRegions   `cmd:"" help:"The share of each policy that this region uses, and what all regions hold."`
	Nodes     getNodes     `cmd:"" help:"The Envoys, and which version each applies."`
}

type getFlags struct {
	serverFlags
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

type getPolicySet struct{ getFlags }

// Run prints the document.
func (c *getPolicySet) Run(env *environment) error {
	cl, err := c.client()
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
	_, err = env.Out.Write(got.body)
	return err
}

type getNodes struct{ getFlags }

// Run prints the nodes that polled within the last ten minutes.
func (c *getNodes) Run(env *environment) error {
	all := api.NodesAnswer{}
	err := c.pages("/v1/nodes", func(body []byte) (string, error) {
		var page api.NodesAnswer
		err := json.Unmarshal(body, &page)
		all.Current, all.Complete = page.Current, page.Complete
		all.Nodes = append(all.Nodes, page.Nodes...)
		return page.Next, err
	})
	if err != nil {
		return err
	}
	if c.Output == "json" {
		return printJSON(env.Out, map[string]any{"current_version": all.Current, "complete": all.Complete, "nodes": all.Nodes})
	}
	if !all.Complete {
		fmt.Fprintln(env.Err, "weir: the store does not answer: these are the nodes that this control plane has heard of")
	}
	return table(env.Out, "NODE\tBOOT\tVERSION\tACTIVE\tLAST SEEN\tSTATE\tFILTER\tZONE\tREFUSED", func(w io.Writer) {
		for _, n := range all.Nodes {
			fmt.Fprintf(w, "%s\t%s\t%s\t%t\t%s\t%s\t%s\t%s\t%s\n", n.ID, n.Boot, applied(n.Applied, all.Current), n.Active,
				n.Seen.Format(time.RFC3339), state(n), n.Filter, n.Zone, refused(n))
		}
	})
}

func applied(version, current uint64) string {
	if version == current {
		return fmt.Sprint(version)
	}
	return fmt.Sprintf("%d of %d", version, current)
}

// state is the node's step on the failure ladder, and of how many policies it is not the ground.
func state(n api.NodeAnswer) string {
	if off := len(n.Steps) + n.MoreSteps; off > 0 {
		return fmt.Sprintf("%s (%d)", n.State, off)
	}
	return n.State
}

func refused(n api.NodeAnswer) string {
	if n.Refused == 0 {
		return ""
	}
	return fmt.Sprintf("%d: %s", n.Refused, n.Reason)
}

// pages hands each page of a list to read, which returns the token of the next one. The path may have a query.
func (f getFlags) pages(path string, read func(body []byte) (next string, err error)) error {
	cl, err := f.client()
	if err != nil {
		return err
	}
	path, query, _ := strings.Cut(path, "?")
	for token := ""; ; {
		got, err := cl.do(http.MethodGet, path+"?page_size=200&page_token="+url.QueryEscape(token)+"&"+query, nil, nil)
		if err != nil {
			return err
		}
		if token, err = read(got.body); err != nil {
			return fmt.Errorf("the answer to GET %s cannot be read: %w", path, err)
		}
		if token == "" {
			return nil
		}
	}
}

// table prints aligned columns.
func table(out io.Writer, head string, rows func(io.Writer)) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	rows(w)
	return w.Flush()
}
