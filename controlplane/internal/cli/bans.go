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

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

const bansPath = "/v1/bans"

type getBans struct{ getFlags }

// Run prints the bans of keys, then the bans of consumers.
func (c *getBans) Run(env *environment) error {
	// Get the banned keys and the banned consumers.
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	got, err := cl.do(http.MethodGet, bansPath, nil, nil)
	if err != nil {
		return err
	}
	var keys api.BansAnswer
	if err := got.decode(&keys); err != nil {
		return err
	}
	people := []api.ConsumerAnswer{}
	err = cl.readPages("/v1/consumers?banned=true", func(body []byte) (string, error) {
		var page api.ConsumersAnswer
		err := json.Unmarshal(body, &page)
		people = append(people, page.Consumers...)
		return page.Next, err
	})
	if err != nil {
		return err
	}
	// Print both in one table.
	if c.Output == "json" {
		return printJSON(env.Out, map[string]any{"bans": keys.Bans, "durable": keys.Durable, "consumers": people})
	}
	warnUnsaved(env, keys.Durable)
	if len(keys.Bans)+len(people) == 0 {
		_, err = fmt.Fprintln(env.Out, "no key and no consumer is banned; weir get policyset shows banned addresses")
		return err
	}
	return printTable(env.Out, "OF\tKEY\tUNTIL\tCHANGED\tBY\tREASON", func(w io.Writer) {
		row := func(of, key string, until *time.Time, changed time.Time, by, reason string) {
			end := "lifted by hand"
			if until != nil {
				end = until.Format(time.RFC3339)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", of, key, end, changed.Format(time.RFC3339), printable(by),
				printable(reason))
		}
		for _, b := range keys.Bans {
			row(banOf("policy "+b.Policy, b.Lifted), b.Key, b.Expires, b.Since, b.By, b.Reason)
		}
		for _, one := range people {
			row(banOf("consumer", one.Lifted), one.Key, one.Banned.ExpiresAt, one.Updated, one.By, one.Banned.Reason)
		}
	})
}

// banOf returns in words the kind of the ban, and whether an order lifts it now.
func banOf(whose string, lifted bool) string {
	if lifted {
		return whose + " (refuses nothing)"
	}
	return whose
}

// warnUnsaved says that bans are held in memory alone.
func warnUnsaved(env *environment, durable bool) {
	if !durable {
		fmt.Fprintln(env.Err, "weir: changes are held in memory that the store does not have yet")
	}
}

type unbanKey struct {
	getFlags
	Policy    string   `arg:"" optional:"" help:"The policy."`
	Partition []string `arg:"" optional:"" sep:"none" help:"A value for each part of the policy's partition, as in keys ban."`
	Source    string   `help:"The place where requests name their consumer, if the policy set has several places." placeholder:"header:NAME"`
	Key       string   `help:"In place of the policy and its parts: the hash of the key or the consumer, as get bans lists it. Also works if no policy set in force has the policy." placeholder:"HASH"`
}

// ofKey reports whether it is a ban by the policy's key.
func (c *unbanKey) ofKey(is api.StandingAnswer) bool { return is.Policy == c.Policy }

// Run lifts the ban.
func (c *unbanKey) Run(env *environment) error {
	// The key is given by its policy and parts, or by its hash.
	switch {
	case (c.Key == "") == (c.Policy == ""):
		return errors.New("give the policy and the parts of the key, or --key HASH: weir get bans lists both")
	case c.Key != "" && c.Source != "":
		return errors.New("--source goes with the policy and the parts of the key: leave it out beside --key HASH")
	case c.Key == "":
		key := keyFlags{getFlags: c.getFlags, Policy: c.Policy, Partition: c.Partition, Source: c.Source}
		err := key.requestKey(env, http.MethodDelete, "/ban", nil)
		if err != nil || c.Output == "json" {
			return err
		}
		fmt.Fprintln(env.Out, "It is not banned any more.")
		if len(c.Partition) == 0 {
			return nil
		}
		caller := key.callerQuery()
		caller.Set("policy", c.Policy)
		return c.printBansLeft(env, caller, c.ofKey)
	}
	// Lift the bans of the hash.
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	got, err := cl.do(http.MethodDelete, bansPath+"/"+url.PathEscape(strings.ToLower(c.Key)), nil, nil)
	if err != nil {
		return problemsOf(err)
	}
	var ended api.BansAnswer
	if printed, err := got.read(env, c.Output, &ended); printed || err != nil {
		return err
	}
	warnUnsaved(env, ended.Durable)
	for _, b := range ended.Bans {
		is := "consumer " + b.Key
		if b.Policy != "" {
			is = "key " + b.Key + " of policy " + b.Policy
		}
		fmt.Fprintf(env.Out, "%s is not banned any more\n", is)
	}
	return nil
}
