// Package settings turns the operator's flags and environment into valid settings of the control
// plane, and reports all mistakes in them at once.
package settings

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weir-proxy/weir/controlplane/internal/access/auth"
)

// Flags are the operator's flags. Each can also be set in the environment.
type Flags struct {
	Listen           string        `help:"Address to listen on." default:"127.0.0.1:8080" env:"WEIR_LISTEN" placeholder:"HOST:PORT"`
	RedisURL         string        `help:"Redis for all state, redis:// or rediss://. The default is the embedded store in the data directory." env:"WEIR_REDIS_URL" name:"redis-url" placeholder:"URL"`
	LostFill         int64         `help:"The tokens that a bucket starts with after the store has lost its state, in percent of its burst: 0 to 100." default:"50" env:"WEIR_LOST_FILL" placeholder:"PERCENT"`
	DataDir          string        `help:"Directory for the embedded store and generated tokens; weir in the user's state directory by default." env:"WEIR_DATA_DIR" placeholder:"DIR"`
	AdminTokenFile   string        `help:"File with the administrator's token. Without it and WEIR_ADMIN_TOKEN a new token is made in the data directory." env:"WEIR_ADMIN_TOKEN_FILE" placeholder:"FILE"`
	NodeTokenFile    string        `help:"File with the token of the Envoys. Without it and WEIR_NODE_TOKEN a new token is made in the data directory." env:"WEIR_NODE_TOKEN_FILE" placeholder:"FILE"`
	TokensFile       string        `help:"File with further tokens, one on each line as weir token new prints it. It is read again when it changes." env:"WEIR_TOKENS_FILE" placeholder:"FILE"`
	PolicySet        string        `help:"File or folder with the policy set, which is then changed only there. It is read again when it changes; the files of a folder make one set." env:"WEIR_POLICYSET" name:"policyset" placeholder:"PATH"`
	PolicySetNodes   string        `help:"Share of the nodes that gets a changed set of --policyset first, until weir rollout promote: 1% to 99%." env:"WEIR_POLICYSET_NODES" name:"policyset-nodes" placeholder:"PERCENT"`
	StorePatience    time.Duration `help:"The longest wait of a grant of tokens for a distant Redis: at most 1s. The wait is three measured round trips, and at least 40ms." default:"250ms" env:"WEIR_STORE_PATIENCE" placeholder:"DURATION"`
	PolicySetRemoves string        `help:"Share of the policies in force that a change of the files of --policyset may remove; a change that removes more is not put into force. Removing a single policy is always allowed." default:"25%" env:"WEIR_POLICYSET_REMOVES" name:"policyset-removes" placeholder:"PERCENT"`
	RedisMayEvict    bool          `help:"Start although Redis may evict important state when its memory is full." env:"WEIR_REDIS_MAY_EVICT" name:"redis-may-evict"`
	RegionFlags      `embed:"" prefix:"region-"`
	ListenFlags      `embed:""`
	LimitFlags       `embed:""`
	OTLPEndpoint     string        `help:"Collector of traces with OTLP over HTTP. The OTEL_ variables of the environment are used too; if none is set, nothing is traced." env:"WEIR_OTLP_ENDPOINT" name:"otlp-endpoint" placeholder:"URL"`
	DashboardURL     string        `help:"Target of the console's link to a dashboard of metrics, like http://grafana:3000/d/weir; without it there is no link. The control plane itself never calls it." env:"WEIR_DASHBOARD_URL" name:"dashboard-url" placeholder:"URL"`
	Drain            time.Duration `help:"The time that requests are still served after SIGTERM while /readyz answers no, so that callers leave before the end: at most 5m." default:"0s" env:"WEIR_DRAIN" placeholder:"DURATION"`
	LogLevel         string        `help:"Least severe log messages to write: debug, info, warn, error." enum:"debug,info,warn,error" default:"info" env:"WEIR_LOG_LEVEL"`
	LogFormat        string        `help:"How log messages are written: json or text." enum:"json,text" default:"json" env:"WEIR_LOG_FORMAT"`

	// The tokens themselves come through the environment only: arguments can be read by everyone on
	// the machine.
	AdminToken string `kong:"-"`
	NodeToken  string `kong:"-"`
}

// Settings are the valid settings of a control plane.
type Settings struct {
	// Listen is host:port; with port 0 the system chooses a free port.
	Listen string
	// RedisURL is empty for the embedded store.
	RedisURL string
	// RedisMayEvict accepts a Redis that may evict state that cannot be lost.
	RedisMayEvict bool
	// LostFill is the share of its burst, in percent, with which a bucket starts whose state the
	// store has lost: 0 to 100.
	LostFill int64
	// StorePatience is the longest time that a grant waits for a store that is far away.
	StorePatience time.Duration
	// DataDir exists; it is empty if nothing is kept in files.
	DataDir string
	// Tokens are fixed. The tokens of TokensFile, if it is not empty, change with the file.
	Tokens     auth.Tokens
	TokensFile string
	// PolicySet is a file or folder that exists; empty if the policy set is changed by requests.
	// PolicySetNodes is the share of the nodes, in percent, that get a changed set first; 0
	// is all.
	// PolicySetRemoves is the share of the policies, in percent, that a changed set may remove.
	PolicySet                        string
	PolicySetNodes, PolicySetRemoves int
	Listeners                        Listeners
	Limits                           Limits
	// Drain is the time that requests are still served after the signal to end, while /readyz says
	// no.
	Drain time.Duration
	// OTLPEndpoint is an endpoint for traces beside the endpoints of OTEL_ variables; empty is
	// none.
	OTLPEndpoint string
	// DashboardURL is the target of the console's link to a dashboard; empty is no link.
	DashboardURL string
	// Regions has the region and the weights of all regions; nil for a single group of control
	// planes.
	Regions *Regions
	// Made are tokens that are not kept yet.
	Made []Made
}

// maxDrain is the longest drain. Kubernetes and other programs that end processes are seldom more
// patient.
const maxDrain = 5 * time.Minute

// mostPatience is the longest wait for a store. Envoy awaits a late answer for longer.
const mostPatience = time.Second

// minTokenLength keeps out tokens that can be guessed.
const minTokenLength = 16

// Resolve checks the flags, reads token files and makes tokens that are missing, without keeping
// them. The error lists every problem, one a line.
func (f Flags) Resolve() (Settings, error) {
	r := &resolver{}
	s := Settings{
		Listen: f.Listen, RedisURL: f.RedisURL, RedisMayEvict: f.RedisMayEvict,
		LostFill: f.LostFill, StorePatience: f.StorePatience,
		TokensFile:   f.TokensFile,
		OTLPEndpoint: f.OTLPEndpoint, DashboardURL: f.DashboardURL, Drain: f.Drain,
		Listeners: r.readListeners(f.ListenFlags), Limits: r.readLimits(f.LimitFlags),
	}
	if f.LostFill < 0 || f.LostFill > 100 {
		r.addProblem("--lost-fill (WEIR_LOST_FILL): %d is not a share from 0 to 100 percent", f.LostFill)
	}
	if f.StorePatience < 0 || f.StorePatience > mostPatience {
		r.addProblem("--store-patience (WEIR_STORE_PATIENCE): %s is not from 0s to %s", f.StorePatience, mostPatience)
	}
	if f.Drain < 0 || f.Drain > maxDrain {
		r.addProblem("--drain (WEIR_DRAIN): %s is not from 0s to %s", f.Drain, maxDrain)
	}
	r.checkAddress("--listen (WEIR_LISTEN)", f.Listen)
	r.checkRedis("--redis-url (WEIR_REDIS_URL)", f.RedisURL)
	r.checkEndpoint(f.OTLPEndpoint)
	r.checkDashboard(f.DashboardURL)
	s.Regions = r.readRegions(f.RegionFlags)
	s.PolicySet, s.PolicySetNodes = r.policySet(f)
	s.PolicySetRemoves = r.readRemoves(f.PolicySetRemoves)
	admin, node := f.AdminToken+f.AdminTokenFile != "", f.NodeToken+f.NodeTokenFile != ""
	missing := r.rolesWithoutToken(f.TokensFile, map[auth.Role]bool{auth.Admin: !admin, auth.Node: !node})
	// With all state in Redis and all tokens given, nothing is kept in files.
	if f.DataDir != "" || f.RedisURL == "" || len(missing) > 0 {
		s.DataDir = r.makeDirectory(f.DataDir)
	}
	if admin || missing[auth.Admin] {
		r.addToken(&s, auth.Admin, f.AdminToken, f.AdminTokenFile)
	}
	if node || missing[auth.Node] {
		r.addToken(&s, auth.Node, f.NodeToken, f.NodeTokenFile)
	}
	return s, errors.Join(r.problems...)
}

type resolver struct{ problems []error }

func (r *resolver) addProblem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Errorf(format, args...))
}

func (r *resolver) checkAddress(flag, listen string) (host string) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		r.addProblem("%s: %q is not HOST:PORT", flag, listen)
	}
	return host
}

// policySet checks that the policy set exists. Its content may be mended while everything else is
// served.
func (r *resolver) policySet(f Flags) (path string, nodes int) {
	if f.PolicySet != "" {
		if _, err := os.Stat(f.PolicySet); err != nil {
			r.addProblem("--policyset (WEIR_POLICYSET): %w", err)
		}
	}
	if f.PolicySetNodes == "" {
		return f.PolicySet, 0
	}
	nodes, err := strconv.Atoi(strings.TrimSuffix(f.PolicySetNodes, "%")) // As weir apply --nodes takes it.
	if err != nil || nodes < 1 || nodes > 99 {
		r.addProblem("--policyset-nodes (WEIR_POLICYSET_NODES): %q is not from 1%% to 99%%", f.PolicySetNodes)
	}
	if f.PolicySet == "" {
		r.addProblem("--policyset-nodes (WEIR_POLICYSET_NODES) is for --policyset, which is not given")
	}
	return f.PolicySet, nodes
}

// defaultRemoves is the share of the policies, in percent, that files may remove by default.
const defaultRemoves = 25

// readRemoves reads the share of the policies that files may remove.
func (r *resolver) readRemoves(text string) int {
	if text == "" {
		return defaultRemoves
	}
	share, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
	if err != nil || share < 0 || share > 100 {
		r.addProblem("--policyset-removes (WEIR_POLICYSET_REMOVES): %q is not from 0%% to 100%%", text)
	}
	return share
}

// checkEndpoint checks the endpoint for traces. The error does not show the text, which may have a
// password.
func (r *resolver) checkEndpoint(text string) {
	if text == "" {
		return
	}
	if u, err := url.Parse(text); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		r.addProblem("--otlp-endpoint (WEIR_OTLP_ENDPOINT): must be like http://HOST:4318")
	}
}

// checkDashboard checks that a browser may follow the link from a page: it must be no script, and
// have no password, which every viewer would see.
func (r *resolver) checkDashboard(text string) {
	if text == "" {
		return
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		r.addProblem("--dashboard-url (WEIR_DASHBOARD_URL): must be like https://HOST/d/weir, without a password")
	}
}

// checkRedis checks a URL of Redis. The error does not show the text, which may have a password.
func (r *resolver) checkRedis(flag, text string) {
	if text == "" {
		return
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Scheme != "redis" && u.Scheme != "rediss" {
		r.addProblem("%s: must be like redis://HOST:6379/0 or rediss://USER:PASSWORD@HOST:6379/0", flag)
	}
}

// makeDirectory makes the data directory.
func (r *resolver) makeDirectory(dir string) string {
	if dir == "" {
		state := os.Getenv("XDG_STATE_HOME")
		if home, err := os.UserHomeDir(); state == "" && err == nil {
			state = filepath.Join(home, ".local", "state")
		}
		if state == "" {
			r.addProblem("--data-dir (WEIR_DATA_DIR): must be given, because there is no home directory")
			return ""
		}
		dir = filepath.Join(state, "weir")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		r.addProblem("--data-dir (WEIR_DATA_DIR): %w", err)
		return ""
	}
	return dir
}

// addToken takes the role's token from the environment, a file, or a file of its own making in the
// data directory.
func (r *resolver) addToken(s *Settings, role auth.Role, given, path string) {
	flag := fmt.Sprintf("--%s-token-file (WEIR_%s_TOKEN_FILE)", role, strings.ToUpper(string(role)))
	switch {
	case given != "" && path != "":
		r.addProblem("WEIR_%s_TOKEN and %s are both given: leave out one of the two",
			strings.ToUpper(string(role)), flag)
		return
	case given != "":
		flag = fmt.Sprintf("WEIR_%s_TOKEN", strings.ToUpper(string(role)))
	case path != "":
		text, err := readToken(path)
		if err != nil {
			r.addProblem("%s: %w", flag, err)
			return
		}
		given = text
	case s.DataDir == "":
		return // A problem already.
	default:
		path = filepath.Join(s.DataDir, string(role)+"-token")
		text, made, err := keptToken(path)
		if err != nil {
			r.addProblem("a token for the role %s cannot be made: %w", role, err)
			return
		}
		given = text
		if made {
			s.Made = append(s.Made, Made{path, text})
		}
	}
	if reason := weaknessOf(given); reason != "" {
		r.addProblem("%s: the token %s", flag, reason)
		return
	}
	s.Tokens = append(s.Tokens, auth.Token{Name: string(role), Role: role, Sum: auth.Sum(given)})
}

// weaknessOf returns the weakness of a token's text; empty if it has none.
func weaknessOf(text string) string {
	if len(text) < minTokenLength {
		return fmt.Sprintf("has %d characters; at least %d are needed: openssl rand -hex 32 makes a good token",
			len(text), minTokenLength)
	}
	for _, c := range []byte(text) {
		if c <= ' ' || c > '~' {
			return "holds a character that an HTTP header cannot carry"
		}
	}
	return ""
}
