package app

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access"
	"github.com/weir-proxy/weir/controlplane/internal/access/certs"
	"github.com/weir-proxy/weir/controlplane/internal/app/settings"
	"github.com/weir-proxy/weir/controlplane/internal/serve/api"
)

// Time-outs of the server. A client that is slower is cut off; the long poll extends its own. Tests
// shorten these two.
var (
	headerTimeout = 5 * time.Second // the TLS handshake included
	readTimeout   = 15 * time.Second
)

const (
	writeTimeout = 30 * time.Second
	idleTimeout  = 90 * time.Second // longer than proxies keep theirs, so that they close first
	maxHeader    = 32 << 10
	// finishTime is the time that requests in flight have at shutdown.
	finishTime = 10 * time.Second
	// lookTime is the longest time that the first look at the store delays the start.
	lookTime = time.Second
	// profileTime is the longest time for a profile.
	profileTime = 2 * time.Minute
	// sendingTime is the longest time to send the last spans.
	sendingTime = 2 * time.Second
)

// The names of the listeners in the log.
const (
	forAll    = "all"
	forPeople = "people"
	forNodes  = "nodes"
	forDebug  = "debug"
)

// listener is an address with the services on it.
type listener interface {
	// Name returns the name in the log.
	Name() string
	TLS() bool
	Addr() net.Addr
	// Serve serves until the listener is closed.
	Serve() error
	// Leave makes callers look for another replica. All requests are still served.
	Leave()
	// Shutdown lets open requests finish until ctx ends.
	Shutdown(ctx context.Context) error
	// Close ends all requests.
	Close() error
}

// webListener is a listener that speaks HTTP.
type webListener struct {
	name   string
	tls    bool
	socket net.Listener
	server *http.Server
}

// openListeners makes the listeners. The listener for people is the first.
func (a *App) openListeners(s settings.Settings, config api.Config) error {
	others := func() error {
		return errors.Join(a.listenForCalls(s, config), a.listenForQuotas(s, config),
			a.listenForProfiles(s.Listeners.Debug))
	}
	if s.Listeners.Node == "" {
		handler, err := api.New(config)
		return errors.Join(err, a.listen(forAll, s.Listen, handler, s, nil), others())
	}
	people, nodes, err := api.Apart(config)
	return errors.Join(err,
		a.listen(forPeople, s.Listen, people, s, nil),
		a.listen(forNodes, s.Listeners.Node, nodes, s, s.Listeners.NodeClients),
		others())
}

func (a *App) listen(name, address string, handler http.Handler, s settings.Settings, clients *certs.Pool) error {
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	bounded := access.NewListener(socket, s.Limits.Connections, time.Now, func(address string) {
		a.log.Warn("the maximum of connections is reached: "+
			"each new connection closes the oldest connection without a valid token, or waits",
			"for", name, "bound", s.Limits.Connections, "most_from", address)
	})
	server := &http.Server{
		Handler:           clients.Guard(a.closeWhileLeaving(handler)),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout,
		IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog:    slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
		ConnContext: access.ConnContext, ConnState: access.ConnState,
	}
	if s.Listeners.TLS != nil {
		server.TLSConfig = certs.Server(certs.HTTP1, s.Listeners.TLS, clients, a.log)
		// HTTP/2 would put hundreds of requests on one connection, and the bounds are on
		// connections.
		server.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	}
	a.listeners = append(a.listeners, webListener{name, s.Listeners.TLS != nil, bounded, server})
	a.metrics.Connections(name, bounded.Counts)
	return nil
}

// closeWhileLeaving makes every answer close its connection while the control plane drains. Idle
// connections stay open, since a caller may be about to use them.
func (a *App) closeWhileLeaving(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.leaving.Err() != nil {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, r)
	})
}

// listenForProfiles opens the listener for profiles, unless the address is empty.
func (a *App) listenForProfiles(address string) error {
	if address == "" {
		return nil
	}
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: profileTime,
	}
	a.listeners = append(a.listeners, webListener{forDebug, false, socket, server})
	return nil
}

// Name implements listener.
func (l webListener) Name() string { return l.name }

// TLS implements listener.
func (l webListener) TLS() bool { return l.tls }

// Addr implements listener.
func (l webListener) Addr() net.Addr { return l.socket.Addr() }

// Leave implements listener. It does nothing: /readyz and the end of connections follow the App's
// own context.
func (l webListener) Leave() {}

// Shutdown implements listener.
func (l webListener) Shutdown(ctx context.Context) error { return l.server.Shutdown(ctx) }

// Serve implements listener.
func (l webListener) Serve() error {
	if l.tls {
		return l.server.ServeTLS(l.socket, "", "")
	}
	return l.server.Serve(l.socket)
}

// Close implements listener.
func (l webListener) Close() error {
	err := l.server.Close()
	if e := l.socket.Close(); e != nil && !errors.Is(e, net.ErrClosed) {
		err = errors.Join(err, e)
	}
	return err
}

// Addr returns the address where the control plane listens for people, and for nodes if they have
// no address of their own.
func (a *App) Addr() net.Addr { return a.listeners[0].Addr() }

// Run serves until ctx ends and, while it drains, for as long as the settings say. Then it lets
// requests in flight finish, answers long polls, saves and closes everything. It returns nil after
// an orderly end. If atOnce ends, Run waits for no caller any more.
func (a *App) Run(ctx, atOnce context.Context) error {
	// Follow the store, the other regions and the tokens file.
	var followers sync.WaitGroup
	following, stopFollowing := context.WithCancel(context.Background())
	a.findNeighbour(ctx, a.store)
	followers.Go(func() { a.meetOthers(following) })
	followers.Go(func() { a.hub.Run(following) })
	if a.regions != nil {
		followers.Go(func() { a.regions.Run(following) })
	}
	if a.watch != nil {
		followers.Go(func() { a.watch.Run(following, a.clock.Now) })
	}
	// Wait for the store before anything is served.
	a.awaitStore(ctx)
	if a.files != nil {
		followers.Go(func() { a.files.Run(following) })
	}
	for _, look := range a.looks {
		if err := look(); err != nil {
			a.log.Warn("cannot decide calls yet: the store has not been read", "error", err.Error())
		}
	}
	for _, run := range a.followers {
		followers.Go(func() { run(following) })
	}
	// Serve until ctx ends or a listener fails.
	failed := make(chan error, len(a.listeners))
	for _, l := range a.listeners {
		go func() { failed <- l.Serve() }()
		a.log.Info("listening", "address", l.Addr().String(), "for", l.Name(), "tls", l.TLS())
	}
	if err := notifySystemd(); err != nil {
		a.log.Warn(err.Error())
	}
	var err error
	select {
	case <-ctx.Done():
		err = a.drain(atOnce, failed)
		a.log.Info("shutting down")
		a.stop()
		err = errors.Join(err, a.finishRequests(atOnce))
	case err = <-failed:
	}
	stopFollowing()
	followers.Wait()
	return errors.Join(err, a.Close())
}

// awaitStore waits for the first look at the store. Calls that come meanwhile wait in the
// listener's queue: an answer that the store is not known yet would be a lost call to the Envoy
// that still counts on this replica.
func (a *App) awaitStore(ctx context.Context) {
	patience := time.NewTimer(lookTime)
	defer patience.Stop()
	select {
	case <-a.hub.Looked():
	case <-patience.C:
	case <-ctx.Done():
	}
}

// drain goes on serving while /readyz says no, so that callers can leave before the end.
func (a *App) drain(atOnce context.Context, failed <-chan error) error {
	a.leave()
	for _, l := range a.listeners {
		l.Leave()
	}
	if a.drainTime == 0 {
		return nil
	}
	a.log.Info("draining: /readyz answers no, all other requests are served until callers have left",
		"for", a.drainTime.String())
	over := time.NewTimer(a.drainTime)
	defer over.Stop()
	select {
	case <-over.C:
	case <-atOnce.Done():
		a.log.Info("the drain ends early")
	case err := <-failed:
		return err
	}
	return nil
}

// finishRequests lets the requests in flight at all listeners finish, unless atOnce ends.
func (a *App) finishRequests(atOnce context.Context) error {
	ctx, cancel := context.WithTimeout(context.Background(), finishTime)
	defer cancel()
	defer context.AfterFunc(atOnce, cancel)()
	ends := make([]error, len(a.listeners))
	var ending sync.WaitGroup
	for i, l := range a.listeners {
		ending.Go(func() { ends[i] = l.Shutdown(ctx) })
	}
	ending.Wait()
	if atOnce.Err() != nil {
		return nil // The caller wanted to cut off requests.
	}
	return errors.Join(ends...)
}

// Close stops the parts that Run did not stop, and closes the store. It may be called more than
// once.
func (a *App) Close() error {
	a.once.Do(func() {
		a.stop()
		var err error
		for _, l := range a.listeners {
			err = errors.Join(err, l.Close())
		}
		if a.document != nil {
			err = errors.Join(err, a.document.Close())
		}
		ctx, cancel := context.WithTimeout(context.Background(), sendingTime)
		defer cancel()
		if e := a.tracing.Stop(ctx); e != nil { // The collector is away; nothing of the control plane's is lost.
			a.log.Warn("cannot send the last spans", "error", e.Error())
		}
		a.closeErr = errors.Join(err, a.store.Close())
	})
	return a.closeErr
}
