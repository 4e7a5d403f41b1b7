package fromkong

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
)

// readPlugin reads the settings beside the configuration.
func (c *conversion) readPlugin() {
	if t := c.of.plugin.Get("enabled"); t.Exists() && !t.Is() {
		c.policy.Enforcement = "off"
	}
}

// addPolicies makes the policies, one policy for each match of the scope.
func (c *conversion) addPolicies() {
	// Find the scope, or the reason why there can be no policy.
	var matches []importer.Match
	impossible := ""
	switch {
	case c.of.groups != "":
		impossible = "make the group a tier: limits by tier in the policy, and the tier of its members by " +
			"`weir consumers import`"
	case len(c.limits) == 0:
		impossible = "it has no limit"
	case c.of.consumer == "":
		var remarks []string
		matches, remarks, impossible = c.r.scopeOf(c.of)
		c.remarks = append(c.remarks, remarks...)
	}
	c.impossible = importer.Join("; ", c.impossible, impossible)
	// A limit of a consumer becomes an override.
	if c.of.consumer != "" && c.impossible == "" {
		c.addOverride()
	}
	if c.impossible != "" || c.of.consumer != "" {
		return
	}
	// Add a policy for each match.
	for _, l := range c.limits {
		c.policy.Limits = append(c.policy.Limits, l.limit)
	}
	c.policy.From = []string{fmt.Sprintf("%s:%d: %s of %s", c.of.plugin.File(), c.of.plugin.Line(), c.of.name,
		c.of.placeText())}
	for _, m := range matches {
		m.Paths = slices.Concat(m.Paths, c.policy.Match.Paths)
		p := c.policy
		p.Match = m
		c.addPolicy(p)
		c.withoutHeader(p)
	}
}

// addPolicy adds a policy.
func (c *conversion) addPolicy(p importer.Policy) {
	name, refused := c.r.b.Add(p)
	if refused != "" {
		c.impossible = refused
		return
	}
	c.names = append(c.names, name)
}

// withoutHeader adds the policy for requests without the header that Kong counts by: those it
// counts by address.
func (c *conversion) withoutHeader(p importer.Policy) {
	if len(p.Partition) == 0 {
		return
	}
	if name, found := strings.CutPrefix(p.Partition[0], "header:"); found {
		p.Match.Headers = append(slices.Clone(p.Match.Headers), importer.Header{Name: name, Op: "absent"})
		p.Partition = []string{"client_ip"}
		p.Name += "-without-" + name
		c.addPolicy(p)
	}
}

// noteVerdict notes the verdict on an item of the plugin. If the plugin as a whole is not possible,
// no item of it is.
func (c *conversion) noteVerdict(t *importer.Tree, what, remark string) {
	what = c.of.name + " of " + c.of.placeText() + ": " + what
	switch {
	case c.impossible != "":
		c.r.b.Not(t, what, c.impossible)
	case remark != "":
		c.r.b.Nearly(t, what, remark, c.names...)
	default:
		c.r.b.Exactly(t, what, "", c.names...)
	}
}

// noteSettings notes each setting of the plugin with its verdict.
func (c *conversion) noteSettings() {
	remark := importer.Join("; ", c.remarks...)
	for i, l := range c.limits {
		if i == 1 && remark != "" {
			remark = fmt.Sprintf("as in line %d", c.limits[0].at.Line())
		}
		c.noteVerdict(l.at, l.what, importer.Join("; ", remark, l.remark))
	}
	if len(c.limits) == 0 {
		c.noteVerdict(c.of.plugin, "plugin "+c.of.name, "")
	}
	limits := []string{"second", "minute", "hour", "day", "month", "year", "limit", "window_size"}
	for _, f := range c.config.Fields() {
		if slices.Contains(limits, f.Name) {
			continue
		}
		reason, verdict := c.judgeSetting(f.Name, f.Value)
		item := importer.Item{
			File: f.Value.File(), Line: f.Value.Line(), What: c.of.name + " of " + c.of.placeText() + ": " + f.String(),
			Verdict: verdict, Reason: reason,
		}
		if c.impossible != "" && verdict != importer.NotPossible {
			item.Verdict, item.Reason = importer.NotPossible, "its plugin is left out"
		}
		c.r.b.Say(item)
	}
	for _, f := range c.of.plugin.Unread() {
		c.noteBeside(f)
	}
}

// meta are fields of a plugin that do not concern its limits.
var meta = []string{"id", "tags", "instance_name", "created_at", "updated_at", "run_on", "partials"}

// noteBeside notes a field that stands beside the configuration.
func (c *conversion) noteBeside(f importer.Field) {
	what := c.of.name + " of " + c.of.placeText() + ": " + f.String()
	switch {
	case slices.Contains(meta, f.Name):
	case f.Name == "protocols" && !slices.Contains(f.Value.Texts(), "tcp"):
		c.r.b.Exactly(f.Value, what, "an Envoy has the filter for HTTP and gRPC alike")
	default:
		c.r.b.Not(f.Value, what, "there is no such setting in Weir")
	}
}

const notNeeded = "not needed: the control plane has a store of its own (--redis-url)"

// judgeSetting returns the verdict on one setting.
func (c *conversion) judgeSetting(name string, t *importer.Tree) (reason string, verdict importer.Verdict) {
	// The settings with a meaning for Weir.
	switch name {
	case "limit_by", "identifier", "header_name", "path", "window_type":
		return "", importer.Exact
	case "policy", "strategy":
		if c.policy.Mode == "local" {
			return "each Envoy counts for itself, as each Kong node does", importer.Exact
		}
		return "mode strict; leased asks the control plane far less often", importer.Exact
	case "fault_tolerant":
		if slices.Contains(c.policy.OnFailure, "deny") {
			return "Kong answers 500, Weir 429", importer.Approximate
		}
		return "", importer.Exact
	case "error_code":
		return "", importer.Exact
	case "error_message":
		if c.policy.Response.Body == "" {
			return "Weir answers with problem+json, which names the policy and when to come back", importer.Approximate
		}
		return "Kong adds a request_id", importer.Approximate
	case "disable_penalty":
		if c.policy.Algorithm == "sliding_window_counter" && !t.Is() {
			return "Weir never counts refused requests", importer.Approximate
		}
		return "", importer.Exact
	case "hide_client_headers":
		return c.judgeHideHeaders(t)
	case "sync_rate":
		return c.judgeSyncRate(t)
	case "retry_after_jitter_max":
		return "Weir spreads Retry-After by at most 10 % and 30 s", importer.Approximate
	case "namespace":
		return c.judgeNamespace(t)
	case "dictionary_name", "lock_dictionary_name":
		return notNeeded, importer.Exact
	case "throttling":
		if !t.Get("enabled").Is() {
			return "", importer.Exact
		}
		return "for requests that wait write a policy with algorithm: leaky_bucket", importer.NotPossible
	case "enforce_consumer_groups":
		if !t.Is() {
			return "", importer.Exact
		}
	case "consumer_groups":
		if !c.config.Get("enforce_consumer_groups").Is() {
			return "", importer.Exact
		}
	}
	// The settings of Redis have none.
	if name == "redis" || strings.HasPrefix(name, "redis_") {
		return notNeeded, importer.Exact
	}
	return "there is no such setting in Weir", importer.NotPossible
}

// judgeSyncRate returns the verdict on the interval at which nodes exchange their counts. The two
// plugins have different values for asking at each request.
func (c *conversion) judgeSyncRate(t *importer.Tree) (string, importer.Verdict) {
	each := "-1"
	if c.of.name == "rate-limiting-advanced" {
		each = "0"
	}
	if t.Text() == each || c.policy.Mode == "local" {
		return "", importer.Exact
	}
	return "Kong's nodes learn of each other's requests only so often, and let more pass; Weir does not",
		importer.Approximate
}

// judgeHideHeaders returns the verdict on hide_client_headers. Weir has one setting for all
// policies: the headers are shown if any plugin shows them.
func (c *conversion) judgeHideHeaders(t *importer.Tree) (string, importer.Verdict) {
	hides, shown := t.Is(), c.r.b.Set.Headers.Legacy != ""
	switch {
	case hides == shown:
		return "Weir's headers are the same for all policies: they are shown", importer.Approximate
	case hides:
		return "", importer.Exact
	}
	return "RateLimit-Limit, -Remaining and -Reset; Weir has no X-RateLimit-Limit-Minute and the like",
		importer.Approximate
}

// judgeNamespace returns the verdict on a name for counters, which several plugins may share.
func (c *conversion) judgeNamespace(t *importer.Tree) (string, importer.Verdict) {
	for i := range c.r.instances {
		other := &c.r.instances[i]
		if other != c.of && other.plugin.Path("config", "namespace").Text() == t.Text() {
			return "Kong counts for all plugins with this namespace together, Weir for " +
				"each policy", importer.Approximate
		}
	}
	return notNeeded, importer.Exact
}

// chooseDialect chooses the dialect that is nearest to Kong's headers.
func (r *reader) chooseDialect() {
	shown := false
	for i := range r.instances {
		shown = shown || !r.instances[i].plugin.Path("config", "hide_client_headers").Is()
	}
	r.b.Set.Headers.Standard = "off"
	if shown {
		r.b.Set.Headers.Legacy = "ratelimit"
	}
}
