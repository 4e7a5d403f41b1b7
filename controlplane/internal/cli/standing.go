package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// printStanding prints the orders, bans, bypasses and penalties that decide about a caller before
// any limit. It comes first in each answer about a caller.
func printStanding(out io.Writer, all []api.StandingAnswer) {
	for i := range all {
		text, _ := standingText(&all[i])
		fmt.Fprintln(out, text)
	}
}

// printWaysOut prints the same as printStanding, with the command that ends each of them. The
// source is the place of the consumer in requests, if it was given to this command.
func printWaysOut(out io.Writer, all []api.StandingAnswer, source string) {
	for i := range all {
		text, ends := standingText(&all[i])
		if source != "" && strings.Contains(ends, " CONSUMER") {
			ends += " --source " + source
		}
		if ends != "" {
			text += "; to end it: " + ends
		}
		fmt.Fprintln(out, text)
	}
}

// isEnded reports whether a command has just ended a ban.
type isEnded func(is api.StandingAnswer) bool

// bansLeft returns the bans of a caller that stay after a command. The answer may come from another
// replica, which may still have the ban that the command has ended.
func bansLeft(all []api.StandingAnswer, ended isEnded) []api.StandingAnswer {
	return slices.DeleteFunc(all, func(is api.StandingAnswer) bool { return is.What != api.StandingBan || ended(is) })
}

// printBansLeft names the bans of a caller that stay after a command, and how each ends.
func (f serverFlags) printBansLeft(env *environment, caller url.Values, ended isEnded) error {
	cl, err := f.newClient()
	if err != nil {
		return err
	}
	all, known := cl.standingOf(caller)
	if !known { // The command itself is done.
		fmt.Fprintln(env.Err, "weir: the control plane cannot say now whether other bans of this caller stay: see "+
			"weir get bans")
	}
	bans := bansLeft(all, ended)
	if len(bans) > 0 {
		fmt.Fprintln(env.Out, "bans of this caller that stay:")
	}
	printWaysOut(env.Out, bans, caller.Get("source"))
	return nil
}

// standingOf returns the orders, bans, bypasses and penalties of a caller; false if the list is not
// complete.
func (cl *client) standingOf(caller url.Values) (all []api.StandingAnswer, known bool) {
	cl.warn = nil // The command has warned already.
	caller.Set("page_size", "1")
	got, err := cl.do(http.MethodGet, "/v1/decisions?"+caller.Encode(), nil, nil)
	var page api.DecisionsAnswer
	if err == nil {
		err = got.decode(&page)
	}
	return page.Standing, err == nil && page.Complete
}

func standingText(is *api.StandingAnswer) (text, ends string) {
	switch is.What {
	case api.StandingOff:
		text, ends = "limits are OFF for "+describeCoverage(is), liftOf(is)
	case api.StandingShadow:
		text, ends = "limits are in SHADOW, and refuse nothing, for "+describeCoverage(is), liftOf(is)
	case api.StandingBypass:
		text, ends = "NEVER LIMITED, by a bypass", "weir consumers bypass CONSUMER --off"
	case api.StandingBan:
		text, ends = "BANNED", "weir consumers unban CONSUMER"
		switch {
		case is.Policy != "":
			text, ends = "BANNED by its key of policy "+is.Policy, "weir keys unban --key "+is.Key
		case is.Reason == api.BannedBySet:
			ends = "change the policy set"
		}
	case api.StandingPenalty:
		text, ends = "under a PENALTY of policy "+is.Policy, "weir penalties pardon --key "+is.Key+" --reason TEXT"
		if is.Shadow {
			text = "under a penalty in shadow, which refuses nothing, of policy " + is.Policy
		}
	default: // A newer control plane knows more.
		text = string(is.What)
	}
	if is.Lifted {
		text = "LIFTED while limits are off: " + strings.Replace(strings.Replace(text, "BANNED", "banned", 1),
			"PENALTY", "penalty", 1)
	}
	if is.Version > 0 {
		text += fmt.Sprintf(" at Envoys of version %d alone", is.Version)
	}
	if is.Until != nil {
		text += " until " + is.Until.Format(time.RFC3339)
	}
	if is.Level > 0 {
		text += fmt.Sprintf(", level %d", is.Level)
	}
	if is.Reason != "" {
		text += ", because: " + printable(is.Reason)
	}
	if is.By != "" && is.Since != nil {
		text += " (" + printable(is.By) + ", " + is.Since.Format(time.RFC3339) + ")"
	}
	return text, ends
}

// liftOf returns the command that takes an order back.
func liftOf(is *api.StandingAnswer) string {
	command := "weir enforcement lift"
	if is.Policy != "" {
		command += " --policy " + is.Policy
	}
	if is.Tier != "" {
		command += " --tier " + is.Tier
	}
	return command
}

// describeCoverage returns in words the policies, tiers and keys of an order.
func describeCoverage(is *api.StandingAnswer) string {
	text := "everything"
	switch {
	case is.Policy != "" && is.Tier != "":
		text = "policy " + is.Policy + ", tier " + is.Tier
	case is.Policy != "":
		text = "policy " + is.Policy
	case is.Tier != "":
		text = "tier " + is.Tier
	}
	if is.Percent > 0 {
		text += fmt.Sprintf(", %d %% of the keys", is.Percent)
	}
	return text
}
