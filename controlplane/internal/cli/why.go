package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/observe/decisions"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type whyCommand struct {
	getFlags
	Caller []string `arg:"" sep:"none" help:"The consumer, as its requests name it, like an API key; - reads it from the standard input, so that other users do not see it. With --policy also a partition key, like client_ip:192.0.2.1: each part as PART:VALUE."`
	Source string   `help:"The place where requests name their consumer, if the policy set has several places." placeholder:"header:NAME"`
	Policy string   `help:"Only refusals of this policy." placeholder:"NAME"`
	Since  string   `help:"Only refusals since then: 10m, or a time like 2030-01-01T00:00:00Z. At most an hour is kept." placeholder:"TIME"`
}

// query asks for refusals of the consumer or the partition key.
func (c *whyCommand) query(env *environment) (url.Values, error) {
	// The caller is a consumer, or a partition key given by its parts.
	query := url.Values{}
	if part, value, is := policies.MisspeltPart(c.Caller[0]); is {
		return nil, fmt.Errorf("%q: a part of a partition key is %s:%s, with --policy; a consumer of such a name is "+
			"read from the standard input, as -", c.Caller[0], part, value)
	}
	byKey := slices.ContainsFunc(c.Caller, policies.NamesPart)
	switch {
	case byKey && c.Policy == "":
		return nil, fmt.Errorf("%s is a part of a partition key: give --policy, whose partition it is", c.Caller[0])
	case byKey:
		query["partition"] = c.Caller
	case len(c.Caller) > 1:
		return nil, errors.New("give one consumer, or a partition key with each part as PART:VALUE")
	default:
		id, err := readArgument(env, c.Caller[0])
		if err != nil {
			return nil, err
		}
		query.Set("consumer", id)
	}
	// The other parameters.
	for name, value := range map[string]string{"source": c.Source, "policy": c.Policy} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if c.Since == "" {
		return query, nil
	}
	since, err := c.pastTime(c.Since)
	if err != nil {
		return nil, err
	}
	query.Set("since", since.Format(time.RFC3339Nano))
	return query, nil
}

// Run prints the newest refusals of the caller, the last one in words.
func (c *whyCommand) Run(env *environment) error {
	// Ask for the refusals.
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	query, err := c.query(env)
	if err != nil {
		return err
	}
	got, err := cl.do(http.MethodGet, "/v1/decisions?"+query.Encode(), nil, nil)
	if _, no := netip.ParseAddr(c.Caller[0]); err != nil && no == nil {
		return fmt.Errorf("%w\n%s", err, c.askForAddress())
	}
	if err != nil {
		return err
	}
	var page api.DecisionsAnswer
	if printed, err := got.read(env, c.Output, &page); printed || err != nil {
		return err
	}
	// Print how to lift bans and the like, then the refusals.
	if !page.Complete {
		fmt.Fprintln(env.Err, "weir: the store does not answer: the list has only the reports of "+
			"nodes to this control plane")
	}
	printWaysOut(env.Out, page.Standing, c.Source)
	if len(page.Decisions) == 0 {
		return c.printNothing(env.Out, cl)
	}
	explainRefusal(env.Out, &page.Decisions[0])
	const head = "\nTIME\tNODE\tPOLICY\tTIER\tREASON\tSOURCE\tLEFT\tENDS\tCOUNT\tSHOWN"
	return printTable(env.Out, head, func(w io.Writer) {
		for _, d := range page.Decisions {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%d\t%s\n", d.At.Format(time.RFC3339), d.Node, d.Policy,
				d.Tier, d.Reason, d.Source, d.Left,
				endOf(&d), d.Count, parts(d.Shown))
		}
	})
}

// printNothing prints that there is no refusal, and the right command if a part of a partition key
// was taken for a consumer.
func (c *whyCommand) printNothing(out io.Writer, cl *client) error {
	text := "no refusal of this caller is known; nodes report refusals within two seconds, and they " +
		"are kept for an hour\n"
	_, none := netip.ParseAddr(c.Caller[0])
	switch {
	case slices.ContainsFunc(c.Caller, policies.NamesPart):
	case none == nil:
		text += c.askForAddress() + "\n"
	case c.Policy != "":
		text += cl.askForKey(c.Policy)
	}
	_, err := io.WriteString(out, text)
	return err
}

// askForKey returns the command for a partition key of a policy whose partition is not consumer
// alone; empty for other policies.
func (cl *client) askForKey(name string) string {
	path := withQuery("/v1/policies", map[string]string{"search": name, "page_size": "200"})
	got, err := cl.do(http.MethodGet, path, nil, nil)
	var page api.PoliciesAnswer
	if err != nil || got.decode(&page) != nil {
		return ""
	}
	for _, p := range page.Policies {
		if p.Name == name && len(p.Partition) > 0 && !slices.Equal(p.Partition, []string{"consumer"}) {
			return fmt.Sprintf("It was taken for a consumer. If it is a part of the policy's key: weir why --policy "+
				"%s %s:VALUE\n", name, strings.Join(p.Partition, ":VALUE "))
		}
	}
	return ""
}

// askForAddress returns the command for an address that was taken for a consumer.
func (c *whyCommand) askForAddress() string {
	return "If it is a client's address: weir why --policy " + cmp.Or(c.Policy, "NAME") + " client_ip:" + c.Caller[0]
}

// reasons say in words why a request was refused.
var reasons = map[string]string{
	"quota":    "the quota was used up",
	"too_dear": "the request costs more than the limit ever allows at once; waiting does not help",
	"absent":   "the request lacks a part of the policy's partition key, and the policy says if_absent: deny",
	"bad_cost": "the request has no valid cost, and the policy says invalid: deny",
	"several": "the request gives several different values for a part of the policy's partition key, and " +
		"identity.if_several says deny",
	"failure": "the counters could not be reached: the Envoy's share of the limit was used up, or " +
		"on_failure says to refuse then",
	"suspended":          "the quota is 0: every request is refused",
	"ban_of_address":     "requests from this address are banned",
	"ban_of_consumer":    "the consumer is banned",
	"ban_of_key":         "its partition key is banned",
	"ban_of_one_of_many": "the request names more callers than can be looked up, and some caller is banned",
	"penalty":            "a penalty, because the policy had refused the caller too often",
	"too_many_waiting":   "too many requests waited already",
	"in_flight":          "the limit of requests in flight was reached",
	"shed":               "the upstream was overloaded, and other requests were more important",
	"contended": "other requests changed the bucket at each attempt, and the policy's on_failure says to " +
		"refuse then",
}

// sources say in words where a decision came from.
var sources = map[string]string{
	"local": "the node's own bucket", "lease": "the node's leased tokens",
	"optimistic": "the node's part of an optimistic bucket",
	"central":    "the control plane, for this request", "cached_denial": "an earlier answer of the control plane",
	"share":        "the node's share, while the control plane was away",
	"failure_deny": "the last step of the failure ladder", "request": "the request itself",
	"overload": "a bound of the node", "penalty": "the caller's penalty",
}

// explainRefusal prints the reasons of the last refusal in sentences.
func explainRefusal(out io.Writer, d *decisions.Decision) {
	whose := "the policy's limit"
	switch d.From {
	case "tier":
		whose = "the limit of the tier " + d.Tier
	case "override":
		whose = "the consumer's own limit"
	}
	if d.From == "ban" {
		fmt.Fprintf(out, "refused by a ban at %s on %s: %s\n", d.At.Format(time.RFC3339), d.Node,
			inOtherWords(reasons, d.Reason))
		return
	}
	fmt.Fprintf(out, "refused by policy %s at %s on %s: %s\n", d.Policy, d.At.Format(time.RFC3339), d.Node,
		reasonOf(d))
	fmt.Fprintf(out, "  limit    %s, %s (version %d)\n", d.Limit, whose, d.Version)
	fmt.Fprintf(out, "  decided  by %s; mode %s\n", inOtherWords(sources, d.Source), d.Mode)
	fmt.Fprintf(out, "  tokens   %d then, for a cost of %d", d.Left, d.Cost)
	if d.Now != nil {
		fmt.Fprintf(out, "; %d of %d now", d.Now.Tokens, d.Now.Of)
	}
	fmt.Fprintf(out, "\n  ends     %s\n", endText(d.Ends))
	if d.Settles == nil {
		return
	}
	fmt.Fprintf(out, "  cost     %s\n", settlesText(d.Settles))
	if d.Now != nil {
		fmt.Fprintf(out, "  owed     %s\n", owedText(d.Now.Owed, d.Now.AdmitsAfterSeconds, "a request like it"))
	}
}

// reasonOf returns the reason of a refusal in words. A failure that the store itself has decided
// means a bucket that started with fewer tokens after a loss, or permits that this Envoy does not
// hold. While the store is away other sources decide.
func reasonOf(d *decisions.Decision) string {
	if d.Reason == "failure" && slices.Contains([]string{"central", "lease", "cached_denial", "optimistic"}, d.Source) {
		if strings.HasSuffix(d.Limit, "in flight") {
			return "the other permits belong to other Envoys, or their owners are not known"
		}
		return "the store has lost this caller's count, so it allows less than the limit for a time"
	}
	return inOtherWords(reasons, d.Reason)
}

// settlesText returns in words the charge of requests whose cost is known later.
func settlesText(s *policies.Settles) string {
	missing := s.Missing
	if missing == "reserved" {
		missing = "the reservation"
	}
	text := "reserves " + s.Reserve + "; then " + s.Commit + ", or " + missing + " if the response does not say"
	if s.Unfinished != "reserved" {
		text += "; without a whole response " + s.Unfinished
	}
	return text
}

// owedText returns the debt of a bucket, and the time when the next request is let in.
func owedText(owed int64, after float32, what string) string {
	if after <= 0 {
		return fmt.Sprintf("%d; %s is let in now", owed, what)
	}
	return fmt.Sprintf("%d; %s is let in after %s", owed, what, inSeconds(after))
}

func inOtherWords(words map[string]string, word string) string {
	if text, ok := words[word]; ok {
		return text
	}
	return word
}

func endText(at *time.Time) string {
	if at == nil {
		return "never"
	}
	return at.Format(time.RFC3339)
}

// endOf returns the end of a refusal. For a ban it returns a dash: the first line has the end.
func endOf(d *decisions.Decision) string {
	if d.From == "ban" {
		return "-"
	}
	return endText(d.Ends)
}

// parts returns the shown values of a request on one line.
func parts(shown map[string]string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(shown)) {
		list = append(list, name+"="+shown[name])
	}
	return strings.Join(list, " ")
}
