package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
	"github.com/weir-proxy/weir/shared/policy"
)

// markFlags say why something is so, and how long.
type markFlags struct {
	Reason string `help:"Why, for operators; clients do not see it." placeholder:"TEXT"`
	endFlags
}

// endTime returns the time at which it ends by the control plane's clock, nil for never.
func (f markFlags) endTime(server serverFlags) (*time.Time, error) {
	cl, err := server.newClient()
	if err != nil {
		return nil, err
	}
	return cl.endTime(f.endFlags)
}

// markText says how long something is so, and why.
func markText(reason string, end *time.Time) string {
	text := "until it is taken back"
	if end != nil {
		text = "until " + end.Format(time.RFC3339)
	}
	if reason != "" {
		text += ": " + printable(reason)
	}
	return text
}

type banConsumer struct {
	consumerFlags
	markFlags
}

// Run bans the consumer.
func (c *banConsumer) Run(env *environment) error {
	end, err := c.endTime(c.serverFlags)
	if err != nil {
		return err
	}
	m := &api.ConsumerMark{Reason: c.Reason, ExpiresAt: end}
	now, err := c.changeRecord(env, banWritten, func(r *api.ConsumerAnswer) error { r.Banned = m; return nil })
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(env.Out, "%s %s\n", bannedText(now.Lifted), markText("", end))
	return err
}

// bannedText says that something is banned, and whether that refuses nothing meanwhile.
func bannedText(lifted bool) string {
	if lifted {
		return "banned, but an order lifts the ban now,"
	}
	return "banned"
}

// ofRecord reports whether it is the ban in the consumer's own record.
func ofRecord(is api.StandingAnswer) bool { return is.Policy == "" && is.Reason != api.BannedBySet }

type unbanConsumer struct{ consumerFlags }

// Run takes the ban back.
func (c *unbanConsumer) Run(env *environment) error {
	err := c.editRecord(env, written{}, func(r *api.ConsumerAnswer) error {
		if r.Banned == nil {
			return errors.New("the consumer is not banned")
		}
		r.Banned = nil
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(env.Out, "not banned any more")
	return c.printBansLeft(env, ofRecord)
}

type bypassConsumer struct {
	consumerFlags
	markFlags
	Off bool `help:"Limit the consumer again."`
}

// Run lets the consumer pass without a limit.
func (c *bypassConsumer) Run(env *environment) error {
	end, err := c.endTime(c.serverFlags)
	if err != nil {
		return err
	}
	text := "not limited " + markText("", end)
	m := &api.ConsumerMark{Reason: c.Reason, ExpiresAt: end}
	if c.Off {
		m, text = nil, "limited again"
	}
	err = c.editRecord(env, bypassWritten, func(r *api.ConsumerAnswer) error {
		if c.Off && r.Bypass == nil {
			return errors.New("the consumer has no bypass")
		}
		r.Bypass = m
		return nil
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(env.Out, text)
	if c.Off {
		return nil
	}
	return c.printBansLeft(env, func(api.StandingAnswer) bool { return false })
}

type overrideConsumer struct {
	consumerFlags
	markFlags
	Policy string   `arg:"" help:"The policy, whose partition must contain consumer."`
	Limit  []string `arg:"" help:"QUOTA/WINDOW or QUOTA/WINDOW/BURST, like 500/1m; several for several limits; unlimited; none to take it back."`
}

// Run gives the consumer its own limits.
func (c *overrideConsumer) Run(env *environment) error {
	// Read the end and the limit; no limit removes the override.
	end, err := c.endTime(c.serverFlags)
	if err != nil {
		return err
	}
	limit, err := parseLimits(c.Limit)
	if err != nil {
		return err
	}
	writes := overrideWritten
	if limit == nil {
		writes = written{}
	}
	// Replace or remove the override.
	err = c.editRecord(env, writes, func(r *api.ConsumerAnswer) error {
		before := len(r.Overrides)
		r.Overrides = slices.DeleteFunc(r.Overrides, func(o api.ConsumerOverride) bool { return o.Policy == c.Policy })
		if limit != nil {
			r.Overrides = append(r.Overrides,
				api.ConsumerOverride{Policy: c.Policy, Limit: limit, Reason: c.Reason, ExpiresAt: end})
		} else if len(r.Overrides) == before {
			text := "the consumer has no limit of its own under " + c.Policy
			var names []string
			for _, o := range r.Overrides {
				names = append(names, o.Policy)
			}
			if near := policy.Guess(c.Policy, names); near != "" {
				text += ": did you mean " + near + "?"
			}
			return errors.New(text)
		}
		return nil
	})
	// Print the result.
	switch {
	case err != nil:
		return err
	case limit == nil:
		_, err = fmt.Fprintf(env.Out, "under %s the policy's limit counts again\n", c.Policy)
	default:
		text := overrideText(limit)
		_, err = fmt.Fprintf(env.Out, "under %s the limit is %s, %s\n", c.Policy, text, markText("", end))
	}
	return err
}

// written is the part of a document that a command writes, with how its command line says the
// fields of that. The part is the last of a list that is named.
type written struct {
	part  string
	words map[string]string
}

var (
	tierWritten     = written{"tier", map[string]string{"": "<tier>"}}
	banWritten      = written{"banned", map[string]string{"expires_at": "--until", "reason": "--reason"}}
	bypassWritten   = written{"bypass", banWritten.words}
	overrideWritten = written{"overrides", map[string]string{"expires_at": "--until", "reason": "--reason",
		"policy": "<policy>", "limit": "<limit>"}}
	orderWritten = written{"orders", map[string]string{"expires_at": "--until", "reason": "--reason",
		"policy": "--policy", "tier": "--tier", "percent": "--percent", "state": "<state>"}}
)

// inWords describes problems in the words of the command line, if they are in the part that the
// command writes. count is the length of that part's list. Other parts were there before, and keep
// their path.
func (w written) inWords(err error, count int) error {
	part := w.part
	if count > 0 {
		part += fmt.Sprintf("[%d]", count-1)
	}
	var problems policy.Problems
	if !errors.As(problemsOf(err), &problems) {
		return err
	}
	for i := range problems {
		field, is := strings.CutPrefix(problems[i].Path, part)
		field = strings.TrimPrefix(field, ".")
		below := ""
		if end := strings.IndexAny(field, ".["); end >= 0 {
			field, below = field[:end], strings.ReplaceAll(field[end:], ".", " ")
		}
		if word := w.words[field]; is && word != "" {
			problems[i].Path = word + below
		}
	}
	return err
}

type limitJSON struct {
	Quota  int64  `json:"quota"`
	Window string `json:"window"`
	Burst  int64  `json:"burst,omitempty"`
}

// parseLimits returns the JSON of limits that are written like 500/1m or 500/1m/50: one object or a
// list of objects. It returns nil for "none".
func parseLimits(texts []string) (json.RawMessage, error) {
	switch {
	case len(texts) == 1 && texts[0] == "none":
		return nil, nil
	case len(texts) == 1 && texts[0] == "unlimited":
		return json.RawMessage(`"unlimited"`), nil
	}
	var limits []limitJSON
	for _, text := range texts {
		var l limitJSON
		parts := strings.Split(text, "/")
		quota, err := strconv.ParseInt(parts[0], 10, 64)
		if len(parts) == 3 && err == nil {
			l.Burst, err = strconv.ParseInt(parts[2], 10, 64)
		}
		if err != nil || len(parts) < 2 || len(parts) > 3 {
			return nil, fmt.Errorf("%q is not like 500/1m, 500/1m/50, unlimited or none", text)
		}
		l.Quota, l.Window = quota, parts[1]
		limits = append(limits, l)
	}
	if len(limits) == 1 {
		return json.Marshal(limits[0])
	}
	return json.Marshal(limits)
}

// overrideText returns the text that parseLimits reads as the given JSON, like 500/1m/50.
func overrideText(limitsJSON json.RawMessage) string {
	var limits []limitJSON
	if json.Unmarshal(limitsJSON, &limits) != nil {
		var limit limitJSON
		if json.Unmarshal(limitsJSON, &limit) != nil {
			return strings.Trim(string(limitsJSON), `"`) // The word "unlimited".
		}
		limits = append(limits, limit)
	}
	var texts []string
	for _, l := range limits {
		text := fmt.Sprintf("%d/%s", l.Quota, l.Window)
		if l.Burst > 0 {
			text += fmt.Sprintf("/%d", l.Burst)
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, " ")
}

type putConsumer struct {
	consumerFlags
	File   string `arg:"" help:"JSON as PUT /v1/consumers/{id} takes it; - reads the standard input."`
	DryRun bool   `help:"Only check it."`
}

// Run replaces the record.
func (c *putConsumer) Run(env *environment) error {
	// Read the file.
	if c.ID == "-" {
		return errors.New("the consumer must be given on the command line here; consumers set, ban and the like read " +
			"it with -")
	}
	read := os.ReadFile
	if c.File == "-" {
		read = func(string) ([]byte, error) { return io.ReadAll(io.LimitReader(env.In, maxAnswer)) }
	}
	body, err := read(c.File)
	if err != nil {
		return err
	}
	// Put it, or try to.
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	path, err := c.consumerPath(env)
	if err != nil {
		return err
	}
	if c.DryRun {
		separator := "?"
		if c.Source != "" {
			separator = "&"
		}
		path += separator + "dry_run=true"
	}
	_, err = cl.do(http.MethodPut, path, map[string]string{"If-Match": "*", "Content-Type": "application/json"}, body)
	err = problemsOf(err)
	if err != nil {
		return err
	}
	done := "put"
	if c.DryRun {
		done = "it could be put"
	}
	_, err = fmt.Fprintln(env.Out, done)
	return err
}
