package fromkong

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/offline/importer"
	"github.com/weir-proxy/weir/shared/quota"
)

// The plugins that are carried over.
const (
	basic    = "rate-limiting"
	advanced = "rate-limiting-advanced"
)

// conversion turns an instance into policies. It notes the settings when the verdict of the
// policies is known.
type conversion struct {
	r       *reader
	of      *instance
	config  *importer.Tree
	policy  importer.Policy
	limits  []limit
	remarks []string
	// impossible is the reason why there can be no policy; empty if there can be a policy.
	impossible string
	// names are the names of the policies.
	names []string
}

// limit is a limit of the plugin, with the remark about it alone.
type limit struct {
	at     *importer.Tree
	what   string
	limit  importer.Limit
	remark string
}

func (r *reader) readInstance(i *instance) {
	c := conversion{r: r, of: i, config: i.plugin.Get("config")}
	switch i.name {
	case basic:
		c.readPeriods()
	case advanced:
		c.readWindows()
	default:
		r.b.Not(i.plugin, "plugin "+i.name+" of "+i.placeText(), otherPlugin(i.name))
		return
	}
	c.policy.Match = importer.Match{}
	c.policy.Name = importer.Join("-", "kong", i.route, i.service, i.consumer, i.groups)
	c.readIdentifier()
	c.readStorage()
	c.readAnswer()
	c.readPlugin()
	c.addPolicies()
	i.policies = c.names
	c.noteSettings()
}

func otherPlugin(name string) string {
	switch name {
	case "response-ratelimiting":
		return "it counts by the header X-Kong-Limit of responses; write a policy by hand, whose cost says " +
			"commit: {header: NAME}, with a header that holds a number alone"
	case "request-size-limiting":
		return "it limits bytes of one request, not requests: Envoy's buffer filter does that (max_request_bytes)"
	}
	return "this plugin is not read: write a policy by hand"
}

// units are Kong's periods. Kong's months and years are the calendar's months and years.
var units = []struct {
	name string
	span quota.Span
}{
	{"second", quota.Second}, {"minute", quota.Minute}, {"hour", quota.Hour}, {"day", quota.Day},
	{"month", 30 * quota.Day}, {"year", 365 * quota.Day},
}

// readPeriods reads the limits of rate-limiting: windows of the UTC calendar, all of which must
// allow. A refused request is charged to none.
func (c *conversion) readPeriods() {
	c.policy.Algorithm, c.policy.Align = "fixed_window", "utc"
	for _, u := range units {
		t := c.config.Get(u.name)
		if !t.Exists() {
			continue
		}
		one := limit{at: t, what: u.name + ": " + t.Short()}
		n, ok := t.Int()
		if !ok {
			c.impossible = u.name + " is no whole number"
		}
		one.limit = importer.Limit{Quota: n, Window: u.span}
		switch u.name {
		case "month":
			one.remark = "Weir's windows are 30 days long and do not begin with the month"
		case "year":
			one.remark = "Weir's windows are 365 days long and do not begin with the year"
		}
		c.limits = append(c.limits, one)
	}
}

// readWindows reads the limits of rate-limiting-advanced: limit[n] within window_size[n] seconds.
func (c *conversion) readWindows() {
	// Read each limit with its window.
	limits, sizes := c.config.Get("limit"), c.config.Get("window_size")
	values, seconds := limits.Several(), sizes.Several()
	if len(values) != len(seconds) {
		c.impossible = fmt.Sprintf("limit has %d values and window_size %d", len(values), len(seconds))
	}
	for n, v := range values[:min(len(values), len(seconds))] {
		number, ok := v.Int()
		size, fits := seconds[n].Int()
		if !ok || !fits || size > int64(quota.MaxWindow/quota.Second) {
			c.impossible = "limit and window_size must be whole numbers, and a window at most 366 days"
			size = 1
		}
		c.limits = append(c.limits, limit{
			at: v, what: fmt.Sprintf("limit %s in window_size %s", v.Short(), seconds[n].Short()),
			limit: importer.Limit{Quota: number, Window: quota.Span(size) * quota.Second},
		})
	}
	// Choose the algorithm.
	kind := c.config.Get("window_type")
	penalty := c.config.Get("disable_penalty")
	if kind.Or("sliding") == "fixed" {
		c.policy.Algorithm, c.policy.Align = "fixed_window", "utc"
	} else {
		c.policy.Algorithm = "sliding_window_counter"
		if !penalty.Is() {
			c.addRemark("Kong counts refused requests too (disable_penalty is not true), so that a caller which " +
				"goes on stays out; Weir never counts them")
		}
	}
	if len(c.limits) > 1 {
		c.addRemark("a request that one limit refuses counts in Kong's other windows, in Weir in none")
	}
}

func (c *conversion) addRemark(text string) { c.remarks = append(c.remarks, text) }

// readIdentifier chooses the partition: the caller whose requests Kong counts. If Kong cannot find
// the caller, it takes the address.
func (c *conversion) readIdentifier() {
	by := c.config.Get("limit_by", "identifier").Or("consumer")
	switch by {
	case "ip":
		c.policy.Partition = []string{"client_ip"}
	case "consumer", "credential":
		c.policy.Partition = []string{"consumer"}
		if len(c.r.b.Set.Identity.Consumer) == 1 { // There are no consumers, only addresses.
			c.policy.Partition = []string{"client_ip"}
		}
		if note := c.r.unreadPlugins(); note != "" {
			c.addRemark(note)
		}
	case "service":
		if c.of.service+c.of.route == "" && len(c.r.services) > 1 {
			c.impossible = "Kong has a counter for each service here; add the plugin to each of the services instead"
		}
	case "header":
		name := c.config.Get("header_name").Text()
		c.policy.Partition = []string{"header:" + strings.ToLower(name)}
	case "path":
		c.byPath()
	default:
		c.impossible = "Weir has no partition by " + by
	}
}

// byPath counts the requests for one path. Kong counts other requests by address.
func (c *conversion) byPath() {
	c.policy.Match.Paths = []string{c.config.Get("path").Or("/")}
	c.addRemark("Kong counts requests to other paths by address; Weir leaves them out")
}

// readStorage chooses the mode by the scope of Kong's counters, and the behaviour without their
// store.
func (c *conversion) readStorage() {
	c.policy.Mode = "strict"
	apart := c.of.name == "rate-limiting-advanced" && c.config.Get("sync_rate").Text() == "-1"
	if apart || c.config.Get("policy", "strategy").Or("local") == "local" {
		c.policy.Mode = "local"
		return
	}
	c.policy.OnFailure = []string{"allow"}
	if t := c.config.Get("fault_tolerant"); t.Exists() && !t.Is() {
		c.policy.OnFailure = []string{"deny"}
	}
}

// readAnswer reads the response to a refused client.
func (c *conversion) readAnswer() {
	if status, ok := c.config.Get("error_code").Int(); ok && status != 429 {
		c.policy.Response.Status = status
	}
	message := c.config.Get("error_message").Text()
	if message != "" && message != "API rate limit exceeded" {
		// Braces are escaped, so that no word in them is a field.
		text, _ := json.Marshal(message) // A string always marshals.
		c.policy.Response.Body = `{"message":` + strings.ReplaceAll(string(text), "{", `\u007b`) + `}`
		c.policy.Response.ContentType = "application/json"
	}
}
