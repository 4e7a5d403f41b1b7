package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/policydoc"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type keysCommand struct {
	Get   getKey   `cmd:"" help:"Print the buckets of a partition key."`
	Reset resetKey `cmd:"" help:"Fill the buckets of a partition key, less the tokens that nodes hold."`
	Grant grantKey `cmd:"" help:"Give tokens to the buckets of a partition key, once."`
	Ban   banKey   `cmd:"" help:"Refuse all requests of a partition key, on every node within two seconds."`
	Unban unbanKey `cmd:"" help:"Lift the ban of a partition key, or of a hash that get bans lists. Without --key and -o json it also prints the caller's bans that stay."`
}

// keyFlags name a partition key.
type keyFlags struct {
	getFlags
	Policy    string   `arg:"" help:"The policy."`
	Partition []string `arg:"" optional:"" sep:"none" help:"A value for each part of the policy's partition, like client_ip:192.0.2.1 or header:x-tenant:acme. The value alone is enough for a partition of one part, unless it begins with a word and a colon like a part."`
	Source    string   `help:"The place where requests name their consumer, if the policy set has several places." placeholder:"header:NAME"`
}

type reasonFlag struct {
	Reason string `required:"" help:"Why, in a few words." placeholder:"TEXT"`
}

// callerQuery says in a query which key is meant, beside its policy.
func (f *keyFlags) callerQuery() url.Values {
	query := url.Values{"partition": f.Partition}
	if f.Source != "" {
		query.Set("source", f.Source)
	}
	return query
}

// requestKey sends a request about the key and prints the answer.
func (f *keyFlags) requestKey(env *environment, method, what string, body map[string]any) error {
	cl, err := f.newClient()
	if err != nil {
		return err
	}
	query := f.callerQuery()
	var text []byte
	header := map[string]string{}
	if body != nil {
		header["Content-Type"] = "application/json"
		text, err = json.Marshal(body)
		if err != nil {
			return err
		}
	}
	got, err := cl.do(method, "/v1/keys/"+url.PathEscape(f.Policy)+what+"?"+query.Encode(), header, text)
	err = problemsOf(err)
	if err != nil {
		return err
	}
	var k api.KeyAnswer
	if printed, err := got.read(env, f.Output, &k); printed || err != nil {
		return err
	}
	return printKey(env.Out, k)
}

// requestKeyAndRules calls requestKey. It also prints the rules that decide about the caller before
// its buckets: a bypass, penalties, and bans other than the ban of the key.
func (f *keyFlags) requestKeyAndRules(env *environment, method, what string, body map[string]any) error {
	err := f.requestKey(env, method, what, body)
	if err != nil || f.Output == "json" || len(f.Partition) == 0 {
		return err
	}
	cl, err := f.newClient()
	if err != nil {
		return err
	}
	caller := f.callerQuery()
	caller.Set("policy", f.Policy)
	all, known := cl.standingOf(caller)
	if !known {
		fmt.Fprintln(env.Err, "weir: the bans, the bypass and the penalties that are printed may not be all: the "+
			"control plane does not know now whether others decide first")
	}
	printWaysOut(env.Out, slices.DeleteFunc(all, func(is api.StandingAnswer) bool {
		ofKey := is.What == api.StandingBan && is.Policy == f.Policy
		return ofKey || is.What == api.StandingOff || is.What == api.StandingShadow
	}), f.Source)
	return nil
}

func printKey(out io.Writer, k api.KeyAnswer) error {
	// The key, its share and its ban.
	fmt.Fprintf(out, "Key %s of policy %s. With enforcement: {enforce: N} it is limited from N = %d on.\n", k.Key,
		k.Policy, k.Share+1)
	if b := k.Ban; b != nil {
		until := "until it is lifted"
		if b.Expires != nil {
			until = "until " + b.Expires.Format(time.RFC3339)
		}
		is := "BANNED"
		if b.Lifted {
			is = "banned, but an order lifts the ban now,"
		}
		fmt.Fprintf(out, "It is %s %s, because: %s (%s, %s)\n", is, until, printable(b.Reason), printable(b.By),
			b.Since.Format(time.RFC3339))
	}
	if !k.Durable {
		fmt.Fprintln(out, "The newest changes are in memory only: the store does not have them yet.")
	}
	// No bucket: the policy is local, or the store is away.
	if len(k.Buckets) == 0 {
		if k.Where == "nodes" {
			fmt.Fprintln(out, "The policy is local: its buckets are only in the Envoys and cannot be read. "+
				"A reset fills them within two seconds, except limits of requests in flight.")
		} else {
			fmt.Fprintln(out, "Its buckets are in the store, and the store does not answer.")
		}
		return nil
	}
	// The buckets. During a rollout each line names its version.
	head := "TIER\tLIMIT\tLEVEL\tUSED\tLEASED OUT\tFULL IN\tGIVEN\tBUCKET"
	rolledOut := slices.ContainsFunc(k.Buckets, func(b api.BucketAnswer) bool { return b.Version > 0 })
	if rolledOut {
		head = "VERSION\t" + head
	}
	err := printTable(out, head, func(w io.Writer) {
		for _, b := range k.Buckets {
			if rolledOut {
				fmt.Fprintf(w, "%s\t", ofVersion(b.Version))
			}
			fmt.Fprintf(w, "%s\t%s\t%d of %d\t%d\t%d\t%s\t%d\t%s\n", dash(b.Tier), b.Limit, b.Level, b.Burst, b.Used,
				b.Leased, inSeconds(b.FullAfterSeconds), b.Given, b.Bucket)
		}
	})
	// Details that have no column.
	for _, b := range k.Buckets {
		if b.Above > 0 {
			fmt.Fprintf(out, "%s: %d more tokens were used than the lowered limit has; they count as used "+
				"again if you raise the limit soon.\n", b.Limit, b.Above)
		}
		printSettles(out, b.Limit, b.Settles, b.Owed, b.AdmitsAfterSeconds)
		if err == nil && len(b.Holders) > 0 {
			err = printHolders(out, b)
		}
	}
	return err
}

// printHolders prints the nodes that hold permits, and their permits.
func printHolders(out io.Writer, b api.BucketAnswer) error {
	fmt.Fprintf(out, "\nNodes that hold permits of %s:\n", b.Limit)
	return printTable(out, "NODE\tPROCESS\tPERMITS\tENDS IN", func(w io.Writer) {
		for _, h := range b.Holders {
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", printable(h.Node), printable(h.Boot), h.Permits,
				inSeconds(h.EndsAfterSeconds))
		}
	})
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

type getKey struct{ keyFlags }

// Run prints the key.
func (c *getKey) Run(env *environment) error {
	return c.requestKeyAndRules(env, http.MethodGet, "", nil)
}

type resetKey struct {
	keyFlags
	reasonFlag
}

// Run fills the buckets.
func (c *resetKey) Run(env *environment) error {
	return c.requestKeyAndRules(env, http.MethodPost, "/reset", map[string]any{"reason": c.Reason})
}

type grantKey struct {
	keyFlags
	reasonFlag
	Tokens int64 `required:"" help:"How many tokens."`
}

// Run gives tokens.
func (c *grantKey) Run(env *environment) error {
	return c.requestKeyAndRules(env, http.MethodPost, "/grant", map[string]any{"reason": c.Reason, "tokens": c.Tokens})
}

type banKey struct {
	keyFlags
	reasonFlag
	endFlags
	Yes bool `short:"y" help:"Also without a part of a key: this bans the shared bucket of many callers, or of all callers."`
}

// Run bans the key.
func (c *banKey) Run(env *environment) error {
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	if len(c.Partition) == 0 && !c.Yes {
		if _, err := cl.do(http.MethodGet, "/v1/keys/"+url.PathEscape(c.Policy), nil, nil); err != nil {
			return problemsOf(err)
		}
		return fmt.Errorf("policy %s has one bucket for all %s: the ban refuses each of them; give --yes if that is "+
			"meant", c.Policy, c.describeSharers(cl))
	}
	body := map[string]any{"reason": c.Reason}
	until, err := cl.endTime(c.endFlags)
	if err != nil {
		return err
	}
	if until != nil {
		body["expires_at"] = until
	}
	return c.requestKey(env, http.MethodPost, "/ban", body)
}

// describeSharers returns in words the requests that share the bucket of a key without a part.
func (c *banKey) describeSharers(cl *client) string {
	var p struct{ Partition []string }
	header := map[string]string{"Accept": string(policydoc.JSON)}
	got, err := cl.do(http.MethodGet, "/v1/policies/"+url.PathEscape(c.Policy), header, nil)
	switch {
	case err != nil || json.Unmarshal(got.body, &p) != nil: // A rollout may have it alone.
		return "requests without a part of its partition"
	case len(p.Partition) == 0:
		return "its requests"
	}
	return "requests without " + strings.Join(p.Partition, " and ")
}
