package settings

import (
	"net/netip"
	"strings"

	"github.com/weir-proxy/weir/controlplane/internal/access/certs"
)

// ListenFlags are the flags of all listeners beside --listen.
type ListenFlags struct {
	TLSCert      string `help:"Certificate in PEM, with its intermediate certificates: all listeners but --debug-listen then use TLS. Read again when it changes." env:"WEIR_TLS_CERT" name:"tls-cert" placeholder:"FILE"`
	TLSKey       string `help:"Key of the certificate in PEM." env:"WEIR_TLS_KEY" name:"tls-key" placeholder:"FILE"`
	NodeListen   string `help:"A separate address for the calls of Envoys: --listen then does not serve them." env:"WEIR_NODE_LISTEN" placeholder:"HOST:PORT"`
	NodeClientCA string `help:"Authorities in PEM: callers of --node-listen need a certificate of these authorities, beside the token. Read again when it changes." env:"WEIR_NODE_CLIENT_CA" name:"node-client-ca" placeholder:"FILE"`
	RLSListen    string `help:"Address for the gRPC rate limit service, which Envoy's own ratelimit filter calls." env:"WEIR_RLS_LISTEN" name:"rls-listen" placeholder:"HOST:PORT"`
	RLSClientCA  string `help:"Authorities in PEM: callers of --rls-listen need a certificate of these authorities, beside the token. Read again when it changes." env:"WEIR_RLS_CLIENT_CA" name:"rls-client-ca" placeholder:"FILE"`
	RLSOpen      bool   `help:"Serve --rls-listen without a token to every caller that can reach it." env:"WEIR_RLS_OPEN" name:"rls-open"`
	RLSMetadata  bool   `help:"Add dynamic metadata to answers of allowed calls too, for Envoy's access log. Refusals always have it." env:"WEIR_RLS_METADATA" name:"rls-metadata"`
	RLQSListen   string `help:"Address for the rate_limit_quota filters of Envoy, over gRPC." env:"WEIR_RLQS_LISTEN" name:"rlqs-listen" placeholder:"HOST:PORT"`
	RLQSClientCA string `help:"Authorities in PEM: callers of --rlqs-listen need a certificate of these authorities, beside the token. Read again when it changes." env:"WEIR_RLQS_CLIENT_CA" name:"rlqs-client-ca" placeholder:"FILE"`
	RLQSOpen     bool   `help:"Serve --rlqs-listen without a token to every caller that can reach it." env:"WEIR_RLQS_OPEN" name:"rlqs-open"`
	DebugListen  string `help:"Address on this machine for profiles (pprof) without a token, like 127.0.0.1:6060." env:"WEIR_DEBUG_LISTEN" placeholder:"HOST:PORT"`
}

// Listeners are valid addresses and certificates.
type Listeners struct {
	// TLS is the server's certificate; nil without TLS.
	TLS *certs.Pair
	// Node is host:port, empty if nodes use the same listener as all callers. NodeClients, if not
	// nil, must have issued the nodes' certificates.
	Node        string
	NodeClients *certs.Pool
	// RLS is host:port of the gRPC rate limit service, empty for none. RLSClients, if not nil, must
	// have issued its callers' certificates. RLSOpen is true if its callers need no token.
	RLS        string
	RLSClients *certs.Pool
	RLSOpen    bool
	// RLSMetadata is true if answers of allowed calls have dynamic metadata too.
	RLSMetadata bool
	// RLQS is the same for the rate limit quota service.
	RLQS        string
	RLQSClients *certs.Pool
	RLQSOpen    bool
	// Debug is host:port on the loopback; empty for none.
	Debug string
}

func (r *resolver) readListeners(f ListenFlags) (l Listeners) {
	// The certificate.
	switch {
	case (f.TLSCert == "") != (f.TLSKey == ""):
		r.addProblem("--tls-cert and --tls-key (WEIR_TLS_CERT, WEIR_TLS_KEY): give both or none")
	case f.TLSCert != "":
		var err error
		l.TLS, err = certs.Load(f.TLSCert, f.TLSKey)
		if err != nil {
			r.addProblem("--tls-cert and --tls-key (WEIR_TLS_CERT, WEIR_TLS_KEY): %w", err)
		}
	}
	// The listener for nodes.
	l.Node = f.NodeListen
	if l.Node != "" {
		r.checkAddress("--node-listen (WEIR_NODE_LISTEN)", l.Node)
	}
	if f.NodeClientCA != "" {
		if f.NodeListen == "" || f.TLSCert == "" {
			r.addProblem("--node-client-ca (WEIR_NODE_CLIENT_CA): needs --node-listen, --tls-cert and --tls-key")
		}
		var err error
		l.NodeClients, err = certs.LoadPool(f.NodeClientCA)
		if err != nil {
			r.addProblem("--node-client-ca (WEIR_NODE_CLIENT_CA): %w", err)
		}
	}
	// The listeners for Envoy's own limiters.
	l.RLS, l.RLSOpen, l.RLSMetadata = f.RLSListen, f.RLSOpen, f.RLSMetadata
	l.RLSClients = r.checkDoor("rls", f.RLSListen, f.RLSClientCA, f.RLSOpen, f.TLSCert)
	l.RLQS, l.RLQSOpen = f.RLQSListen, f.RLQSOpen
	l.RLQSClients = r.checkDoor("rlqs", f.RLQSListen, f.RLQSClientCA, f.RLQSOpen, f.TLSCert)
	// The listener for debugging, on this machine only.
	l.Debug = f.DebugListen
	if l.Debug != "" {
		host := r.checkAddress("--debug-listen (WEIR_DEBUG_LISTEN)", l.Debug)
		if address, err := netip.ParseAddr(host); err != nil || !address.IsLoopback() {
			r.addProblem("--debug-listen (WEIR_DEBUG_LISTEN): %q is not an address that only this machine reaches: "+
				"choose one like 127.0.0.1:6060", l.Debug)
		}
	}
	return l
}

// checkDoor checks how the gRPC service with a name is reached, and returns the authorities of its
// callers, nil for none.
func (r *resolver) checkDoor(name, address, clientCA string, open bool, cert string) *certs.Pool {
	flag, env := "--"+name, "WEIR_"+strings.ToUpper(name)
	if address == "" {
		if clientCA != "" || open {
			r.addProblem("%s-client-ca and %[1]s-open (%s_CLIENT_CA, %[2]s_OPEN): need %[1]s-listen", flag, env)
		}
		return nil
	}
	r.checkAddress(flag+"-listen ("+env+"_LISTEN)", address)
	if clientCA == "" {
		return nil
	}
	if cert == "" {
		r.addProblem("%s-client-ca (%s_CLIENT_CA): needs --tls-cert and --tls-key", flag, env)
	}
	pool, err := certs.LoadPool(clientCA)
	if err != nil {
		r.addProblem("%s-client-ca (%s_CLIENT_CA): %w", flag, env, err)
	}
	return pool
}

// LimitFlags bound the requests of callers to the control plane.
type LimitFlags struct {
	APIRate        int64    `help:"Requests a second to /v1 under the name of one token, with a burst of twice this number. 0 is no limit." default:"500" env:"WEIR_API_RATE" name:"api-rate" placeholder:"N"`
	NodeRate       int64    `help:"Requests a second of nodes at one address under the name of one token, with a burst of twice this number. 0 is no limit." default:"20000" env:"WEIR_NODE_RATE" placeholder:"N"`
	TrustedProxies []string `help:"Networks of the proxies before the control plane, like 10.0.0.0/8. Callers without a token are told apart by address; for requests from these proxies it is the address in x-forwarded-for." env:"WEIR_TRUSTED_PROXIES" name:"trusted-proxies" placeholder:"NETWORK"`
	MaxConnections int      `help:"The largest number of connections to one listener. A further connection closes the oldest connection without a valid token, or waits if there is none. 0 is no limit." default:"8192" env:"WEIR_MAX_CONNECTIONS" placeholder:"N"`
}

// Limits are valid: requests a second, 0 for no limit, and connections to each listener.
type Limits struct {
	API, Node   int64
	Connections int
	// Proxies are the networks of the proxies whose x-forwarded-for counts.
	Proxies []netip.Prefix
}

const maxLimit = 1_000_000

func (r *resolver) readLimits(f LimitFlags) Limits {
	for _, limit := range []struct {
		flag string
		n    int64
	}{
		{"--api-rate (WEIR_API_RATE)", f.APIRate}, {"--node-rate (WEIR_NODE_RATE)", f.NodeRate},
		{"--max-connections (WEIR_MAX_CONNECTIONS)", int64(f.MaxConnections)},
	} {
		if limit.n < 0 || limit.n > maxLimit {
			r.addProblem("%s: %d is not from 0 to %d", limit.flag, limit.n, maxLimit)
		}
	}
	l := Limits{API: f.APIRate, Node: f.NodeRate, Connections: f.MaxConnections}
	for _, text := range f.TrustedProxies {
		network, err := netip.ParsePrefix(text)
		if address, only := netip.ParseAddr(text); only == nil {
			network, err = netip.PrefixFrom(address, address.BitLen()), nil
		}
		if err != nil {
			r.addProblem("--trusted-proxies (WEIR_TRUSTED_PROXIES): %q is no network like 10.0.0.0/8", text)
		}
		l.Proxies = append(l.Proxies, network)
	}
	return l
}
