package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/weir-proxy/weir/tools/stack"
)

// settings are the values of the environment.
type settings struct {
	envoy, admin, controlPlane portSetting
	// keep the state of the last run.
	keep bool
	// redisURL, if not empty, is where the state is; otherwise it is in a file under dir.
	redisURL string
	// tokensFile, if not empty, holds further tokens, as weir token new prints them.
	tokensFile string
	// dir takes state, logs and configuration.
	dir string
	// tokenPath is where the command line looks for the token.
	tokenPath string
}

// portSetting is a port and the variable that changes it.
type portSetting struct {
	variable, user string
	port           int
}

func readSettings(getenv func(string) string) (settings, error) {
	s := settings{
		envoy:        portSetting{"WEIR_PORT_ENVOY", "Envoy", 10000},
		admin:        portSetting{"WEIR_PORT_ADMIN", "Envoy's administration", 9901},
		controlPlane: portSetting{"WEIR_PORT_CONTROL_PLANE", "the control plane", 8080},
		redisURL:     getenv("WEIR_REDIS_URL"),
		tokensFile:   getenv("WEIR_TOKENS_FILE"),
		dir:          ".run",
	}
	// Read the ports.
	for _, p := range []*portSetting{&s.envoy, &s.admin, &s.controlPlane} {
		if text := getenv(p.variable); text != "" {
			port, err := strconv.Atoi(text)
			if err != nil || port < 1 || port > 65535 {
				return s, fmt.Errorf("%s must be a port from 1 to 65535, not %q", p.variable, text)
			}
			p.port = port
		}
	}
	// Read whether the state stays, and the folders.
	switch text := getenv("KEEP"); text {
	case "", "0":
	case "1":
		s.keep = true
	default:
		return s, fmt.Errorf("KEEP must be 1 to keep the state of the last run, or 0, not %q", text)
	}
	if dir := getenv("WEIR_RUN_DIR"); dir != "" {
		s.dir = dir
	}
	config, err := os.UserConfigDir()
	if err != nil {
		return s, fmt.Errorf("there is no place for the admin token: %w; set HOME or XDG_CONFIG_HOME", err)
	}
	s.tokenPath = filepath.Join(config, "weir", "token")
	return s, nil
}

// portsAreFree returns an error that names every port that is in use.
func (s settings) portsAreFree() error {
	var taken []error
	for _, p := range []portSetting{s.envoy, s.admin, s.controlPlane} {
		if owner := stack.InUse(p.port); owner != "" {
			taken = append(taken, fmt.Errorf("port %d, which %s needs, is used by %s; end that, or choose another "+
				"port: %s=%d make run",
				p.port, p.user, owner, p.variable, p.port+1))
		}
	}
	return errors.Join(taken...)
}
