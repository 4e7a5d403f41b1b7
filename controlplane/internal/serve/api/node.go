package api

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/fleet/nodes"
	"github.com/weir-proxy/weir/controlplane/internal/fleet/push"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
	"github.com/weir-proxy/weir/shared/wire"
)

const (
	maxWait         = 30 * time.Second
	maxLeaseRequest = 16 << 10
	maxQuestion     = 2 << 10
	touchPatience   = 100 * time.Millisecond
	askPatience     = time.Second
	// sendTime is the time in which a client must receive an answer after a long poll.
	sendTime = 10 * time.Second
)

// VersionHeader carries the version of the snapshot in the body.
const VersionHeader = "Weir-Version"

// MarkHeader carries its mark: policies.Version.Mark.
const MarkHeader = "Weir-Mark"

// NodesHeader carries the number of nodes and doors that share the buckets.
const NodesHeader = "Weir-Nodes"

// snapshot answers the long poll. As soon as the newest snapshot is not the node's snapshot, it
// sends it. If the node names the revisions that it has, it also sends changes of consumers and of
// penalties, and the orders in force. After wait it answers 204.
func (s *server) snapshot(c echo.Context) error {
	protocol, err := protocolParam(c)
	if err != nil {
		return err
	}
	seen, err := s.readSeen(c)
	if err != nil {
		return err
	}
	wait, err := waitParam(c)
	if err != nil {
		return err
	}
	if err := s.touchNode(c); err != nil {
		return err
	}
	s.config.Policies.Taken(seen.Version)
	// The server's time-outs are for ordinary requests.
	control, deadline := http.NewResponseController(c.Response()), s.config.Wall().Add(wait+sendTime)
	if err := errors.Join(control.SetWriteDeadline(deadline), control.SetReadDeadline(deadline)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), wait)
	defer cancel()
	defer context.AfterFunc(s.config.Stopping, cancel)()
	news, ok, err := s.config.Hub.Wait(ctx, seen)
	if err != nil {
		return err
	}
	header := c.Response().Header()
	header.Set("Cache-Control", "no-store")
	header.Set(NodesHeader, strconv.FormatInt(s.config.Leases.Nodes(c.Request().Context()), 10))
	if s.config.Stopping.Err() != nil {
		header.Set("Connection", "close")
	}
	if !ok {
		return c.NoContent(http.StatusNoContent)
	}
	if news.Version > 0 {
		header.Set(VersionHeader, strconv.FormatUint(news.Version, 10))
		header.Set(MarkHeader, news.Mark)
	}
	return answerNode(c, news.Bytes, protocol)
}

// answerNode sends a message to a node of a protocol.
func answerNode(c echo.Context, message []byte, protocol uint64) error {
	return c.Blob(http.StatusOK, wire.ContentType, wire.Answer(message, protocol))
}

// protocolParam reads the protocol of a polling node, and refuses a protocol that the control plane
// does not speak. A poll by hand that names no protocol gets the first.
func protocolParam(c echo.Context) (uint64, error) {
	number, err := uintParam(c, "protocol")
	if err != nil {
		return 0, err
	}
	number = max(number, 1)
	if err := wire.CheckProtocol(number); err != nil {
		return 0, errUnreadable("poll", err)
	}
	return number, nil
}

// readSeen reads the versions and revisions that a polling node has.
func (s *server) readSeen(c echo.Context) (seen push.Seen, err error) {
	if seen.Version, err = uintParam(c, "after"); err != nil {
		return seen, err
	}
	seen.Mark = c.QueryParam("mark")
	seen.Node = nodes.Node{ID: c.QueryParam("node")}.Clean().ID // As it is listed.
	seen.WantsConsumers = c.QueryParams().Has("consumers")
	if seen.Consumers, err = uintParam(c, "consumers"); err != nil {
		return seen, err
	}
	seen.WantsPenalties = c.QueryParams().Has("penalties")
	if seen.Penalties, err = uintParam(c, "penalties"); err != nil {
		return seen, err
	}
	seen.WantsEnforcement = c.QueryParams().Has("enforcement")
	if seen.Enforcement, err = uintParam(c, "enforcement"); err != nil {
		return seen, err
	}
	if c.QueryParams().Has("nodes") {
		known, err := uintParam(c, "nodes")
		if err != nil {
			return seen, err
		}
		seen.Outdated = func(ctx context.Context) bool { return uint64(s.config.Leases.Nodes(ctx)) != known }
	}
	return seen, nil
}

// touchNode stores the state that the polling node reports. The node is served even if the store is
// away. If the store is only slow, as when a thousand nodes acknowledge at once, the state is
// stored later.
func (s *server) touchNode(c echo.Context) error {
	n := nodes.Node{
		ID: c.QueryParam("node"), Boot: c.QueryParam("boot"), Reason: c.QueryParam("reason"),
		Filter: c.QueryParam("filter"),
		Zone:   c.QueryParam("zone"), Mark: c.QueryParam("applied_mark"),
	}
	if n.ID == "" {
		return badRequest("node must name the node")
	}
	var err error
	if n.Applied, err = uintParam(c, "applied"); err != nil {
		return err
	}
	if n.Enforcement, err = uintParam(c, "enforcement"); err != nil {
		return err
	}
	if n.Refused, err = uintParam(c, "refused"); err != nil {
		return err
	}
	if !s.mayNote(c, n.ID, n.Boot) {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), touchPatience)
	defer cancel()
	if err := s.config.Nodes.Touch(ctx, n); err != nil {
		s.config.Log.Debug("a node could not be noted in time", "id", requestID(c), "error", err.Error())
		go s.config.Nodes.CatchUp(s.config.Stopping)
	}
	return nil
}

func (s *server) leases(c echo.Context) error {
	body, err := s.readBody(c, maxLeaseRequest)
	if err != nil {
		return err
	}
	request, err := wire.DecodeLeaseRequest(body)
	if err != nil {
		return errUnreadable("lease request", err)
	}
	reply, err := s.grantInTurn(c, request)
	if err != nil {
		return err
	}
	s.config.Metrics.Items(countOutcomes(request, reply))
	return answerNode(c, wire.AppendLeaseReply(nil, reply), wire.ProtocolOf(body))
}

// grantInTurn grants a request when it is the node's turn. The turn ends before the answer is sent,
// because a slow node could delay it. It also ends when the store takes too long.
func (s *server) grantInTurn(c echo.Context, request wire.LeaseRequest) (wire.LeaseReply, error) {
	done, err := s.awaitTurn(c, request.Node)
	if err != nil {
		return wire.LeaseReply{}, err
	}
	done = sync.OnceFunc(done)
	defer done()
	return s.config.Leases.GrantOnce(c.Request().Context(), request, done)
}

func (s *server) askConsumers(c echo.Context) error {
	body, err := s.readBody(c, maxQuestion)
	if err != nil {
		return err
	}
	keys, err := wire.DecodeQuestion(body)
	if err != nil {
		return errUnreadable("question about consumers", err)
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), askPatience)
	defer cancel()
	answer, err := s.config.Consumers.Ask(ctx, keys)
	if err != nil {
		return storeFailure(err)
	}
	return answerNode(c, wire.AppendConsumers(nil, answer), wire.ProtocolOf(body))
}

func countOutcomes(request wire.LeaseRequest, reply wire.LeaseReply) (counts metrics.Outcomes) {
	for i, a := range reply.Items {
		switch asked := &request.Items[i]; {
		case a.State == wire.ItemUnknown:
			counts.Unknown++
		case a.State == wire.ItemUnavailable:
			counts.Unavailable++
		case a.Waiting < asked.Waiting:
			counts.Short++
		default:
			counts.Granted++
		}
	}
	return counts
}

func uintParam(c echo.Context, name string) (uint64, error) {
	text := c.QueryParam(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, badRequest("%s must be a whole number", name)
	}
	return n, nil
}

// waitParam reads how long to wait, at most maxWait.
func waitParam(c echo.Context) (time.Duration, error) {
	text := c.QueryParam("wait")
	if text == "" {
		return 0, nil
	}
	wait, err := time.ParseDuration(text)
	if err != nil || wait < 0 {
		return 0, badRequest("wait must be a length of time like 25s")
	}
	return min(wait, maxWait), nil
}
