package policies

import (
	"strconv"
	"strings"

	"github.com/weir-proxy/weir/shared/policy"
)

// Settles describes how a policy charges requests whose cost is known only after they are answered.
type Settles struct {
	// Reserve is the number of tokens taken before. Commit is the place of the cost in the
	// response. Missing is the cost if a complete response does not name it.
	Reserve string `json:"reserve"`
	Commit  string `json:"commit"`
	Missing string `json:"missing"`
	// Unfinished is the cost of a request whose response is not complete.
	Unfinished string `json:"unfinished"`
}

// SettlesOf describes how costs are settled; nil if they are known before.
func SettlesOf(cost policy.Cost, commit policy.Commit) *Settles {
	if commit.By == policy.CommitNever {
		return nil
	}
	s := Settles{Reserve: costText(cost, policy.Commit{}), Commit: commitText(commit), Missing: "reserved"}
	if commit.Missing >= 0 {
		s.Missing = strconv.FormatInt(commit.Missing, 10)
	}
	if commit.Least > 0 {
		s.Reserve += ", at least " + strconv.FormatInt(commit.Least, 10)
	}
	switch u := commit.IfUnfinished(cost.Source.Kind); u {
	case policy.UnfinishedNumber:
		s.Unfinished = strconv.FormatInt(commit.UnfinishedCost, 10)
	case policy.UnfinishedMax:
		s.Unfinished = "max " + strconv.FormatInt(cost.Max, 10)
	case policy.UnfinishedMissing:
		s.Unfinished = "reserved, at least " + strconv.FormatInt(cost.Invalid, 10)
	default:
		s.Unfinished = u.String()
	}
	return &s
}

func (s Settles) String() string {
	return "reserve " + s.Reserve + ", commit " + s.Commit + ", missing: " + s.Missing + ", unfinished: " + s.Unfinished
}

// commitText returns the place of a cost that is known later, like status 401: 1, rest: 0.
func commitText(c policy.Commit) string {
	text := ""
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
	return text
}

// statusText returns the statuses in the words of the policy language.
func statusText(s policy.StatusCost) string {
	switch s.Last - s.First {
	case 0:
		return strconv.Itoa(int(s.First))
	case 99:
		return strconv.Itoa(int(s.First)/100) + "xx"
	}
	return "rest"
}
