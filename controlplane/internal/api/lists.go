package api

import (
	"context"
	"encoding/base64"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/api/gen"
	"github.com/weir-proxy/weir/controlplane/internal/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/policies"
)

const (
	defaultPage = 50
	maxPage     = 200
)

// page reads how many to list, and after which. A size above the maximum is taken for the maximum.
func page(wanted gen.PageSize, token gen.PageToken) (size int, after string, err error) {
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
	size, token, err := page(r.Params.PageSize, r.Params.PageToken)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	all, complete := s.config.Nodes.List(ctx)
	answer := gen.ListNodes200JSONResponse{Complete: complete, Nodes: []gen.Node{}}
	active, _ := s.config.Policies.Active()
	answer.Current = active.State.Current
	if held, _, err := s.config.Enforcement.Held(); err == nil {
		answer.Enforcement = held.Revision
	}
	last := ""
	for _, n := range all {
		if n.Key() <= token {
			continue
		}
		if len(answer.Nodes) == size {
			answer.Next = pageToken(last)
			break
		}
		last = n.Key()
		answer.Nodes = append(answer.Nodes, s.node(n, active))
	}
	return answer, nil
}

func (s *server) node(n nodes.Node, active policies.Active) gen.Node {
	var wanted uint64
	lost := false
	if c := active.For(n.ID); c != nil {
		wanted = c.Version.Number
		lost = n.Applied == wanted && !c.Version.Is(n.Applied, n.Mark)
	}
	seen := n.Seen.UTC().Truncate(time.Millisecond)
	return gen.Node{
		ID: n.ID, Boot: n.Boot, Applied: n.Applied, Wanted: wanted, Lost: lost, Enforcement: n.Enforcement,
		Refused: n.Refused, Reason: n.Reason, Filter: n.Filter, State: n.State, Steps: n.Steps,
		MoreSteps: n.MoreSteps, Zone: n.Zone, Seen: seen, Active: s.config.Now().Sub(seen) < nodes.Counted,
	}
}
