package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/weir-proxy/weir/controlplane/internal/access/certs"
)

// Time-outs of connections to Redis; contexts of callers are usually shorter. They are variables
// because the package's tests set longer times: a test must pass also on a machine where Redis
// waits a second for a processor.
var (
	dialTimeout = 500 * time.Millisecond
	ioTimeout   = time.Second
	poolTimeout = 200 * time.Millisecond
)

const (
	redisPort    = "6379"
	sentinelPort = "26379"
)

// defaultOptions returns the options of every kind of client that no URL changes.
func defaultOptions() *redis.UniversalOptions {
	return &redis.UniversalOptions{
		// After a time-out the script may have run. To run it again would charge twice. See also
		// once.
		MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: dialTimeout, DialerRetries: 1,
		ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, PoolTimeout: poolTimeout,
		// The client's own extras need rights that the store does not need.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// topologyAge is the maximum age of a cluster client's map of slots. Without it the client would
// not find the successor of a dead primary: go-redis reloads the map at once only if a live server
// answers that a slot has moved.
const topologyAge = time.Second

// clusterPool is the least size of a connection pool to a cluster's server, unless the URL sets a
// size. A request with buckets of all tags needs one connection for each tag of the server at once;
// the default of go-redis depends on the number of processors.
const clusterPool = tagCount / 2

// newClient makes the client for a URL.
func (l *location) newClient() redis.UniversalClient {
	if !l.cluster {
		return l.addHooks(redis.NewClient(l.serverOptions()))
	}
	options := l.options.Cluster()
	options.ClusterStateReloadInterval = topologyAge
	if options.PoolSize == 0 {
		options.PoolSize = max(clusterPool, 5*runtime.GOMAXPROCS(0))
	}
	options.NewClient = func(o *redis.Options) *redis.Client { return l.addHooks(redis.NewClient(o)) }
	return redis.NewClusterClient(options)
}

// addHooks adds the hooks to the client of one server. Hooks of a whole cluster's client would miss
// calls that go to one server only.
func (l *location) addHooks(client *redis.Client) *redis.Client {
	client.AddHook(patient{byTLS: l.options.TLSConfig != nil})
	if l.names != nil {
		client.AddHook(l.names)
	}
	if l.prefix != "" {
		client.AddHook(prefixed{l.prefix})
	}
	return client
}

// serverOptions returns the options for the client of one server.
func (l *location) serverOptions() *redis.Options {
	o := l.options.Simple()
	if l.sentinels != nil {
		o.Addr, o.Dialer = l.sentinels.name, l.sentinels.dial
	}
	return o
}

// location holds the parsed URL, beside the client's options.
type location struct {
	options                   *redis.UniversalOptions
	cluster                   bool
	passwordFile              string
	ca, cert, key, serverName string
	// The contents of the files above; nil without the file.
	password    *certs.Secret
	authorities *certs.Pool
	pair        *certs.Pair
	log         *slog.Logger
	// prefix begins all keys; empty for the default prefix.
	prefix string
	// sentinels follow the primary; nil if the URL names no Sentinels.
	sentinels *sentinels
	// names follow the addresses of server names; nil with Sentinels, which name the primary.
	names *names
}

// parseLocation parses the URL in the form that Open describes. Its errors never contain a value of
// the URL, because the value might be a password.
func parseLocation(text string) (*location, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "redis" && u.Scheme != "rediss" {
		return nil, errors.New("the Redis URL must be like redis://HOST:6379/0 or rediss://USER:PASSWORD@HOST:6379/0")
	}
	parameters, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("the parameters of the Redis URL cannot be read: " +
			"they must be like ?NAME=VALUE&NAME=VALUE")
	}
	l := &location{options: defaultOptions(), log: slog.New(slog.DiscardHandler)}
	l.options.Dialer = l.newDialer(dialTimeout)
	l.options.Username = u.User.Username()
	l.options.Password, _ = u.User.Password()
	l.options.Addrs = []string{u.Host} // The first address; parameters add more.
	for name, values := range parameters {
		for _, value := range values {
			if err := l.setParameter(name, value); err != nil {
				return nil, err
			}
		}
	}
	if u.Port() == "" {
		port := redisPort
		if l.options.MasterName != "" {
			port = sentinelPort
		}
		l.options.Addrs[0] = net.JoinHostPort(u.Hostname(), port)
	}
	if db := strings.Trim(u.Path, "/"); db != "" {
		l.options.DB, err = strconv.Atoi(db)
		if err != nil || l.options.DB < 0 {
			return nil, errors.New("the path of the Redis URL must be the number of a database, like /0")
		}
	}
	return l, l.checkParts(u.Scheme == "rediss")
}

// setParameter sets one parameter of the URL.
func (l *location) setParameter(name, value string) error {
	var err error
	switch o := l.options; name {
	// The servers.
	case "addr":
		host, port, wrong := net.SplitHostPort(value)
		if wrong != nil || host == "" || port == "" {
			return errors.New("the Redis URL's parameter addr must be HOST:PORT")
		}
		o.Addrs = append(o.Addrs, value)
	case "cluster":
		l.cluster, err = strconv.ParseBool(value)
	case "master_name":
		o.MasterName = value
	// The passwords and the files.
	case "sentinel_username":
		o.SentinelUsername = value
	case "sentinel_password":
		o.SentinelPassword = value
	case "password_file":
		l.passwordFile = value
	case "ca_file":
		l.ca = value
	case "cert_file":
		l.cert = value
	case "key_file":
		l.key = value
	case "server_name":
		l.serverName = value
	// The keys and the connections.
	case "prefix":
		if !sanePrefix.MatchString(value) {
			return errPrefix
		}
		l.prefix = value
	case "pool_size":
		o.PoolSize, err = strconv.Atoi(value)
	default:
		return fmt.Errorf("the Redis URL has an unknown parameter %q", name)
	}
	if err != nil {
		return fmt.Errorf("the value of the Redis URL's parameter %s cannot be read", name)
	}
	return nil
}

// checkParts checks parts of the URL against each other, and loads the files.
func (l *location) checkParts(secure bool) error {
	o := l.options
	// Decide whether this is a cluster.
	sentinel := o.MasterName != ""
	switch {
	case l.cluster && sentinel:
		return errors.New("the Redis URL has cluster and master_name: Sentinels do not watch a Redis Cluster")
	case !sentinel && len(o.Addrs) > 1:
		l.cluster = true
	}
	if l.cluster && o.DB != 0 {
		return errors.New("the Redis URL names a database, but a Redis Cluster has none but 0")
	}
	// The password comes from the URL or from a file, which is read again when it changes.
	if l.passwordFile != "" {
		if o.Password != "" {
			return errors.New("the Redis URL has a password and password_file: leave out one of the two")
		}
		var err error
		if l.password, err = certs.LoadSecret(l.passwordFile); err != nil {
			return fmt.Errorf("password_file of the Redis URL: %w", err)
		}
		user := o.Username
		o.CredentialsProviderContext = func(context.Context) (string, string, error) {
			return user, l.password.Current(l.log), nil
		}
	}
	// Without TLS no parameter of TLS is allowed.
	if !secure {
		if l.ca+l.cert+l.key+l.serverName != "" {
			return errors.New("ca_file, cert_file, key_file and server_name are for Redis URLs " +
				"that start with rediss://")
		}
		return nil
	}
	return l.setTLS()
}

// setTLS makes all connections use TLS. Each server must have a certificate for the host that is
// called, or for server_name.
func (l *location) setTLS() error {
	l.options.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: l.serverName}
	var err error
	if l.ca != "" {
		if l.authorities, err = certs.LoadRight(l.ca); err != nil {
			return fmt.Errorf("ca_file of the Redis URL: %w", err)
		}
	}
	if (l.cert == "") != (l.key == "") {
		return errors.New("cert_file and key_file of the Redis URL are given together or not at all")
	}
	if l.cert != "" {
		if l.pair, err = certs.Load(l.cert, l.key); err != nil {
			return fmt.Errorf("cert_file and key_file of the Redis URL: %w", err)
		}
	}
	return nil
}

// newDialer returns a function that makes connections. Each connection uses the current contents of
// the TLS files, so the files can be renewed while the process runs.
func (l *location) newDialer(timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		config := l.options.TLSConfig
		if config != nil {
			config = config.Clone()
			if l.authorities != nil {
				config.RootCAs = l.authorities.Current(l.log)
			}
			if l.pair != nil {
				config.Certificates = []tls.Certificate{*l.pair.Current(l.log)}
			}
		}
		return redis.NewDialer(&redis.Options{DialTimeout: timeout, TLSConfig: config})(ctx, network, addr)
	}
}

// WrongFiles returns the problems with the files of the URL's parameters, by the name of the
// parameter. A problem never quotes a file's contents.
func (s *Store) WrongFiles() map[string]string {
	wrong := map[string]string{}
	note := func(briefs []string, parameters ...string) {
		for i, brief := range briefs {
			if brief != "" {
				wrong[parameters[i]] = brief
			}
		}
	}
	l := s.at
	if l.password != nil {
		note(l.password.Brief(s.log), "password_file")
	}
	if l.authorities != nil {
		note(l.authorities.Brief(s.log), "ca_file")
	}
	if l.pair != nil {
		note(l.pair.Brief(s.log), "cert_file", "key_file")
	}
	return wrong
}
