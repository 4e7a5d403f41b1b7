package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type penaltiesCommand struct {
	List   listPenalties   `cmd:"" default:"withargs" help:"Print the callers under a penalty, newest first."`
	Pardon pardonPenalties `cmd:"" help:"End penalties and forget their levels, on every node within a second."`
}

const penaltiesPath = "/v1/penalties"

// callersFlags select the callers of penalties.
type callersFlags struct {
	Policy    string   `help:"Only penalties of this policy." placeholder:"NAME"`
	Partition []string `sep:"none" help:"Only penalties of this partition key of the policy: each part as PART:VALUE, like client_ip:192.0.2.1." placeholder:"PART:VALUE"`
	Consumer  string   `help:"Only penalties of this consumer; - reads it from the standard input, so that other users do not see it." placeholder:"ID"`
	Source    string   `help:"The place where requests name their consumer, if the policy set has several places." placeholder:"header:NAME"`
	Key       string   `help:"Only the penalty with this hash, as the list shows it." placeholder:"HASH"`
	Shadow    *bool    `help:"Only penalties in shadow; with --no-shadow only penalties that refuse." negatable:""`
}

func (f *callersFlags) query(env *environment) (url.Values, error) {
	query := url.Values{}
	if f.Consumer != "" {
		id, err := readArgument(env, f.Consumer)
		if err != nil {
			return nil, err
		}
		query.Set("consumer", id)
	}
	for name, value := range map[string]string{"policy": f.Policy, "source": f.Source, "key": f.Key} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if len(f.Partition) > 0 {
		query["partition"] = f.Partition
	}
	if f.Shadow != nil {
		query.Set("shadow", strconv.FormatBool(*f.Shadow))
	}
	return query, nil
}

type listPenalties struct {
	getFlags
	callersFlags
	Ended  bool `help:"Also callers whose penalty has ended and whose level is not forgotten."`
	Number int  `short:"n" default:"50" help:"How many to print, at most 200."`
}

// Run prints one page of penalties.
func (c *listPenalties) Run(env *environment) error {
	// Ask the control plane.
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	query, err := c.query(env)
	if err != nil {
		return err
	}
	nothing := "no caller has a penalty"
	if len(query) > 0 {
		nothing = "no such caller has a penalty"
	}
	query.Set("page_size", strconv.Itoa(c.Number))
	if c.Ended {
		query.Set("ended", "true")
	}
	got, err := cl.do(http.MethodGet, penaltiesPath+"?"+query.Encode(), nil, nil)
	if err != nil {
		return err
	}
	var page api.PenaltiesAnswer
	if printed, err := got.read(env, c.Output, &page); printed || err != nil {
		return err
	}
	// Print the penalties.
	if page.Count == 0 {
		_, err = fmt.Fprintln(env.Out, nothing)
		return err
	}
	if more := page.Count - len(page.Penalties); more > 0 {
		fmt.Fprintf(env.Err, "weir: %d more are not shown\n", more)
	}
	return printTable(env.Out, "KEY\tPOLICY\tLEVEL\tUNTIL\tFORGOTTEN\tSTATE\tNODE\tCONSUMER\tSHOWN", func(w io.Writer) {
		for _, p := range page.Penalties {
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Key, p.Policy, p.Level,
				p.Until.Format(time.RFC3339), p.Forgotten.Format(time.RFC3339), stateOf(&p), dash(p.Node),
				dash(p.Consumer), parts(p.Shown))
		}
	})
}

// stateOf returns the present effect of a penalty, in a word.
func stateOf(p *api.PenaltyAnswer) string {
	switch {
	case !p.InForce:
		return "ended"
	case p.Shadow:
		return "shadow"
	case p.Version > 0:
		return fmt.Sprintf("refuses at version %d", p.Version)
	}
	return "refuses"
}

type pardonPenalties struct {
	getFlags
	callersFlags
	reasonFlag
	All bool `help:"Pardon all callers."`
}

// Run pardons the callers that the flags select.
func (c *pardonPenalties) Run(env *environment) error {
	// Read the flags: a pardon of all must say so.
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	query, err := c.query(env)
	if err != nil {
		return err
	}
	switch {
	case len(query) == 0 && !c.All:
		return errors.New("say whom to pardon: --key, --policy, --partition, --consumer, or --all")
	case len(query) > 0 && c.All:
		return errors.New("--all pardons all callers: leave the other flags out")
	}
	// Pardon.
	body, err := json.Marshal(api.PardonInput{Reason: c.Reason, All: c.All})
	if err != nil {
		return err
	}
	header := map[string]string{"Content-Type": "application/json"}
	got, err := cl.do(http.MethodPost, penaltiesPath+"/pardon?"+query.Encode(), header, body)
	if err != nil {
		return problemsOf(err)
	}
	var done api.PardonedAnswer
	if printed, err := got.read(env, c.Output, &done); printed || err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Out, "pardoned %d; every node follows within a second\n", done.Pardoned)
	return err
}
