package policies

import (
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// commitText is where a cost is found that is known later, like commit status 401: 1, rest: 0,
// missing: reserved.
func commitText(c policy.Commit) string {
	text, missing := "", "reserved"
	switch c.By {
	case policy.CommitHeader:
		text = "header " + c.Name
	case policy.CommitTrailer:
		text = "trailer " + c.Name
	case policy.CommitDuration:
		text = "duration " + policy.FormatSpan(c.Unit)
	case policy.CommitMetadata:
		text = "metadata " + c.Name
	case policy.CommitStatus, policy.CommitGRPCStatus:
		var all []string
		for _, one := range c.Statuses {
			all = append(all, statusText(one)+": "+strconv.FormatInt(one.Cost, 10))
		}
		text = "status " + strings.Join(all, ", ")
		if c.By == policy.CommitGRPCStatus {
			text = "grpc_" + text
		}
	}
	if c.Missing >= 0 {
		missing = strconv.FormatInt(c.Missing, 10)
	}
	return "commit " + text + ", missing: " + missing
}

// statusText is how the language names the statuses.
func statusText(s policy.StatusCost) string {
	switch s.Last - s.First {
	case 0:
		return strconv.Itoa(int(s.First))
	case 99:
		return strconv.Itoa(int(s.First)/100) + "xx"
	}
	return "rest"
}
