package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/weir-proxy/weir/tools/stack"
)

// Files that `make build` made, and the files beside them, relative to the repository's root.
const (
	controlPlanePath = "build/weir"
	filterPath       = "build/weir.wasm"
	envoyConfigPath  = "envoy.yaml"
	examplePath      = "examples/url-shortener.yaml"
	nodeID           = "envoy-1"
)

// startLimit bounds how long each part may take to come up.
const startLimit = 30 * time.Second

// parts is everything that runs.
type parts struct {
	settings

	log          *os.File
	upstream     *stack.Upstream
	controlPlane *stack.ControlPlane
	envoy        *stack.Envoy
	adminToken   string
	tokenStored  bool
}

// runAll starts everything, says so on out, and stops everything when ctx ends or a part dies.
func runAll(ctx context.Context, s settings, out io.Writer) error {
	unlock, err := claimFolder(s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.portsAreFree(); err != nil {
		return err
	}
	p := &parts{settings: s}
	defer p.stopAll()
	if err := p.startAll(ctx); err != nil {
		return err
	}
	// The token is stored only now: a run that does not come up takes nothing from another run.
	token, err := storeToken(p.tokenPath, p.adminToken)
	if err != nil {
		return err
	}
	defer token.putBack()
	p.tokenStored = token.stored
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

// claimFolder makes the folder and keeps a second run out of it. The first step of a second run
// would remove the state of this run.
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
		return nil, fmt.Errorf("another make run, process %s, works in %s; end it, or use another folder and other "+
			"ports: WEIR_RUN_DIR=… (see README.md)", owner, dir)
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

// prepareFiles makes the folders and the token.
func (p *parts) prepareFiles() error {
	state := filepath.Join(p.dir, "state")
	if !p.keep {
		if err := os.RemoveAll(state); err != nil {
			return err
		}
	}
	for _, dir := range []string{state, filepath.Join(p.dir, "envoy")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	var err error
	p.log, err = os.Create(p.logPath())
	if err != nil {
		return err
	}
	p.adminToken, err = adminToken(p.dir, p.keep)
	return err
}

func (p *parts) logPath() string { return filepath.Join(p.dir, "log") }

func (p *parts) startControlPlane(ctx context.Context, nodeToken string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	var err error
	p.controlPlane, err = stack.StartControlPlane(ctx, stack.ControlPlaneOptions{
		Binary: controlPlanePath, Port: p.settings.controlPlane.port, RedisURL: p.redisURL,
		DataDir:    filepath.Join(p.dir, "state"),
		AdminToken: p.adminToken, NodeToken: nodeToken, Log: p.log,
		Env:     []string{"WEIR_TOKENS_FILE=" + p.settings.tokensFile},
		Waiting: func(why error) { fmt.Fprintln(os.Stderr, "make run: the control plane is not ready yet:", why) },
	})
	if err != nil {
		return err
	}
	// With the state that was kept come the policies in it.
	if p.keep {
		if has, err := p.controlPlane.HasPolicySet(ctx); has || err != nil {
			return err
		}
	}
	document, err := os.ReadFile(examplePath)
	if err != nil {
		return fmt.Errorf("%w: run this in the repository's root", err)
	}
	_, err = p.controlPlane.Apply(ctx, document)
	return err
}

func (p *parts) startEnvoy(ctx context.Context, nodeToken string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	config, err := os.ReadFile(envoyConfigPath)
	if err != nil {
		return fmt.Errorf("%w: run this in the repository's root", err)
	}
	p.envoy, err = stack.StartEnvoy(ctx, stack.EnvoyOptions{
		Config: string(config), Wasm: filterPath, Dir: filepath.Join(p.dir, "envoy"),
		Port: p.settings.envoy.port, AdminPort: p.settings.admin.port,
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
