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

	"github.com/weir-proxy/weir/controlplane/internal/certs"
)

// Time-outs towards Redis; callers' contexts are usually shorter. They are variables because the
// package's tests wait longer: what these say of the state must also hold on a machine where Redis
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

// defaults are the options that no URL changes, for every kind of client.
func defaults() *redis.UniversalOptions {
	return &redis.UniversalOptions{
		// A script that timed out may have been run: to run it again would charge twice. See also
		// once.
		MaxRetries: -1, ContextTimeoutEnabled: true,
		DialTimeout: dialTimeout, DialerRetries: 1,
		ReadTimeout: ioTimeout, WriteTimeout: ioTimeout, PoolTimeout: poolTimeout,
		// What the client does by itself needs rights that the store does not.
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// topologyAge is how old a cluster client's knowledge of the slots may be. It is the only way to
// find the successor of a dead primary: go-redis asks again at once only if a live server says that
// a slot has moved.
const topologyAge = time.Second

// clusterPool is how many connections to a server of a cluster there may be at least, unless the
// URL says how many: a request with buckets of all tags needs one for each tag of the server at
// once, and go-redis' own number goes by processors.
const clusterPool = tagCount / 2

// client makes the client for a URL.
func (l *location) client() redis.UniversalClient {
	if !l.cluster {
		return l.hooked(redis.NewClient(l.simple()))
	}
	options := l.options.Cluster()
	options.ClusterStateReloadInterval = topologyAge
	if options.PoolSize == 0 {
		options.PoolSize = max(clusterPool, 5*runtime.GOMAXPROCS(0))
	}
	options.NewClient = func(o *redis.Options) *redis.Client { return l.hooked(redis.NewClient(o)) }
	return redis.NewClusterClient(options)
}

// hooked adds the hooks of each server's client. Those of a whole cluster would miss the calls that
// look at one server.
func (l *location) hooked(client *redis.Client) *redis.Client {
	client.AddHook(patient{byTLS: l.options.TLSConfig != nil})
	if l.names != nil {
		client.AddHook(l.names)
	}
	if l.prefix != "" {
		client.AddHook(prefixed{l.prefix})
	}
	return client
}

// simple are the options of a client of one server.
func (l *location) simple() *redis.Options {
	o := l.options.Simple()
	if l.sentinels != nil {
		o.Addr, o.Dialer = l.sentinels.name, l.sentinels.dial
	}
	return o
}

// location is what a URL says beside the client's options.
type location struct {
	options                   *redis.UniversalOptions
	cluster                   bool
	passwordFile              string
	ca, cert, key, serverName string
	// password, authorities and pair are what those files hold; nil without them.
	password    *certs.Secret
	authorities *certs.Pool
	pair        *certs.Pair
	log         *slog.Logger
	// prefix begins all keys; empty for the plain one.
	prefix string
	// sentinels follow the primary; nil without Sentinels.
	sentinels *sentinels
	// names follow where names of servers lead; nil where Sentinels say where the primary is.
	names *names
}

// locate reads a URL as Open describes it. Its errors never contain a value, which might be a
// password.
func locate(text string) (*location, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Scheme != "redis" && u.Scheme != "rediss" {
		return nil, errors.New("the Redis URL must be like redis://HOST:6379/0 or rediss://USER:PASSWORD@HOST:6379/0")
	}
	parameters, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("the parameters of the Redis URL cannot be read: " +
			"they must be like ?NAME=VALUE&NAME=VALUE")
	}
	l := &location{options: defaults(), log: slog.New(slog.DiscardHandler)}
	l.options.Dialer = l.dialer(dialTimeout)
	l.options.Username = u.User.Username()
	l.options.Password, _ = u.User.Password()
	l.options.Addrs = []string{u.Host} // The first, before those of parameters.
	for name, values := range parameters {
		for _, value := range values {
			if err := l.set(name, value); err != nil {
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
	return l, l.complete(u.Scheme == "rediss")
}

// set takes one parameter of the URL.
func (l *location) set(name, value string) error {
	var err error
	switch o := l.options; name {
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

// complete combines what several parts of the URL say.
func (l *location) complete(secure bool) error {
	o := l.options
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
	if l.passwordFile != "" {
		if o.Password != "" {
			return errors.New("the Redis URL has a password and password_file: choose one")
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
	if !secure {
		if l.ca+l.cert+l.key+l.serverName != "" {
			return errors.New("ca_file, cert_file, key_file and server_name are for Redis URLs " +
				"that start with rediss://")
		}
		return nil
	}
	return l.tls()
}

// tls has all connections use TLS. Each server must prove the name by which it was called, or
// server_name.
func (l *location) tls() error {
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

// dialer makes connections that use the files of TLS as they are then, so that they can be renewed
// while this runs.
func (l *location) dialer(timeout time.Duration) func(ctx context.Context, network, addr string) (net.Conn, error) {
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

// WrongFiles are the parameters of the URL whose files cannot be used as they are now, each with
// what is wrong, and nothing that stands in them.
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
