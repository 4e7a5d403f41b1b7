package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/policy"
)

type consumersCommand struct {
	Get      getConsumer      `cmd:"" help:"Print the record of a consumer."`
	List     listConsumers    `cmd:"" help:"List the consumers of whom something is known, each by its hash."`
	Set      setConsumer      `cmd:"" help:"Assign a tier to a consumer. Nodes apply it within a second, like all changes of consumers."`
	Ban      banConsumer      `cmd:"" help:"Refuse all requests of a consumer."`
	Unban    unbanConsumer    `cmd:"" help:"Take back a ban."`
	Bypass   bypassConsumer   `cmd:"" help:"Never limit a consumer; with --off limit it again."`
	Override overrideConsumer `cmd:"" help:"Give a consumer its own limit under a policy; with none take it back."`
	Put      putConsumer      `cmd:"" help:"Replace the record of a consumer by a JSON file."`
	Import   importConsumers  `cmd:"" help:"Put many consumers from a CSV file. Running it again changes nothing."`
	Delete   deleteConsumer   `cmd:"" help:"Delete the record of a consumer: only the policy set decides again."`
}

type consumerFlags struct {
	serverFlags
	ID     string `arg:"" help:"The consumer, as its requests name it, like an API key; - reads it from the standard input, so that other users do not see it."`
	Source string `help:"The place where requests name their consumer, if the policy set has several places." placeholder:"header:NAME"`
}

// consumerPath returns the path of the consumer. It may read the consumer's value.
func (f *consumerFlags) consumerPath(env *environment) (string, error) {
	id, err := readArgument(env, f.ID)
	if err != nil {
		return "", err
	}
	if id == "" {
		return "", errors.New("the consumer is empty: give the value that its requests have, like an API key")
	}
	f.ID = id // The standard input is read once.
	path := "/v1/consumers/" + url.PathEscape(id)
	if f.Source != "" {
		path += "?source=" + url.QueryEscape(f.Source)
	}
	return path, nil
}

// requestConsumer sends a request about the consumer.
func (f *consumerFlags) requestConsumer(
	env *environment, method string, header map[string]string, body []byte,
) (answer, error) {
	cl, err := f.newClient()
	if err != nil {
		return answer{}, err
	}
	path, err := f.consumerPath(env)
	if err != nil {
		return answer{}, err
	}
	return cl.do(method, path, header, body)
}

// printBansLeft names the bans of the consumer that stay. Its value has been read.
func (f *consumerFlags) printBansLeft(env *environment, ended isEnded) error {
	caller := url.Values{"consumer": {f.ID}}
	if f.Source != "" {
		caller.Set("source", f.Source)
	}
	return f.serverFlags.printBansLeft(env, caller, ended)
}

// attempts is the largest number of attempts at a change while other changes are faster.
const attempts = 5

// editRecord changes a part of the consumer's record and keeps the rest. It deletes a record that
// is empty after the change.
func (f *consumerFlags) editRecord(env *environment, w written, change func(c *api.ConsumerAnswer) error) error {
	_, err := f.changeRecord(env, w, change)
	return err
}

// changeRecord changes a consumer like editRecord, and returns the new record; zero if the record
// was deleted.
func (f *consumerFlags) changeRecord(
	env *environment, w written, change func(c *api.ConsumerAnswer) error,
) (now api.ConsumerAnswer, err error) {
	cl, err := f.newClient()
	if err != nil {
		return now, err
	}
	path, err := f.consumerPath(env)
	if err != nil {
		return now, err
	}
	for range attempts {
		now, err = editOnce(cl, path, w, change)
		if !refusedWith(err, http.StatusPreconditionFailed) {
			break
		}
	}
	return now, problemsOf(err)
}

func editOnce(
	cl *client, path string, w written, change func(c *api.ConsumerAnswer) error,
) (now api.ConsumerAnswer, err error) {
	// Get the consumer. A new consumer has the ETag "0".
	var c api.ConsumerAnswer
	header := map[string]string{"If-Match": `"0"`, "Content-Type": "application/json"}
	held, err := cl.do(http.MethodGet, path, nil, nil)
	switch {
	case refusedWith(err, http.StatusNotFound):
	case err != nil:
		return now, err
	default:
		header["If-Match"] = held.header.Get("ETag")
		if err := json.Unmarshal(held.body, &c); err != nil {
			return now, err
		}
	}
	// Change it. Delete the consumer if nothing is left of it.
	if err := change(&c); err != nil {
		return now, err
	}
	if c.Tier == "" && c.Banned == nil && c.Bypass == nil && len(c.Overrides) == 0 {
		if len(held.body) > 0 {
			_, err = cl.do(http.MethodDelete, path, header, nil)
			return now, err
		}
		return now, nil
	}
	// Put it back.
	body, err := json.Marshal(api.ConsumerInput{Tier: c.Tier, Banned: c.Banned, Bypass: c.Bypass,
		Overrides: c.Overrides})
	if err == nil {
		held, err = cl.do(http.MethodPut, path, header, body)
		count := 0
		if w.part == overrideWritten.part {
			count = len(c.Overrides)
		}
		err = w.inWords(err, count)
	}
	if err == nil {
		err = json.Unmarshal(held.body, &now)
	}
	return now, err
}

func refusedWith(err error, status int) bool {
	var refused *refusal
	return errors.As(err, &refused) && refused.Status == status
}

// problemsOf returns the reasons of a refusal, if it has any.
func problemsOf(err error) error {
	var refused *refusal
	if errors.As(err, &refused) && len(refused.Problems) > 0 {
		return refused.Problems
	}
	return err
}

// readArgument returns a key as it was given, or for - from the standard input.
func readArgument(env *environment, text string) (string, error) {
	if text != "-" {
		return text, nil
	}
	read, err := io.ReadAll(io.LimitReader(env.In, policy.MaxText+2))
	return string(bytes.TrimRight(read, "\r\n")), err
}

type getConsumer struct {
	consumerFlags
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

// Run prints the record.
func (c *getConsumer) Run(env *environment) error {
	got, err := c.requestConsumer(env, http.MethodGet, nil, nil)
	if err != nil {
		return err
	}
	var r api.ConsumerAnswer
	if printed, err := got.read(env, c.Output, &r); printed || err != nil {
		return err
	}
	if r.Tier != "" {
		fmt.Fprintf(env.Out, "tier      %s\n", r.Tier)
	}
	if r.Banned != nil {
		fmt.Fprintf(env.Out, "%-9s %s\n", bannedText(r.Lifted), markText(r.Banned.Reason, r.Banned.ExpiresAt))
	}
	if r.Bypass != nil {
		fmt.Fprintf(env.Out, "bypass    %s\n", markText(r.Bypass.Reason, r.Bypass.ExpiresAt))
	}
	for _, o := range r.Overrides {
		fmt.Fprintf(env.Out, "override  %s %s, %s\n", o.Policy, overrideText(o.Limit), markText(o.Reason, o.ExpiresAt))
	}
	_, err = fmt.Fprintf(env.Out, "changed   by %s at %s\n", printable(r.By), r.Updated.Format(time.RFC3339))
	return err
}

type setConsumer struct {
	consumerFlags
	Tier string `arg:"" help:"A tier of the policy set."`
}

// Run assigns the tier in place of any other tier.
func (c *setConsumer) Run(env *environment) error {
	err := c.editRecord(env, tierWritten, func(r *api.ConsumerAnswer) error { r.Tier = c.Tier; return nil })
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Out, "the tier is %s\n", c.Tier)
	return err
}

type deleteConsumer struct{ consumerFlags }

// Run forgets the consumer.
func (c *deleteConsumer) Run(env *environment) error {
	_, err := c.requestConsumer(env, http.MethodDelete, map[string]string{"If-Match": "*"}, nil)
	if err == nil {
		_, err = fmt.Fprintln(env.Out, "forgotten")
	}
	return err
}
