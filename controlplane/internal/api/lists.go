package api

import (
	"context"
	"encoding/base64"
	"net/http"
	"strconv"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/nodes"
)

const (
	defaultPage = 50
	maxPage     = 200
)

// page reads page_size and page_token. A size above the maximum is taken for the maximum.
func page(c echo.Context) (size int, token string, err error) {
	size = defaultPage
	if text := c.QueryParam("page_size"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return 0, "", badRequest("page_size must be a whole number from 0 to %d", maxPage)
		}
		if n > 0 {
			size = min(n, maxPage)
		}
	}
	raw, err := base64.RawURLEncoding.DecodeString(c.QueryParam("page_token"))
	if err != nil {
		return 0, "", errToken
	}
	return size, string(raw), nil
}

var errToken = badRequest("page_token must be a next_page_token from an earlier answer")

func pageToken(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// NodesAnswer is a page of nodes; Next leads to the following page and is empty on the last.
type NodesAnswer struct {
	// Current is the newest version on this replica, to compare each node's with.
	Current uint64 `json:"current_version"`
	// Complete is false while the store is away: then these are the nodes that this replica heard of.
	Complete bool         `json:"complete"`
	Nodes    []NodeAnswer `json:"nodes"`
	Next     string       `json:"next_page_token"`
}

// NodeAnswer is one node.
type NodeAnswer struct {
	nodes.Node
	// Active: it counts among those that share the buckets.
	Active bool `json:"active"`
}

func (s *server) listNodes(c echo.Context) error {
	size, token, err := page(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), askPatience)
	defer cancel()
	all, complete := s.Nodes.List(ctx)
	answer := NodesAnswer{Complete: complete, Nodes: []NodeAnswer{}}
	if current, _ := s.Policies.Current(); current != nil {
		answer.Current = current.Version.Number
	}
	for _, n := range all {
		if n.Key() <= token {
			continue
		}
		if len(answer.Nodes) == size {
			answer.Next = pageToken(answer.Nodes[size-1].Key())
			break
		}
		n.Seen = n.Seen.UTC().Truncate(time.Millisecond)
		answer.Nodes = append(answer.Nodes, NodeAnswer{n, s.Now().Sub(n.Seen) < nodes.Counted})
	}
	return c.JSON(http.StatusOK, answer)
}
