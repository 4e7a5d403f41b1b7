package api

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/rules/policies"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api/gen"
	"github.com/weir-proxy/weir/shared/policy"
)

const (
	defaultPage = 50
	maxPage     = 200
)

// readPage reads the size of a page, and the text of the token after which the page begins. A size
// above the maximum counts as the maximum.
func readPage(wanted gen.PageSize, token gen.PageToken) (size int, after string, err error) {
	size = defaultPage
	if wanted > 0 {
		size = min(int(wanted), maxPage)
	}
	raw, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return 0, "", errToken
	}
	return size, string(raw), nil
}

var errToken = badRequest("page_token must be a next_page_token from an earlier answer")

func pageToken(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// ListNodes lists the nodes that have polled lately.
func (s *server) ListNodes(ctx context.Context, r gen.ListNodesRequestObject) (gen.ListNodesResponseObject, error) {
	size, token, err := readPage(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	all, complete := s.config.Nodes.List(ctx)
	answer := gen.ListNodes200JSONResponse{Complete: complete, Nodes: []gen.Node{}, Refused: []gen.RefusedNode{}}
	s.addRefused(&answer, r.Params)
	active, _ := s.config.Policies.Active()
	answer.Current = active.State.Current
	if held, _, err := s.config.Enforcement.Held(); err == nil {
		answer.Enforcement = held.Revision
	}
	last := ""
	for _, one := range all {
		n := s.describeNode(one, active)
		is := standingOf(n, answer.Enforcement)
		is.count(&answer.Counts)
		if !matchesParams(r.Params, n, is) {
			continue
		}
		answer.Counts.Found++
		switch {
		case one.Key() <= token:
		case len(answer.Nodes) < size:
			last = one.Key()
			answer.Nodes = append(answer.Nodes, n)
		default: // There is another page.
			answer.Next = pageToken(last)
		}
	}
	if answer.Counts.Found == 0 {
		return answer, knowZone(r.Params.Zone, all)
	}
	return answer, nil
}

// mostRefused bounds how many refused addresses one answer lists.
const mostRefused = 100

// addRefused lists on the first page the addresses whose calls as a node are refused.
func (s *server) addRefused(to *gen.ListNodes200JSONResponse, asked gen.ListNodesParams) {
	now := s.config.Now()
	for _, one := range s.config.Nodes.Refusals() {
		if one.Active(now) {
			to.Counts.Refused++
		}
		if asked.PageToken == "" && len(to.Refused) < mostRefused && (containsFold(one.Node, asked.Search) ||
			containsFold(one.Address, asked.Search)) {
			to.Refused = append(to.Refused, gen.RefusedNode{
				Address: one.Address, Node: one.Node, Reason: one.Reason, Calls: one.Calls,
				Since: one.First.UTC().Truncate(time.Millisecond), Seen: one.Last.UTC().Truncate(time.Millisecond),
				Active: one.Active(now),
			})
		}
	}
}

// knowZone refuses the name of a zone that no node has.
func knowZone(zone string, all []nodes.Node) error {
	var zones []string
	for _, one := range all {
		zones = append(zones, one.Zone)
	}
	if zone == "" || slices.Contains(zones, zone) {
		return nil
	}
	return noName("zone", zone, "weir get nodes shows the zones of all nodes", zones)
}

// standing has the states of a node by which operators search.
type standing struct{ active, behind, lacksOrders, fallen bool }

// standingOf judges a node by the newest revision of the orders.
func standingOf(n gen.Node, enforcement uint64) standing {
	lacks := n.Active && n.Enforcement < enforcement
	return standing{
		active: n.Active, lacksOrders: lacks,
		behind: n.Active && (n.Applied != n.Wanted || n.Lost) || lacks,
		fallen: n.Active && n.State != "" && n.State != policy.StepGround.String(),
	}
}

func (is standing) count(c *gen.NodeCounts) {
	for _, one := range []struct {
		is bool
		n  *int
	}{{is.active, &c.Active}, {!is.active, &c.Away}, {is.behind, &c.Behind}, {is.lacksOrders, &c.LackOrders},
		{is.fallen, &c.Fallen}} {
		if one.is {
			*one.n++
		}
	}
}

// matchesParams reports whether a node matches the parameters of a list.
func matchesParams(p gen.ListNodesParams, n gen.Node, is standing) bool {
	return (!p.Behind || is.behind) && (!p.Fallen || is.fallen) && (!p.Away || !is.active) &&
		(p.Zone == "" || p.Zone == n.Zone) && (containsFold(n.ID, p.Search) || containsFold(n.Zone, p.Search))
}

// containsFold reports whether a name has a part, in capitals or not.
func containsFold(name, part string) bool {
	return strings.Contains(strings.ToLower(name), strings.ToLower(part))
}

func (s *server) describeNode(n nodes.Node, active policies.Active) gen.Node {
	var wanted uint64
	lost := false
	if c := active.For(n.ID); c != nil {
		wanted = c.Version.Number
		lost = n.Applied == wanted && !s.config.Hub.Has(&c.Version, n.Applied, n.Mark)
	}
	seen := n.Seen.UTC().Truncate(time.Millisecond)
	return gen.Node{
		ID: n.ID, Boot: n.Boot, Applied: n.Applied, Wanted: wanted, Lost: lost, Enforcement: n.Enforcement,
		Refused: n.Refused, Reason: n.Reason, Filter: n.Filter, State: n.State, Steps: n.Steps,
		MoreSteps: n.MoreSteps, Zone: n.Zone, Seen: seen, Active: s.config.Now().Sub(seen) < nodes.Counted,
	}
}
