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

	"github.com/weir-proxy/weir/controlplane/internal/api"
	"github.com/weir-proxy/weir/shared/policy"
)

type consumersCommand struct {
	Get    getConsumer    `cmd:"" help:"Print the tier that a consumer has been assigned."`
	Set    setConsumer    `cmd:"" help:"Assign a tier to a consumer. Nodes apply it within a second."`
	Delete deleteConsumer `cmd:"" help:"Forget a consumer, who then has the tier that its requests say, or the default tier."`
}

type consumerFlags struct {
	serverFlags
	ID     string `arg:"" help:"The consumer, as its requests say it, like an API key; - reads it from the standard input, where other users do not see it."`
	Source string `help:"Where requests say it, if the policy set names several places." placeholder:"header:NAME"`
}

// do sends a request about the consumer.
func (f *consumerFlags) do(env *environment, method string, header map[string]string, body []byte) (answer, error) {
	cl, err := f.client()
	if err != nil {
		return answer{}, err
	}
	id, err := argument(env, f.ID)
	if err != nil {
		return answer{}, err
	}
	path := "/v1/consumers/" + url.PathEscape(id)
	if f.Source != "" {
		path += "?source=" + url.QueryEscape(f.Source)
	}
	return cl.do(method, path, header, body)
}

// argument is a key as it was given, or from the standard input for -.
func argument(env *environment, text string) (string, error) {
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
	got, err := c.do(env, http.MethodGet, nil, nil)
	if err != nil {
		return err
	}
	if c.Output == "json" {
		_, err = env.Out.Write(got.body)
		return err
	}
	var r api.ConsumerAnswer
	if err := json.Unmarshal(got.body, &r); err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Out, "%s, assigned by %s at %s\n", r.Tier, r.By, r.Updated.Format(time.RFC3339))
	return err
}

type setConsumer struct {
	consumerFlags
	Tier string `arg:"" help:"One of the policy set's tiers."`
}

// Run assigns the tier, whatever there was.
func (c *setConsumer) Run(env *environment) error {
	body, err := json.Marshal(map[string]string{"tier": c.Tier})
	if err != nil {
		return err
	}
	header := map[string]string{"If-Match": "*", "Content-Type": "application/json"}
	_, err = c.do(env, http.MethodPut, header, body)
	var refused *refusal
	if errors.As(err, &refused) && len(refused.Problems) > 0 {
		return refused.Problems
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Out, "the tier is %s\n", c.Tier)
	return err
}

type deleteConsumer struct{ consumerFlags }

// Run forgets the consumer.
func (c *deleteConsumer) Run(env *environment) error {
	_, err := c.do(env, http.MethodDelete, map[string]string{"If-Match": "*"}, nil)
	if err == nil {
		_, err = fmt.Fprintln(env.Out, "forgotten")
	}
	return err
}
