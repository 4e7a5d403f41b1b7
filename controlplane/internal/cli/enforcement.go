package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/rules/enforcement"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

type enforcementCommand struct {
	Show showEnforcement `cmd:"" default:"withargs" help:"Print the orders beside the policy set."`
	Set  setEnforcement  `cmd:"" help:"Switch policies off, into shadow or on, whatever the policy set says. Every node obeys at once."`
	Lift liftEnforcement `cmd:"" help:"Take an order back, so that the policy set counts again."`
}

const enforcementPath = "/v1/enforcement"

// switchedOffFor is how long limits are out of force if no flag says for how long: a kill switch
// that is forgotten ends by itself.
const switchedOffFor = 4 * time.Hour

// enforcementTries is how often a change is tried again because another one was faster.
const enforcementTries = 5

type showEnforcement struct{ getFlags }

// Run prints the orders.
func (c *showEnforcement) Run(env *environment) error {
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	cl.warned[api.OrdersHeader] = true // The command prints them.
	got, err := cl.do(http.MethodGet, enforcementPath, nil, nil)
	if err != nil {
		return err
	}
	var now api.EnforcementAnswer
	if printed, err := got.read(env, c.Output, &now); printed || err != nil {
		return err
	}
	return printOrders(env.Out, now, "is")
}

// scopeFlags say which policies are meant.
type scopeFlags struct {
	Policy string `help:"Only this policy." placeholder:"NAME"`
	Tier   string `help:"Only callers of this tier." placeholder:"NAME"`
	DryRun bool   `help:"Check the order and print the orders that would be in force."`
}

func (f scopeFlags) matchesOrder(o enforcement.Order) bool {
	return o.Policy == f.Policy && o.Tier == f.Tier
}

type setEnforcement struct {
	serverFlags
	scopeFlags
	State   string `arg:"" enum:"off,shadow,enforce" help:"off: skip policies. shadow: decide and count, and refuse no request. enforce: also enforce policies in shadow or off."`
	Reason  string `required:"" help:"Why, in a few words. All who look at the orders see it." placeholder:"TEXT"`
	Percent int    `default:"100" help:"Only this share of the partition keys, the same ones on every node."`
	endFlags
	ForGood bool `xor:"end" help:"Until it is taken back. Without an end off and shadow last for four hours."`
	Replace bool `help:"Take back all other orders, whatever they are: also where the control plane does not know them, since the store is away."`
}

// Run gives the order in the place of one about the same.
func (c *setEnforcement) Run(env *environment) error {
	if c.Percent == 0 {
		return errors.New("--percent: must be 1 to 100")
	}
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	wanted := enforcement.Order{State: enforcement.State(c.State), Percent: c.Percent, Policy: c.Policy, Tier: c.Tier,
		Reason: c.Reason}
	if wanted.State != enforcement.Enforce && c.Until.IsZero() && c.For == 0 && !c.ForGood {
		c.For = length(switchedOffFor)
	}
	wanted.Expires, err = cl.endTime(c.endFlags)
	if err != nil {
		return err
	}
	give := func(orders []enforcement.Order) ([]enforcement.Order, error) {
		if c.Replace {
			orders = nil
		}
		orders = slices.DeleteFunc(orders, c.matchesOrder)
		if len(orders) >= enforcement.Most {
			return nil, fmt.Errorf("cannot give another order: %d are in force, the most that there may be; take one "+
				"back (weir enforcement show, then lift), or take back all others with --replace", len(orders))
		}
		return append(orders, wanted), nil
	}
	return cl.setOrders(env, c.DryRun, c.Replace, orderWritten, give)
}

type liftEnforcement struct {
	serverFlags
	scopeFlags
	All bool `help:"Take back all orders, whatever they are."`
}

// Run takes back the order about the same.
func (c *liftEnforcement) Run(env *environment) error {
	cl, err := c.newClient()
	if err != nil {
		return err
	}
	return cl.setOrders(env, c.DryRun, c.All, written{}, func(orders []enforcement.Order) ([]enforcement.Order, error) {
		if c.All {
			return []enforcement.Order{}, nil
		}
		left := slices.DeleteFunc(slices.Clone(orders), c.matchesOrder)
		if len(left) == len(orders) {
			return nil, fmt.Errorf("there is no order about %s; weir enforcement show lists the "+
				"orders, and --all takes "+
				"back everything",
				enforcement.Order{Policy: c.Policy, Tier: c.Tier}.Scope())
		}
		return left, nil
	})
}

// setOrders changes the orders, and prints the orders that are then in force.
func (cl *client) setOrders(
	env *environment, dryRun, blind bool, w written, edit func([]enforcement.Order) ([]enforcement.Order, error),
) error {
	cl.warned[api.OrdersHeader] = true // The command prints them.
	for try := 1; ; try++ {
		got, err := cl.tryOrder(dryRun, blind, w, edit)
		var refused *refusal
		switch {
		case err == nil:
			verb := "is"
			if dryRun {
				verb = "would be"
			}
			return printOrders(env.Out, got, verb)
		case !errors.As(err, &refused):
			return err
		case refused.Status == http.StatusPreconditionFailed && try < enforcementTries:
			continue
		case len(refused.Problems) > 0:
			return refused.Problems
		case refused.Status == http.StatusServiceUnavailable && !blind:
			return fmt.Errorf("%w; --replace (with set) or --all (with lift) work without", err)
		}
		return err
	}
}

func (cl *client) tryOrder(
	dryRun, blind bool, w written, edit func([]enforcement.Order) ([]enforcement.Order, error),
) (now api.EnforcementAnswer, err error) {
	// Get the orders, and remember their ETag.
	header := map[string]string{"If-Match": "*", "Content-Type": "application/json"}
	if !blind {
		got, err := cl.do(http.MethodGet, enforcementPath, nil, nil)
		if err != nil {
			return now, err
		}
		if err := json.Unmarshal(got.body, &now); err != nil {
			return now, fmt.Errorf("the answer to GET %s cannot be read: %w", enforcementPath, err)
		}
		header["If-Match"] = got.header.Get("ETag")
	}
	// Change them, and put them.
	now.Orders, err = edit(now.Orders)
	if err != nil {
		return now, err
	}
	body, err := json.Marshal(map[string]any{"orders": now.Orders})
	if err != nil {
		return now, err
	}
	path := enforcementPath
	if dryRun {
		path += "?dry_run=true"
	}
	got, err := cl.do(http.MethodPut, path, header, body)
	if err != nil {
		return now, w.inWords(err, len(now.Orders))
	}
	now = api.EnforcementAnswer{}
	return now, json.Unmarshal(got.body, &now)
}

// printOrders prints the orders in force, in sentences.
func printOrders(out io.Writer, now api.EnforcementAnswer, verb string) error {
	var b strings.Builder
	if len(now.Orders) == 0 {
		fmt.Fprintf(&b, "Nothing %s ordered: the policy set counts as it is written.\n", verb)
	}
	for _, o := range now.Orders {
		fmt.Fprintf(&b, "Enforcement %s %s for %s", verb, map[enforcement.State]string{
			enforcement.Enforce: "ON", enforcement.Shadow: "in SHADOW", enforcement.Off: "OFF"}[o.State], o.Scope())
		if o.Percent < 100 {
			fmt.Fprintf(&b, ", %d %% of the keys", o.Percent)
		}
		if o.Expires != nil {
			fmt.Fprintf(&b, " until %s", o.Expires.Format(time.RFC3339))
		}
		fmt.Fprintf(&b, ", because: %s (%s, %s)\n", printable(o.Reason), printable(o.By), o.Since.Format(time.RFC3339))
		if o.State == enforcement.Off && o.Percent == 100 && o.Policy == "" && o.Tier == "" {
			b.WriteString("All bans are lifted meanwhile.\n")
		}
	}
	if len(now.Orders) > 1 {
		b.WriteString("Of several that are about a request the most specific counts: policy and tier, policy, tier, " +
			"everything.\n")
	}
	if !now.Durable {
		b.WriteString("The store is away: the control plane holds this in memory, tells the nodes that poll it, and " +
			"stores it when it can.\n")
	}
	_, err := io.WriteString(out, b.String())
	return err
}
