package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/weir-proxy/weir/controlplane/internal/app"
	"github.com/weir-proxy/weir/controlplane/internal/settings"
)

type serveCommand struct {
	settings.Flags
}

// Help is shown below the flags.
func (serveCommand) Help() string {
	return `The administrator's and the nodes' tokens may also be given as WEIR_ADMIN_TOKEN and WEIR_NODE_TOKEN.

/healthz, /readyz, /version and /metrics are open to whoever reaches the address; everything else needs a token.`
}

// Run serves until SIGINT or SIGTERM.
func (c *serveCommand) Run(env *environment) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(env.Err, &slog.HandlerOptions{Level: level}))
	if c.LogFormat == "text" {
		log = slog.New(slog.NewTextHandler(env.Err, &slog.HandlerOptions{Level: level}))
	}
	c.AdminToken, c.NodeToken = os.Getenv("WEIR_ADMIN_TOKEN"), os.Getenv("WEIR_NODE_TOKEN")
	s, err := c.Resolve()
	if err != nil {
		fmt.Fprintf(env.Err, "weir serve: the settings are refused:\n  %s\n", strings.ReplaceAll(err.Error(), "\n", "\n  "))
		return errReported
	}
	for _, path := range s.Generated {
		log.Info("no token was given, so one was made", "file", path)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	a, err := app.New(s, env.version, log)
	if err != nil {
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%w: choose another address with --listen", err)
		}
		return err
	}
	context.AfterFunc(ctx, stop) // A second signal ends the process at once.
	return a.Run(ctx)
}
