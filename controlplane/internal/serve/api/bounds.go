package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/labstack/echo/v4"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
	"github.com/weir-proxy/weir/controlplane/internal/ground/errs"
	"github.com/weir-proxy/weir/controlplane/internal/observe/metrics"
)

const (
	// maxKeys bounds how many callers have a bucket of their own.
	maxKeys = 10_000
	// failureRate and failureBurst bound the calls a second without a valid token from one address.
	// Further calls are refused with 429, and are not logged.
	failureRate, failureBurst = 10, 100
	// newNodeRate and newNodeBurst bound the unknown nodes that a source may name. Until a node is
	// forgotten, a source can name fewer nodes than the stores hold. So invented names push no
	// other node out.
	newNodeRate, newNodeBurst = 10, 2000
	// leasesWaiting bounds how many lease requests of one source wait for their turn at the store,
	// for at most leasePatience.
	leasesWaiting = 512
	leasePatience = 25 * time.Millisecond
	// readersWaiting bounds how many readers of one source wait for their turn.
	readersWaiting = 1024
)

// readersAtOnce bounds how many readers the control plane computes for at once. Half of the
// processors always stay free for requests of nodes.
func readersAtOnce() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// leasesAtOnce bounds how many lease requests are with the store: enough to keep all of its
// connections busy, and so few that they are answered within a few round trips, because calls do
// not take turns within the store.
func leasesAtOnce() int { return max(64, 16*runtime.GOMAXPROCS(0)) }

// openShare divides a token's rate. A key that asks for its remaining quota gets a tenth of it, and
// so does an address whose callers show no key in use.
const openShare = 10

// bounds hold the limits on callers' requests.
type bounds struct {
	tokens, open, keys, nodes, failures, newNodes *access.Rates
	// known holds the keys in use. Strangers do not hold up a caller with such a key.
	known           *access.Keys
	leases, readers *access.Turns
}

func newBounds(config Config) (*bounds, error) {
	b := &bounds{
		known:   access.NewKeys(maxKeys),
		leases:  access.NewTurns(leasesAtOnce(), leasesWaiting),
		readers: access.NewTurns(readersAtOnce(), readersWaiting),
	}
	open := (config.TokenRate + openShare - 1) / openShare
	for _, t := range []struct {
		table       **access.Rates
		rate, burst int64
	}{
		{&b.tokens, config.TokenRate, 2 * config.TokenRate},
		{&b.open, open, 2 * open}, {&b.keys, open, 2 * open}, {&b.nodes, config.NodeRate, 2 * config.NodeRate},
		{&b.failures, failureRate, failureBurst}, {&b.newNodes, newNodeRate, newNodeBurst},
	} {
		if t.rate == 0 {
			continue
		}
		var err error
		*t.table, err = access.NewRates(t.rate, t.burst, maxKeys, config.Wall)
		if err != nil {
			return nil, err
		}
	}
	return b, nil
}

func tooMany(wait time.Duration, format string, args ...any) error {
	return &failure{code: errs.TooManyRequests, wait: max(wait, time.Second),
		detail: fmt.Sprintf(format, args...) + "; the Retry-After header says when to try again"}
}

// sourceOf identifies the sender of a request by facts that a caller cannot invent: the name of the
// token, the network address, and the subject of the certificate, if any.
func (s *server) sourceOf(c echo.Context, token string) string {
	from := token + "\x00" + s.originOf(c.Request())
	if t := c.Request().TLS; t != nil && len(t.PeerCertificates) > 0 {
		from += "\x00" + t.PeerCertificates[0].Subject.String()
	}
	return from
}

// authorize finds the caller's token, charges the request to it, and reports whether it has the
// role. A caller with a valid token is served whatever others at its address do.
func (s *server) authorize(c echo.Context, op *operation) (auth.Token, error) {
	token, err := s.tokenOf(c)
	if explainedAuth(err) {
		return token, err
	}
	if err != nil {
		s.noteNode(c, op, refusedFor(token, err))
		return token, s.refuseToken(c, token, err)
	}
	if err := s.welcomeCaller(c, op); err != nil {
		return token, err
	}
	if err := s.admitRequest(c, op, token); err != nil {
		return token, err
	}
	if !token.Role.May(op.role) {
		s.noteNode(c, op, fmt.Sprintf("the token %s has the role %s, and not %s", token.Name, token.Role, op.role))
		s.noteRefused(c, token, fmt.Sprintf("it needs the role %s", op.role))
		return token, &failure{code: errs.Forbidden,
			detail: fmt.Sprintf("this needs the role %s; the token %s has the role %s", op.role, token.Name,
				token.Role)}
	}
	return token, nil
}

// welcomeCaller marks the connection: its caller has a valid token. It refuses people if they have
// half of the connections already: the other half is for nodes.
func (s *server) welcomeCaller(c echo.Context, op *operation) error {
	ctx := c.Request().Context()
	if op != nil && op.forNodes() {
		access.MarkKnown(ctx)
		return nil
	}
	if access.MarkPerson(ctx) {
		return nil
	}
	s.config.Metrics.Throttled(metrics.BoundReaders)
	c.Response().Header().Set(echo.HeaderConnection, "close")
	return tooMany(0, "the connections of people have reached their maximum, half of --max-connections")
}

// errScheme: there is no token to look at.
var errScheme = errors.New("it shows no token: there is no Authorization header of the scheme Bearer")

// admitRequest charges a request of people to its token, and a request of a node to its source.
func (s *server) admitRequest(c echo.Context, op *operation, token auth.Token) error {
	table := s.bounds.tokens
	key := token.Name
	bound := metrics.BoundToken
	if op.forNodes() {
		table = s.bounds.nodes
		key = s.sourceOf(c, token.Name)
		bound = metrics.BoundNode
	}
	wait, ok := table.Take(key)
	if !ok {
		s.config.Metrics.Throttled(bound)
		return tooMany(wait, "the token %s makes more requests than it may", token.Name)
	}
	return nil
}

// originOf returns the address that a request comes from: the other end of the connection. If that
// is a trusted proxy, it returns the last address in x-forwarded-for that is not a proxy.
func (s *server) originOf(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !s.isProxy(peer.Addr()) {
		return access.Network(r.RemoteAddr)
	}
	from := peer.Addr()
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for _, hop := range slices.Backward(hops) {
		address, err := netip.ParseAddr(strings.TrimSpace(hop))
		if err != nil {
			break
		}
		if from = address; !s.isProxy(from) {
			break
		}
	}
	return access.Network(netip.AddrPortFrom(from, 0).String())
}

func (s *server) isProxy(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return slices.ContainsFunc(s.config.Proxies, func(p netip.Prefix) bool { return p.Contains(a) })
}

// admitUsage charges a question about the remaining quota to each of its keys, and to its address
// unless a key is in use. A stranger who invents keys does not hold up a caller with a known key.
func (s *server) admitUsage(from string, keys []foundIn) error {
	refuse := func(wait time.Duration, what string) error {
		s.config.Metrics.Throttled(metrics.BoundAddress)
		return tooMany(wait, "too many requests %s", what)
	}
	known := false
	for _, one := range keys {
		key := one.Key.String()
		if wait, ok := s.bounds.keys.Take(key); !ok {
			return refuse(wait, "read the remaining quota of this key")
		}
		known = known || s.bounds.known.Has(key)
	}
	if known {
		return nil
	}
	if wait, ok := s.bounds.open.Take(from); !ok {
		return refuse(wait, "without a token came from this address")
	}
	return nil
}

// UnknownToken is the detail of a refusal where the token is none of the control plane's.
const UnknownToken = "send a token that this control plane knows: Authorization: Bearer TOKEN"

func (s *server) refuseToken(c echo.Context, token auth.Token, cause error) error {
	detail, why := UnknownToken, metrics.AuthUnknown
	if errors.Is(cause, auth.ErrExpired) {
		detail, why = "the token "+token.Name+" has expired: weir token new makes a new token", metrics.AuthExpired
	}
	if errors.Is(cause, auth.ErrSession) {
		detail = "the session has ended: log in again"
	}
	s.config.Metrics.AuthFailure(why)
	c.Response().Header().Set(echo.HeaderConnection, "close")
	from := s.originOf(c.Request())
	if wait, ok := s.bounds.failures.Take(from); !ok {
		s.config.Metrics.Throttled(metrics.BoundAddress)
		return tooMany(wait, "too many requests without a valid token came from this address")
	}
	s.noteRefused(c, token, cause.Error())
	c.Response().Header().Set(echo.HeaderWWWAuthenticate, `Bearer realm="weir"`)
	return &failure{code: errs.Unauthorized, detail: detail}
}

// noteNode remembers that a call of a node was refused. A refused node is in no other list.
func (s *server) noteNode(c echo.Context, op *operation, reason string) {
	if op.forNodes() {
		s.config.Nodes.Refuse(s.originOf(c.Request()), c.QueryParam("node"), reason)
	}
}

// refusedFor says why a token was refused.
func refusedFor(token auth.Token, cause error) string {
	switch {
	case errors.Is(cause, auth.ErrExpired):
		return "the token " + token.Name + " has expired"
	case errors.Is(cause, errScheme):
		return "it shows no token"
	}
	return "its token is unknown"
}

// noteRefused logs that a caller was not allowed to make a change. The audit has only changes that
// happened.
func (s *server) noteRefused(c echo.Context, token auth.Token, reason string) {
	s.config.Log.Warn("a request was refused", "id", requestID(c), "method", c.Request().Method, "route", c.Path(),
		"token", token.Name,
		"role", token.Role, "address", s.originOf(c.Request()), "reason", reason)
}

// awaitTurn waits until a lease request of a node may go to the store. The caller must call done
// when the store has answered.
func (s *server) awaitTurn(c echo.Context, node string) (done func(), err error) {
	if done, ok := s.bounds.leases.EnterNow(); ok {
		return done, nil
	}
	ctx, cancel := context.WithTimeout(c.Request().Context(), leasePatience)
	defer cancel()
	done, err = s.bounds.leases.Enter(ctx, s.sourceOf(c, callerOf(ctx).name), node)
	switch {
	case errors.Is(err, access.ErrFull):
		s.config.Metrics.Throttled(metrics.BoundTurns)
		return nil, tooMany(0, "too many lease requests of this source wait already")
	case err != nil:
		s.config.Metrics.Throttled(metrics.BoundTurns)
		// Not 503: the store is there, and nodes ask for less rather than leave it alone.
		return nil, tooMany(0, "the store is busy with the requests of other callers")
	}
	return done, nil
}

// mayNote reports whether to note a node: a known node, or a new node that its source may still
// name.
func (s *server) mayNote(c echo.Context, id, boot string) bool {
	if s.config.Nodes.Knows(id, boot) {
		return true
	}
	if _, ok := s.bounds.newNodes.Take(s.sourceOf(c, callerOf(c.Request().Context()).name)); ok {
		return true
	}
	s.config.Metrics.Throttled(metrics.BoundNewNodes)
	return false
}
