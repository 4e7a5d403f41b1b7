// Package demo runs Weir on one machine to try it out: Envoy with the filter, the control plane and
// a small upstream, until a signal ends them. `weir demo` and `make run` are this package.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// Files of the tree.
const (
	envoyConfigFile = "envoy.yaml"
	exampleFile     = "examples/url-shortener.yaml"
)

// nodeID is the name of the demo's Envoy.
const nodeID = "envoy-1"

// startLimit bounds how long each part may take to come up.
const startLimit = 30 * time.Second

// parts is everything that runs.
type parts struct {
	Options

	// program is the path of weir itself.
	program string
	// tokenFile is the file in which the command line looks for its token.
	tokenFile string
	// complaints takes warnings.
	complaints io.Writer

	log          *os.File
	upstream     *stack.Upstream
	controlPlane *stack.ControlPlane
	envoy        *stack.Envoy
	adminToken   string
	token        storedToken
}

// Run starts everything, says so on out, and stops everything when ctx ends or a part dies.
// complaints takes warnings.
func Run(ctx context.Context, o Options, out, complaints io.Writer) error {
	p, err := findParts(ctx, o, complaints)
	if err != nil {
		return err
	}
	// Make the folder, and keep others out of it.
	if p.Dir == "" {
		if p.Dir, err = os.MkdirTemp("", "weir-demo-"); err != nil {
			return err
		}
		defer os.RemoveAll(p.Dir)
	}
	unlock, err := claimFolder(p.Dir)
	if err != nil {
		return err
	}
	defer unlock()
	// Start the processes.
	defer p.stopAll()
	if err := p.startAll(ctx); err != nil {
		return err
	}
	// Store the token only now: a demo that does not come up takes nothing from another demo.
	p.token, err = storeToken(p.tokenFile, p.adminToken)
	if err != nil {
		return err
	}
	defer p.token.putBack()
	fmt.Fprint(out, p.welcomeText())
	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "\nStopping.")
		return nil
	case <-p.envoy.Done():
		return p.envoy.Err()
	case <-p.controlPlane.Done():
		return p.controlPlane.Err()
	}
}

// findParts checks the options and finds the programs.
func findParts(ctx context.Context, o Options, complaints io.Writer) (*parts, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find the program weir itself: %w", err)
	}
	if o.Filter, err = o.findFilter(program); err != nil {
		return nil, err
	}
	if o.Envoy, err = o.findEnvoy(ctx, complaints); err != nil {
		return nil, err
	}
	if err := o.checkPorts(); err != nil {
		return nil, err
	}
	tokenFile, err := tokenPath()
	if err != nil {
		return nil, err
	}
	return &parts{Options: o, program: program, tokenFile: tokenFile, complaints: complaints}, nil
}

// claimFolder makes the folder and keeps a second demo out of it. The first step of a second demo
// would remove the state of this demo.
func claimFolder(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		owner, _ := io.ReadAll(file)
		file.Close()
		return nil, fmt.Errorf("another weir demo, process %s, works in %s; end it, or use another folder and other "+
			"ports: see weir demo --help", owner, dir)
	}
	err = errors.Join(file.Truncate(0), writeAt(file, fmt.Sprint(os.Getpid())))
	return func() { file.Close() }, err
}

func writeAt(file *os.File, text string) error {
	_, err := file.WriteAt([]byte(text), 0)
	return err
}

func (p *parts) startAll(ctx context.Context) error {
	if err := p.prepareFiles(); err != nil {
		return err
	}
	nodeToken := newToken()
	var err error
	p.upstream, err = stack.StartUpstream(nil)
	if err != nil {
		return err
	}
	if err := p.startControlPlane(ctx, nodeToken); err != nil {
		return err
	}
	return p.startEnvoy(ctx, nodeToken)
}

// prepareFiles makes the folders, the example and the token.
func (p *parts) prepareFiles() error {
	// Make the folders.
	state := filepath.Join(p.Dir, "state")
	if !p.Keep {
		if err := os.RemoveAll(state); err != nil {
			return err
		}
	}
	for _, dir := range []string{state, filepath.Join(p.Dir, "envoy")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	// Write the example, where the user finds it, and the token.
	example, err := fs.ReadFile(p.Files, exampleFile)
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.examplePath(), example, 0o644); err != nil {
		return err
	}
	p.log, err = os.Create(p.logPath())
	if err != nil {
		return err
	}
	p.adminToken, err = adminToken(p.Dir, p.Keep)
	return err
}

func (p *parts) logPath() string { return filepath.Join(p.Dir, "log") }

func (p *parts) examplePath() string { return filepath.Join(p.Dir, filepath.Base(exampleFile)) }

func (p *parts) startControlPlane(ctx context.Context, nodeToken string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var err error
	p.controlPlane, err = stack.StartControlPlane(ctx, stack.ControlPlaneOptions{
		Binary: p.program, Port: p.ControlPlanePort, RedisURL: p.RedisURL,
		DataDir:    filepath.Join(p.Dir, "state"),
		AdminToken: p.adminToken, NodeToken: nodeToken, Log: p.log,
		Env:     []string{"WEIR_TOKENS_FILE=" + p.TokensFile, "WEIR_DASHBOARD_URL=" + p.DashboardURL},
		Waiting: func(why error) { fmt.Fprintln(p.complaints, "weir: the control plane is not ready yet:", why) },
	})
	if err != nil {
		return err
	}
	// With the state that was kept come the policies in it.
	if p.Keep {
		if has, err := p.controlPlane.HasPolicySet(ctx); has || err != nil {
			return err
		}
	}
	document, err := os.ReadFile(p.examplePath())
	if err != nil {
		return err
	}
	_, err = p.controlPlane.Apply(ctx, document)
	return err
}

func (p *parts) startEnvoy(ctx context.Context, nodeToken string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	config, err := fs.ReadFile(p.Files, envoyConfigFile)
	if err != nil {
		return err
	}
	p.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{
		Binary: p.Envoy, Config: string(config), Wasm: p.Filter, FilterHost: stack.FilterHost(p.Host),
		Dir:  filepath.Join(p.Dir, "envoy"),
		Port: p.EnvoyPort, AdminPort: p.AdminPort,
		UpstreamPort: p.upstream.Port, ControlPlanePort: p.controlPlane.Port,
		NodeID: nodeID, NodeToken: nodeToken, Out: p.log, Err: p.log,
	})
	if err != nil {
		return err
	}
	return p.controlPlane.AwaitApplied(ctx, 1, nodeID)
}

// stopAll ends the processes, callers before the processes that they call.
func (p *parts) stopAll() {
	if p.envoy != nil {
		p.envoy.Stop()
	}
	if p.controlPlane != nil {
		p.controlPlane.Stop()
	}
	if p.upstream != nil {
		p.upstream.Stop()
	}
	if p.log != nil {
		p.log.Close()
	}
}
